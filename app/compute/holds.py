"""Holds keep the inputs of dataflows readable; this module names them, and ends them.

A hold (Materialize's critical since) belongs to a streaming query and outlives its process, so that
the query, started again, finds the history that it needs. The price: it never ends by itself. A
hold that nobody ends keeps history for ever; one that is ended too early lets the inputs be
compacted beyond the query's checkpoint, and the view is hydrated anew.

    view:<name>:<number of the dataflow>:<where>

`where` is a hash of machine and checkpoint folder. It tells apart the holds of two runtimes that
run the same view side by side, one to write and one to take over.

The hold that the coordinator takes when it chooses an as_of, until the dataflow has its own, is
named in the same way with the number 0: if the coordinator dies it ends together with the others.

Of a group of views, which has no durable state but its members' shards:

    group:<its inputs>:<where>

It ends with the group. One that a process has left behind ends when a view of that input goes, or
when another runtime has taken over for good.

A hold ends when the definition goes (`end_view_holds`), or its object, on all that any of its
definitions has read; when another runtime has taken over for good (`end_other_holds`), when its
checkpoint is gone (`end_hold`), or at the next start, if no object of that name reads the shard by
then (`shardline.app.coordinator.left_behind`).

Invariants:
    Every function that ends holds may be repeated: ending one that is gone changes nothing.
    A hold of another view is never ended: prefixes end with the colon behind the view's name.
"""

from __future__ import annotations

import hashlib
import platform
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from shardline.app.execution.ending_holds import allow_any, do_all, end_holds
from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import GROUP
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage

__all__ = [
    "end_group_hold",
    "end_hold",
    "end_other_holds",
    "end_start_holds",
    "end_view_holds",
    "find_first_time",
    "group_hold_name",
    "hold_name",
    "hold_place",
    "start_hold_name",
    "use_in_group",
]

_in_groups: WeakKeyDictionary[ShardClient, Counter[str]] = WeakKeyDictionary()
"""How many groups of this process read a shard, by client."""

_in_groups_lock = threading.Lock()

_SUBSCRIPTION: Final = re.compile(r"view:(t[0-9a-f]{32}):0:begin")
"""The hold of a subscription that has not begun; its name is a token of its controller."""


def start_hold_name(view: str) -> str:
    """Name of the hold that keeps a dataflow's as_of readable until it has its own hold."""
    return f"view:{view}:0:begin"


def find_first_time(
    client: ShardClient, as_of: int, inputs: Sequence[str], output: str = ""
) -> int:
    """The first time of a dataflow that has no checkpoint to go on from.

    It is the as_of that was chosen for it, unless history there is gone by now (an input was made
    anew, a checkpoint was lost after months) or its output is already further.

    Args:
        client: Client of the location.
        as_of: The time that was chosen when the dataflow was created.
        inputs: Names of all shards that it reads.
        output: Name of the shard that it writes; "" for none.

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
        # One before the upper: changes at the upper itself are not in the output yet, and must come
        # as changes. In a snapshot at the upper they could not be told apart any more.
        as_of = max(as_of, (client.readable(output)[0].upper.time or 0) - 1)
    return as_of


def hold_name(incarnation: Incarnation, checkpoints: Path) -> str:
    """Name of an incarnation's hold, the same after each restart of the same definition.

    Args:
        incarnation: The object's life; its epoch is no part of the name, or a restart would not
            find the hold that protects its checkpoint.
        checkpoints: Folder of the runtime's checkpoints, which no two runtimes share.
    """
    return f"view:{incarnation.id}:{incarnation.dataflow}:{hold_place(checkpoints)}"


def hold_place(checkpoints: Path) -> str:
    """The hash that tells the holds of one runtime from those of others; see the module."""
    place = f"{platform.node()}:{checkpoints.resolve()}"
    return hashlib.blake2b(place.encode(), digest_size=4).hexdigest()


def end_view_holds(
    client: ShardClient,
    view: str,
    inputs: Sequence[str],
    check_fence: Callable[[], None] = allow_any,
) -> None:
    """End all holds of a view that is dropped or no longer reads these inputs; may be repeated.

    Args:
        client: Client of the location.
        view: Name of the view.
        inputs: Shards that may have such holds.
        check_fence: As of `end_holds`.
    """
    own = f"view:{view}:"

    def end(shard: str) -> None:
        def is_left(name: str) -> bool:
            # Of groups that have ended without it: a process was killed. None can need it any more.
            # Asked after the holds were read: a group notes its inputs before it takes its hold.
            return name.startswith(GROUP) and not _is_in_group(client, shard)

        end_holds(client, [shard], lambda name: name.startswith(own) or is_left(name), check_fence)

    do_all(partial(end, shard) for shard in inputs)


def group_hold_name(group: str, checkpoints: Path) -> str:
    """Name of the hold of a group's streaming query.

    Args:
        group: Name of the group, which begins with `group:`.
        checkpoints: As for `hold_name`.
    """
    assert group.startswith(GROUP), group
    return f"{group}:{hold_place(checkpoints)}"


def _is_in_group(client: ShardClient, shard: str) -> bool:
    """True if a group of this process reads a shard."""
    with _in_groups_lock:
        return _in_groups.get(client, Counter())[shard] > 0


def use_in_group(client: ShardClient, inputs: Sequence[str]) -> None:
    """Note that a group of this process reads these shards, until `end_group_hold`."""
    with _in_groups_lock:
        _in_groups.setdefault(client, Counter()).update(inputs)


def end_group_hold(
    client: ShardClient, hold: str, inputs: Sequence[str], check_fence: Callable[[], None]
) -> None:
    """End the hold of a group whose streaming query has ended; see `end_holds`."""
    with _in_groups_lock:
        _in_groups.setdefault(client, Counter()).subtract(inputs)
    end_hold(client, hold, inputs, check_fence)


def end_other_holds(
    client: ShardClient, own: str, inputs: Sequence[str], check_fence: Callable[[], None]
) -> None:
    """End the holds that other runtimes, and other definitions, left for the same view.

    Also those of groups of other runtimes, which were fenced before they could end them: nobody
    else would. Only a runtime that may write calls this: one that warms up would take the holds
    away from the one that is still writing.

    Args:
        client: Client of the location.
        own: The hold that stays.
        inputs: Shards that may have such holds.
        check_fence: As of `end_holds`.
    """
    view, _, place = own.rsplit(":", 2)

    def is_left(name: str) -> bool:
        if name.startswith(GROUP):
            return not name.endswith(f":{place}")
        return name != own and name.startswith(f"{view}:")

    end_holds(client, inputs, is_left, check_fence)


def end_start_holds(
    client: ShardClient,
    shards: Sequence[str],
    abandoned: Callable[[str], bool],
    check_fence: Callable[[], None],
) -> None:
    """End the holds of subscriptions that nobody will ever begin; may be repeated.

    Args:
        client: Client of the location.
        shards: Shards that may have such holds.
        abandoned: True for the name of a subscription that will never begin.
        check_fence: As of `end_holds`.
    """

    def ended(hold: str) -> bool:
        found = _SUBSCRIPTION.fullmatch(hold)
        return found is not None and abandoned(found[1])

    end_holds(client, shards, ended, check_fence)


def end_hold(
    client: ShardClient,
    own: str,
    inputs: Sequence[str],
    check_fence: Callable[[], None] = allow_any,
) -> None:
    """End one hold whose checkpoint is gone; does nothing if the hold is not there."""
    end_holds(client, inputs, own.__eq__, check_fence)
