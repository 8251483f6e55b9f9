"""A source commits a micro-batch to three shards, in an order that survives a crash at any point.

No object store appends to three shards at once. So each append is made such that the ones before it
mean nothing to a reader yet, and such that a repetition finds out which of them are done. The times
are those of the bindings (`reclock`): a micro-batch that runs again gets the time that it had, and
no row can come twice.

    step                                  a crash right after it leaves
    1  rows and errors are staged         files that nothing refers to; the orphan sweep deletes
                                          them
    2  the micro-batch is bound           a time without rows: nobody sees it, nothing ticks past
       (`<source>_progress`)              it, the micro-batch runs again and uses it
    3  its errors are appended            as 2; no reader sees the errors that also waits until
       (`<source>_errors`)                the rows have that time; they are not appended again
    4  rows that are left out are noted   as 3
       (`<source>_skipped`, if there are)
    5  its rows are appended              all is there; Spark runs the micro-batch again, and it is
       (`<source>`)                       found to be committed
    6  Spark notes that it is done        nothing

Each of 2, 3, 4 and 5 is one compare-and-append. Between micro-batches the uppers follow the clock,
in the order of 2, 3, 5 (`Timeline.tick`), so that readers need not wait for the next row to arrive.

Mostly there are no errors, and the errors shard follows the one with the rows: readers go by the
upper of that one, too (`shardline.datasource.shard.commands.leader`), and 3 is left out. Not at
first: an incarnation appends to it once, so that no earlier one can. And not after somebody else
has moved the bindings: that is how errors are retracted by hand, at a time that is taken there
first (`shardline.app.storage.repair`). Until the errors' own upper has passed that time, 3 is not
left out: either it comes after the retraction, or that is refused, and takes a later time.

While a micro-batch is staged (1) they follow it for a few intervals more and then stand still: its
rows were there and are not bound, however long that takes, so nothing newer is complete.

Invariants:
    upper(rows) <= upper(progress), and errors at a time are in their shard before the upper of the
    rows passes it. The errors' own upper is behind that of the rows only while it follows that one.
    The upper of the notes moves with notes only.
    The upper of the rows passes a time only if every micro-batch bound before it is in them.
    A micro-batch is taken for committed only by the number of its own append. Nobody is kept from
    appending to a shard by its name, and then its upper has passed the time without the rows.
    Once `stop` has returned nothing is appended any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from shardline.app.execution.host import Host
from shardline.app.execution.stopped import Stopped
from shardline.app.storage.errors import live_count
from shardline.app.storage.reclock import EMPTY_SNAPSHOT, Binding, BoundOffsets, Remap, next_time
from shardline.app.storage.resume import PlannedMicroBatch
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.followers import follow, may_lag
from shardline.datasource.frames import StagedInterval
from shardline.datasource.frontier import Frontier, with_date
from shardline.datasource.state import UpperMismatch

__all__ = ["WRITER", "StagedMicroBatch", "Timeline"]

WRITER: Final = "ingestion"
"""Durable writer of a source's rows and errors; the time of the binding is its number: together
they are the idempotency token of an append."""

_RACES_MAX: Final = 16
"""Attempts of one compare-and-append, each begun at once after another writer moved the upper."""

_STAGING_INTERVALS: Final = 5
"""Intervals for which the uppers follow the clock after a micro-batch was begun. An ordinary one is
committed by then. Were they to stand still at once, a view of several sources would wait for each
micro-batch of each of them, while all that is gained is that rows get a time sooner."""


@dataclass(frozen=True, slots=True)
class StagedMicroBatch:
    """The staged output of one micro-batch, ready to be appended.

    Attributes:
        rows: Staged rows of the source.
        errors: Staged changes of the errors; None if there are none.
        live_errors: How many errors were live when `errors` were staged: they hold retractions of
            some of these.
        skipped: Staged notes of rows that are left out; None if there are none.
    """

    rows: StagedInterval
    errors: StagedInterval | None = None
    live_errors: int = 0
    skipped: StagedInterval | None = None


class Timeline:
    """The three shards of one source, as one incarnation writes them. Safe to use from any thread.

    It is the incarnation's right to write. Losing it, by `stop` or by the fence, loses no data: a
    micro-batch that is bound and not appended is run again by the next incarnation, at its time.
    """

    def __init__(
        self, host: Host, remap: Remap, rows: str, errors: str, skipped: str | None = None
    ) -> None:
        """Read the bindings and the uppers of the shards.

        Args:
            host: What all objects share: client, clock, fence.
            remap: The bindings of the source.
            rows: Name of the source's shard.
            errors: Name of the shard with its errors.
            skipped: Name of the shard that notes rows that are left out; None if none are.

        Raises:
            InvalidUsage: `SHARD_BEHIND`: the source's shard lacks rows that were committed to it.
        """
        self._host = host
        self._remap = remap
        follow(host.client, errors, rows)
        self._rows = _ShardUpper(host.client, rows)
        self._errors = _ShardUpper(host.client, errors, writes_leader=True)
        self._skipped = None if skipped is None else _ShardUpper(host.client, skipped)
        # One lock for micro-batches, ticks and `stop`: the bindings and uppers below are only right
        # together, and `stop` must not return between two appends of a micro-batch.
        self._lock = threading.Lock()
        self._stopped = False
        self._begun_ms: int | None = None
        # Read after the uppers: bindings that are older than the rows' upper could hide one whose
        # rows are not appended yet, and `committed` would be wrongly true.
        self._bound = BoundOffsets()
        self._errors_due = 0
        self._read_bindings()
        self._check_rows()

    @property
    def bound(self) -> BoundOffsets:
        """The newest bindings that this incarnation has read or made."""
        return self._bound

    @property
    def upper(self) -> int:
        """The upper of the rows, as this incarnation last saw it."""
        return self._rows.upper

    @property
    def live_errors(self) -> int:
        """Number of live errors, as this incarnation last saw them."""
        return self._errors.count

    @property
    def records(self) -> int:
        """Number of rows of the source, as this incarnation last saw them."""
        return self._rows.count

    @property
    def snapshot_is_empty(self) -> bool:
        """True if no micro-batch is bound: nothing is, or only a snapshot without rows."""
        last = self._bound.last
        return last is None or last.number == EMPTY_SNAPSHOT

    @property
    def committed(self) -> bool:
        """True if something is bound and the rows of all bindings are in the source's shard."""
        last = self._bound.last
        return last is not None and self._has_rows(last)

    def is_committed(self, number: int, planned: PlannedMicroBatch) -> bool:
        """True if this micro-batch is in the source's shard, with its errors.

        Raises:
            Determinate: Another one with its number is bound, or one is missing before it.
        """
        found = self._find_binding(number, planned)
        # The rows are appended last, so they alone speak for the errors as well.
        return found is not None and self._has_rows(found)

    def refresh_live_errors(self) -> int:
        """Return how many errors are live, no older than this call."""
        with self._lock:
            self._errors.refresh()
            return self._errors.count

    def begin(self) -> None:
        """Note that a micro-batch is staged from now on: it has rows that are not bound yet.

        Its commit ends that. One that fails does not: what it has read is as incomplete as before.
        """
        self._begun_ms = self._host.clock.now_ms()

    def commit(self, number: int, planned: PlannedMicroBatch, staged: StagedMicroBatch) -> Binding:
        """Bind a micro-batch, then append its errors and rows; steps that are done are left out.

        Args:
            number: Of the micro-batch, as Spark counts.
            planned: Where it ends, as Spark's checkpoint has it.
            staged: Its rows and errors.

        Raises:
            Stopped: The ingestion was stopped.
            Fenced: Another runtime has taken over.
            Determinate: Somebody else has bound something else: begin again from the bindings.
            InvalidUsage: Somebody else has appended, past the time of this micro-batch.
            Indeterminate: It may have happened: run the micro-batch again.
        """
        with self._lock:
            self._check()
            # First of all: were the rows appended before their offsets are bound, a crash in
            # between would have Spark read the same offsets again, and they would get a second,
            # later time: every row twice. A binding without rows is harmless, as `tick` and
            # readers wait for them.
            binding = self._bind(number, planned)
            # Errors before rows: `is_committed` looks at the rows alone, so the other way round a
            # crash in between would lose the errors for good.
            if staged.errors is not None:
                self._append_errors(staged.errors, staged.live_errors, binding.time)
            elif not self._errors_may_lag():
                # Also without errors: readers of the source wait until both uppers have passed.
                # By its number: run again under another definition it may have errors, and this
                # time is then not somebody else's.
                self._advance_upper(self._errors, binding.time + 1, number=binding.time)
            # Before the rows, for the same reason.
            if staged.skipped is not None:
                assert self._skipped is not None, "its shard is made with the option"
                self._append(self._skipped, staged.skipped, binding.time)
            elif self._skipped is not None and self._skipped.upper == 0:
                # Once: a shard without a time cannot be read, and that no row was left out is an
                # answer, too. Afterwards it moves with the rows that are.
                self._advance_upper(self._skipped, binding.time + 1, number=binding.time)
            self._append(self._rows, staged.rows, binding.time)
            self._begun_ms = None
            return binding

    def commit_nothing(self, planned: PlannedMicroBatch) -> None:
        """Bind an empty snapshot: the source had no rows, so Spark ran no micro-batch for it.

        Without this binding the source's upper would never move, and its readers wait for ever.

        Raises:
            Stopped, Fenced, Determinate, Indeterminate: As `commit`.
        """
        with self._lock:
            self._check()
            binding = self._bind(EMPTY_SNAPSHOT, planned)
            # In the order of `commit`.
            for shard in (self._errors, self._rows):
                self._advance_upper(shard, binding.time + 1)

    def tick(self, now_ms: int) -> bool:
        """Move the uppers to `now_ms`; False if they must not, or need not, move now.

        Args:
            now_ms: A time at which the source had nothing that is not bound, but for the
                micro-batch that is staged (`begin`); ms since the epoch.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: It did not happen; the next tick makes up for it.
            Indeterminate: It may have happened; the next tick finds out.
        """
        # Never waits for the lock: a micro-batch that is committing moves the uppers itself, and
        # the few threads that tick are shared by all sources.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            # `committed` is what keeps rows from being lost: past a time that is bound and not
            # appended yet the rows could never be appended at that time any more.
            if self._stopped or not self._host.writes.is_set() or not self.committed:
                return False
            self._host.check_fence()
            interval_ms = self._host.interval_ms
            if self._begun_ms is not None:
                now_ms = min(now_ms, self._begun_ms + _STAGING_INTERVALS * interval_ms)
            # Rounded down where `next_time` rounds up: the next binding comes after this upper.
            upper = now_ms // interval_ms * interval_ms + 1
            # The bindings first: that nothing will be bound before `upper` has to be durable
            # before the rows say that they are complete up to there.
            moved = self._remap.advance(self._bound, upper)
            if moved is None:
                # Somebody else has bound something. Only learn of it: whether its rows are there
                # is for the next tick, or the next micro-batch, to see.
                self._read_bindings()
                self._rows.refresh()
                return False
            self._bound = moved
            if not self._errors_may_lag():
                self._advance_upper(self._errors, upper)
            self._advance_upper(self._rows, upper)
            return True
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Append nothing any more; waits for a commit under way."""
        # Under the lock, and not just a flag: Spark does not wait for a Python function that it
        # has interrupted, so the commit of a stopped query may still be in the middle.
        with self._lock:
            self._stopped = True

    # -- steps, under the lock --------------------------------------------------------------------

    def _check(self) -> None:
        # The fence is asked before the first append, and not before each: if a successor appends in
        # between, the next compare-and-append is refused, and the fence is asked after a refusal.
        if self._stopped or not self._host.writes.is_set():
            raise Stopped
        self._host.check_fence()

    def _check_rows(self) -> None:
        """Refuse a shard that lacks a micro-batch before the last one: it was in it, and is lost.

        Spark runs the last one again, and nothing before it: the source would go on with a gap.
        """
        before = self._bound.before
        if before is None or before.number == EMPTY_SNAPSHOT:
            return
        # Behind the bindings: the rows of each are appended before the next one is bound.
        self._rows.refresh()
        if not self._has_rows(before):
            raise _shard_behind(self._rows, before.time)

    def _read_bindings(self) -> None:
        """Read the bindings that others may have moved: to retract errors there, in a moment."""
        self._bound = self._remap.read()
        # Until the errors' own upper is there it is not known whether any will be retracted.
        self._errors_due = max(self._bound.upper, 1)

    def _errors_may_lag(self) -> bool:
        """True if the errors' own upper need not be moved before that of the rows."""
        if self._errors.upper < self._errors_due:
            return False
        return may_lag(self._host.client, self._errors.name, self._rows.name)

    def _has_rows(self, binding: Binding) -> bool:
        # An empty snapshot has no append of its own, and nothing that could be missing.
        if binding.number == EMPTY_SNAPSHOT:
            return self._rows.upper > binding.time
        return self._rows.has_append(binding.time)

    def _find_binding(self, number: int, planned: PlannedMicroBatch) -> Binding | None:
        """The binding of this micro-batch; None if it is to be bound next.

        Offsets alone do not identify it: those of a file source are positions in a log of files,
        and each checkpoint has such a log of its own. So the log's lines are compared as well.

        Raises:
            Determinate: It is neither the last bound micro-batch nor the one after it.
        """
        last, files = self._bound.last, self._bound.files
        here = (number, None if number == EMPTY_SNAPSHOT else planned.offset)
        if last is not None and here == (last.number, last.offset) and planned.files <= files:
            return last
        following = {EMPTY_SNAPSHOT, EMPTY_SNAPSHOT + 1} if last is None else {last.number + 1}
        # Every file that was bound has to be in this checkpoint: one that has forgotten a file
        # would read it again.
        if number in following and files <= planned.files:
            return None
        raise Determinate(
            f"micro-batch {number} does not follow what is bound: {last}",
            code="BOUND_OTHERWISE",
            hint="the source starts again from its bindings by itself",
        )

    def _bind(self, number: int, planned: PlannedMicroBatch) -> Binding:
        offset = None if number == EMPTY_SNAPSHOT else planned.offset
        for _ in range(_RACES_MAX):
            # Asked again at each attempt: what moved the upper may have been this very binding,
            # whose answer was lost. Then its time is used, and not a new one.
            found = self._find_binding(number, planned)
            if found is not None:
                return found
            host = self._host
            # The since counts before the first rows: the shard of a source that was made again
            # begins where the dropped one had ended, and cannot be read earlier.
            lower = max(self._bound.upper, self._rows.since)
            at = next_time(lower, host.clock.now_ms(), host.interval_ms)
            bound = self._remap.bind(
                self._bound, number=number, offset=offset, files=planned.files, at=at
            )
            if bound is not None:
                assert bound.last is not None
                self._bound = bound
                return bound.last
            # A refusal is the first that a fenced runtime sees of its successor: `Fenced` ends the
            # object for good, where contention would be tried again. After the read: what is bound
            # upon it is bound by a runtime that was the only one when it was read.
            self._read_bindings()
            host.check_fence()
        raise _contention(self._remap.handle.machine.name)

    def _append_errors(self, staged: StagedInterval, live_errors: int, at: int) -> None:
        """Append changes of the errors, unless errors were retracted since they were staged.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: Errors were retracted: these changes would retract some of them again.
            InvalidUsage: Somebody who is not this source has moved the upper past `at`.
            Indeterminate: It may have happened.
        """
        seen = self._errors.refresh()
        if seen > at:
            staged.discard()
            self._check_appended(self._errors, at)
            return
        # After that look: an earlier incarnation that did not know of this one's first append ends
        # here, and one that has looked before it is refused by the upper.
        self._host.check_fence()
        # Errors are only ever added by this source, so an equal count means the same errors. It is
        # the count at `seen`, so the append begins there, too: a retraction that comes after this
        # look moves the upper, and the append is refused.
        if self._errors.count != live_errors:
            raise _errors_changed()
        outcome = staged.append(seen, at + 1, writer=WRITER, sequence=at, at=at, writes_leader=True)
        if self._errors.refresh() <= at:
            assert isinstance(outcome, UpperMismatch), outcome
            self._host.check_fence()
            raise _errors_changed()
        self._check_appended(self._errors, at)

    def _append(self, shard: _ShardUpper, staged: StagedInterval, at: int) -> None:
        """Append at `at`, unless this very micro-batch was appended by an earlier attempt.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: Somebody who is not this source moves the upper.
            InvalidUsage: Somebody who is not this source has moved the upper past `at`.
            Indeterminate: It may have happened.
        """
        if shard.refresh() > at:
            staged.discard()
            self._check_appended(shard, at)
            return
        # From the present upper on, and not from `at`: times in between are settled as empty.
        outcome = staged.append(shard.upper, at + 1, writer=WRITER, sequence=at, at=at)
        # Refused although the upper was just read: if it is past `at` now, an earlier attempt of
        # this append may have come through. Otherwise somebody else writes here.
        if shard.refresh() <= at:
            assert isinstance(outcome, UpperMismatch), outcome
            self._host.check_fence()
            raise _contention(shard.name)
        self._check_appended(shard, at)

    def _check_appended(self, shard: _ShardUpper, at: int) -> None:
        """Refuse an upper that has passed `at` without the append of the micro-batch bound there.

        No content is compared: `at` is bound to this micro-batch, so its number is proof enough.
        The upper is none. A micro-batch that was taken for committed by it was never run again, and
        its rows were lost.

        Raises:
            Fenced: Another runtime has taken over.
            InvalidUsage: It has.
        """
        if not shard.has_append(at):
            self._host.check_fence()
            raise _foreign_append(shard.name, at)

    def _advance_upper(self, shard: _ShardUpper, upper: int, *, number: int | None = None) -> None:
        """Move an upper to at least `upper` by an append without rows.

        Args:
            shard: The one whose upper it is.
            upper: The least upper that it has afterwards.
            number: The time of the micro-batch that has nothing for the shard; None if there is no
                micro-batch.

        Raises:
            Fenced: Another runtime has taken over.
            Determinate: Somebody who is not this source moves the upper.
        """
        if not shard.advance(upper, number=number):
            self._host.check_fence()
            raise _contention(shard.name)


