"""Syncs what Spark has written to a local disk.

Spark and Hadoop write and rename files without a sync. After a power cut such a file may be empty
or cut, or a rename undone, although the process went on for seconds. Who keeps a record that
survives the cut, and refers to a file, has to sync the file before it. Object stores have no such
gap.
"""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["sync_names_above", "sync_path", "sync_tree"]

_THREADS: Final = 8
"""Files synced at once: a disk takes several in one flush."""


def sync_path(path: str) -> None:
    """Make a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync no directories, but with the names in them.
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: str) -> None:
    """Make a folder with everything in it survive a power cut; not its own name."""
    found = [folder]
    for place, folders, files in os.walk(folder):
        found += [f"{place}/{name}" for name in (*folders, *files)]
    with ThreadPoolExecutor(_THREADS, "sync") as pool:
        list(pool.map(_sync_if_there, found))


def _sync_if_there(path: str) -> None:
    # A task of Spark that was given up may still delete what it wrote below `_temporary`.
    with suppress(FileNotFoundError):
        sync_path(path)


def sync_names_above(path: str) -> None:
    """Make the names of a path and of all folders above it survive a power cut."""
    for folder in Path(path).parents:
        try:
            sync_path(str(folder))
        except PermissionError:
            return  # one may be allowed to use a folder without being allowed to list its parent
