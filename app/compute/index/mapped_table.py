"""A table of Arrow in a file without a name, mapped into memory: the page cache holds what is used.

The file has no name from the start, so that nothing is left of it when the process ends, however it
ends. Its space is given back with the last reference to the table.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import pyarrow as pa

__all__ = ["mapped"]


def mapped(table: pa.Table, folder: Path) -> pa.Table:
    """The same table, out of a file on the disk of `folder`; reading it copies nothing.

    Raises:
        OSError: The disk is full, or cannot be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_file(file, table.schema) as written:
            written.write_table(table)
        file.flush()
        # The mapping stays when the file is closed.
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_file(pa.py_buffer(view)).read_all()