class _ShardUpper:
    """The upper, since and number of live rows of a shard, and the source's last append to it.

    As this incarnation last saw them.
    """

    def __init__(self, client: ShardClient, name: str, *, writes_leader: bool = False) -> None:
        # Ticks are anonymous: an append by the source's own writer stands for a micro-batch.
        self._ticks, self._micro_batches = client.writer(name), client.writer(name, WRITER)
        for handle in (self._ticks, self._micro_batches):
            handle.writes_leader = writes_leader
        self.upper = 0
        self.since = 0
        self.count = 0
        self._last_append = -1
        self.refresh()

    @property
    def name(self) -> str:
        return self._ticks.machine.name

    def has_append(self, at: int) -> bool:
        """True if the micro-batch that is bound at `at` is in the shard.

        Its number is its time. Times of bindings grow, and each is appended before the next one is
        bound, so a greater number speaks for it as well.
        """
        return self._last_append >= at

    def refresh(self) -> int:
        """Read the upper and the count, and return the upper, no older than this call."""
        self._ticks.machine.state()
        self._note_state()
        return self.upper

    def advance(self, upper: int, *, number: int | None = None) -> bool:
        """Make the upper at least `upper`; False if others moved it all the time.

        Args:
            upper: The least upper.
            number: Of the micro-batch in whose name it is moved; None for a tick.
        """
        handle = self._ticks if number is None else self._micro_batches
        for _ in range(_RACES_MAX):
            if self.upper >= upper:
                return True
            lower = Frontier(self.upper)
            # The outcome does not matter: accepted or refused, the state that it leaves in the
            # cache says where the upper is.
            handle.compare_and_append(None, lower, Frontier(upper), sequence=number)
            self._note_state()
        return False

    def _note_state(self) -> None:
        state = self._ticks.machine.cached
        assert state is not None, self.name
        assert state.upper.time is not None, "the shards of a source are never finished"
        self.upper = state.upper.time
        self.since = state.since.time or 0
        self.count = live_count(state)
        appended = state.writers.get(WRITER)
        self._last_append = -1 if appended is None else appended.last


def _contention(name: str) -> Determinate:
    return Determinate(
        f"shard '{name}' is appended to by somebody else",
        code="CONTENTION",
        hint="nothing but its source may write it: stop the other writer",
    )


def _foreign_append(name: str, at: int) -> InvalidUsage:
    return InvalidUsage(
        f"shard '{name}' has passed the time {at} by an append of somebody else, and a micro-batch "
        "of its source that is bound to this time is not in it: it cannot be added any more",
        code="FOREIGN_APPEND",
        hint="nothing but its source may write it: stop the other writer, then drop the source and "
        "create it again, so that it reads everything anew",
    )


def _shard_behind(rows: _ShardUpper, at: int) -> InvalidUsage:
    return InvalidUsage(
        f"shard '{rows.name}' lacks rows that its source has committed up to {with_date(at)}: it "
        "was deleted, or an older copy was put in its place; nothing is written to it",
        code="SHARD_BEHIND",
        hint=f"put the newest copy of it back; or drop {rows.name} --commit, and run the project "
        "again: the source then reads anew all that it still finds",
    )


def _errors_changed() -> Determinate:
    return Determinate(
        "errors were retracted while a micro-batch was staged",
        code="ERRORS_CHANGED",
        hint="the source starts again by itself",
    )
