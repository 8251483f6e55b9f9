"""The shards that one streaming query reads, with what the run holds on each of them.

A query may read several shards, and reads them as one: it holds history on all of them or it holds
nothing. Both halves of a run, the choice of an end and the plan of a range, look at the shards and
move the holds here, so that neither can forget one of the inputs.

Invariants:
    A hold covers whatever an offset that was ever returned needs, until the next one is committed.
    The units of a snapshot that is read in pieces are always those of the pinned states.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from shardline.datasource.client import ShardClient, process_name
from shardline.datasource.errors import Determinate, ShardError
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.offsets import (
    ShardOffset,
    SnapshotCut,
    Start,
    check_shards,
)
from shardline.datasource.read import history_gone_error
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.shard_source.descs import (
    SnapshotUnit,
    parts_with_news,
    snapshot_units,
)
from shardline.datasource.shard_source.holds import StreamHolds
from shardline.datasource.shard_source.options import SourceOptions

__all__ = ["Input", "StreamInputs", "in_snapshot", "time_needed"]

_log = logging.getLogger(__name__)

_LOOKS_AT_ONCE: Final = 16
"""Shards that are looked at side by side: each costs a request of the store, and no processor."""

_SLOW_LOOK_MS: Final = 50.0
_SLOW_IN_A_ROW: Final = 3
"""Looks at one shard after the other that take longer, so many in a row, are worth threads. Where
requests take no time, as on a disk, handing them over costs more than they do; and an idle query
looks several times a second. One that is slow says nothing of the store: the machine was busy."""


@dataclass(frozen=True, slots=True)
class Input:
    """One of the shards that a query reads."""

    name: str
    holds: StreamHolds


class StreamInputs:
    """All shards of one run of a query.

    Attributes:
        who: The query as errors name it.
        hold: Name of the since hold of a query that begins; one that goes on has it in its offsets.
        states: The states of the last look, in the order of the inputs; empty before the first.
    """

    def __init__(self, options: SourceOptions, client: ShardClient) -> None:
        """Prepare the holds; no I/O."""
        self._client = client
        self.who = f"stream of {_listed(options.inputs)} at {options.location}"
        self.hold = options.hold or f"stream-{client.ids.token().hex()}"
        self._is_hold_given = options.hold is not None
        self._start = options.starting_timestamp
        self.states: list[ShardState] = []
        epoch, purpose = client.ids.token().hex(), f"stream by {process_name()}"
        self._inputs = [
            Input(
                name,
                StreamHolds(
                    client.machine(name),
                    epoch=epoch,
                    purpose=purpose,
                    interval_ms=options.hold_interval_ms,
                    behind_ms=options.hold_behind_ms,
                ),
            )
            for name in options.inputs
        ]
        self._pool: ThreadPoolExecutor | None = None
        self._slow_looks = 0
        self._pinned: tuple[tuple[int, ...], list[SnapshotUnit]] | None = None
        self._confirmed = self._given_up = False

    def __getitem__(self, index: int) -> Input:
        return self._inputs[index]

    def look(self) -> list[ShardState]:
        """Read all shards' states, none older than this call."""
        names = [each.name for each in self._inputs]
        if not self.states and len(names) > 1:
            # The first one loads the states, which takes many requests: it says nothing of others.
            with ThreadPoolExecutor(_LOOKS_AT_ONCE, "first-look") as pool:
                self.states = self._client.readable(*names, pool=pool)
            return self.states
        clock = self._client.clock
        began_ms = clock.elapsed_ms()
        self.states = self._client.readable(*names, pool=self._pool)
        is_slow = len(names) > 1 and clock.elapsed_ms() - began_ms > _SLOW_LOOK_MS
        self._slow_looks = self._slow_looks + 1 if is_slow else 0
        if self._pool is None and self._slow_looks >= _SLOW_IN_A_ROW:
            self._pool = ThreadPoolExecutor(_LOOKS_AT_ONCE, "look")
        return self.states

    def may_have_news(self, start: ShardOffset, lower: int) -> bool:
        """As of the run, for a range that begins at `lower`."""
        known = [self._client.machine(each.name).cached for each in self._inputs]
        states = [state for state in known if state is not None and state.registered is None]
        # The upper of one that is registered is in its transactions shard.
        if len(states) < len(known) or tuple(state.shard for state in states) != start.shards:
            return True
        upper = meet(state.upper for state in states)
        if upper.time is None or any(is_tombstone(state) for state in states):
            return True
        return upper.time > lower and bool(parts_with_news(states, lower, upper))

    def check_shards(self, offset: ShardOffset, states: Sequence[ShardState]) -> None:
        """Refuse an offset of other shards than these.

        Raises:
            InvalidUsage: A shard was dropped and made again, or the checkpoint is of another query.
        """
        check_shards(offset, [(state.name, state.shard) for state in states], self.who)

    # -- holds -------------------------------------------------------------------------------

    def hold_from(self, as_of: int, states: Sequence[ShardState]) -> None:
        """Take the since hold of a query that begins at `as_of`, on every shard or on none.

        Raises:
            InvalidUsage: A shard's history begins later, or did when the hold was there.
        """
        for state in states:
            if Frontier(as_of) < state.since:
                raise history_gone_error(state, as_of, state.since, start=self._start)
        for state, each in zip(states, self._inputs, strict=True):
            # Other readers may have let the time go after the look: only what the hold itself
            # says is certain.
            held = each.holds.acquire(self.hold, as_of)
            if held > Frontier(as_of):
                raise history_gone_error(state, as_of, held, start=self._start)

    def withdraw(self) -> None:
        """Expire the holds of a query that has not begun: no offset that names them was returned.

        Each run that does not begin makes holds of a name of its own; left behind, they would keep
        history for ever. One whose name was given may be older than this run: it is its giver's.
        """
        if self._is_hold_given:
            return
        for each in self._inputs:
            try:
                each.holds.withdraw()
            except (ShardError, OSError) as error:
                _log.warning("%s leaves hold '%s' behind: %s", self.who, self.hold, error)

    def take_over(self, offset: ShardOffset, needed: int) -> None:
        """Go on with the holds of an offset, which may be of an earlier run; `needed` is kept."""
        for each in self._inputs:
            each.holds.take_over(offset.hold, needed)

    def confirm(self) -> None:
        """Make sure, once in a run, that the holds that were taken over are still there."""
        if not self._confirmed:
            for each in self._inputs:
                each.holds.confirm()
            self._confirmed = True

    def protect(self, end: ShardOffset, needed: int) -> list[ShardState]:
        """Lease what a range up to `end` needs; the states to plan it from.

        Each of them is at least as new as its lease and knows everything before the end.

        Raises:
            Determinate: A shard's upper is before the end: its location was put back in time.
        """
        return [self._settled(each, end, each.holds.protect(needed)) for each in self._inputs]

    def advance(self, time: int) -> None:
        """Let go of what is before `time`: everything before it is done."""
        for each in self._inputs:
            each.holds.advance(time)

    def give_up(self, offset: ShardOffset) -> None:
        """Let go of all holds, once: nothing more will be read."""
        if not self._given_up:
            for each in self._inputs:
                each.holds.give_up(offset.hold)
            self._given_up = True

    def release(self) -> None:
        """Give the leases and the threads up; the since holds stay for the next run."""
        pool, self._pool = self._pool, None
        if pool is not None:
            # Not waited for: no answer of a store is needed any more.
            pool.shutdown(wait=False)
        for each in self._inputs:
            each.holds.release()

    def describe(self, status: str) -> None:
        """Write what the query is doing into its leases, for people who look at the shards."""
        for each in self._inputs:
            each.holds.describe(status)

    # -- the snapshot that is read in pieces ---------------------------------------------------

    def pin(self, seqnos: tuple[int, ...], units: list[SnapshotUnit]) -> bool:
        """Keep the states that a snapshot is cut from; False if one was collected just now."""
        for each, seqno in zip(self._inputs, seqnos, strict=True):
            if not each.holds.pin(seqno):
                return False
        self._pinned = (seqnos, units)
        return True

    def pinned_units(self, offset: ShardOffset, cut: SnapshotCut) -> list[SnapshotUnit]:
        """The units of the snapshot that is under way: always the same ones.

        Newer states mean the same, but a merge divides them differently into parts, and a cut
        counts units.
        """
        if self._pinned is None or self._pinned[0] != cut.seqnos:
            states = [
                state_at(self._client.machine(each.name), seqno)
                for each, seqno in zip(self._inputs, cut.seqnos, strict=True)
            ]
            self._pinned = (cut.seqnos, snapshot_units(states, offset.as_of))
        return self._pinned[1]

    def check_known(self, offset: ShardOffset, states: Sequence[ShardState]) -> None:
        """Refuse an offset beyond what the inputs have: they are older copies.

        Raises:
            Determinate: One of them is (`SHARD_WENT_BACK`).
        """
        for each, state in zip(self._inputs, states, strict=True):
            if offset.frontier > state.upper:
                self._settled(each, offset, state)

    def _settled(self, each: Input, end: ShardOffset, state: ShardState) -> ShardState:
        """`state`, or a newer one, that knows everything before the end."""
        state = self._client.shard_views.extended_to_known_upper(state)
        if end.frontier > state.upper:
            (state,) = self._client.readable(each.name)
        if end.frontier <= state.upper:
            return state
        raise Determinate(
            f"{self.who}: the checkpoint has read up to {end.frontier}, but the upper of "
            f"'{state.name}' is {state.upper}",
            code="SHARD_WENT_BACK",
            hint="the location was restored from an older copy: restore the checkpoint to match",
        )


def in_snapshot(offset: Start | ShardOffset) -> bool:
    """True if a range that starts at `offset` starts with the snapshot, or goes on with it."""
    return isinstance(offset, Start) or offset.cut is not None


def time_needed(offset: ShardOffset) -> int:
    """The time that must stay readable for a range that starts at `offset`."""
    if offset.frontier.time is None or offset.cut is not None:
        return offset.as_of
    return max(offset.frontier.time - 1, 0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
