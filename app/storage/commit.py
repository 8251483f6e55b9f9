"""The commit of a source: three shards that move together, and in which order.

    step                                  a crash right after it leaves
    1  rows and errors are staged         files that nothing refers to; the sweeper takes them
    2  the micro-batch is bound           a time without rows: nobody sees it, nothing ticks past
       (`<source>_progress`)              it, the micro-batch runs again and uses it
    3  its errors are appended            as 2; the errors are seen by nobody who also waits for
       (`<source>_errors`)                the rows' time; they are not appended again
    4  its rows are appended              all is there; Spark runs the micro-batch again, and it is
       (`<source>`)                       found to be committed
    5  Spark notes that it is done        nothing

Each of 2, 3 and 4 is one compare-and-append. Between micro-batches the uppers follow the clock, in
the order of 2, 3, 4 (`tick`).

Invariants:
    upper(rows) <= upper(errors) <= upper(progress), but for a moment in which errors were
    retracted by hand.
    The upper of the rows passes a time only if every micro-batch bound before it is in them.
    Once `stop` has returned nothing is appended any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.host import Host
from shardline.app.storage.errors import live_count
from shardline.app.storage.reclock import NOTHING, Binding, Bound, Remap, next_time
from shardline.app.storage.resume import Planned
from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import UpperMismatch
from shardline.datasource.spark_native.time_interval import StagedInterval
from shardline.datasource.write import WriteHandle

__all__ = ["WRITER", "Commit", "Stopped", "Timeline"]

WRITER: Final = "ingestion"
"""Durable writer of a source's rows and errors; the time of the binding is its sequence."""

_ATTEMPTS: Final = 16
"""How often others may move an upper while one is compared."""


class Stopped(Exception):
    """The ingestion was stopped: nothing may be committed any more."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a micro-batch leaves.

    Attributes:
        rows: Staged rows of the source.
        errors: Staged changes of the errors; None for none.
        live_errors: How many errors were live when these were staged.
    """

    rows: StagedInterval
    errors: StagedInterval | None = None
    live_errors: int = 0


