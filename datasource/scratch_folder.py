"""Scratch folders belong to one process, and go when it has ended, however it did.

    folder = ScratchFolder("shardline-rows-")
    folder.path / "…"
    folder.remove()

A process removes its own. One that is killed cannot, and what it leaves in a folder that is in
memory takes that memory for ever. So each has a lock of the operating system, which ends with its
process, and whoever makes the next folder of a kind removes those that nobody holds any more.

Invariants:
    The folder of a process that lives stays: its lock has its name only once it is held.
    What has no lock, or is another user's, stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["ScratchFolder"]

_LOCK: Final = "lock"
_NOT_HELD_YET: Final = "lock.new"


class ScratchFolder:
    """A folder of this process, readable by nobody else.

    Attributes:
        path: Where it is.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Make it, and remove those of its kind whose processes have ended.

        Args:
            prefix: Of its name: its kind.
            parent: In which folder; that of temporary files by default.
        """
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = self.path / _NOT_HELD_YET
        self._lock = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks: nobody will remove it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.rename(self.path / _LOCK)

    def is_there(self) -> bool:
        """False if somebody has removed it, as cleaners of temporary folders do."""
        return self.path.is_dir()

    def remove(self) -> None:
        """Remove it, with all that is in it; may be repeated."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _remove_abandoned(prefix: str, parent: Path) -> None:
    found: list[Path] = []
    with suppress(OSError), os.scandir(parent) as entries:
        found += [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    for folder in found:
        with suppress(OSError):  # no folder, no lock, a lock that is held, gone meanwhile
            if folder.lstat().st_uid == os.geteuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)  # which follows no link
    finally:
        os.close(lock)
