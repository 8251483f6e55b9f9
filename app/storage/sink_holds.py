"""The holds of a sink keep what it has not written yet readable; they end when it is dropped.

    hold_name("out")                        on its input, and on the errors that it waits for
    drop_sink(client, description)          after the last incarnation has stopped

A sink's holds have the same names in every runtime, since its target is one and the same. So they,
and its accounts in `<sink>_progress`, end only as they were seen before a look at the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from shardline.app.execution.ending_holds import allow_any, end_holds
from shardline.app.protocol.objects import SinkDescription, errors_shard, progress_shard
from shardline.app.storage.sinks.progress import read_progress
from shardline.datasource.client import ShardClient

__all__ = ["drop_sink", "error_shards", "give_up", "hold_name"]


def hold_name(sink: str) -> str:
    """Name of the since hold that sink `sink` has on its input.

    While the hold stands the changes that the sink has not written yet stay readable. If it is
    lost, they may be merged away, and the sink cannot go on where its target is.
    """
    return f"sink:{sink}"


def drop_sink(
    client: ShardClient,
    description: SinkDescription,
    check_fence: Callable[[], None] = allow_any,
) -> None:
    """Give up a stopped sink's holds, and drop its progress; idempotent.

    What its target has stays there. A hold that is not given up keeps the input's history for ever.
    A definition that never got as far as its own input still has the hold of the one before, whose
    input is in the progress.

    Args:
        client: Of the persist location.
        description: The sink's last one.
        check_fence: As of `end_holds`.

    Raises:
        Determinate: Its progress has changed meanwhile: it is dropped by another call, if at all.
    """
    row = read_progress(client, description.name)
    inputs = {description.on} if row is None else {description.on, row.input}
    give_up(client, [*inputs, *error_shards(client)], description.name, check_fence)
    # Last: nothing else says which input it was.
    shard = progress_shard(description.name)
    if client.exists(shard):
        seen = client.state(shard)
        check_fence()
        # As it was before that look: a sink of this name that another runtime runs by now has read
        # or changed it since, and goes on by it.
        client.drop(shard, seen=seen)


def give_up(
    client: ShardClient,
    shards: Iterable[str],
    sink: str,
    check_fence: Callable[[], None],
) -> None:
    """Give up a sink's holds on shards, without regard to the runtime that took them."""
    end_holds(client, shards, hold_name(sink).__eq__, check_fence)


def error_shards(client: ShardClient, but: Collection[str] = ()) -> list[str]:
    """All shards of errors, except those of objects `but`.

    Nothing says what an input was made of when they were held.
    """
    kept = {errors_shard(of) for of in but}
    return [n for n in client.shards() if n.endswith(errors_shard("")) and n not in kept]
