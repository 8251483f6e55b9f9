"""Keeps a large table of Arrow in a file without a name that is mapped into memory.

So the page cache holds what is used of it, and the process no more. The file has no name from the
start, so that nothing is left of it when the process ends, however it ends. Its space is given back
with the last reference to the table.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa

__all__ = ["mapped", "mapped_if_large"]

IN_MEMORY_MAX: Final = 4 << 20
"""A table with no more bytes needs no file."""


def mapped_if_large(table: pa.Table, folder: Path) -> pa.Table:
    """The same table; out of a file on the disk of `folder`, which is made, if it is large.

    Raises:
        OSError: As of `mapped`.
    """
    if table.nbytes <= IN_MEMORY_MAX:
        return table
    folder.mkdir(parents=True, exist_ok=True)
    return mapped(table, folder)


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
