"""The hold of a sink on its input, also of one that was away for longer than history is kept.

    keep_changes(client, sink, progress, wanted)   before a new sink is created, and is started
    hold_input(client, sink, wanted, committed)    a hold from which the sink can go on
    unchanged_until(progress)                      how far nothing has changed

A sink that is dropped gives its hold up, and its accounts. Created again it goes on where its
target is, if that can tell; but what its input has forgotten meanwhile nobody can give it. Nothing
is missing if the input did not change in the times that it has forgotten: its updates say so by
theirs. A merge moves these forward, up to the since, so it may hide that, but never the opposite.

A new sink may have to wait for its target, or be paused before it begins, for longer than history
is kept. Contents of a later time are as good a beginning as those that were chosen for it. A sink
without snapshot lacks the changes in between, so it keeps them from its creation on; one that was
created by an earlier version, from its first start on.

Invariants:
    A hold that is ahead of a target that has something is returned only if the times between are
    proved unchanged, by the very call that returns it.
"""

from __future__ import annotations

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import hold_name
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.stalls import beginning_forgotten, history_forgotten
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.since_hold import SinceHandle
from shardline.datasource.state import ShardState, last_update

__all__ = ["hold_input", "keep_changes", "unchanged_until"]


def keep_changes(
    client: ShardClient, sink: SinkDescription, progress: SinkProgress, wanted: int
) -> None:
    """Keep what a new sink without snapshot begins with, until it has opened its target.

    Args:
        client: Of the location.
        sink: The sink.
        progress: Its accounts, by which nothing is committed.
        wanted: The time to begin with.
    """
    if not progress.previous_input:
        # Before it is held, or nobody finds the hold.
        progress.note_input()
    elif progress.previous_input != sink.on:
        # A user who goes back to the definition before, since the target refuses this one, has to
        # find the accounts as that has left them: they cannot say what this one holds.
        return
    (state,) = client.readable(sink.on)
    name, since = hold_name(sink.name), state.since.time
    # A hold that is there may have passed `wanted`; a new one that has would hide what is gone.
    if name in state.critical or since is None or since > wanted:
        return
    try:
        # Not at `wanted`: a target that is opened later may have less, of an earlier life.
        client.hold(sink.on, name, since=since, purpose=f"sink {sink.name}")
    except InvalidUsage as error:
        if error.code != "HISTORY_GONE":  # it has moved on right now: the next start looks again
            raise


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
        InvalidUsage: There is no such input.
    """
    name, purpose = hold_name(sink.name), f"sink {sink.name}"
    since = wanted if committed is None else max(wanted - 1, 0)
    try:
        held = client.hold(sink.on, name, since=since, purpose=purpose)
    except InvalidUsage as error:
        if error.code != "HISTORY_GONE":
            raise
        if committed is None and not sink.snapshot:
            (state,) = client.readable(sink.on)
            raise beginning_forgotten(sink, wanted, state.since) from error
        # With contents a new sink may begin at any time: here at the first that can be read. Of one
        # whose target has something, what comes below decides.
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


def unchanged_until(progress: SinkProgress, held: SinceHandle | None = None) -> Frontier | None:
    """The frontier up to which the input has not changed since `committed`; None if it has.

    None of an input that is complete, too: its end is news. And of one that was dropped and made
    again: an empty one would look as if nothing had changed.

    Args:
        progress: Says which input, and how far the target is.
        held: What `hold_input` has returned: before its since nothing has changed.
    """
    (state,) = progress.client.readable(progress.input)
    committed = progress.committed
    assert committed is not None, "a target without anything lacks the contents"
    if state.shard != progress.shard_id:
        return None
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
