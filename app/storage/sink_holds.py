"""The holds of a sink keep what it has not written yet readable; they end when it is dropped.

    hold_name("out")                        on its input, and on the errors that it waits for
    release_former(client, description, …)  at each start, before the accounts change
    drop_sink(client, description)          after the last incarnation has stopped

A sink's holds have the same names in every runtime, since its target is one and the same. So they,
and its accounts in `<sink>_progress`, end only as they were seen before a look at the fence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from shardline.app.execution.ending_holds import TRIED_AGAIN, allow_any, do_all, end_holds
from shardline.app.protocol.objects import SinkDescription, errors_shard, progress_shard
from shardline.app.storage.sinks.progress import read_progress
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError

__all__ = ["drop_sink", "hold_name", "release_former"]

_log = logging.getLogger(__name__)


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
    input is in the progress. Something that is damaged keeps nothing else of the sink.

    Args:
        client: Of the persist location.
        description: The sink's last one.
        check_fence: As of `end_holds`.

    Raises:
        Determinate: A shard did not answer. Or its progress has changed meanwhile: it is dropped by
            another call, if at all.
        ShardError: As of `end_holds`; all else of the sink is gone.
    """
    name = description.name
    do_all(
        (
            lambda: _give_up(client, _held_shards(client, description), name, check_fence),
            # Last: nothing else says which input it was. Also after a damaged shard, maybe of
            # errors of another object: a sink of this name would go on by it later.
            lambda: _drop_progress(client, name, check_fence),
        )
    )


def _held_shards(client: ShardClient, description: SinkDescription) -> list[str]:
    """The shards that a sink may have a hold on."""
    try:
        row = read_progress(client, description.name)
    except TRIED_AGAIN:
        raise
    except ShardError:
        # It is damaged for good, and its input may be any of them.
        return client.shards()
    inputs = {description.on} if row is None else {description.on, row.input}
    return [*inputs, *_error_shards(client)]


def _drop_progress(client: ShardClient, sink: str, check_fence: Callable[[], None]) -> None:
    shard = progress_shard(sink)
    if client.exists(shard):
        seen = client.state(shard)
        check_fence()
        # As it was before that look: a sink of this name that another runtime runs by now has read
        # or changed it since, and goes on by it.
        client.drop(shard, seen=seen)


def release_former(
    client: ShardClient,
    sink: SinkDescription,
    previous_input: str,
    read: Collection[str],
    check_fence: Callable[[], None],
) -> None:
    """Give up the holds of a sink that starts on what it does not read any more.

    That is the input of the definition before, and errors of what its input was made of then. A
    shard that is damaged keeps its hold, which is logged: it is none of the sink's any more, and
    must not keep it from starting.

    Args:
        client: Of the persist location.
        sink: As it is defined now.
        previous_input: By its accounts; "" if they have none.
        read: The objects whose errors it waits for.
        check_fence: As of `end_holds`.

    Raises:
        Fenced: Another runtime has taken over.
        Determinate: A shard did not answer: it is to be tried again.
        Indeterminate: The same.
    """
    former = sorted({previous_input} - {"", sink.on})
    try:
        _give_up(client, [*former, *_error_shards(client, read)], sink.name, check_fence)
    except TRIED_AGAIN:
        raise
    except ShardError:
        # Of a former input nothing else knows it any more, once the accounts have the new one: the
        # hold would keep the history of a shard that somebody brings back for ever.
        context = {"sink": sink.name, "former": former, "hold": hold_name(sink.name)}
        _log.warning(
            "holds of a sink stay on what it does not read any more: once that can be read again, "
            "expire-reader ends them",
            extra={"context": context},
            exc_info=True,
        )


def _give_up(
    client: ShardClient,
    shards: Iterable[str],
    sink: str,
    check_fence: Callable[[], None],
) -> None:
    """Give up a sink's holds on shards, without regard to the runtime that took them."""
    end_holds(client, shards, hold_name(sink).__eq__, check_fence)


def _error_shards(client: ShardClient, but: Collection[str] = ()) -> list[str]:
    """All shards of errors, except those of objects `but`.

    Nothing says what an input was made of when they were held.
    """
    kept = {errors_shard(of) for of in but}
    return [n for n in client.shards() if n.endswith(errors_shard("")) and n not in kept]
