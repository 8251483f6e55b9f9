"""The hold of a sink on its input, also of one that was away for longer than history is kept.

    hold_input(client, sink, wanted, committed)      a hold from which the sink can go on
    unchanged_until(client, on, committed)           how far nothing has changed

A sink that is dropped gives its hold up, and its accounts. Created again it goes on where its
target is, if that can tell; but what its input has forgotten meanwhile nobody can give it. Nothing
is missing if the input did not change in the times that it has forgotten: its updates say so by
theirs. A merge moves these forward, up to the since, so it may hide that, but never the opposite.

Invariants:
    A hold that is ahead of the target is returned only if the times between are proved unchanged,
    by the very call that returns it.
"""

from __future__ import annotations

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import hold_name
from shardline.app.storage.sinks.stalls import history_forgotten
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.since_hold import SinceHandle
from shardline.datasource.state import ShardState, last_update

__all__ = ["hold_input", "unchanged_until"]


def hold_input(
    client: ShardClient, sink: SinkDescription, wanted: int, committed: Frontier | None
) -> SinceHandle:
    """Take the hold of a sink on its input, or take it over.

    Args:
        client: Of the location.
        sink: The sink.
        wanted: The first time that its target lacks.
        committed: How far the target is; None if it has nothing yet.

    Raises:
        SinkStalled: The input has forgotten changes that the target lacks.
        InvalidUsage: There is no such input; or, without `committed`, its history at `wanted` is
            gone.
    """
    name, purpose = hold_name(sink.name), f"sink {sink.name}"
    since = wanted if committed is None else max(wanted - 1, 0)
    try:
        held = client.hold(sink.on, name, since=since, purpose=purpose)
    except InvalidUsage as error:
        if error.code != "HISTORY_GONE" or committed is None:
            raise
        held = client.hold(sink.on, name, purpose=purpose)
    # Of a hold that was there, too: a start that was killed between the line above and these has
    # left one ahead of the target, which proves nothing of the times before it.
    if committed is not None and held.since >= committed:
        # Behind the hold: from here on nothing more is forgotten.
        (state,) = client.readable(sink.on)
        if _may_have_changed(state, committed, held.since):
            held.expire()
            raise history_forgotten(sink, committed, held.since)
    return held


def unchanged_until(
    client: ShardClient, on: str, committed: Frontier, held: SinceHandle | None = None
) -> Frontier | None:
    """The frontier up to which an input has not changed since `committed`; None if it has.

    None of an input that is complete, too: its end is news.

    Args:
        client: Of the location.
        on: The input.
        committed: How far the target is.
        held: What `hold_input` has returned: before its since nothing has changed.
    """
    (state,) = client.readable(on)
    if state.upper.is_empty:
        return None
    if state.upper <= committed:
        return committed
    last = last_update(state)
    assert committed.time is not None, "a finished sink has no query"
    if last is None or last < committed.time:
        return state.upper
    since = None if held is None else held.since.time
    return Frontier(since + 1) if since is not None and since >= committed.time else None


def _may_have_changed(state: ShardState, lower: Frontier, since: Frontier) -> bool:
    """True unless no update is at a time from `lower` on that is not after `since`."""
    assert lower.time is not None, "a finished sink has no query"
    if since.time is None:
        return True
    spans = (part.time_bounds for batch in state.trace.batches for part in batch.parts)
    return any(span and span[0] <= since.time and span[1] >= lower.time for span in spans)
