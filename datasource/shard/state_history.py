"""State history reads the states that a shard had, as long as they are kept.

    state_at(machine, seqno)               the state that record `seqno` made
    states_from(machine, newest, seqno)    that state and all that follow it, one by one
    rebuild(machine, newest, seqno)        as `state_at`, without checks: for garbage collection

A read that is planned again after a restart must find the parts that it was planned with, though
compaction has replaced them meanwhile. A seqno hold (a lease's, or one that a since hold has
pinned) keeps the state at its seqno, every later one, and all blobs that those name. So the owner
of a pinned seqno can plan from it again, and come to the same parts, after any restart.

Invariants:
    Every state from the shard's `gc_seqno` to the newest can be read. An older one is refused, even
    if its records happen to be there still, as its blobs need not be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.datasource.errors import InvalidUsage, MissingBlob
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState

__all__ = ["rebuild", "state_at", "states_from"]

_RELOADS_MAX: Final = 8
"""How often a rollup or record may be collected while a state is read from it. Each time means that
garbage collection has gone further meanwhile; more than a few mean that the store lost something.
"""


def state_at(machine: Machine, seqno: int) -> ShardState:
    """The state that the shard had at `seqno`; costs a rollup and the records after it.

    Args:
        machine: The shard's machine.
        seqno: At most the shard's newest, and protected by a seqno hold: otherwise it may be gone
            now, and its blobs at any later moment.

    Raises:
        InvalidUsage: There is no such shard; or the state is not kept any more (`SEQNO_GONE`); or
            it has not been made yet (`SEQNO_UNKNOWN`).
        MissingBlob: A rollup or record that must be there is not: the store lost it.
    """
    for _ in range(_RELOADS_MAX):
        newest = machine.state()
        if seqno == newest.seqno:
            return newest
        if seqno > newest.seqno or seqno < 1:
            raise InvalidUsage(
                f"shard '{machine.name}' has no state at seqno {seqno}: it is at {newest.seqno}",
                code="SEQNO_UNKNOWN",
                hint="use a seqno that the shard has given out",
            )
        if seqno < max(newest.gc_seqno, oldest_whole(newest)):
            raise InvalidUsage(
                f"the state of shard '{machine.name}' at seqno {seqno} is not kept any more: "
                f"states before {max(newest.gc_seqno, oldest_whole(newest))} have been given up",
                code="SEQNO_GONE",
                hint="read the newest state; a seqno hold keeps one from being collected",
            )
        found = rebuild(machine, newest, seqno)
        if found is not None:
            return found
    raise MissingBlob(
        f"the state of shard '{machine.name}' at seqno {seqno} cannot be rebuilt: a rollup or a "
        f"record that it is made of is not there",
        code="MISSING_STATE",
        hint="run inspect and restore it from a backup; nothing was changed",
    )


def states_from(machine: Machine, newest: ShardState, seqno: int) -> Iterator[ShardState]:
    """The states from `seqno` to `newest`, without gaps.

    Costs a rollup and every record after it. The first state need not be held; but then garbage
    collection may delete it meanwhile. Of a shard that was dropped, or made again after that, only
    the states since then are given if those before are gone.

    Raises:
        MissingBlob: A rollup or a record is not there: collected meanwhile, or lost.
    """
    first = max(seqno, oldest_whole(newest), 1)
    state = newest if first >= newest.seqno else rebuild(machine, newest, first)
    if state is None and first < newest.base:
        first = newest.base
        state = rebuild(machine, newest, first)
    if state is not None:
        yield state
        for after in machine.log.states_after(state, newest.seqno):
            state = after
            yield after
    if state is None or state.seqno < newest.seqno:
        gap = first if state is None else state.seqno + 1
        raise MissingBlob(
            f"the states of shard '{machine.name}' from seqno {gap} on cannot be rebuilt: a rollup "
            f"or a record that they are made of is not there",
            code="MISSING_STATE",
            hint="run inspect and restore it from a backup; nothing was changed",
        )


def rebuild(machine: Machine, newest: ShardState, seqno: int) -> ShardState | None:
    """The state at `seqno`, from the rollups and records that `newest` knows of.

    Returns:
        None if a rollup or record that it is made of is not there, which is no error where they
        may have been collected.
    """
    log = machine.log
    rollup = max((at for at in newest.rollups if at <= seqno), default=0)
    if rollup < newest.base <= seqno:
        record = log.record(newest.base)
        whole = None if record is None else record.state
    elif rollup:
        whole = log.rollup(rollup, newest.rollups[rollup])
    else:
        # The state is of before the shard was dropped or made again, and has no rollup that
        # `newest` knows: the state's own record names the whole state that it is made from.
        record = log.record(seqno)
        whole = None if record is None else log.starting_state(record)
    if whole is None:
        return None
    state = log.replay_from(whole, seqno)
    return state if state.seqno == seqno else None
