"""The way from a callback to the facts: bounded, in order, and never in anybody's way."""

from __future__ import annotations

import threading

from shardline.app.introspection.events import Dropped, QueryProgress
from shardline.app.introspection.inbox import Inbox
from shardline.app.introspection.listener import QueryListener, progress_of
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.store import Relations
from shardline.datasource.clock import SystemClock
from support.fakes.clock import ManualClock
from support.fakes.introspection import DELAYS, World, progress

PROGRESS = {
    "id": "i",
    "runId": "r",
    "name": "delays:u1:1",
    "timestamp": "2026-11-20T12:00:00.250Z",
    "batchId": 4,
    "durationMs": {"addBatch": 7, "triggerExecution": 9},
    "stateOperators": [
        {
            "operatorName": "dedupe",
            "numRowsTotal": 3,
            "memoryUsedBytes": 30,
            "numStateStoreInstances": 2,
        }
    ],
    "sources": [{"numInputRows": 5}],
}


def test_a_full_queue_drops_what_can_be_missed_and_counts_it() -> None:
    """What an object's rows hang on still has room; everything comes out in order."""
    inbox = Inbox(ManualClock(), capacity=2)
    for number in range(5):
        inbox.put(progress("x", "r", micro_batch=number))
    inbox.put(Dropped(id="x", at_ms=0))
    assert (len(inbox), inbox.taken, inbox.dropped) == (3, 3, 3)
    events = [event for _, event in inbox.drain()]
    assert [e.micro_batch for e in events if isinstance(e, QueryProgress)] == [0, 1]
    assert isinstance(events[-1], Dropped)
    for _ in range(50):
        inbox.put(Dropped(id="x", at_ms=0))
    assert (len(inbox), inbox.dropped) == (20, 33)


def test_the_sink_says_how_long_events_have_waited() -> None:
    """Its own lag, depth and drops are a relation."""
    world = World()
    world.sink.put(world.installed(DELAYS))
    world.clock.advance(750)
    (before,) = world.rows("listener")
    assert (before["queue_depth"], before["lag"]) == (1, None)
    world.sink.step()
    (after,) = world.rows("listener")
    assert (after["queue_depth"], after["lag"], after["events"]) == (0, 750.0, 1)


def test_the_thread_applies_events_from_any_thread_and_ends() -> None:
    """What was put before `stop` is applied when it returns."""
    sink = Sink(SystemClock())
    world = World()
    sink.start()
    event = world.installed(DELAYS)
    sink.put(event)

    def tell() -> None:
        for _ in range(100):
            sink.put(progress("delays:u1:1", "r", addBatch=1))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.stop()
    rows = Relations(sink).rows("scheduling_elapsed")
    assert [row["elapsed_ns"] for row in rows] == [400_000_000]


def test_a_progress_event_is_what_spark_says() -> None:
    """Only what is used, as plain values."""
    event = progress_of(PROGRESS)
    assert (event.query, event.run, event.name, event.micro_batch) == ("i", "r", "delays:u1:1", 4)
    assert event.at_ms == 1_795_176_000_250
    assert event.phases_ms == {"addBatch": 7, "triggerExecution": 9}
    assert [s.rows for s in event.inputs] == [5]
    assert [(s.rows, s.memory_bytes, s.stores) for s in event.states] == [(3, 30, 2)]


def test_a_callback_never_raises() -> None:
    """An event of a shape that nobody expects is counted."""
    inbox = Inbox(ManualClock())
    listener = QueryListener(inbox)
    broken: object = object()
    listener.onQueryStarted(broken)  # type: ignore[arg-type]
    listener.onQueryProgress(broken)  # type: ignore[arg-type]
    listener.onQueryIdle(broken)  # type: ignore[arg-type]
    listener.onQueryTerminated(broken)  # type: ignore[arg-type]
    assert (inbox.unconverted, inbox.taken) == (4, 0)
