"""Looking into a location without changing it: reads states and makes reports of them.

    inspect_location(location, clock)          every shard, also when some cannot be read
    inspect_shard(location, clock, "orders")   one shard, or an error that says why not

Takes no lease and writes nothing: what is reported was true at one moment. Uses neither the client
nor any handle, so that a look costs no more than reading the states.
"""

from __future__ import annotations

from collections.abc import Iterator

from datasource.clock import Clock, SystemIds
from datasource.codec import apply_diff, decode_record, decode_rollup
from datasource.errors import Corrupt, MissingBlob, ShardError
from datasource.location import Location
from datasource.machine import Machine
from datasource.names import shard_directory, shard_name
from datasource.report import (
    DroppedPart,
    LocationReport,
    ProblemReport,
    ShardReport,
    dropped_parts,
    report_shard,
)
from datasource.settings import ShardSettings
from datasource.state import ShardState, seqno_since

__all__ = ["inspect_location", "inspect_shard"]

_REPLAY_MAX = 10_000
"""Most log records read to find what only old seqnos need; each may cost a request."""

_SCAN_MAX = 1024


def inspect_location(
    location: Location, clock: Clock, *, with_parts: bool = False
) -> LocationReport:
    """A report of every shard of `location`; one that cannot be read becomes a problem."""
    shards: list[ShardReport] = []
    problems: list[ProblemReport] = []
    for directory in location.consensus.list_shards():
        name = directory
        try:
            name = shard_name(directory)
            shards.append(_report(location, clock, name, with_parts=with_parts))
        except ShardError as error:
            problems.append(ProblemReport(name, error.code, str(error)))
    return _of(location, clock, shards, problems)


def inspect_shard(
    location: Location, clock: Clock, name: str, *, with_parts: bool = False
) -> LocationReport:
    """A report of shard `name` alone; of its tombstone if it was dropped.

    Raises:
        InvalidUsage: There is no such shard.
        Corrupt: Its state is damaged.
    """
    return _of(location, clock, [_report(location, clock, name, with_parts=with_parts)], [])


def _of(
    location: Location, clock: Clock, shards: list[ShardReport], problems: list[ProblemReport]
) -> LocationReport:
    return LocationReport(
        location=location.url,
        location_id=location.id,
        at_ms=clock.now_ms(),
        shards=tuple(sorted(shards, key=lambda shard: shard.name)),
        problems=tuple(problems),
    )


def _report(location: Location, clock: Clock, name: str, *, with_parts: bool) -> ShardReport:
    state = Machine(name, location, clock, SystemIds(), ShardSettings()).state()
    dropped = _dropped(location, state)
    return report_shard(state, clock.now_ms(), dropped=dropped, with_parts=with_parts)


def _dropped(location: Location, state: ShardState) -> tuple[DroppedPart, ...] | None:
    """What only seqnos before `state`'s still need; None if that cannot be found out."""
    oldest = seqno_since(state)
    if oldest >= state.seqno:
        return ()
    start = max((seqno for seqno in state.rollups if seqno <= oldest), default=state.base)
    if state.seqno - start > _REPLAY_MAX:
        return None
    try:
        return dropped_parts(s for s in _history(location, state, start) if s.seqno >= oldest)
    except (Corrupt, MissingBlob):
        # The newest state is whole; that older ones are not is for fsck to say.
        return None


def _history(location: Location, state: ShardState, start: int) -> Iterator[ShardState]:
    """The states from seqno `start`, which has a rollup or a whole record, to `state`'s."""
    consensus, directory = location.consensus, shard_directory(state.name)
    current: ShardState | None = None
    if start in state.rollups:
        key = state.rollups[start].key
        data = location.blob.get(key)
        if data is None:
            raise MissingBlob(f"rollup '{key}' is not there")
        current = decode_rollup(data, f"rollup '{key}'")
        yield current
    while current is None or current.seqno < state.seqno:
        first = start if current is None else current.seqno + 1
        records = consensus.scan(directory, first, min(_SCAN_MAX, state.seqno - first + 1))
        if not records or records[0].seqno != first:
            raise MissingBlob(f"record {first} of shard '{state.name}' is not there")
        for found in records:
            record = decode_record(found.data, f"record {found.seqno} of shard '{state.name}'")
            if current is None:
                current = record.state
                if current is None:
                    raise Corrupt(f"record {start} of shard '{state.name}' has no whole state")
            else:
                current = apply_diff(current, record)
            yield current
