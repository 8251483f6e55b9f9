"""A working folder belongs to one benchmark at a time.

    with working_folder("data/bench") as folder: …

Each removes what the last one has left there, builds what is missing, and measures: two at once
would delete the files of each other, and measure each other. A lock of the operating system on a
file of the folder refuses the second one; it ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardline.datasource.errors import InvalidUsage

__all__ = ["working_folder"]

_LOCK: Final = "running"


@contextlib.contextmanager
def working_folder(name: str) -> Iterator[Path]:
    """The folder, made if it is missing, and this process's own within the block.

    Raises:
        InvalidUsage: Another benchmark works there.
    """
    folder = Path(name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise InvalidUsage(
                f"another benchmark works in '{folder}' (process {lock.read() or 'unknown'})",
                code="FOLDER_IN_USE",
                hint="wait until it has ended, or name another folder with --folder",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield folder
