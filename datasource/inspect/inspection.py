"""Inspects a location without changing it: reads the states of shards and makes reports of them.

    inspect_location(location, clock)          every shard, even if some cannot be read
    inspect_shard(location, clock, "orders")   one shard, or an error that says why not
    find_dropped_parts(machine, state, …)      the parts that only older states need
    find_lost_parts(machine, state)            the parts that the store does not have

Takes no lease and writes nothing, so that it can be run against a location in any condition; a
report was true at one moment. It uses neither the client nor any handle, so an inspection costs no
more than reading the states.
"""

from __future__ import annotations

from shardline.datasource.clock import Clock, SystemIds
from shardline.datasource.errors import Corrupt, MissingBlob, ShardError
from shardline.datasource.inspect.report import (
    DroppedPart,
    LocationReport,
    ProblemReport,
    ShardReport,
    dropped_parts,
    report_shard,
)
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import part_blobs, whole_state_seqnos
from shardline.datasource.shard.state import ShardState, seqno_since
from shardline.datasource.shard.state_history import states_from
from shardline.datasource.stores.location import Location
from shardline.datasource.stores.shard_names import shard_name

__all__ = ["find_dropped_parts", "find_lost_parts", "inspect_location", "inspect_shard"]

_REPLAY_MAX = 10_000
"""Most log records read to find parts that only older states need; each may cost a request."""


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
    return _location_report(location, clock, shards, problems)


def inspect_shard(
    location: Location, clock: Clock, name: str, *, with_parts: bool = False
) -> LocationReport:
    """A report of shard `name` alone, or of its tombstone if it was dropped.

    Raises:
        InvalidUsage: There is no such shard.
        Corrupt: Its state is damaged.
    """
    return _location_report(
        location, clock, [_report(location, clock, name, with_parts=with_parts)], []
    )


def _location_report(
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
    machine = Machine(name, location, clock, SystemIds(), ShardSettings())
    state = machine.state()
    try:
        dropped = find_dropped_parts(machine, state, replay_max=_REPLAY_MAX)
    except (Corrupt, MissingBlob):
        # The newest state was read; damage of older ones is reported by fsck.
        dropped = None
    return report_shard(state, clock.now_ms(), dropped=dropped, with_parts=with_parts)


def find_dropped_parts(
    machine: Machine, state: ShardState, *, replay_max: int
) -> tuple[DroppedPart, ...] | None:
    """Parts that only states older than `state` need, and that holds keep.

    Args:
        machine: The shard's machine.
        state: The newest state.
        replay_max: If more records had to be read, the result is None.

    Raises:
        ShardError: An older state cannot be read.
    """
    oldest = seqno_since(state)
    if machine.drops.none_between(oldest, state.seqno):
        return ()
    start = max((seqno for seqno in whole_state_seqnos(state) if seqno <= oldest), default=1)
    if state.seqno - start > replay_max:
        return None
    return dropped_parts(states_from(machine, state, oldest))


def find_lost_parts(machine: Machine, state: ShardState) -> tuple[str, ...]:
    """Keys of the parts that the store does not have, or has with another size.

    Costs one listing, and more requests only if one seems to be lost. Bytes are not compared: that
    is for a deep check of `fsck`.

    Args:
        machine: The shard's machine.
        state: A state of it, from before this call.

    Raises:
        ShardError: The store did not answer.
    """
    sizes = {key: part.size_bytes for key, part in part_blobs(state).items()}
    if not sizes:
        return ()
    # After the state was read: a part is there before a state names it.
    for entry in machine.location.blob.list(f"{machine.directory}/part/"):
        if sizes.get(entry.key) == entry.size_bytes:
            del sizes[entry.key]
    if not sizes:
        return ()
    # Meanwhile it may have been merged away and collected. What a state needs that is read
    # afterwards has not been.
    return tuple(sorted(sizes.keys() & part_blobs(machine.state()).keys()))
