"""The storage worker keeps the books between a controller's connection and the lane: pure.

    done = worker.on_reconcile(commands, now_ms)     all up to `InitializationComplete`, at once
    done = worker.on_command(command, now_ms)        one behind it
    done = worker.on_observation(report, now_ms)     a report of a running object
    done = worker.on_phase(change)                   a change of phase, from the lane
    worker.statistics()                              once in a while

Connections come and go, objects stay: what a controller has asked for, what it has been told, and
what runs are three different things, and only here are they compared. As in Materialize's storage
worker, a controller's command changes the books and nothing else; what runs changes by the lane's
commands that follow. Each call returns what is to be done about it (`StorageEffects`), as those of
`shardline.app.compute.worker` do. No I/O, no threads, no Spark.

Invariants:
    The upper of an object is reported once a controller has named it, only when it advances, also
    across a change of its definition: it is the same shard.
    A drop is acknowledged once and at once: what is left is cleanup. An object that a new
    controller left out is dropped in silence.
    All statuses are reported to a new controller, stamped with the time of its connection.
    Reports of any incarnation but the present one are ignored.
    An object that the lane has paused is `paused`, whatever it reported before, until it starts.
    A oneshot ingestion of this connection is answered once; those of earlier ones never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeGuard

from msgspec import UnsetType

from shardline.app.execution.observations import Failed, Health, Measured, Observation, Progress
from shardline.app.lane import commands as lane
from shardline.app.lane.current_epochs import CurrentEpochs
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject, unfinished_replacements
from shardline.app.protocol.compute import AllowCompaction, AllowWrites, UpdateConfiguration
from shardline.app.protocol.history import HeldObject, StorageHistory
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.protocol.reconcile import reconcile_storage
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    DroppedId,
    FrontierUpper,
    RunIngestion,
    RunOneshotIngestion,
    RunSink,
    StagedBatches,
    StatisticsUpdates,
    StatusUpdate,
    StorageCommand,
    StorageResponse,
)
from shardline.app.storage.statistics import Statistics
from shardline.app.storage.status_machine import HealthMachine

__all__ = ["StorageEffects", "StorageRequest", "StorageWorker"]

StorageRequest: TypeAlias = RunOneshotIngestion | CancelOneshotIngestion | AllowCompaction
"""Commands that are carried out outside the lane: by `one_shot`, and by those that hold history."""

_BEFORE_ALL: Final = -1
"""The frontier of an object that the controller knows nothing of yet: before every time."""


@dataclass(frozen=True, slots=True)
class StorageEffects:
    """The consequences of one event, for the caller to carry out.

    Attributes:
        commands: For the lane, in this order.
        requests: For oneshot ingestions and holds, after the commands.
        responses: For the controller, in this order.
        statuses: All changes of statuses, also those that no controller is told: for the history.
    """

    commands: tuple[lane.LaneCommand, ...] = ()
    requests: tuple[StorageRequest, ...] = ()
    responses: tuple[StorageResponse, ...] = ()
    statuses: tuple[StatusUpdate, ...] = ()


class StorageWorker:
    """The state of sources and sinks, and how much of it the present controller knows.

    For one thread at a time. It must be given every change of phase from the lane's start on.

    Args:
        objects: Objects of the lane when it was opened: those that the first controller does not
            name are dropped.
        now_ms: When that was, ms since the epoch.
    """

    def __init__(self, objects: Mapping[str, LaneObject], now_ms: int) -> None:
        self._history = StorageHistory(_commands_for(objects))
        # What a process that died has dropped for a successor that the lane was not given.
        self._unfinished = unfinished_replacements(objects, "storage")
        self._epochs = CurrentEpochs()
        self._health = HealthMachine()
        self._statistics = Statistics()
        self._uppers: dict[str, int | None] = {}
        self._reported_uppers: dict[str, int | None] = {}
        for held in self._history.objects.values():
            self._expect(held.run, now_ms)

    # -- from the controller -----------------------------------------------------------------

    def on_reconcile(self, commands: Sequence[StorageCommand], now_ms: int) -> StorageEffects:
        """Reconcile what runs with what a new controller wants; replaces the one before.

        Args:
            commands: All that it sent up to `InitializationComplete`.
            now_ms: Now, ms since the epoch.

        Raises:
            InvalidUsage: It names an object that never was there; nothing has changed then.
        """
        found = reconcile_storage(self._history.commands(), commands)
        before = self._history.objects
        self._history = StorageHistory(commands, gone=found.dropped)
        statuses = [s for name in found.dropped for s in self._forget(name, now_ms)]
        for name in found.replaced:
            if type(before[name].run) is not type(self._history.objects[name].run):
                statuses += self._forget(name, now_ms)
        for held in self._history.objects.values():
            statuses += self._expect(held.run, now_ms)
        self._reported_uppers = dict.fromkeys(self._history.objects, _BEFORE_ALL)
        again = self._health.restamped(now_ms)
        left, self._unfinished = self._unwanted(self._unfinished), set()
        return StorageEffects(
            (*left, *(c for command in found.todo for c in self._for_the_lane(command))),
            tuple(filter(_is_request, found.todo)),
            (*(r for name in self._reported_uppers for r in self._upper_response(name)), *again),
            (*statuses, *again),
        )

    def on_command(self, command: StorageCommand, now_ms: int) -> StorageEffects:
        """Take one command behind `InitializationComplete`.

        Raises:
            InvalidUsage: It names an object that never was there; nothing has changed then.
        """
        before = dict(self._history.objects)
        self._history.append(command)
        match command:
            case RunIngestion() | RunSink():
                return self._run(command, before.get(command.id), now_ms)
            case AllowCompaction(name) if name not in before:
                return StorageEffects()
            case AllowCompaction(name, None):
                statuses = tuple(self._forget(name, now_ms))
                return StorageEffects((_drop(name),), (), (*statuses, DroppedId(name)), statuses)
            case _ if _is_request(command):
                return StorageEffects(requests=(command,))
            case _:
                return StorageEffects(tuple(self._for_the_lane(command)))

    def catch_up(self, objects: Mapping[str, LaneObject]) -> StorageEffects:
        """Commands that the lane still lacks; it may have refused some when they were sent.

        Args:
            objects: Objects that the lane has. Commands that are on their way to it do no harm.
        """
        there = {c.id: c for c in _commands_for(objects) if isinstance(c, RunIngestion | RunSink)}
        wanted = {name: held.run for name, held in self._history.objects.items()}
        other = {n for n, run in wanted.items() if n in there and type(there[n]) is not type(run)}
        gone = [n for n in reversed(there) if n not in wanted or n in other]
        return StorageEffects(
            (
                *self._unwanted(unfinished_replacements(objects, "storage")),
                *(_drop(name, replaced=name in other) for name in gone),
                *(c for run in wanted.values() for c in self._for_the_lane(run)),
            )
        )

    def _unwanted(self, unfinished: set[str]) -> list[lane.DropDataflow]:
        """The drops of what waits in the lane for a successor that nobody names any more."""
        left = sorted(unfinished - self._history.objects.keys())
        return [_drop(name, if_unfollowed=True) for name in left]

    def _run(
        self, command: RunIngestion | RunSink, before: HeldObject | None, now_ms: int
    ) -> StorageEffects:
        other = before is not None and type(before.run) is not type(command)
        gone = self._forget(command.id, now_ms) if other else []
        statuses = (*gone, *self._expect(command, now_ms))
        self._reported_uppers.setdefault(command.id, _BEFORE_ALL)
        news = (*statuses, *self._upper_response(command.id))
        return StorageEffects(tuple(self._for_the_lane(command)), (), news, statuses)

    def _for_the_lane(self, command: StorageCommand) -> Iterator[lane.LaneCommand]:
        match command:
            case RunIngestion(ingestion):
                yield lane.CreateDataflow(description=ingestion)
            case RunSink(sink=sink, as_of=as_of):
                yield lane.CreateDataflow(description=sink, as_of=as_of)
            case AllowCompaction(name, None):
                # During a reconciliation the history is that of the new commands already.
                yield _drop(name, replaced=name in self._history.objects)
            case AllowWrites():
                yield lane.AllowWrites("storage")
            case UpdateConfiguration(settings):
                yield lane.UpdateConfiguration(settings)
            case _:
                pass

    # -- from what runs ----------------------------------------------------------------------

    def on_observation(self, observation: Observation, now_ms: int) -> StorageEffects:
        """Take a report of a running object; one of an earlier incarnation changes nothing."""
        match observation:
            case Progress() | Health() | Failed() | Measured():
                if not self._epochs.admits(observation.id, observation.epoch):
                    return StorageEffects()
            case _:
                return StorageEffects()
        match observation:
            case Progress(id=name, write=write):
                if not isinstance(write, UnsetType):
                    self._uppers[name] = _latest(self._uppers.get(name, _BEFORE_ALL), write)
                return StorageEffects(responses=self._upper_response(name))
            case Measured():
                self._statistics.observe(observation)
                return StorageEffects()
            case Health():
                return self._changed(self._health.observe([observation], now_ms))
            case Failed():
                return self._changed(self._health.failed(observation, now_ms))

    def on_staged(self, end: StagedBatches) -> StorageEffects:
        """Take the end of a oneshot ingestion."""
        if end.uuid not in self._history.oneshots:
            return StorageEffects()
        self._history.append(CancelOneshotIngestion(end.uuid))
        return StorageEffects(responses=(end,))

    def on_phase(self, change: PhaseChange) -> StorageEffects:
        """Take a change of an object's phase."""
        if change.phase == "paused":
            # Before the epochs are asked: it may have had no incarnation in this process.
            return self._changed(self._health.pause(change.id, change.at_ms))
        if change.phase == "dropped":
            return self._on_gone(change)
        return self._on_incarnation(change)

    def _on_gone(self, change: PhaseChange) -> StorageEffects:
        """Forget what an object has reported of which nothing is left.

        It may be expected still: by a follower, whose holder drops it and may make it again, which
        is another object then.
        """
        self._epochs.on_phase(change)
        self._statistics.drop(change.id)
        self._uppers.pop(change.id, None)
        return self._changed(self._health.renew(change.id, change.at_ms))

    def _on_incarnation(self, change: PhaseChange) -> StorageEffects:
        """Take a change of phase of an object's incarnation."""
        if not self._epochs.on_phase(change):
            return StorageEffects()
        assert change.incarnation is not None, change
        name, epoch = change.id, change.incarnation.epoch
        match change.phase:
            case "starting":
                sink = isinstance(change.description, SinkDescription)
                self._statistics.start(name, "sink" if sink else "source", epoch)
                return self._changed(self._health.start(name, epoch, change.at_ms))
            case "stopped" if change.error:
                failed = Failed.of_start(name, epoch, change.error)
                return self._changed(self._health.failed(failed, change.at_ms))
            # Not while it fails: the error may be told behind its stop, and belongs to this epoch.
            case "stopped" if not change.failures and not self._fails(name):
                return self._changed(self._health.pause(name, change.at_ms))
            case "ended":
                return self._changed(self._health.cease(name, change.at_ms))
            case _:
                return StorageEffects()

    def _fails(self, name: str) -> bool:
        """True if an object was stopped because of an error: that stays its status."""
        latest = self._health.latest(name)
        return latest is None or latest.status in {"stalled", "frozen"}

    def statistics(self) -> StatisticsUpdates:
        """Statistics of all objects, for the controller."""
        return self._statistics.updates()

    # -- inside ------------------------------------------------------------------------------

    def _changed(self, statuses: Sequence[StatusUpdate]) -> StorageEffects:
        told = tuple(status for status in statuses if status.id in self._reported_uppers)
        return StorageEffects(responses=told, statuses=tuple(statuses))

    def _upper_response(self, name: str) -> tuple[StorageResponse, ...]:
        """The response with an object's upper; none if the controller knows it already."""
        if name not in self._reported_uppers or name not in self._uppers:
            return ()
        upper = self._uppers[name]
        if _latest(self._reported_uppers[name], upper) == self._reported_uppers[name]:
            return ()
        self._reported_uppers[name] = upper
        return (FrontierUpper(name, upper),)

    def _expect(self, run: RunIngestion | RunSink, now_ms: int) -> list[StatusUpdate]:
        self._epochs.expect(run.ingestion if isinstance(run, RunIngestion) else run.sink)
        return self._health.create(run.id, now_ms)

    def _forget(self, name: str, now_ms: int) -> list[StatusUpdate]:
        self._epochs.forget(name)
        self._statistics.drop(name)
        self._uppers.pop(name, None)
        self._reported_uppers.pop(name, None)
        return self._health.drop(name, now_ms)


def _commands_for(objects: Mapping[str, LaneObject]) -> Iterator[StorageCommand]:
    """The commands of a controller that the lane has these objects from."""
    for known in objects.values():
        match known.description:
            case SourceDescription() if known.life == "live":
                yield RunIngestion(known.description)
            case SinkDescription() if known.life == "live":
                yield RunSink(sink=known.description, as_of=known.as_of or 0)
            case _:
                pass


def _drop(name: str, *, replaced: bool = False, if_unfollowed: bool = False) -> lane.DropDataflow:
    """The lane's command for the drop of a source or sink, and of no dataflow of its name."""
    return lane.DropDataflow(name, replaced, if_unfollowed, kind="storage")


def _is_request(command: StorageCommand) -> TypeGuard[StorageRequest]:
    """True if a command is carried out outside the lane."""
    if isinstance(command, AllowCompaction):
        return command.frontier is not None
    return isinstance(command, RunOneshotIngestion | CancelOneshotIngestion)


def _latest(a: int | None, b: int | None) -> int | None:
    """The later one of two frontiers; None is the last."""
    return None if a is None or b is None else max(a, b)
