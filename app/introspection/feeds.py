"""What watches the runtime: the one listener, the sink, its relations, and who feeds them.

    observing = Observing(client, clock)
    observing.attach(session)             its queries are heard, and its SQL knows `introspection`
    observing.start(writes, check_fence)
    observing.pause()                     for a while, to see what it costs
    observing.watch()

Nothing of the runtime waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from shardline.app.execution.observations import Observation
from shardline.app.introspection.events import (
    Dropped,
    Event,
    Installed,
    Maintenance,
    PeekDecided,
    PeekPath,
    Phase,
    PhaseName,
    Recorded,
)
from shardline.app.introspection.history import HistoryKeeper
from shardline.app.introspection.listener import QueryListener
from shardline.app.introspection.live import LiveTables
from shardline.app.introspection.poll import ShardPoller
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.spark_plan.harvest import Harvester
from shardline.app.introspection.spark_plan.status_store import StatusStore
from shardline.app.introspection.store import Relations
from shardline.app.lane.commands import (
    CreateDataflow,
    DropDataflow,
    LaneCommand,
    Record,
    SuspendAndRestart,
    UpdateConfiguration,
    command_kind,
    kind_of,
)
from shardline.app.lane.commands import Dropped as Gone
from shardline.app.lane.process_state import Phase as LanePhase
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneState
from shardline.app.protocol.compute import PeekStrategy
from shardline.app.protocol.redaction import bare, shown
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.maintainer import Maintained
from shardline.datasource.maintenance.compact import observe_merges
from shardline.datasource.shard.machine import Machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Observing"]

_log = logging.getLogger(__name__)

_PATHS: dict[PeekStrategy, PeekPath] = {
    "constant": "constant",
    "index": "index",
    "shard": "persist",
    "standard": "persist",
}

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
        sink: Takes events; whoever has more of them calls `put` here, which knows of pauses.
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
        self._tables = LiveTables(self.relations)
        self._sessions: list[SparkSession] = []
        self._keeper: Callable[[], HistoryKeeper] | None = None
        self._paused = False
        self._watching: ExitStack | None = None

    def attach(self, session: SparkSession) -> None:
        """Listen to the queries of `session` from the start on, and let its SQL ask relations."""
        self._sessions.append(session)
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
        """Begin; call once, before anything runs."""
        self._keeper = partial(
            HistoryKeeper, self.sink, self._client, writes=writes, check_fence=check_fence
        )
        self.watch()

    def watch(self) -> None:
        """Go on after a pause; nothing if there is none."""
        if self._watching is not None or self._keeper is None:
            return
        self._paused = False
        # They end in the reverse order, each whatever has become of the one before.
        self._watching = ending = ExitStack()
        history, poller = self._keeper(), ShardPoller(self.sink, self._client)
        ending.callback(history.stop)
        ending.callback(self.sink.stop)
        ending.callback(poller.stop)
        self.sink.start()
        for session in self._sessions:
            self._listen(session, ending)
        ending.callback(observe_merges(self.merged))
        history.start()
        poller.start()

    def _listen(self, session: SparkSession, ending: ExitStack) -> None:
        """Hear of the queries of a session."""
        harvester = Harvester(self.sink, StatusStore(session))
        listener = QueryListener(self.sink.inbox, harvester.ask)
        harvester.start()
        ending.callback(harvester.stop)
        session.streams.addListener(listener)
        ending.callback(session.streams.removeListener, listener)

    def pause(self) -> None:
        """Watch nothing until `watch`, and keep what is known.

        What starts, ends or is dropped meanwhile is never heard of: this is for comparing an
        application that is watched with itself.
        """
        self._paused = True
        ending, self._watching = self._watching, None
        if ending is not None:
            ending.close()

    def stop(self) -> None:
        """End, after everything that it watches."""
        self.pause()
        self._tables.close()

    def report(self, observation: Observation) -> None:
        """Take what a running object tells."""
        self.put(observation)

    def put(self, event: Event) -> None:
        """Take another event."""
        if not self._paused:
            self.sink.put(event)

    def decided(self, uuid: str, strategy: PeekStrategy) -> None:
        """It is decided how a peek is answered."""
        self.put(PeekDecided(uuid=uuid, path=_PATHS[strategy]))

    # -- maintenance -------------------------------------------------------------------------------

    def maintained(self, shard: str, done: Maintained, took_ms: float) -> None:
        """A round of maintenance has looked at a shard; one that did nothing is no news."""
        if done.merges or done.collected or done.swept is not None or done.failed:
            self.put(
                Maintenance(
                    shard=shard,
                    at_ms=self._clock.now_ms(),
                    took_ms=took_ms,
                    merges=done.merges,
                    collected=done.collected,
                    swept=None if done.swept is None else done.swept.total.count,
                    failed=done.failed,
                )
            )

    def merged(self, machine: Machine, merges: int, took_ms: float) -> None:
        """A writer has merged after its commit."""
        if machine.location.id == self._client.location.id:
            self.put(
                Maintenance(
                    shard=machine.name,
                    at_ms=self._clock.now_ms(),
                    took_ms=took_ms,
                    merges=merges,
                )
            )

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
        self.put(
            Recorded(
                index=record.index,
                producer=record.producer,
                at_ms=record.at_ms,
                kind=command_kind(record.command),
                object_id=_about(record.command),
                command=msgspec.json.encode(_told(record.command)).decode(),
            )
        )

    def on_phase(self, change: PhaseChange) -> None:
        """An object has entered a phase."""
        if change.phase == "dropped":
            self.put(Dropped(id=change.id, at_ms=change.at_ms))
            return
        epoch = 0 if change.incarnation is None else change.incarnation.epoch
        self.put(Phase(id=change.id, epoch=epoch, phase=_PHASES[change.phase], at_ms=change.at_ms))

    def _installed(self, state: LaneState, name: str, at_ms: int) -> None:
        known = state.objects.get(name)
        if known is None:
            return
        self.put(
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


def _told(command: LaneCommand) -> LaneCommand:
    """A command as relations show it: to whoever may read, without secrets."""
    match command:
        case CreateDataflow(description=description):
            return msgspec.structs.replace(command, description=bare(description))
        case UpdateConfiguration(settings):
            told = {name: shown(name, value) for name, value in settings.items()}
            return UpdateConfiguration(told)
        case _:
            return command


def _about(command: LaneCommand) -> str:
    match command:
        case CreateDataflow():
            return command.id
        case DropDataflow(name) | Gone(name) | SuspendAndRestart(name):
            return name
        case _:
            return ""
