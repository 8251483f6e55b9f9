"""The feeds connect the sink with everything that runs, and start and stop it as a whole.

    feeds = RuntimeFeeds(client, clock)
    feeds.attach(session)             its queries are observed, its SQL knows `introspection`
    feeds.start(writes, check_fence)
    feeds.pause()                     for a while, to measure what it costs
    feeds.watch()

The parts of a runtime know nothing of relations: they call one of the methods here, each of which
makes an event and returns at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardline.app.execution.observations import Failed, GroupStepped, Observation
from shardline.app.introspection.events import (
    Dropped,
    Event,
    Installed,
    LaneOpened,
    Maintenance,
    PeekDecided,
    PeekPath,
    Phase,
    ProcessStarted,
    Recorded,
    SparkSeen,
    Wanted,
    WantedObject,
    WriterMerged,
)
from shardline.app.introspection.history import HistoryKeeper
from shardline.app.introspection.listener import QueryListener, progress_of_step
from shardline.app.introspection.live import LiveTables
from shardline.app.introspection.poll import ShardPoller
from shardline.app.introspection.query_sections import QuerySections
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.spark_plan.harvest import Harvester
from shardline.app.introspection.spark_plan.kept_runs import KeptRunReader
from shardline.app.introspection.spark_plan.status_store import StatusStore
from shardline.app.introspection.store import Relations
from shardline.app.introspection.verdicts.rules import headline
from shardline.app.introspection.verdicts.situation import Judgement
from shardline.app.lane.command_words import describe_command
from shardline.app.lane.commands import (
    KINDS,
    CreateDataflow,
    DropDataflow,
    Kind,
    LaneCommand,
    PauseDataflow,
    Record,
    Repaired,
    RepairErrors,
    RestartDataflow,
    ResumeDataflow,
    SuspendAndRestart,
    UpdateConfiguration,
    command_kind,
    kind_of,
)
from shardline.app.lane.commands import Dropped as Gone
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneState
from shardline.app.protocol.compute import PeekStrategy
from shardline.app.protocol.object_state import SHOWN_PHASES
from shardline.app.protocol.objects import errors_shard
from shardline.app.protocol.redaction import redact_description, redact_option
from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.frames import KeptRuns, show_statistics
from shardline.datasource.maintainer import RoundResult
from shardline.datasource.state import Machine
from shardline.datasource.upkeep import observe_merges
from shardline.installation import program_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RuntimeFeeds"]

_log = logging.getLogger(__name__)

_PATHS: dict[PeekStrategy, PeekPath] = {
    "constant": "constant",
    "index": "index",
    "shard": "persist",
    "standard": "persist",
}


class RuntimeFeeds:
    """Feeds one sink with all that a runtime knows of itself.

    Attributes:
        sink: Takes events. Call `put` of this class and not of the sink: it leaves out events
            during a pause.
        relations: The tables that can be read.
    """

    def __init__(
        self, client: ShardClient, clock: Clock, domains: Collection[Kind] = KINDS
    ) -> None:
        """Observe nothing yet.

        Args:
            client: Of the location.
            clock: Of the process.
            domains: Whose queries run in the session that is to be attached.
        """
        self.sink = Sink(clock, domains=domains)
        self.relations = Relations(self.sink)
        self._client = client
        self._clock = clock
        self._tables = LiveTables(self.relations)
        self._sessions: list[SparkSession] = []
        self._keeper: Callable[[], HistoryKeeper] | None = None
        self._paused = False
        self._ask_for_plans: list[Callable[[Event], None]] = []
        self._watching: ExitStack | None = None
        self._shown_lock = threading.Lock()
        self._shown = ExitStack()
        self._is_over = False

    def attach(self, session: SparkSession) -> None:
        """Observe the queries of a session, and register the relations with its SQL.

        Call before `start`.
        """
        self._sessions.append(session)
        # In a thread: seconds of statements that no start should wait for.
        BackgroundThread("introspection-register", partial(self._register, session)).start()

    def _register(self, session: SparkSession) -> None:
        try:
            self._tables.register(session)
        except Exception:  # noqa: BLE001 - the session may have ended meanwhile
            _log.warning("relations are not known to the session", exc_info=True)
        try:
            # Spark asks its configuration for it: None if the UI is off.
            address = session.sparkContext.uiWebUrl
        except Exception:  # noqa: BLE001 - as above; and a session of another machine has no context
            return
        if address:
            self.put(SparkSeen(address))
            self._show_in_spark(session)

    def _show_in_spark(self, session: SparkSession) -> None:
        """Show the metrics of objects on the pages that Spark's UI has for their queries."""
        try:
            hide = show_statistics(session, QuerySections(self.relations).describe)
        except Exception:  # noqa: BLE001 - another Spark than was checked; or as above
            _log.warning("Spark's UI is without the metrics of objects", exc_info=True)
            return
        with self._shown_lock:
            self._shown.callback(hide)
            is_over = self._is_over
        if is_over:
            # `stop` has come first, and a page would speak for an application that has ended.
            self._shown.close()

    def describe_process(self, data_folder: Path, checkpoints: Path) -> None:
        """Note where this process keeps what is not in the location; call once.

        Args:
            data_folder: Folder of the process.
            checkpoints: Folder of its checkpoints.
        """
        url = self._client.location.url
        self.put(
            ProcessStarted(
                location=redact_option("location", url),
                location_id=self._client.location.id,
                version=program_version(),
                data_folder=str(data_folder),
                checkpoints=str(checkpoints),
                at_ms=self._clock.now_ms(),
            )
        )

    def start(self, writes: threading.Event, check_fence: Callable[[], None]) -> None:
        """Begin to observe; call once, before any object runs.

        Args:
            writes: Set once writing is allowed.
            check_fence: Raises `Fenced` if another runtime has taken over.
        """
        self._keeper = partial(
            HistoryKeeper, self.sink, self._client, writes=writes, check_fence=check_fence
        )
        self.watch()

    def watch(self) -> None:
        """Go on after a pause; does nothing if there is none."""
        if self._watching is not None or self._keeper is None:
            return
        self._paused = False
        # Ended in the reverse order, each of them even if another one fails to end: those that
        # feed the sink before the sink, and the sink before the history that stores its last rows.
        self._watching = ending = ExitStack()
        history, poller = self._keeper(), ShardPoller(self.sink, self._client)
        ending.callback(history.stop)
        ending.callback(self.sink.stop)
        ending.callback(poller.stop)
        self.sink.start()
        for session in self._sessions:
            self._listen(session, ending)
        ending.callback(observe_merges(self.on_merges))
        history.start()
        poller.start()

    def _listen(self, session: SparkSession, ending: ExitStack) -> None:
        """Add a listener, and a harvester of plans, to a session."""
        store = StatusStore(session)
        kept_runs = KeptRunReader(KeptRuns(session), store.encode)
        harvester = Harvester(self.sink, store, kept_runs)
        listener = QueryListener(self.sink.inbox, harvester.ask)
        harvester.start()
        ending.callback(harvester.stop)
        self._ask_for_plans.append(harvester.ask)
        ending.callback(self._ask_for_plans.remove, harvester.ask)
        session.streams.addListener(listener)
        ending.callback(session.streams.removeListener, listener)

    def pause(self) -> None:
        """Observe nothing until `watch`, and keep the facts.

        Starts, ends and drops in between stay unknown: this is for measuring an application with
        and without introspection.
        """
        self._paused = True
        ending, self._watching = self._watching, None
        if ending is not None:
            ending.close()

    def stop(self) -> None:
        """End; to be called when everything else has ended."""
        with self._shown_lock:
            self._is_over = True
        self._shown.close()
        self.pause()
        self._tables.close()

    def report(self, observation: Observation) -> None:
        """Take a report of a running object."""
        if not isinstance(observation, GroupStepped):
            self.put(observation)
            return
        # Of what a streaming query of its own does, Spark's listener tells.
        event = progress_of_step(observation)
        self.put(event)
        for ask in self._ask_for_plans:
            ask(event)

    def put(self, event: Event) -> None:
        """Take an event; left out during a pause."""
        if not self._paused:
            self.sink.put(event)

    def decided(self, uuid: str, strategy: PeekStrategy) -> None:
        """Note the strategy by which a peek is answered."""
        self.put(PeekDecided(uuid=uuid, path=_PATHS[strategy]))

    def on_wanted(self, objects: Iterable[WantedObject]) -> None:
        """Note all objects that the project asks for, in place of those of the call before."""
        shown = tuple(
            msgspec.structs.replace(one, description=redact_description(one.description))
            for one in objects
        )
        self.put(Wanted(shown, self._clock.now_ms()))

    # -- verdicts ----------------------------------------------------------------------------------

    def judgement(self, name: str) -> Judgement | None:
        """The judgement of an object as of the last second; None if there is no such object."""
        return self.sink.read(lambda facts, _now_ms: facts.judgements.get(name))

    def find_blockage(self, name: str) -> tuple[str, str] | None:
        """The reason why an object does not move until somebody acts, and what to do; else None.

        Args:
            name: The object, or the shard with the errors of one.
        """
        whose, found = "it", self.judgement(name)
        if found is None:
            owner = name.removesuffix(errors_shard(""))
            whose, found = f"'{owner}'", self.judgement(owner)
        if found is None or not found.lasts:
            return None
        return f"{whose} is {headline(found)}: {found.because}", found.to_do

    # -- maintenance -------------------------------------------------------------------------------

    def on_maintenance(self, shard: str, done: RoundResult, took_ms: float) -> None:
        """Note a round of maintenance on a shard; one that did nothing is left out.

        But not the first after one that had failed: what failed would seem to fail until there is
        something to do again, hours later.
        """
        worked = done.merges or done.collected or done.swept is not None
        if worked or done.failed or self.sink.read(lambda facts, _: facts.maintenance_fails(shard)):
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

    def on_merges(self, machine: Machine, merges: int, took_ms: float) -> None:
        """Count merges that a writer has done after its commit."""
        del took_ms
        if machine.location.id == self._client.location.id:
            self.put(WriterMerged(shard=machine.name, merges=merges))

    # -- the lane ----------------------------------------------------------------------------------

    def found(self, state: LaneState, records: Iterable[Record]) -> None:
        """Take the state of the lane as it is opened, and the records of it that are stored."""
        for record in records:
            self._recorded(record)
        at_ms = self._clock.now_ms()
        self.put(LaneOpened(objects=tuple(state.objects), at_ms=at_ms))
        for name in state.objects:
            self._installed(state, name, at_ms)

    def on_record(self, record: Record, state: LaneState) -> None:
        """Note a command that has got its position in the lane; `state` is the state after it."""
        self._recorded(record)
        if isinstance(record.command, CreateDataflow):
            self._installed(state, record.command.id, record.at_ms)

    def _recorded(self, record: Record) -> None:
        shown = _without_secrets(record.command)
        self.put(
            Recorded(
                index=record.index,
                producer=record.producer,
                at_ms=record.at_ms,
                kind=command_kind(record.command),
                object_id=_object_of(record.command),
                command=msgspec.json.encode(shown).decode(),
                says=describe_command(shown),
            )
        )

    def on_phase(self, change: PhaseChange) -> None:
        """Note that an object has entered a phase."""
        if change.phase == "dropped":
            self.put(Dropped(id=change.id, at_ms=change.at_ms, global_id=change.global_id))
            return
        epoch = 0 if change.incarnation is None else change.incarnation.epoch
        if change.phase == "stopped" and change.error:
            self.put(Failed.of_start(change.id, epoch, change.error))
        self.put(
            Phase(
                id=change.id,
                epoch=epoch,
                phase=SHOWN_PHASES[change.phase],
                at_ms=change.at_ms,
                failures=change.failures,
                retry_at_ms=change.retry_at_ms,
            )
        )

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


def _without_secrets(command: LaneCommand) -> LaneCommand:
    """A command as relations show it, without secrets."""
    match command:
        case CreateDataflow(description=description):
            return msgspec.structs.replace(command, description=redact_description(description))
        case UpdateConfiguration(settings):
            shown = {name: redact_option(name, value) for name, value in settings.items()}
            return UpdateConfiguration(shown)
        case _:
            return command


def _object_of(command: LaneCommand) -> str:
    match command:
        case CreateDataflow():
            return command.id
        case DropDataflow(name) | Gone(name) | SuspendAndRestart(name):
            return name
        case PauseDataflow(name) | ResumeDataflow(name) | RestartDataflow(name):
            return name
        case RepairErrors(id=name) | Repaired(id=name):
            return name
        case _:
            return ""
