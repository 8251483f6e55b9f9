"""A place is the set of folders of the demo on this machine; a lock lets one run use it at a time.

    <data>/source/                       the package's CSV files
    <data>/shards/                       the persist location, unless it is elsewhere
    <data>/work/<location id>/landing/   daily files, as Spark's file source sees them
                              staging/   a daily file being written
                              out/       files of the project's sink
                              dropping   marker of a fresh start under way
    <data>/checkpoints/<location id>/    the runtime's checkpoints

Daily files belong to one location: pointing the job at another one starts another stream there, and
coming back goes on with this one. The lock is for the daily files only: the lane keeps two runtimes
from writing to one location.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.waiting import poll_until

__all__ = ["Place", "lock_folder"]

_POLL_MS = 100.0


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a run.

    Attributes:
        data: The demo's own folder.
        location_id: Identity of the persist location.
    """

    data: Path
    location_id: str

    @property
    def source(self) -> Path:
        """The package's CSV files."""
        return self.data / "source"

    @property
    def work(self) -> Path:
        """Folder of all files that belong to this location."""
        return self.data / "work" / self.location_id

    @property
    def landing(self) -> Path:
        """Daily files that have arrived."""
        return self.work / "landing"

    @property
    def staging(self) -> Path:
        """Daily files that are being written; on the same file system, not watched by Spark."""
        return self.work / "staging"

    @property
    def dropping(self) -> Path:
        """Marker file: everything of this location is being dropped."""
        return self.work / "dropping"

    @property
    def out(self) -> Path:
        """Files of the project's sink."""
        return self.work / "out"

    @property
    def checkpoints(self) -> Path:
        """The runtime's checkpoints for this location."""
        return self.data / "checkpoints" / self.location_id

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.landing, self.staging):
            folder.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Delete all files of this location, but for the marker `dropping`."""
        for folder in (self.checkpoints, self.landing, self.staging, self.out):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lock_folder(data: Path, clock: Clock, timeout_ms: float) -> Iterator[None]:
    """Hold the lock of a folder; no other process works in it meanwhile.

    It is a lock of the operating system, which ends with the process: after a crash another run may
    begin, and each file is complete or missing.

    Args:
        data: The folder; made if need be.
        clock: Of the process.
        timeout_ms: How long to wait for another run.

    Raises:
        InvalidUsage: The folder cannot be written to, or another run is working in it.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("a")
    except OSError as error:
        raise InvalidUsage(
            f"the folder '{data}' cannot be written to: {error.strerror}",
            code="FOLDER_NOT_WRITABLE",
            hint="name another one with --data",
        ) from error

    def take() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with file:
        _wait_for(take, data, clock, timeout_ms)
        yield


def _wait_for(take: Callable[[], bool], data: Path, clock: Clock, timeout_ms: float) -> None:
    never = threading.Event()
    taken = poll_until(
        lambda: take() or None, clock, never, poll_ms=_POLL_MS, timeout_ms=timeout_ms
    )
    if taken is None:
        raise InvalidUsage(
            f"another run works in '{data}'",
            code="ALREADY_RUNNING",
            hint="wait for it or stop it, or name another folder with --data",
        )
