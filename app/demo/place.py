"""Where the main job keeps things on this machine, and that only one run at a time uses them.

    <data>/source/                       the package's CSV files
    <data>/shards/                       the persist location, unless it is elsewhere
    <data>/work/<location id>/landing/   daily files, as Spark's file source sees them
                              staging/   a daily file being written
                              out/       what the project's sink writes
                              dropping   there while a fresh start is under way
    <data>/checkpoints/<location id>/    the runtime's

Daily files belong to one location: pointing the job at another one starts another stream there, and
coming back goes on with this one. That two runtimes never write to one location is the lane's
business; the lock here is for the daily files.
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

__all__ = ["Place", "alone"]

_POLL_MS = 100.0


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a run.

    Attributes:
        data: The job's own folder.
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
        """What belongs to this location."""
        return self.data / "work" / self.location_id

    @property
    def landing(self) -> Path:
        """Daily files that have arrived."""
        return self.work / "landing"

    @property
    def staging(self) -> Path:
        """Daily files on their way; on the same file system, and not seen by Spark."""
        return self.work / "staging"

    @property
    def dropping(self) -> Path:
        """Marks that everything of this location is being dropped."""
        return self.work / "dropping"

    @property
    def out(self) -> Path:
        """What the project's sink writes."""
        return self.work / "out"

    @property
    def checkpoints(self) -> Path:
        """What the runtime keeps on this machine for this location."""
        return self.data / "checkpoints" / self.location_id

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.landing, self.staging):
            folder.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove what belongs to this location, but for the mark that it is being dropped."""
        for folder in (self.checkpoints, self.landing, self.staging, self.out):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def alone(data: Path, clock: Clock, timeout_ms: float) -> Iterator[None]:
    """Hold the folder's lock of this process.

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
    deadline, never = clock.elapsed_ms() + timeout_ms, threading.Event()
    while not take():
        if clock.elapsed_ms() >= deadline:
            raise InvalidUsage(
                f"another run works in '{data}'",
                code="ALREADY_RUNNING",
                hint="wait for it or stop it, or name another folder with --data",
            )
        clock.wait(never, _POLL_MS)