class Timeline:
    """The shards of one source, as one incarnation of it writes them. May be shared by threads."""

    def __init__(self, host: Host, remap: Remap, rows: str, errors: str) -> None:
        """Read where the shards are.

        Args:
            host: Of the source.
            remap: Its bindings.
            rows: Name of its shard.
            errors: Name of the shard with its errors.
        """
        self._host = host
        self._remap = remap
        self._rows = _Follower(host.client.writer(rows))
        self._errors = _Follower(host.client.writer(errors))
        self._lock = threading.Lock()
        self._stopped = False
        self._bound = remap.read()

    @property
    def bound(self) -> Bound:
        """The newest bindings that this incarnation knows of."""
        return self._bound

    @property
    def upper(self) -> int:
        """The upper of the rows, as far as this incarnation knows it."""
        return self._rows.upper

    @property
    def live_errors(self) -> int:
        """How many errors are live, as far as this incarnation knows."""
        return self._errors.count

    @property
    def records(self) -> int:
        """How many rows the source has, as far as this incarnation knows."""
        return self._rows.count

    @property
    def snapshot_is_empty(self) -> bool:
        """Whether no micro-batch is bound."""
        last = self._bound.last
        return last is None or last.number == NOTHING

    @property
    def committed(self) -> bool:
        """Whether the rows of all bindings are in the source's shard, and there is one."""
        last = self._bound.last
        return last is not None and last.time < self._rows.upper

    def is_committed(self, number: int, planned: Planned) -> bool:
        """Whether this micro-batch is in the source's shard.

        Raises:
            Determinate: Another one with its number is bound, or one is missing before it.
        """
        found = self._known(number, planned)
        return found is not None and found.time < self._rows.upper

    def look_at_errors(self) -> int:
        """How many errors are live, no older than this call."""
        with self._lock:
            self._errors.refresh()
            return self._errors.count

    def commit(self, number: int, planned: Planned, staged: Commit) -> Binding:
        """Bind a micro-batch and append what it leaves; does what is not done yet.

        Raises:
            Stopped: The ingestion was stopped.
            Fenced: Another runtime has taken over.
            Determinate: Somebody else has bound something else: begin again from the bindings.
            Indeterminate: It may have happened: run the micro-batch again.
        """
        with self._lock:
            self._check()
            binding = self._bind(number, planned)
            if staged.errors is not None:
                self._check_errors(staged, binding.time)
                self._append(self._errors, staged.errors, binding.time)
            else:
                self._move(self._errors, binding.time + 1)
            self._append(self._rows, staged.rows, binding.time)
            return binding

    def commit_nothing(self, planned: Planned) -> None:
        """Bind a snapshot for which no micro-batch ran, because there was nothing."""
        with self._lock:
            self._check()
            binding = self._bind(NOTHING, planned)
            for follower in (self._errors, self._rows):
                self._move(follower, binding.time + 1)

    def tick(self) -> bool:
        """Let the uppers follow the clock; False if there is something else to do first.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: It did not happen; the next one will do.
            Indeterminate: It may have happened; the next one finds out.
        """
        # A micro-batch that is committing moves the uppers itself.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._stopped or not self._host.writes.is_set() or not self.committed:
                return False
            self._host.check_fence()
            interval_ms = self._host.interval_ms
            upper = self._host.clock.now_ms() // interval_ms * interval_ms + 1
            moved = self._remap.advance(self._bound, upper)
            if moved is None:
                self._bound = self._remap.read()
                self._rows.refresh()
                return False
            self._bound = moved
            self._move(self._errors, upper)
            self._move(self._rows, upper)
            return True
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Let nothing be appended any more; waits for a commit under way."""
        with self._lock:
            self._stopped = True

    # -- steps, under the lock --------------------------------------------------------------------

    def _check(self) -> None:
        if self._stopped or not self._host.writes.is_set():
            raise Stopped
        self._host.check_fence()

    def _known(self, number: int, planned: Planned) -> Binding | None:
        """The binding of this micro-batch; None if it is to be bound next.

        Offsets alone do not tell: a file source's are numbers of a log that each checkpoint has
        its own of. What that log says is compared as well.
        """
        last, files = self._bound.last, self._bound.files
        here = (number, None if number == NOTHING else planned.offset)
        if last is not None and here == (last.number, last.offset) and planned.files <= files:
            return last
        following = {NOTHING, NOTHING + 1} if last is None else {last.number + 1}
        if number in following and files <= planned.files:
            return None
        raise Determinate(
            f"micro-batch {number} does not follow what is bound: {last}",
            code="BOUND_OTHERWISE",
            hint="the source starts again from its bindings by itself",
        )

    def _bind(self, number: int, planned: Planned) -> Binding:
        offset = None if number == NOTHING else planned.offset
        for _ in range(_ATTEMPTS):
            found = self._known(number, planned)
            if found is not None:
                return found
            host = self._host
            at = next_time(self._bound.upper, host.clock.now_ms(), host.interval_ms)
            bound = self._remap.bind(
                self._bound, number=number, offset=offset, files=planned.files, at=at
            )
            if bound is not None:
                assert bound.last is not None
                self._bound = bound
                return bound.last
            host.check_fence()
            self._bound = self._remap.read()
        raise _contention(self._remap.handle.machine.name)

    def _check_errors(self, staged: Commit, at: int) -> None:
        """Refuse to retract errors that were retracted by hand since they were looked at."""
        if self._errors.refresh() <= at and self._errors.count != staged.live_errors:
            raise Determinate(
                "errors were retracted while a micro-batch was staged",
                code="ERRORS_CHANGED",
                hint="the source starts again by itself",
            )

    def _append(self, follower: _Follower, staged: StagedInterval, at: int) -> None:
        """Append at `at` unless somebody has: then it was this very micro-batch's."""
        if follower.refresh() > at:
            staged.discard()
            return
        outcome = staged.append(follower.upper, at + 1, writer=WRITER, sequence=at, at=at)
        if isinstance(outcome, UpperMismatch) and follower.refresh() <= at:
            self._host.check_fence()
            raise _contention(follower.name)
        follower.refresh()

    def _move(self, follower: _Follower, upper: int) -> None:
        """Move an upper by an append of nothing."""
        if not follower.advance(upper):
            self._host.check_fence()
            raise _contention(follower.name)


class _Follower:
    """The upper of a shard, and what is live in it, as this incarnation has last seen them."""

    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle
        self.upper = 0
        self.count = 0
        self.refresh()

    @property
    def name(self) -> str:
        return self._handle.machine.name

    def refresh(self) -> int:
        """The upper, no older than this call."""
        self._handle.machine.state()
        self._look()
        return self.upper

    def advance(self, upper: int) -> bool:
        """Make the upper at least `upper`."""
        for _ in range(_ATTEMPTS):
            if self.upper >= upper:
                return True
            lower = Frontier(self.upper)
            self._handle.compare_and_append(None, lower, Frontier(upper))
            self._look()
        return False

    def _look(self) -> None:
        state = self._handle.machine.cached
        assert state is not None, self.name
        assert state.upper.time is not None, "the shards of a source are never finished"
        self.upper = state.upper.time
        self.count = live_count(state)


def _contention(name: str) -> Determinate:
    return Determinate(
        f"shard '{name}' is appended to by somebody else",
        code="CONTENTION",
        hint="nothing but its source may write it: stop the other writer",
    )
