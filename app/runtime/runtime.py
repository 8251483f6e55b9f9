"""The unified runtime: two connections, two workers, one lane, one loop that ties them together.

    runtime = Runtime(sessions, client, journal, options, clock=clock, ids=ids)
    runtime.start()
    InProcessClient(runtime.compute, nonce, clock)       a controller connects
    runtime.stop()

The loop takes what has arrived, in this order: phases that the lane has told, observations of what
runs, commands of the two controllers. Workers say what follows; commands go to the lane, peeks to
whoever answers them, responses to the controllers. Nothing in the loop waits: for a controller, a
store, the lane or Spark.

Invariants:
    Only the lane makes anything run or stop.
    A worker hears of everything in the order in which it happened, on one thread.
    Controllers come and go, and what runs runs on. One whose step fails is refused, and whatever
    the lane lacks of what the next one says it is told then.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from typing_extensions import override

from shardline.app.compute.index.index import RunningIndex
from shardline.app.compute.peek.answer import Relations
from shardline.app.compute.peek.peek import Peeks
from shardline.app.compute.render import render as render_dataflow
from shardline.app.compute.subscribe.subscription import RunningSubscribe
from shardline.app.compute.worker import ComputeDone, ComputeWorker
from shardline.app.execution.commit_pacing import Pace
from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.observations import Observation
from shardline.app.introspection.events import PeekEnded, PeekStarted
from shardline.app.introspection.feeds import Observing
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.lane import commands as lane_commands
from shardline.app.lane.commands import Kind, LaneCommand, Record
from shardline.app.lane.lane import Lane, Observer, Renderer
from shardline.app.lane.order_protocol import Journal
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.compute import (
    AllowCompaction,
    CancelPeek,
    ComputeCommand,
    ComputeResponse,
    Peek,
    PeekResponse,
)
from shardline.app.protocol.graph import reached
from shardline.app.protocol.objects import (
    Dataflow,
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    inputs_of,
)
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    StagedBatches,
    StorageCommand,
    StorageResponse,
)
from shardline.app.runtime.cleanup import forget
from shardline.app.runtime.settings import Bounds, check_commands
from shardline.app.sql.queries import bind
from shardline.app.storage.one_shot import Oneshots
from shardline.app.storage.render import render as render_storage
from shardline.app.storage.worker import StorageDone, StorageWorker
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import Received, Reconcile
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import InvalidUsage, ShardError, unknown_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Runtime", "RuntimeOptions"]

_log = logging.getLogger(__name__)

_OBSERVATIONS_MAX: Final = 100_000
"""Observations that wait for the loop. It takes thousands in a millisecond."""

_STATISTICS_MS: Final = 1000.0
_STOP_MS: Final = 60_000.0
_JOIN_S: Final = 10.0

_News: TypeAlias = Observation | StagedBatches


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """What a runtime is made with.

    Attributes:
        checkpoints: Folder of the checkpoints, of this location alone.
        storage: Options of the location's store.
        interval_ms: As of `Host`.
        interval_max_ms: The most that sources wait between two commits when views cannot follow.
        bounds: Of all that it does; what the lane's order says of them comes on top.
    """

    checkpoints: Path
    storage: Mapping[str, str] = field(default_factory=dict)
    interval_ms: int = 1000
    interval_max_ms: int = 10_000
    bounds: Bounds = field(default_factory=Bounds)


class Runtime(Observer):
    """One runtime of one location.

    Attributes:
        compute: Where compute controllers connect.
        storage: Where storage controllers connect.
    """

    def __init__(
        self,
        sessions: Mapping[Kind, SparkSession],
        client: ShardClient,
        journal: Journal,
        options: RuntimeOptions,
        *,
        clock: Clock,
        ids: IdGenerator,
        observing: Observing | None = None,
    ) -> None:
        """A runtime that `start` brings to life.

        Args:
            sessions: That of each kind; one and the same for both in a unified runtime.
            client: Of the location.
            journal: The lane's durable order, held or followed.
            options: See there.
            clock: Of the process.
            ids: Source of everything random.
            observing: What watches; None for nothing.
        """
        self._client = client
        self._journal = journal
        self._clock = clock
        self._pace = Pace(clock, options.interval_ms, options.interval_max_ms)
        self._options = options
        self._observing = observing
        self._wake = threading.Event()
        self._phases: queue.SimpleQueue[PhaseChange] = queue.SimpleQueue()
        self._news: queue.Queue[_News] = queue.Queue(_OBSERVATIONS_MAX)
        self._overrun = 0
        limits = options.bounds.connections
        self.compute: Endpoint[ComputeCommand, ComputeResponse] = Endpoint(self._wake.set, limits)
        self.storage: Endpoint[StorageCommand, StorageResponse] = Endpoint(self._wake.set, limits)
        self._bounds, self._tuned_by = options.bounds, dict[str, str]()
        self._hosts = {kind: self._host(kind, sessions[kind], ids) for kind in sessions}
        self._indexes: dict[str, RunningIndex] = {}
        self._subscribes: dict[str, RunningSubscribe] = {}
        self._asked: dict[str, float] = {}
        renderers: dict[type, Renderer] = {
            SourceDescription: self._render_storage,
            SinkDescription: self._render_storage,
            ViewDescription: self._render_compute,
            IndexDescription: self._render_compute,
            SubscribeDescription: self._render_compute,
        }
        self._follows = journal.role == "follower"
        self._doubts, self._said = set[Kind](), set[Kind]()
        self.lane = Lane(
            journal,
            renderers,
            self._hosts.__getitem__,
            clock=clock,
            ids=ids,
            settings=options.bounds.lane,
            operators_of=lambda description: len(operators_of(description)),
            observer=self,
            forget=self._forget,
        )
        objects = self.lane.state.objects
        self._compute_worker = ComputeWorker(objects)
        self._storage_worker = StorageWorker(objects, clock.now_ms())
        relations: Relations = _no_relations if observing is None else observing.relations.relation
        peeks = options.bounds.peeks
        self._peeks = Peeks(
            self._hosts["compute"],
            self,
            relations,
            bind,
            settings=peeks,
            decided=(lambda *_: None) if observing is None else observing.decided,
        )
        self._oneshots = Oneshots(self._hosts["storage"], self._put)
        self._counted_ms = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runtime", daemon=True)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop, and with the lane all that shall run."""
        if self._observing is not None:
            self._observing.found(self.lane.state, self._journal.records())
            self._observing.start(self._hosts["storage"].writes, self.lane.check_fence)
        self._thread.start()
        self.lane.start()

    def stop(self) -> bool:
        """Stop all that runs, without dropping it; whether everything has stopped."""
        self.compute.shut()
        self.storage.shut()
        self._peeks.stop()
        self._oneshots.stop()
        rested = self.lane.stop(_STOP_MS)
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self._observing is not None:
            self._observing.stop()
        return rested

    # -- what the parts ask --------------------------------------------------------------------

    def inputs_of(self, name: str) -> Collection[str]:
        """Names of all objects that `name` is made of, directly or through others."""
        objects = self.lane.state.objects
        return reached(
            name, lambda one: inputs_of(objects[one].description) if one in objects else ()
        )

    def report(self, observation: Observation) -> None:
        """Take what a running object tells; returns at once, and never raises."""
        self.lane.report(observation)
        if self._observing is not None:
            self._observing.report(observation)
        self._put(observation)

    @override
    def on_record(self, record: Record) -> None:
        if isinstance(record.command, lane_commands.UpdateConfiguration | lane_commands.Opened):
            self._wake.set()
        if self._observing is not None:
            self._observing.on_record(record, self.lane.state)

    @override
    def on_phase(self, change: PhaseChange) -> None:
        if self._observing is not None:
            self._observing.on_phase(change)
        # Few, and none may be lost: a life that nobody has heard of is not listened to.
        self._phases.put(change)
        self._wake.set()

    @override
    def on_end(self, error: ShardError) -> None:
        # Controllers are told by the end of their connections; who takes over is theirs to ask.
        self.compute.shut()
        self.storage.shut()

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._wake, _STATISTICS_MS)
            try:
                self._step()
            except Exception:  # noqa: BLE001 - see below
                # It must go on: without it nothing could be asked for, or even dropped.
                _log.exception("a round of the runtime failed")

    def _step(self) -> None:
        self._wake.clear()
        self._tune()
        if self._follows and self._journal.role == "holder":
            self._follows = False  # what was refused can be recorded from here on
            self._doubts |= {"compute", "storage"}
            for kind in [*self._said]:  # the others say all that they want when they come
                with self._refusing(kind):
                    self._catch_up(kind)
        for _ in range(self._phases.qsize()):
            change = self._phases.get_nowait()
            self._do_compute(self._compute_worker.on_phase(change))
            self._do_storage(self._storage_worker.on_phase(change))
        for _ in range(self._news.qsize()):
            self._take_news(self._news.get_nowait())
        while (step := self.compute.take()) is not None:
            self._take_compute(step)
        while (order := self.storage.take()) is not None:
            self._take_storage(order)
        if self._clock.elapsed_ms() - self._counted_ms >= _STATISTICS_MS:
            self._counted_ms = self._clock.elapsed_ms()
            updates = self._storage_worker.statistics()
            self.storage.respond(updates)
            if self._observing is not None:
                self._observing.put(updates)

    def _tune(self) -> None:
        """Let what runs take over what the order says of its bounds."""
        if self.lane.state.settings == self._tuned_by:
            return
        self._tuned_by = self.lane.state.settings
        self._bounds = self._options.bounds.heeding(self._tuned_by)
        self._peeks.tune(self._bounds.peeks)
        for index in [*self._indexes.values()]:
            index.tune(self._bounds.indexes)
        for subscribe in [*self._subscribes.values()]:
            subscribe.tune(self._bounds.subscribes)

    def _check(self, commands: Iterable[ComputeCommand | StorageCommand]) -> None:
        check_commands(commands, self.lane.state.settings, self._options.bounds)

    def _take_news(self, news: _News) -> None:
        now_ms = self._clock.now_ms()
        if isinstance(news, StagedBatches):
            self._do_storage(self._storage_worker.on_staged(news))
        else:
            if isinstance(news, PeekResponse):
                self._answered(news.uuid)
            self._do_compute(self._compute_worker.on_observation(news))
            self._do_storage(self._storage_worker.on_observation(news, now_ms))

    def _take_compute(self, step: Reconcile[ComputeCommand] | Received[ComputeCommand]) -> None:
        with self._refusing("compute"):
            match step:
                case Reconcile(commands=commands):
                    self._check(commands)
                    self._do_compute(self._compute_worker.on_reconcile(commands))
                    self._said.add("compute")
                    self._catch_up("compute")
                case Received(command=command):
                    self._check([command])
                    self._do_compute(self._compute_worker.on_command(command))

    def _take_storage(self, step: Reconcile[StorageCommand] | Received[StorageCommand]) -> None:
        now_ms = self._clock.now_ms()
        with self._refusing("storage"):
            match step:
                case Reconcile(commands=commands):
                    self._check(commands)
                    self._do_storage(self._storage_worker.on_reconcile(commands, now_ms))
                    self._said.add("storage")
                    self._catch_up("storage")
                case Received(command=command):
                    self._check([command])
                    self._do_storage(self._storage_worker.on_command(command, now_ms))

    @contextmanager
    def _refusing(self, kind: Kind) -> Iterator[None]:
        """End the connection whose step cannot be done: the next one says everything anew."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, half of it may be done
            if not isinstance(error, InvalidUsage):
                _log.exception("a step of a controller failed")
            self._doubts.add(kind)
            endpoint = self.compute if kind == "compute" else self.storage
            endpoint.refuse(str(error) if isinstance(error, ShardError) else repr(error))

    def _catch_up(self, kind: Kind) -> None:
        """Give the lane what it lacks, where a step has failed before."""
        if kind in self._doubts and kind == "compute":
            self._do_compute(self._compute_worker.catch_up(self.lane.state.objects))
        elif kind in self._doubts:
            self._do_storage(self._storage_worker.catch_up(self.lane.state.objects))
        self._doubts.discard(kind)

    def _do_compute(self, done: ComputeDone) -> None:
        self._offer("compute", done.commands)
        for uuid in done.forgotten:
            self._peeks.forget(uuid)
            self._answered(uuid)
        for request in done.requests:
            match request:
                case Peek():
                    self._peek(request)
                case CancelPeek(uuid):
                    self._peeks.cancel(uuid)
                case AllowCompaction(name, frontier):
                    # Of shards the history that stays is that of their retention.
                    if name in self._indexes and frontier is not None:
                        self._indexes[name].allow_compaction(frontier)
                    if name in self._subscribes:
                        self._subscribes[name].acknowledge(frontier)
        for response in done.responses:
            self.compute.respond(response)

    def _peek(self, peek: Peek) -> None:
        if self._observing is not None:
            self._asked[peek.uuid] = self._clock.elapsed_ms()
            started = PeekStarted(
                uuid=peek.uuid, inputs=peek.inputs, time=peek.as_of, at_ms=self._clock.now_ms()
            )
            self._observing.put(started)
        self._peeks.start(peek)

    def _answered(self, uuid: str) -> None:
        began_ms = self._asked.pop(uuid, None)
        if self._observing is not None and began_ms is not None:
            took_ms = self._clock.elapsed_ms() - began_ms
            self._observing.put(PeekEnded(uuid=uuid, took_ms=took_ms))

    def _do_storage(self, done: StorageDone) -> None:
        self._offer("storage", done.commands)
        for request in done.requests:
            match request:
                case AllowCompaction():
                    pass  # as above
                case CancelOneshotIngestion(uuid):
                    self._oneshots.cancel(uuid)
                case _:
                    self._oneshots.start(request)
        for response in done.responses:
            self.storage.respond(response)
        if self._observing is not None:
            for status in done.statuses:
                self._observing.put(status)

    def _offer(self, producer: str, commands: Sequence[LaneCommand]) -> None:
        for command in commands:
            # A controller that says more than the lane takes is refused, and comes again.
            self.lane.offer(producer, command, wait=False).add_done_callback(_note)

    def _put(self, news: _News) -> None:
        try:
            self._news.put_nowait(news)
        except queue.Full:
            self._overrun += 1
            if self._overrun == 1:
                _log.error("the runtime's loop is behind: observations are lost")
        self._wake.set()

    # -- what runs -----------------------------------------------------------------------------

    def _host(self, kind: Kind, session: SparkSession, ids: IdGenerator) -> Host:
        options = self._options
        return Host(
            spark=session,
            client=self._client,
            storage=options.storage,
            report=self.report,
            clock=self._clock,
            ids=ids,
            checkpoints=options.checkpoints,
            writes=threading.Event(),
            check_fence=self._journal.check_fence,
            interval_ms=options.interval_ms,
            pool=kind,
            pace=self._pace,
        )

    def _render_compute(
        self, host: Host, incarnation: Incarnation, description: Description
    ) -> Running:
        assert isinstance(description, Dataflow), description
        running = render_dataflow(
            host,
            incarnation,
            description,
            self,
            indexes=self._bounds.indexes,
            subscribes=self._bounds.subscribes,
        )
        # Bounds may have changed meanwhile.
        if isinstance(running, RunningIndex):
            self._indexes[incarnation.id] = running
            running.tune(self._bounds.indexes)
        elif isinstance(running, RunningSubscribe):
            self._subscribes[incarnation.id] = running
            running.tune(self._bounds.subscribes)
        return running

    def _render_storage(
        self, host: Host, incarnation: Incarnation, description: Description
    ) -> Running:
        assert isinstance(description, SourceDescription | SinkDescription), description
        return render_storage(host, incarnation, description)

    def _forget(self, dropped: LaneObject) -> None:
        self._indexes.pop(dropped.description.name, None)
        self._subscribes.pop(dropped.description.name, None)
        forget(self._client, self._options.checkpoints, dropped)


def _note(position: Future[int]) -> None:
    """A command that has no position: the lane was lost, or ends; both are told elsewhere."""
    error = position.exception()
    if error is not None:
        _log.warning("a command was not recorded", extra={"context": {"error": str(error)}})


def _no_relations(name: str) -> pa.Table:
    """The relations of a runtime that nothing watches."""
    raise unknown_name("relation", name, ())
