"""The poller reads from shards what no object reports: frontiers, live errors, and their layout.

    poller = ShardPoller(sink, client)
    poller.start()

Objects report how far they are when they commit. Some things move without them: a since after a
hold is given up, a shard that another process writes. So each second the frontiers and sizes of
some objects are read, and by turns, in ten seconds or more, told as reports of their shards. Some
shards of the location are inspected in turn besides, whether they are of an object or not: only
that finds out what older states of them need, which may take many requests. The cost per second is
bounded, by their number and by the time that the store takes for them: the more there are, the
older is what is known of each. What this process has just written is not asked for.

A part that nobody reads may be gone for long. So some shards are audited in turn: the store is
asked which of their parts it has.

Invariants:
    Nothing is written. A shard that cannot be read is left out: its rows stay as they were. Only
    one that was seen to be dropped, or not to exist, loses them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final, Literal, TypeVar

from msgspec import UNSET, UnsetType

from shardline.app.introspection.events import Polled, ShardGone, ShardSeen
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.shard_events import known_shards
from shardline.app.introspection.sink import Sink
from shardline.app.protocol.objects import SourceDescription, ViewDescription, errors_shard
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.report import (
    DroppedPart,
    find_dropped_parts,
    find_lost_parts,
    report_shard,
    schema_columns,
)
from shardline.datasource.state import (
    Machine,
    ShardState,
    add_up_diffs,
    is_tombstone,
)

__all__ = ["ShardPoller"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_TICK_MS: Final = 1000
_RECENT_MS: Final = 900.0
"""Age of a state that is not read again, by its writer's clock. Less than a tick: what another
process writes is read in each."""

_OBJECTS: Final = 32
"""Objects whose frontiers are read in one tick: two requests each at most, and none of shards that
this process has just written."""

_INSPECTED: Final = 16
"""Shards that are inspected in one tick at most: of local files, half a hundredth of a core."""

_INSPECT_MS: Final = 100.0
"""After so long no further one is inspected in a tick: a store that is far away takes longer for
each, and frontiers of objects wait for the next tick. One is inspected however long it takes."""

_AUDIT_TICKS: Final = 10
"""Parts are audited every so many ticks: a store that is far away bills each listing."""

_AUDIT_MS: Final = 20.0
"""After so long no further shard is audited. One is, however long it takes."""

_LIST_TICKS: Final = 30
"""The location's shards are listed every so many ticks."""

_REPLAY_MAX: Final = 100
"""Most records read to find the parts that only leases keep; each may cost a request."""

_TELL_TICKS: Final = 10
"""Ticks in which the shards of all objects are told once: that costs more than to look at them."""

_BATCHES_MAX: Final = 500
"""Most batches of a shard that are kept in memory: a shard that is maintained has a few dozen."""

_STOP_MS: Final = 10_000.0


