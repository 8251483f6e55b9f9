"""A difference computes updates from the contents of a shard and appends them atomically.

It turns the contents into others: all of them (`overwrite`) or the rows of some keys (`upsert`).
The updates are right only for the contents that they were computed from, so they are appended only
if the shard's upper has not moved. If another writer has appended meanwhile, nothing is computed
again: what `overwrite` and `upsert` retract is a sum over the shard's updates, so it is enough to
add what they would retract of those that came. (Delta's optimistic transactions start over.)

Invariants:
    - A repetition of a commit that has happened ends before anything is read or staged.
    - The rows that a difference was computed from are protected by a lease until it is appended.
    - One append holds parts of one schema, the shard's newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from shardline.datasource.errors import Determinate
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import BATCH_ROWS
from shardline.datasource.parts.stage import Staged, UncommittedParts
from shardline.datasource.read import current_schema, open_reader
from shardline.datasource.rows.merge_runs import Run
from shardline.datasource.rows.updates import sort_rows
from shardline.datasource.shard import batch
from shardline.datasource.shard.commands.append import (
    AlreadyCommitted,
    Appended,
    UpperMismatch,
    shard_changed_error,
)
from shardline.datasource.shard.plan import PlannedPart, TimeFilter, plan_changes
from shardline.datasource.shard.state import ShardState
from shardline.datasource.write import WriteHandle

__all__ = ["Difference", "commit_difference", "plan_staged", "sorted_runs"]

_RACES_MAX: Final = 64
"""How often a write follows appends of other writers before it gives up."""

_BUFFER_BYTES: Final = 64 << 20
"""Arrow memory of one part. Less than a writer's, whose buffer is large to sort much at once: a
difference comes in order."""

_JOINED_ROWS: Final = 4 * BATCH_ROWS
"""Rows of small parts that are sorted together."""

_SHARE_ROWS: Final = 2 * BATCH_ROWS
"""Rows of a large part that are decoded at once: a row group of ours."""

_SHARES_AHEAD: Final = 8
"""Shares that are decoded ahead of the merge, of all parts together: some more than there are
threads, for the merge to find them done."""


class Difference(Protocol):
    """A function from the updates of a shard to the updates to append."""

    def against(
        self, state: ShardState, there: Sequence[PlannedPart], *, whole: bool
    ) -> Iterator[pa.Table]:
        """Updates without times, under the newest schema of `state`, in the shard's sort order.

        Args:
            state: The state of the shard to compute from.
            there: Parts with updates of the shard.
            whole: True if `there` is all of its updates: gives the new rows, and retractions of the
                rows in `there` that must go. False if they were added after an earlier call: gives
                only the retractions.
        """
        ...

    @property
    def closes(self) -> bool:
        """True if what `against` gave for the whole takes back whole keys: see `Part.closes`."""
        ...


def commit_difference(
    handle: WriteHandle, new: Staged, difference: Difference, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Append a difference to the contents that the shard has right before the commit.

    Args:
        handle: A writer of the shard; changed to write under its newest schema.
        new: The staged rows that `difference` reads. Their blobs are deleted in the end, unless an
            unknown outcome leaves them to the orphan sweep.
        difference: Computes the updates to append.
        sequence: Number of this append of the writer.
        attempt: Id of the attempt.

    Raises:
        Determinate: Others appended faster than the difference could follow.
        Indeterminate: It may have happened: repeat it with the same sequence number.
    """
    with UncommittedParts(handle.machine.location.blob, new.runs) as parts:
        # No record ever names these parts. They are kept after an unknown outcome all the same: the
        # commit is repeated from them.
        with parts.commit():
            outcome = _committed(handle, difference, sequence=sequence, attempt=attempt)
        parts.note_refused()
    return outcome


