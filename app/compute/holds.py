"""Names of the holds that dataflows have on their inputs, and their end.

    view:<name>:<number of the dataflow>:<where>

The hold of whoever has chosen the as_of, until the dataflow has its own, is called so too, with the
number 0: it ends with the others if its owner dies.

A hold belongs to a streaming query, and outlives it: whoever starts the query again finds what it
needs. It is of one runtime: `where` tells those of two that run the same view side by side, one to
write and one to take over, apart. So it never ends by itself. It ends when the definition goes
(`forget_holds`), or when another runtime has taken over for good (`end_other_holds`).
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from shardline.app.execution.host import Incarnation
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.commands.readers import expire_readers
from shardline.datasource.shard.state import is_tombstone

__all__ = [
    "beginning_name",
    "end_beginnings",
    "end_hold",
    "end_other_holds",
    "first_time",
    "forget_holds",
    "hold_name",
]

_SUBSCRIPTION: Final = re.compile(r"view:(t[0-9a-f]{32}):0:begin")
"""The hold of a subscription, which is called by a token of its controller."""


def beginning_name(view: str) -> str:
    """The hold that keeps a dataflow's beginning readable until it has its own."""
    return f"view:{view}:0:begin"


def first_time(client: ShardClient, as_of: int, inputs: Sequence[str], output: str = "") -> int:
    """Where a dataflow begins that has no checkpoint to go on from.

    That is the as_of that was chosen for it, unless the history there is gone since (an input was
    made anew, a checkpoint lost after months), or its output is further already.

    Args:
        client: Of the location.
        as_of: What was chosen when the dataflow was created.
        inputs: All that it reads.
        output: The shard that it writes; "" for none.

    Raises:
        InvalidUsage: An input can never be read again.
    """
    for state in client.readable(*inputs):
        if state.since.time is None:
            raise InvalidUsage(
                f"shard '{state.name}' can never be read again",
                code="HISTORY_GONE",
                hint="drop what reads it, or make it again",
            )
        as_of = max(as_of, state.since.time)
    if output and client.exists(output):
        as_of = max(as_of, (client.readable(output)[0].upper.time or 0) - 1)
    return as_of


def hold_name(incarnation: Incarnation, checkpoints: Path) -> str:
    """The hold of an incarnation, the same after each restart of the same definition.

    Args:
        checkpoints: Folder of the runtime's checkpoints, which no two share.
    """
    place = f"{platform.node()}:{checkpoints.resolve()}"
    where = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
    return f"view:{incarnation.id}:{incarnation.dataflow}:{where}"


def forget_holds(client: ShardClient, view: str, inputs: Sequence[str]) -> None:
    """End all holds of a view that is dropped, or no longer reads these inputs; harmless again."""
    _expire(client, inputs, lambda name: name.startswith(f"view:{view}:"))


def end_other_holds(client: ShardClient, own: str, inputs: Sequence[str]) -> None:
    """End the holds that other runtimes, and other definitions, left for the same view.

    Args:
        own: The hold that stays.
        inputs: Where to look.
    """
    view = own.rsplit(":", 2)[0]
    _expire(client, inputs, lambda name: name != own and name.startswith(f"{view}:"))


def end_beginnings(
    client: ShardClient, shards: Sequence[str], abandoned: Callable[[str], bool]
) -> None:
    """End the holds of subscriptions that nobody will ever begin; harmless again.

    Args:
        client: Of the location.
        shards: Where to look.
        abandoned: Whether a subscription, by its name, is one of those.
    """

    def ended(hold: str) -> bool:
        found = _SUBSCRIPTION.fullmatch(hold)
        return found is not None and abandoned(found[1])

    _expire(client, shards, ended)


def end_hold(client: ShardClient, own: str, inputs: Sequence[str]) -> None:
    """End one hold, whose checkpoint is gone; harmless if it is not there."""
    _expire(client, inputs, own.__eq__)


def _expire(client: ShardClient, shards: Sequence[str], ended: Callable[[str], bool]) -> None:
    for shard in shards:
        state = client.machine(shard).refresh()
        if state is None or is_tombstone(state):
            continue
        if found := list(filter(ended, state.critical)):
            client.machine(shard).apply(partial(expire_readers, readers=found))