class ShardPoller:
    """Reads states of shards, and puts events into the sink."""

    def __init__(self, sink: Sink, client: ShardClient) -> None:
        """Read nothing yet.

        Args:
            sink: Its objects are polled; takes the events.
            client: All shards of its location are inspected.
        """
        self._sink = sink
        self._client = client
        self._objects: deque[tuple[str, int]] = deque()
        self._shards: deque[str] = deque()
        self._audits: deque[str] = deque()
        # With the identity of the shard: another one may have its name by now.
        self._dropped: dict[str, tuple[str, tuple[DroppedPart, ...] | None]] = {}
        self._lost: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._reported_at: dict[str, int] = {}
        self._tick = self._left = 0
        # Monitoring survives any answer of a store: a step that fails is tried again.
        self._thread = PeriodicThread(
            "introspection-poll", self._round, client.clock, first_ms=_TICK_MS, retry_ms=_TICK_MS
        )

    def start(self) -> None:
        """Begin to read, once a second; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a read under way."""
        self._thread.stop(_STOP_MS)

    def step(self) -> None:
        """Do the reads of one tick."""
        if not self._objects:
            objects = self._sink.read(_with_shards)
            self._objects.extend(objects)
            self._reported_at = {
                name: self._reported_at[name] for name, _ in objects if name in self._reported_at
            }
        self._left = max(1, ceil(len(self._reported_at) / _TELL_TICKS))
        for _ in range(min(_OBJECTS, len(self._objects))):
            self._look(*self._objects.popleft())
        if self._tick % _LIST_TICKS == 0:
            self._list()
        self._for_a_while(self._shards, self._inspect, _INSPECTED, _INSPECT_MS)
        if self._tick % _AUDIT_TICKS == 0:
            # They are asked about first: a person has put them back, and waits to see it.
            lost = deque(name for name, (_, parts) in self._lost.items() if parts)
            self._for_a_while(lost, self._audit, len(lost), _AUDIT_MS)
            self._for_a_while(self._audits, self._audit, len(self._audits), _AUDIT_MS)
        self._tick += 1

    def _for_a_while(
        self, names: deque[str], do: Callable[[str], None], most: int, longest_ms: float
    ) -> None:
        """Do something with the names whose turn it is, so many at most, and one at least."""
        until_ms = self._client.clock.elapsed_ms() + longest_ms
        for _ in range(min(most, len(names))):
            # It goes to the end first: one that cannot be read keeps back no other.
            names.rotate(-1)
            do(names[-1])
            if self._client.clock.elapsed_ms() >= until_ms or self._thread.stopping.is_set():
                break

    def _round(self) -> float:
        self.step()
        return _TICK_MS

    def _look(self, name: str, dataflow: int) -> None:
        state = self._state(name)
        if isinstance(state, ShardState):
            is_told = self._is_turn(name)
            errors = self._errors(name, is_told=is_told)
            parts = [part for batch in state.trace.batches for part in batch.parts]
            polled = Polled(
                id=name,
                dataflow=dataflow,
                since=state.since.time,
                upper=state.upper.time,
                rows=add_up_diffs(parts),
                size_bytes=sum(part.size_bytes for part in parts),
                errors=errors,
                columns=schema_columns(state.schemas[state.schema_id]),
            )
            self._sink.put(polled)
            if is_told:
                self._tell(name, state)

    def _is_turn(self, name: str) -> bool:
        """True if the shards of an object are to be told now: the first time, and then by turns."""
        reported = self._reported_at.get(name)
        if reported is not None and (self._left == 0 or self._tick - reported < _TELL_TICKS):
            return False
        self._left -= reported is not None
        self._reported_at[name] = self._tick
        return True

    def _errors(self, name: str, *, is_told: bool) -> int | UnsetType:
        state = self._state(errors_shard(name))
        if not isinstance(state, ShardState):
            return UNSET
        if is_told:
            self._tell(errors_shard(name), state)
        return add_up_diffs(part for batch in state.trace.batches for part in batch.parts)

    def _list(self) -> None:
        # Before the listing: what becomes known while it is made is not gone because it lacks it.
        # Of all that is known, and not of what was listed before: a round of an earlier run of the
        # application may be of a shard that was dropped meanwhile.
        known = self._sink.read(lambda facts, _: known_shards(facts))
        found = set(self._client.shards())
        for name in known - found:
            self._sink.put(ShardGone(name=name))
        fresh = sorted(found.difference(self._shards))
        self._shards = deque([*fresh, *(s for s in self._shards if s in found)])
        self._audits = deque([*fresh, *(s for s in self._audits if s in found)])
        self._dropped = {name: one for name, one in self._dropped.items() if name in found}
        self._lost = {name: one for name, one in self._lost.items() if name in found}

    def _inspect(self, name: str) -> None:
        state = self._state(name)
        if state == "unreadable":
            # Not gone: alerts on its rows would end just when it is damaged.
            return
        if state == "gone":
            self._sink.put(ShardGone(name=name))
            return
        self._dropped[name] = state.shard, _dropped(self._client.machine(name), state)
        self._tell(name, state)

    def _audit(self, name: str) -> None:
        """Ask the store which parts of a shard it has: told when the shard is told next."""
        state = self._state(name)
        if not isinstance(state, ShardState):
            return
        try:
            lost = find_lost_parts(self._client.machine(name), state)
        except ShardError:
            _log.warning("parts cannot be listed", extra={"context": {"shard": name}})
            return
        self._lost[name] = state.shard, lost

    def _tell(self, name: str, state: ShardState) -> None:
        """Tell what a state says of its shard; what older states need, as of its last turn."""
        now_ms = self._now_ms()
        dropped = _of_shard(self._dropped.get(name), state)
        report = report_shard(state, now_ms, dropped=dropped, batches_max=_BATCHES_MAX)
        lost = _of_shard(self._lost.get(name), state)
        self._sink.put(ShardSeen(report=report, at_ms=now_ms, lost=lost))

    def _now_ms(self) -> int:
        return self._client.clock.now_ms()

    def _state(self, name: str) -> ShardState | Literal["gone", "unreadable"]:
        """The state of a shard; `gone` if it was dropped, or does not exist."""
        try:
            state = self._client.machine(name).cached
            # What moves once a second is mostly written by this process: no request finds more. Of
            # a follower that is its leader: its own state says nothing of how far it is.
            recent = state is not None and 0 <= self._now_ms() - state.walltime_ms < _RECENT_MS
            if state is None or not recent or state.leader is not None:
                state = self._client.look(name)
        except ShardError:
            _log.warning("a shard cannot be read", extra={"context": {"shard": name}})
            return "unreadable"
        return "gone" if state is None or is_tombstone(state) else state


def _of_shard(known: tuple[str, T] | None, state: ShardState) -> T | None:
    """What is known of the shard with this identity, if it is of this one."""
    return known[1] if known is not None and known[0] == state.shard else None


def _with_shards(facts: Facts, _now_ms: int) -> list[tuple[str, int]]:
    """Objects that have shards, with their dataflows."""
    kinds = (SourceDescription, ViewDescription)
    installed = (one.installed for one in facts.objects.values())
    return [(one.id, one.dataflow) for one in installed if isinstance(one.description, kinds)]


def _dropped(machine: Machine, state: ShardState) -> tuple[DroppedPart, ...] | None:
    """Parts that only earlier states need, which leases hold; None if that costs too many reads."""
    try:
        return find_dropped_parts(machine, state, replay_max=_REPLAY_MAX)
    except ShardError:
        return None
