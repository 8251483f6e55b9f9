"""What watches the runtime: the one listener, the sink, its relations, and who feeds them.

    observing = Observing(client, clock)
    observing.attach(session)             its queries are heard, and its SQL knows `introspection`
    observing.start(writes, check_fence)

Nothing of the runtime waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from app.introspection.events import Dropped, Event, Installed, Phase, PhaseName, Recorded
from app.introspection.history import HistoryKeeper
from app.introspection.listener import QueryListener
from app.introspection.live import LiveTables
from app.introspection.poll import ShardPoller
from app.introspection.sink import Sink
from app.introspection.store import Relations
from app.lane.commands import (
    CreateDataflow,
    DropDataflow,
    LaneCommand,
    Record,
    SuspendAndRestart,
    command_kind,
    kind_of,
)
from app.lane.commands import Dropped as Gone
from app.lane.fleet import Phase as LanePhase
from app.lane.fleet import PhaseChange
from app.lane.state import LaneState
from app.reports import Observation
from datasource.client import ShardClient
from datasource.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Observing"]

_log = logging.getLogger(__name__)

_PHASES: dict[LanePhase, PhaseName] = {
    "waiting": "waiting",
    "suspended": "suspended",
    "starting": "starting",
    "running": "running",
    "hydrated": "running",
    "stopping": "stopping",
    "stopped": "stopped",
    "ended": "stopped",
}


class Observing:
    """Feeds one sink with all that a runtime knows of itself.

    Attributes:
        sink: Takes events; `sink.put` is for whoever has more of them.
        relations: What it makes of them.
    """

    def __init__(self, client: ShardClient, clock: Clock) -> None:
        """Nothing is watched yet.

        Args:
            client: Of the location.
            clock: Of the process.
        """
        self.sink = Sink(clock)
        self.relations = Relations(self.sink)
        self._client = client
        self._clock = clock
        self._poller = ShardPoller(self.sink, client)
        self._tables = LiveTables(self.relations)
        self._history: HistoryKeeper | None = None
        self._listening: list[tuple[SparkSession, QueryListener]] = []

    def attach(self, session: SparkSession) -> None:
        """Listen to the queries of `session`, and let its SQL read the relations."""
        listener = QueryListener(self.sink.inbox)
        session.streams.addListener(listener)
        self._listening.append((session, listener))
        # Seconds of statements that nothing else needs: SQL knows the relations when they are done.
        threading.Thread(
            target=self._register, args=(session,), name="introspection-register", daemon=True
        ).start()

    def _register(self, session: SparkSession) -> None:
        try:
            self._tables.register(session)
        except Exception:  # noqa: BLE001 - the session may have ended meanwhile
            _log.warning("relations are not known to the session", exc_info=True)

    def start(self, writes: threading.Event, check_fence: Callable[[], None]) -> None:
        """Begin; call once."""
        self._history = HistoryKeeper(
            self.sink, self._client, writes=writes, check_fence=check_fence
        )
        self.sink.start()
        self._history.start()
        self._poller.start()

    def stop(self) -> None:
        """End, after everything that it watches."""
        for session, listener in self._listening:
            session.streams.removeListener(listener)
        self._poller.stop()
        self.sink.stop()
        if self._history is not None:
            self._history.stop()
        self._tables.close()

    def report(self, observation: Observation) -> None:
        """Take what a running object tells."""
        self.sink.put(observation)

    def put(self, event: Event) -> None:
        """Take another event."""
        self.sink.put(event)

    # -- the lane ----------------------------------------------------------------------------------

    def found(self, state: LaneState, records: Iterable[Record]) -> None:
        """What the lane amounts to when it is opened, and the records of it that are kept."""
        for record in records:
            self._recorded(record)
        for name in state.objects:
            self._installed(state, name, self._clock.now_ms())

    def on_record(self, record: Record, state: LaneState) -> None:
        """A command has got its position, and `state` is what comes of it."""
        self._recorded(record)
        if isinstance(record.command, CreateDataflow):
            self._installed(state, record.command.id, record.at_ms)

    def _recorded(self, record: Record) -> None:
        self.sink.put(
            Recorded(
                index=record.index,
                producer=record.producer,
                at_ms=record.at_ms,
                kind=command_kind(record.command),
                object_id=_about(record.command),
                command=msgspec.json.encode(record.command).decode(),
            )
        )

    def on_phase(self, change: PhaseChange) -> None:
        """An object has entered a phase."""
        if change.phase == "dropped":
            self.sink.put(Dropped(id=change.id, at_ms=change.at_ms))
            return
        epoch = 0 if change.incarnation is None else change.incarnation.epoch
        self.sink.put(
            Phase(id=change.id, epoch=epoch, phase=_PHASES[change.phase], at_ms=change.at_ms)
        )

    def _installed(self, state: LaneState, name: str, at_ms: int) -> None:
        known = state.objects.get(name)
        if known is None:
            return
        self.sink.put(
            Installed(
                id=name,
                global_id=known.global_id,
                domain=kind_of(known.description),
                description=known.description,
                dataflow=known.dataflow,
                operators=known.operators,
                as_of=known.as_of,
                at_ms=at_ms,
            )
        )


def _about(command: LaneCommand) -> str:
    match command:
        case CreateDataflow():
            return command.id
        case DropDataflow(name) | Gone(name) | SuspendAndRestart(name):
            return name
        case _:
            return ""
