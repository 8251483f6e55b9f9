"""The unified runtime: two connections, two workers, one lane, one loop that ties them together.

    runtime = Runtime(sessions, client, order, options, clock=clock, ids=ids)
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
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from typing_extensions import override

from shardline.app.compute.peek.peek import PeekServer
from shardline.app.compute.worker import ComputeEffects, ComputeWorker
from shardline.app.execution.observations import Observation, Progress
from shardline.app.introspection.events import Following, PeekEnded, PeekStarted, TakenOver
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.lane import commands as lane_commands
from shardline.app.lane.commands import KINDS, READ_ONLY, Kind, LaneCommand, Record
from shardline.app.lane.lane import Lane, Observer
from shardline.app.lane.order_protocol import DurableOrder
from shardline.app.lane.process_state import PhaseChange
from shardline.app.protocol.compute import (
    AllowCompaction,
    CancelPeek,
    ComputeCommand,
    ComputeResponse,
    Peek,
    PeekResponse,
)
from shardline.app.protocol.graph import reachable_names
from shardline.app.protocol.objects import (
    inputs_of,
)
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    StagedBatches,
    StorageCommand,
    StorageResponse,
)
from shardline.app.runtime.objects import RunningObjects
from shardline.app.runtime.presence import describe_runtime
from shardline.app.runtime.settings import RuntimeOptions, check_commands
from shardline.app.sql.queries import bind
from shardline.app.storage.one_shot import Oneshots
from shardline.app.storage.worker import StorageEffects, StorageWorker
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import Received, Reconcile
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import InvalidUsage, ShardError, unknown_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Runtime", "RuntimeWatcher"]

_Named: TypeAlias = lane_commands.CreateDataflow | lane_commands.DropDataflow

_log = logging.getLogger(__name__)

_OBSERVATIONS_MAX: Final = 100_000
"""Observations that wait for the loop. It takes thousands in a millisecond."""

_STATISTICS_MS: Final = 1000.0
_STOP_MS: Final = 60_000.0
_JOIN_MS: Final = 10_000.0

_News: TypeAlias = Observation | StagedBatches


class RuntimeWatcher:
    """Hears of what happens in a runtime, in any thread; must return at once and never raise."""

    def on_progress(self, name: str) -> None:
        """An object's frontier has moved."""

    def on_lane(self) -> None:
        """The lane's state has changed: an object came, changed its phase or was forgotten."""


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
        order: DurableOrder,
        options: RuntimeOptions,
        *,
        clock: Clock,
        ids: IdGenerator,
        feeds: RuntimeFeeds | None = None,
        watcher: RuntimeWatcher | None = None,
    ) -> None:
        """A runtime that `start` brings to life.

        Args:
            sessions: That of each kind; one and the same for both in a unified runtime.
            client: Of the location.
            order: The lane's durable order, held or followed.
            options: See there.
            clock: Of the process.
            ids: Source of everything random.
            feeds: Of the introspection of what runs; None for none.
            watcher: Hears of progress and of the lane; None for nobody.
        """
        self._client = client
        self._order = order
        self._clock = clock
        self._options = options
        self._feeds = feeds
        self._watcher = watcher or RuntimeWatcher()
        # A round that fails is logged, and the next one is taken: without the loop nothing could be
        # asked for, or even dropped.
        self._thread = PeriodicThread(
            "runtime", self._round, clock, first_ms=_STATISTICS_MS, retry_ms=_STATISTICS_MS
        )
        self._wake = self._thread.wake
        self._phases: queue.SimpleQueue[PhaseChange] = queue.SimpleQueue()
        self._news: queue.Queue[_News] = queue.Queue(_OBSERVATIONS_MAX)
        self._overrun = 0
        limits = options.part_settings.connections
        self.compute: Endpoint[ComputeCommand, ComputeResponse] = Endpoint(self._wake.set, limits)
        self.storage: Endpoint[StorageCommand, StorageResponse] = Endpoint(self._wake.set, limits)
        self._settings_applied: Mapping[str, str] = {}
        self._objects = RunningObjects(
            sessions,
            client,
            options,
            self,
            report=self.report,
            check_fence=order.check_fence,
            clock=clock,
            ids=ids,
        )
        self._peeks_began_ms: dict[str, float] = {}
        self._follows = order.role == "follower"
        self._to_catch_up, self._reconciled = set[Kind](), set[Kind]()
        self._unrecorded = set[str]()
        self._waiting_to_pass: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self.lane = Lane(
            order,
            self._objects.renderers,
            self._objects.hosts.__getitem__,
            clock=clock,
            ids=ids,
            settings=options.part_settings.lane,
            operators_of=lambda description: len(operators_of(description)),
            observer=self,
            forget=self._objects.forget,
        )
        objects = self.lane.state.objects
        self._compute_worker = ComputeWorker(objects)
        self._storage_worker = StorageWorker(objects, clock.now_ms())
        self._peeks = self._make_peeks()
        self._oneshots = Oneshots(self._objects.hosts["storage"], self._put)
        self._counted_ms = float("-inf")

    def _make_peeks(self) -> PeekServer:
        feeds, host = self._feeds, self._objects.hosts["compute"]
        peeks = self._options.part_settings.peeks
        if feeds is None:
            return PeekServer(host, self, _no_relations, bind, settings=peeks)
        return PeekServer(
            host,
            self,
            feeds.relations.relation,
            bind,
            settings=peeks,
            decided=feeds.decided,
            find_blockage=feeds.find_blockage,
        )

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop, and with the lane all that shall run."""
        # What watches first, and the lane last: an object that starts reports at once, and a report
        # of an object that nobody knows is thrown away.
        if self._feeds is not None:
            if self._order.role == "follower":
                # To the sink itself, also below: histories are stored again after a pause as well.
                self._feeds.sink.put(Following())
            self._feeds.found(self.lane.state, self._order.records())
            self._feeds.start(self._objects.hosts["storage"].writes, self.lane.check_fence)
        self._thread.start()
        self.lane.start()

    def stop(self) -> bool:
        """Stop all that runs, without dropping it; whether everything has stopped."""
        with ExitStack() as at_last:
            if self._feeds is not None:
                at_last.callback(self._feeds.stop)
            # The loop after the lane: it passes the last phases on.
            at_last.callback(self._thread.stop, _JOIN_MS)
            try:
                # Connections first: nothing more is asked for while all that runs ends.
                self.compute.shut()
                self.storage.shut()
                self._peeks.stop()
                self._oneshots.stop()
            finally:
                # Whatever they raise: a lane that is not stopped keeps the location's lease.
                rested = self.lane.stop(_STOP_MS)
        return rested

    # -- what the parts ask --------------------------------------------------------------------

    def inputs_of(self, name: str) -> Collection[str]:
        """Names of all objects that `name` is made of, directly or through others."""
        objects = self.lane.state.objects
        return reachable_names(
            name, lambda one: inputs_of(objects[one].description) if one in objects else ()
        )

    def pass_on(self) -> threading.Event:
        """Have all that controllers have sent by now given to the lane; set once it is."""
        passed = threading.Event()
        self._waiting_to_pass.put(passed)
        self._wake.set()
        return passed

    def report(self, observation: Observation) -> None:
        """Take what a running object tells; returns at once, and never raises."""
        # First of all: the lane may tell of the next phase at once, and the reason is then there.
        if self._feeds is not None:
            self._feeds.report(observation)
        # To the lane by a way of its own: a failure must be heard, or the object is never started
        # again. The loop may lose an observation when it is far behind (`_put`).
        self.lane.report(observation)
        self._put(observation)
        if isinstance(observation, Progress):
            self._watcher.on_progress(observation.id)

    @override
    def on_record(self, record: Record) -> None:
        if isinstance(record.command, lane_commands.UpdateConfiguration | lane_commands.Opened):
            self._wake.set()
        if self._feeds is not None:
            self._feeds.on_record(record, self.lane.state)
            if isinstance(record.command, lane_commands.Opened) and self._order.role == "holder":
                objects = tuple(self.lane.state.objects)
                self._feeds.sink.put(TakenOver(objects=objects, at_ms=record.at_ms))
        self._watcher.on_lane()

    @override
    def on_phase(self, change: PhaseChange) -> None:
        if self._feeds is not None:
            self._feeds.on_phase(change)
        # Few, and none may be lost: a life that nobody has heard of is not listened to.
        self._phases.put(change)
        self._wake.set()
        self._watcher.on_lane()

    @override
    def on_end(self, error: ShardError) -> None:
        # Controllers are told by the end of their connections; who takes over is theirs to ask.
        self.compute.shut()
        self.storage.shut()
        self._watcher.on_lane()

    # -- the loop ------------------------------------------------------------------------------

    def _round(self) -> float:
        self._step()
        return _STATISTICS_MS

    def _step(self) -> None:
        # As many as there are now: what is put later may be behind a command that comes later.
        # Taken at the end: a round that fails loses nobody who waits, the next one tells them.
        asked = self._waiting_to_pass.qsize()
        self._apply_changed_settings()
        if self._follows and self._order.role == "holder":
            self._follows = False  # what was refused can be recorded from here on
            for kind in [*self._reconciled]:
                with self._refusing(kind):
                    self._repeat_refused(kind)
            # The others say all that they want when they come.
            self._to_catch_up |= {*KINDS} - self._reconciled
        # Phases before observations: the workers throw away what comes from an incarnation that
        # they have not heard of, a hydration for good. The observations are counted first: the
        # lane tells the phase of each that has arrived by then before it, so it is among those
        # that are taken. As many as there are now, and not until there are none: a flood of
        # observations must not keep commands waiting.
        arrived = self._news.qsize()
        for _ in range(self._phases.qsize()):
            change = self._phases.get_nowait()
            self._do_compute(self._compute_worker.on_phase(change))
            self._do_storage(self._storage_worker.on_phase(change))
        for _ in range(arrived):
            self._take_news(self._news.get_nowait())
        while (step := self.compute.take()) is not None:
            self._take_compute(step)
        while (command := self.storage.take()) is not None:
            self._take_storage(command)
        for _ in range(asked):
            self._waiting_to_pass.get_nowait().set()
        if self._clock.elapsed_ms() - self._counted_ms >= _STATISTICS_MS:
            self._counted_ms = self._clock.elapsed_ms()
            # Once a second, not with each observation: they are sums, and the newest one says all.
            updates = self._storage_worker.statistics()
            self.storage.respond(updates)
            if self._feeds is not None:
                self._feeds.put(updates)
                role, now_ms = self._order.role, self._clock.now_ms()
                sessions = {"compute": self.compute.session, "storage": self.storage.session}
                self._feeds.put(describe_runtime(self.lane, role, sessions, now_ms))

    def _apply_changed_settings(self) -> None:
        """Apply to what runs the settings that the lane's order has, if they have changed."""
        if self.lane.state.settings == self._settings_applied:
            return
        self._settings_applied = self.lane.state.settings
        parts = self._options.part_settings.with_recorded(self._settings_applied)
        self._peeks.tune(parts.peeks)
        self._objects.apply_settings(parts)

    def _check(self, commands: Iterable[ComputeCommand | StorageCommand]) -> None:
        # Before a worker takes the first of them: settings that were recorded and cannot be applied
        # would be met again by every start.
        check_commands(commands, self.lane.state.settings, self._options.part_settings)

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
                    self._reconciled.add("compute")
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
                    self._reconciled.add("storage")
                    self._catch_up("storage")
                case Received(command=command):
                    self._check([command])
                    self._do_storage(self._storage_worker.on_command(command, now_ms))

    @contextmanager
    def _refusing(self, kind: Kind) -> Iterator[None]:
        """End the connection whose step cannot be done: the next one says everything anew.

        The worker may have taken a part of the step, of which the lane has heard nothing. That part
        is in doubt until a reconciliation has compared the two (`_catch_up`).
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, half of it may be done
            if not isinstance(error, InvalidUsage):
                _log.exception("a step of a controller failed")
            self._to_catch_up.add(kind)
            endpoint = self.compute if kind == "compute" else self.storage
            endpoint.refuse(str(error) if isinstance(error, ShardError) else repr(error))

    def _catch_up(self, kind: Kind) -> None:
        """Give the lane what it lacks, where a step has failed before, or will be refused."""
        if self._follows:
            # The worker knows what there was at the start; the holder makes and drops without it.
            self._to_catch_up.add(kind)
        if kind in self._to_catch_up and kind == "compute":
            self._do_compute(self._compute_worker.catch_up(self.lane.state.objects))
        elif kind in self._to_catch_up:
            self._do_storage(self._storage_worker.catch_up(self.lane.state.objects))
        self._to_catch_up.discard(kind)

    def _repeat_refused(self, kind: Kind) -> None:
        """Record what was asked for while this runtime followed another one.

        Only that: what the holder has made and dropped in its last moments was in nobody's mind
        when the controller said what it wants. A sink that is made again or dropped for that
        writes everything a second time.
        """
        objects = self.lane.state.objects
        worker = self._compute_worker if kind == "compute" else self._storage_worker
        self._offer(kind, list(filter(self._was_refused, worker.catch_up(objects).commands)))

    def _was_refused(self, command: LaneCommand) -> bool:
        return isinstance(command, _Named) and command.id in self._unrecorded

    def _do_compute(self, done: ComputeEffects) -> None:
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
                    self._objects.allow_compaction(name, frontier)
        for response in done.responses:
            self.compute.respond(response)

    def _peek(self, peek: Peek) -> None:
        if self._feeds is not None:
            self._peeks_began_ms[peek.uuid] = self._clock.elapsed_ms()
            started = PeekStarted(
                uuid=peek.uuid, inputs=peek.inputs, time=peek.as_of, at_ms=self._clock.now_ms()
            )
            self._feeds.put(started)
        self._peeks.start(peek)

    def _answered(self, uuid: str) -> None:
        began_ms = self._peeks_began_ms.pop(uuid, None)
        if self._feeds is not None and began_ms is not None:
            took_ms = self._clock.elapsed_ms() - began_ms
            self._feeds.put(PeekEnded(uuid=uuid, took_ms=took_ms))

    def _do_storage(self, done: StorageEffects) -> None:
        self._offer("storage", done.commands)
        for request in done.requests:
            match request:
                case AllowCompaction():
                    pass  # of shards it is their retention that decides what history stays
                case CancelOneshotIngestion(uuid):
                    self._oneshots.cancel(uuid)
                case _:
                    self._oneshots.start(request)
        for response in done.responses:
            self.storage.respond(response)
        if self._feeds is not None:
            for status in done.statuses:
                self._feeds.put(status)

    def _offer(self, producer: str, commands: Sequence[LaneCommand]) -> None:
        for command in commands:
            # A controller that says more than the lane takes is refused, and comes again.
            note = partial(self._note, command)
            self.lane.offer(producer, command, wait=False).add_done_callback(note)

    def _note(self, command: LaneCommand, position: Future[int]) -> None:
        """Note a command that has no position: by a follower, or the lane was lost, or ends."""
        error = position.exception()
        if error is None:
            return
        # In the lane's thread, or in ours; a runtime that holds the order refuses none for this.
        if getattr(error, "code", "") == READ_ONLY and isinstance(command, _Named):
            self._unrecorded.add(command.id)
        _log.warning("a command was not recorded", extra={"context": {"error": str(error)}})

    def _put(self, news: _News) -> None:
        try:
            self._news.put_nowait(news)
        except queue.Full:
            self._overrun += 1
            if self._overrun == 1:
                _log.error("the runtime's loop is behind: observations are lost")
        self._wake.set()


def _no_relations(name: str, _as_of: int | None) -> pa.Table:
    """The relations of a runtime that nothing watches."""
    raise unknown_name("relation", name, ())