def _committed(
    handle: WriteHandle, difference: Difference, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    machine = handle.machine
    done = handle.committed(sequence)
    if done is not None:
        return AlreadyCommitted(done.upper, "")
    with (
        UncommittedParts(machine.location.blob) as parts,
        open_reader(machine, purpose=f"write by {handle.writer}") as reader,
    ):
        pending = _Pending(handle, difference, parts)
        for _ in range(_RACES_MAX):
            # Read after the lease was taken, and checked each time: only parts of a state that has
            # the lease are sure to be there when they are read.
            state = machine.state()
            reader.lease.check(state)
            if state.shard != handle.shard:
                # Before the rows are read: they carry schema ids of the shard that is gone.
                raise shard_changed_error(state)
            staged = pending.follow(state)
            with parts.commit():
                outcome = handle.commit_at(staged, state.upper, sequence=sequence, attempt=attempt)
            if not isinstance(outcome, UpperMismatch):
                # Committed; or answered for another attempt, and then deleted by the handle.
                return outcome
            parts.note_refused()
            reader.lease.renew()
    raise Determinate(
        f"shard '{machine.name}' changed {_RACES_MAX} times while a difference to it was written",
        code="CONTENTION",
        hint="stop its other writers, or append a difference instead",
    )


class _Pending:
    """A staged difference that follows the shard until it can be appended.

    Its parts are in `uncommitted`, whose owner knows when they are not needed any more.
    """

    def __init__(
        self, handle: WriteHandle, difference: Difference, uncommitted: UncommittedParts
    ) -> None:
        self._handle = handle
        self._difference = difference
        self._uncommitted = uncommitted
        self._base: ShardState | None = None
        self._staged = Staged((), 0, 0, 0)

    def follow(self, state: ShardState) -> Staged:
        """Stage the updates that `state` needs beyond those staged before; return all of them."""
        base, self._base = self._base, state
        if base is None or base.upper.time is None or not _has_grown(base, state):
            self._uncommitted.delete()
            self._staged = Staged((), 0, 0, 0)
            self._handle.schema = current_schema(state)
            self._handle.schema_id = state.schema_id
            self._stage(state, plan_changes(state, TIME_MIN, state.upper.time), whole=True)
        elif base.upper != state.upper:
            came = plan_changes(state, base.upper.time, state.upper.time)
            self._stage(state, came, whole=False)
        return self._staged

    def _stage(self, state: ShardState, there: Sequence[PlannedPart], *, whole: bool) -> None:
        stager = self._handle.stager()
        buffer_bytes = min(stager.settings.part_buffer_bytes, _BUFFER_BYTES)
        frugal = replace(stager, settings=replace(stager.settings, part_buffer_bytes=buffer_bytes))
        more = frugal.stage(self._difference.against(state, there, whole=whole))
        self._uncommitted.add(more.runs)
        held = self._staged
        # Rows that came in between may be equal to new ones, and then stay in spite of their
        # retraction. A registered shard's rows pass through another one.
        closes = whole and self._difference.closes and state.registered is None
        # The updates come in sort order across all parts, so the parts are one run.
        parts = tuple(part for run in more.runs for part in run.parts)
        run = (batch.Run(_marked(parts, closes=closes)),) if parts else ()
        self._staged = Staged(
            (*(held.runs if whole else map(_unmarked, held.runs)), *run),
            held.staged_ms if held.runs else more.staged_ms,
            held.rows + more.rows,
            held.size_bytes + more.size_bytes,
        )


def _marked(parts: Sequence[batch.Part], *, closes: bool) -> tuple[batch.Part, ...]:
    """The parts, with `closes` for those that retract."""
    return tuple(msgspec.structs.replace(p, closes=closes and p.retracts) for p in parts)


def _unmarked(run: batch.Run) -> batch.Run:
    return msgspec.structs.replace(run, parts=_marked(run.parts, closes=False))


def _has_grown(base: ShardState, state: ShardState) -> bool:
    """True if `state` is `base` with later updates, and they can be separated from those of `base`.

    If the since has reached the upper of `base`, updates of `base` may have been advanced to it,
    and be among the later ones.
    """
    same = base.shard == state.shard and base.schema_id == state.schema_id
    return same and state.since < base.upper


def sorted_runs(
    contents: Contents, planned: Iterable[PlannedPart], pool: ThreadPoolExecutor | None = None
) -> list[Run]:
    """The parts as sorted runs to merge, small ones sorted together.

    A merge pays for each of its runs at every step, and holds a table of each: thousands of parts
    of a few rows are cheaper as one run, and need no more memory.

    Args:
        contents: Reads the parts.
        planned: The parts.
        pool: Decodes pieces of large parts, some ahead of the merge. For reads with a filter that
            few rows pass: what is decoded ahead is kept in memory.
    """
    large: list[list[PlannedPart]] = []
    small: list[list[PlannedPart]] = []
    room = 0
    for item in planned:
        rows = item.part.rows
        if rows >= BATCH_ROWS:
            large.append([item])
            continue
        if rows > room:
            small.append([])
            room = _JOINED_ROWS
        small[-1].append(item)
        room -= rows
    if pool is None:
        shared = [_run(contents, group) for group in large]
    else:
        # All runs of a merge begin at once, and a merge of many must not hold much of each.
        ahead = max(1, _SHARES_AHEAD // max(len(large), 1))
        shared = [
            # An inline part has no row groups to share.
            _run(contents, [one]) if one.part.inline else _by_shares(contents, one, pool, ahead)
            for (one,) in large
        ]
    return [*shared, *(_run(contents, group) for group in small)]


def _run(contents: Contents, group: Sequence[PlannedPart]) -> Iterator[pa.Table]:
    tables = (table for planned in group for table in contents.read_sorted_run(planned))
    if len(group) == 1:
        yield from tables
        return
    yield from _sorted_together(contents, tables)


def _sorted_together(contents: Contents, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    if held := list(tables):
        joined = sort_rows(pa.concat_tables(held), contents.key)
        for start in range(0, joined.num_rows, BATCH_ROWS):
            yield joined.slice(start, BATCH_ROWS)


def _by_shares(
    contents: Contents, planned: PlannedPart, pool: ThreadPoolExecutor, ahead: int
) -> Iterator[pa.Table]:
    """One part as a sorted run; the next `ahead` shares of its rows are decoded meanwhile."""
    count = -(-planned.part.rows // _SHARE_ROWS)
    shares = (msgspec.structs.replace(planned, share=(i, count)) for i in range(count))

    def decoded() -> Iterator[pa.Table]:
        coming = deque(pool.submit(_read, contents, one) for one in islice(shares, ahead))
        while coming:
            tables = coming.popleft().result()
            coming.extend(pool.submit(_read, contents, one) for one in islice(shares, 1))
            yield from tables

    yield from decoded() if planned.ordered else _sorted_together(contents, decoded())


def _read(contents: Contents, planned: PlannedPart) -> list[pa.Table]:
    return list(contents.read_sorted_run(planned))


def plan_staged(staged: Staged) -> list[PlannedPart]:
    """A plan to read everything that was staged without times."""
    return [
        PlannedPart(part, TimeFilter(None, None), ordered=run.order == "sorted")
        for run in batch.stamp_time(staged.runs, TIME_MIN)
        for part in run.parts
    ]
