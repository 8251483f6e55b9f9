"""The listener turns Spark's events about streaming queries into events of the sink's inbox.

    spark.streams.addListener(QueryListener(inbox))

Spark calls `onQueryStarted` inside of `start()`, on the thread that starts, and the other callbacks
one after the other on one thread for all queries of the session. So a callback that waits would
hold up starts and the events of all queries; these only copy a few numbers.

A listener gets events of the queries that were started from its own session, and of no others:
storage and compute look alike here because they are queries of one session.

PySpark reads a progress event field by field, each a call into the JVM: 5 to 9 ms of the driver's
Python for every micro-batch of every query. Here the JVM calls a bridge of our own, which reads the
event's JSON only. It also gets the start of queries that are started under job tags, an event that
PySpark 4.3 loses.

Invariants:
    A callback never blocks and never raises; what it cannot convert is counted.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from typing_extensions import override

from shardline.app.execution.observations import GroupStepped
from shardline.app.introspection.events import (
    Event,
    InputProgress,
    QueryIdle,
    QueryProgress,
    QueryStarted,
    QueryTerminated,
    StateProgress,
)
from shardline.app.introspection.inbox import Inbox

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
    )

__all__ = ["QueryListener", "progress_of", "progress_of_step"]

_log = logging.getLogger(__name__)


class QueryListener(StreamingQueryListener):
    """Puts Spark's events about streaming queries into an inbox."""

    def __init__(self, inbox: Inbox, also: Callable[[Event], None] | None = None) -> None:
        """Prepare a listener for `addListener`.

        Args:
            inbox: Takes every event.
            also: Called with every event, too; must return at once and never raise.
        """
        self._inbox = inbox
        self._also = also
        self._bridge: Any = None

    @property
    @override
    def _jlistener(self) -> Any:
        """The object that PySpark registers with the JVM."""
        if self._bridge is None:
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - PySpark has no other door to the JVM
            self._bridge = jvm.PythonStreamingQueryListenerWrapper(_Bridge(self))
        return self._bridge

    @override
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.put(
            lambda: QueryStarted(
                query=str(event.id),
                run=str(event.runId),
                name=event.name or "",
                at_ms=_ms(event.timestamp),
            )
        )

    @override
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.put(lambda: progress_of(json.loads(event.progress.json)))

    @override
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.put(
            lambda: QueryIdle(query=str(event.id), run=str(event.runId), at_ms=_ms(event.timestamp))
        )

    @override
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.put(
            lambda: QueryTerminated(
                query=str(event.id),
                run=str(event.runId),
                error=(event.exception or "").strip().split("\n")[0],
            )
        )

    def put(self, convert: Callable[[], Event]) -> None:
        """Enqueue the event that `convert` returns; a conversion that fails is counted."""
        try:
            event = convert()
            self._inbox.put(event)
            if self._also is not None:
                self._also(event)
        except Exception:  # noqa: BLE001 - it is logged and counted; the next one counts as well
            # An event that Spark shapes differently must cost this event and nothing more.
            self._inbox.failed()
            _log.exception("a listener event could not be converted")


class _Bridge:
    """Takes the calls of the JVM, whose events are objects of the JVM."""

    def __init__(self, listener: QueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, jevent: Any) -> None:
        self._listener.put(
            lambda: QueryStarted(
                query=jevent.id().toString(),
                run=jevent.runId().toString(),
                name=jevent.name() or "",
                at_ms=_ms(jevent.timestamp()),
            )
        )

    def onQueryProgress(self, jevent: Any) -> None:
        # py4j's thread for the one listener thread of the JVM: named, so that the processor time
        # that it uses is counted as introspection's.
        threading.current_thread().name = "introspection-listener"
        self._listener.put(lambda: progress_of(json.loads(jevent.progress().json())))

    def onQueryIdle(self, jevent: Any) -> None:
        # Some of each query a minute: by its JSON, it is one call in place of five.
        self._listener.put(lambda: _idle_of(json.loads(jevent.json())))

    def onQueryTerminated(self, jevent: Any) -> None:
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(jevent))

    class Java:
        """The interface of Spark's that this implements, for py4j."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def _idle_of(idle: dict[str, Any]) -> QueryIdle:
    return QueryIdle(query=idle["id"], run=idle["runId"], at_ms=_ms(idle["timestamp"]))


def progress_of(progress: dict[str, Any]) -> QueryProgress:
    """Convert the JSON of a progress event.

    Raises:
        KeyError: A field that every such event has is missing.
    """
    return QueryProgress(
        query=progress["id"],
        run=progress["runId"],
        name=progress.get("name") or "",
        micro_batch=progress["batchId"],
        at_ms=_ms(progress["timestamp"]),
        phases_ms={name: int(took) for name, took in progress.get("durationMs", {}).items()},
        inputs=tuple(InputProgress(int(s["numInputRows"])) for s in progress.get("sources", ())),
        states=tuple(
            StateProgress(
                s["operatorName"],
                int(s["numRowsTotal"]),
                int(s["memoryUsedBytes"]),
                int(s["numStateStoreInstances"]),
            )
            for s in progress.get("stateOperators", ())
        ),
    )


def progress_of_step(step: GroupStepped) -> QueryProgress:
    """The progress event that a micro-batch of the object's own would have caused."""
    return QueryProgress(
        query=step.query,
        run=step.run,
        name=step.name,
        micro_batch=step.number,
        at_ms=step.at_ms,
        phases_ms={"addBatch": step.took_ms, "triggerExecution": step.took_ms},
        in_group=True,
    )


def _ms(timestamp: str) -> int:
    """Milliseconds since the epoch of a time as Spark writes it."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
