"""Watches the Spark job of a merge: renews its claim while tasks finish, and reports the progress.

    watch = JobWatch(claim, clock, count=…, largest_bytes=…, where=…, …)
    with watch.running():
        …                                    the job
    if watch.superseded.is_set(): …          it was cancelled: the merge is not to be made here

The driver itself waits for the job, so a thread renews the claim. As a mere timer it would do so
for days while the job waits for executors that nobody has, or for one task on a dead connection,
and keep all others from batches that are not being merged. So the claim is renewed on evidence
only: as long as a task has finished within half an hour or, while tasks run, within as much more as
the largest of them may take. After that it is left to run out; the job goes on without it, takes it
again when the next task finishes, and is cancelled if another process has claimed or merged the
batches in the meantime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock
from shardline.datasource.maintenance.compaction_claim import MergeClaim, Superseded

__all__ = ["JobWatch", "TaskCounts"]

_LOOK_MS: Final = 1000
"""Interval (ms) at which the driver checks its claim and the progress of a job."""

_STALLED_MS: Final = 30 * 60 * 1000
"""A job in which no task has finished for this long, and as long as its largest task may take if
some run, is taken to hang. Most tasks read about 128 MiB, which takes seconds to minutes."""

_LEAST_BYTES_PER_MS: Final = (2 << 20) / 1000
"""A task that reads and merges more slowly than 2 MiB a second is taken to hang; usual are tens. A
task may have to read far more than others: a range that cannot be cut (many rows of one value, a
nested first column), or large parts without an order."""


class TaskCounts(NamedTuple):
    """How many tasks of a job have finished, and how many run."""

    done: int
    active: int


_NONE_SEEN: Final = TaskCounts(0, 0)


@dataclass(slots=True)
class JobWatch:
    """The watch over one job.

    Attributes:
        claim: Taken on the inputs of the merge.
        clock: Waits, and measures how long ago a task has finished.
        count: Number of tasks.
        largest_bytes: The most encoded bytes that one of them may read.
        where: The merge, for people.
        counts: Returns how many tasks have finished, and how many run.
        cancel: Cancels the job; may be called before there is one, and again.
        report: Receives the progress, in words.
        superseded: Set once another process has claimed or merged the inputs.
    """

    claim: MergeClaim
    clock: Clock
    count: int
    largest_bytes: int
    where: str
    counts: Callable[[], TaskCounts]
    cancel: Callable[[], None]
    report: Callable[[str], None]
    superseded: threading.Event = field(default_factory=threading.Event)
    _seen: TaskCounts = _NONE_SEEN
    _moved_ms: float = 0.0
    _is_stalled: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch for as long as the block runs."""
        self._moved_ms = self.clock.elapsed_ms()
        # A look that fails (Spark's status of a job that has just ended) must not end the renewals.
        thread = PeriodicThread(
            "merge-watch", self.look, self.clock, first_ms=_LOOK_MS, retry_ms=_LOOK_MS
        )
        thread.start()
        try:
            yield
        finally:
            thread.stop()

    def look(self) -> float:
        """Renew the claim or find out that it is lost; returns the time to the next look, in ms."""
        # Before Spark is asked: where that fails, what was known before still holds for a while.
        self._check_claim()
        if self.superseded.is_set():
            # Repeated each time: cancelling has no effect on a job that is not submitted yet, and
            # this thread may be faster than the one that submits it.
            self.cancel()
            return _LOOK_MS
        before, self._seen = self._seen, self.counts()
        if self._seen.done > before.done:
            self._moved_ms, self._is_stalled = self.clock.elapsed_ms(), False
            self.report(f"{self.where}: {self._seen.done} of {self.count} tasks are done")
        return _LOOK_MS

    def _check_claim(self) -> None:
        if self.superseded.is_set():
            return
        still_ms = self.clock.elapsed_ms() - self._moved_ms
        allowed_ms: float = _STALLED_MS
        if self._seen.active:
            # Where none runs there is nothing to wait for: the job has no executor.
            allowed_ms += self.largest_bytes / _LEAST_BYTES_PER_MS
        if still_ms >= allowed_ms and not self._is_stalled:
            self._is_stalled = True
            self.report(
                f"{self.where}: no task has finished for {still_ms / 60_000:.0f} minutes; "
                "until one does, other processes may merge these batches"
            )
        try:
            self.claim.keep(renew=not self._is_stalled)
        except Superseded:
            self.superseded.set()
