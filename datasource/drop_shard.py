"""Drops a shard: of its log a tombstone stays, and its blobs are deleted.

Invariants:
    Only the shard that is meant is dropped, by its id. A drop of unknown outcome may be repeated:
    if it has happened, another shard may have that name by now, with rows of somebody else.
    What is dropped is not denied: that its blobs could not be deleted is no failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.maintenance.garbage_collection import collect_garbage
from shardline.datasource.shard.commands.lifecycle import (
    Changed,
    Finalised,
    Held,
    finalise_unchanged,
)
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState, is_tombstone

__all__ = ["drop_shard"]

_log = logging.getLogger(__name__)


def drop_shard(
    machine: Machine,
    *,
    shard: str | None,
    despite: frozenset[str],
    seen: ShardState | None,
    drop_register: Callable[[str, frozenset[str]], Finalised | Held],
) -> None:
    """Drop a shard, see `ShardClient.drop`.

    Args:
        machine: Applies commands to what has the name of the shard.
        shard: Its id; None for what is there now.
        despite: Readers and holds to cut off.
        seen: The state in which it is to be; None for any.
        drop_register: Drops a transactions shard of that id, unless shards are registered with it.
    """
    state = machine.state()
    # From here on it is this one. Of a drop of unknown outcome, which has happened, the next look
    # finds what somebody else has made and written meanwhile.
    meant = shard or state.shard
    try:
        outcome = _finalise(machine, state, meant, despite, seen, drop_register)
    except Indeterminate as error:
        raise Indeterminate(
            error.detail,
            code=error.code,
            hint=f"drop('{machine.name}', shard='{meant}') may be repeated: it leaves alone what "
            "was made under that name since",
        ) from error
    if isinstance(outcome, Changed):
        raise Determinate(
            f"shard '{machine.name}' has changed since the state by which it was to be dropped",
            code="SHARD_CHANGED",
            hint="look at it again",
        )
    if isinstance(outcome, Held):
        raise InvalidUsage(
            f"shard '{machine.name}' is still read by {', '.join(outcome.holders)}",
            code="SHARD_IN_USE",
            hint="stop or expire them first",
        )
    try:
        collect_garbage(machine)
    except ShardError:
        # The shard is dropped: an error here would deny it. Maintenance collects the blobs.
        context = {"shard": machine.name}
        _log.warning("blobs of a dropped shard left", exc_info=True, extra={"context": context})


def _finalise(  # noqa: PLR0917  # of one caller
    machine: Machine,
    state: ShardState,
    shard: str,
    despite: frozenset[str],
    seen: ShardState | None,
    drop_register: Callable[[str, frozenset[str]], Finalised | Held],
) -> Finalised | Held | Changed:
    mark = state.registered
    if state.shard != shard:
        return Finalised()
    if mark is None or is_tombstone(state):
        end = partial(finalise_unchanged, shard=shard, despite_holders=despite, seen=seen)
        return machine.apply(end)
    if mark.shard == shard:
        # A transactions shard is registered with itself, and ends only if no other one is.
        return drop_register(shard, despite)
    raise InvalidUsage(
        f"shard '{machine.name}' is registered with transactions shard '{mark.txns}'",
        code="SHARD_REGISTERED",
        hint="forget it first (client.transactions().forget), then drop it",
    )
