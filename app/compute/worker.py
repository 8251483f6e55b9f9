"""The compute worker translates between a controller's connection and the lane.

A controller speaks of dataflows by name and may reconnect at any time; the lane knows durable
incarnations. Without a place that remembers both, a new controller would restart everything that
already runs, and would take the frontiers of an old definition for those of the new one.
Materialize's `compute_state` and `ActiveComputeState`, without the dataflows.

    done = worker.on_reconcile(commands)     all up to `InitializationComplete`, at once
    done = worker.on_command(command)        one command after it
    done = worker.on_observation(report)     a report of a running object
    done = worker.on_phase(change)           a phase that an object has reached in the lane

Each returns a `ComputeEffects`: commands for the lane, requests for the server of peeks and the
holder of holds, responses for the controller. There is no I/O, no thread and no Spark in here. The
caller submits the commands in order, under the lock or on the thread under which it made the call.

Restarts after failures are the lane's business: it receives the same reports.

Invariants:
    A dataflow enters the lane when it is scheduled, not when it is created.
    Frontiers are reported only for objects that this controller has created, from their `as_of`
    on, and only when they advance. Nothing is reported about objects that it has not named, or has
    dropped by leaving them out.
    The empty frontier, or `SubscribeDropped`, of a dropped dataflow is reported once, when nothing
    of it runs any more. If the name was taken again before that, it is not reported: it would be
    taken for the new one's.
    Reports of any incarnation but the present one are ignored.
    A peek of this connection is answered once, by an error if an object that it reads is changed or
    dropped before; those of earlier connections never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeGuard, assert_never

from msgspec import UnsetType

from shardline.app.execution.observations import Ended, Failed, Hydrated, Observation, Progress
from shardline.app.lane import commands as lane
from shardline.app.lane.current_epochs import CurrentEpochs
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject, unfinished_replacements
from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    ComputeCommand,
    ComputeResponse,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    Hydration,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
    UpdateConfiguration,
)
from shardline.app.protocol.history import ComputeHistory, HeldDataflow
from shardline.app.protocol.objects import SinkDescription, SourceDescription, SubscribeDescription
from shardline.app.protocol.reconcile import reconcile_compute
from shardline.datasource.errors import Determinate

__all__ = ["ComputeEffects", "ComputeRequest", "ComputeWorker"]

ComputeRequest: TypeAlias = Peek | CancelPeek | AllowCompaction
"""A command that is carried out outside the lane: by the server of peeks or the holder of holds."""

_Time: TypeAlias = int | None

_BEFORE_ALL_TIMES: Final = -(2**63)
"""Before every time."""


@dataclass(frozen=True, slots=True)
class ComputeEffects:
    """The effects that the caller must carry out after one call of the worker.

    Attributes:
        commands: For the lane, in this order.
        requests: For the server of peeks and the holder of holds, after the commands.
        responses: For the controller, in this order.
        forgotten: Ids of peeks to end without an answer, before the requests: a request may bring
            a peek of the same id again.
    """

    commands: tuple[lane.LaneCommand, ...] = ()
    requests: tuple[ComputeRequest, ...] = ()
    responses: tuple[ComputeResponse, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(slots=True)
class _ObjectReports:
    """The latest reports of an object's present definition, whichever controller is connected.

    Attributes:
        frontiers: The newest ones, by their names in `Frontiers`.
        hydrated: True once it has caught up with its `as_of`.
    """

    frontiers: dict[str, _Time] = field(default_factory=dict)
    hydrated: bool = False


@dataclass(slots=True)
class _ControllerView:
    """The reports that the present controller has received of an object that it has named.

    Attributes:
        lower: No frontier before this time is reported.
        frontiers: The last ones reported, by their names in `Frontiers`.
        upper: Of the last batch of a subscription; None once nothing can follow.
        hydrated: True once hydration was reported.
    """

    lower: int
    frontiers: dict[str, _Time] = field(default_factory=dict)
    upper: int | None = _BEFORE_ALL_TIMES
    hydrated: bool = False


class ComputeWorker:
    """The state of all dataflows, and of the present controller's view. For one thread at a time.

    Args:
        objects: Objects that the lane had when it was opened; those that the first controller does
            not name are dropped.
    """

    def __init__(self, objects: Mapping[str, LaneObject]) -> None:
        self._history = ComputeHistory(_commands_that_create(objects))
        self._current_epochs = CurrentEpochs()
        self._reports: dict[str, _ObjectReports] = {}
        self._reported: dict[str, _ControllerView] = {}
        self._dropping: dict[str, tuple[HeldDataflow, _ControllerView]] = {}
        # What the lane has dropped for a successor that it has not been given yet: by this worker,
        # or by one whose process has died in between.
        self._unfinished = unfinished_replacements(objects, "compute")
        for name, held in self._history.dataflows.items():
            self._expect(name, held)

    # -- from the controller -----------------------------------------------------------------

    def on_reconcile(self, commands: Sequence[ComputeCommand]) -> ComputeEffects:
        """Take over the commands of a new controller; the one before is no longer heard.

        Raises:
            InvalidUsage: A command names an object that never existed; nothing has changed then.
        """
        # May raise: so it comes before anything of the old state is given up.
        found = reconcile_compute(self._history.commands(), commands)
        before = self._history.dataflows
        self._history = ComputeHistory(commands, gone=(*found.dropped, *found.replaced))
        for name in found.kept:
            # The permission to start stays, as what runs by it does: without it, a later drop would
            # take it for one that the lane has never known.
            self._history.dataflows[name].scheduled |= before[name].scheduled
        # Ends of what an earlier controller dropped would be news of objects that this one has
        # never named.
        self._dropping = {}
        for name in (*found.dropped, *found.replaced):
            self._forget(name)
        # Everything is reported anew, also of what goes on: this controller has heard nothing yet.
        self._reported = {name: _ControllerView(lower) for name, lower in found.lower.items()}
        for name in found.lower:
            self._expect(name, self._history.dataflows[name])
        todo = [c for command in found.todo for c in self._lane_commands(command)]
        return ComputeEffects(
            (*self._end_unfinished(), *todo),
            tuple(filter(_is_request, found.todo)),
            tuple(r for name in found.kept for r in self._pending_responses(name)),
            found.forgotten,
        )

    def on_command(self, command: ComputeCommand) -> ComputeEffects:
        """Take one command that follows `InitializationComplete`.

        Raises:
            InvalidUsage: It names an object that never existed; nothing has changed then.
        """
        # The history forgets a dropped dataflow at once, and its end must still be reported; the
        # same for the peeks that read it.
        before, peeks = dict(self._history.dataflows), dict(self._history.peeks)
        known = before.get(command.id) if isinstance(command, CreateDataflow) else None
        creation = 0 if known is None else known.create.creation
        self._history.append(command)
        match command:
            case CreateDataflow():
                done = self._on_create(command, known, creation)
                return self._with_lost_peeks(done, command.id, peeks)
            case AllowCompaction(name, None):
                return self._with_lost_peeks(self._on_drop(name, before.get(name)), name, peeks)
            case AllowCompaction(name) if name not in before:
                return ComputeEffects()
            case _ if _is_request(command):
                return ComputeEffects(requests=(command,))
            case _:
                return ComputeEffects(tuple(self._lane_commands(command)))

    def catch_up(self, objects: Mapping[str, LaneObject]) -> ComputeEffects:
        """The commands that bring the lane to the controller's wishes; it may have refused some.

        Args:
            objects: Objects that the lane has. Repeating commands that are still on their way to it
                does no harm.
        """
        there = {c.id: c for c in _commands_that_create(objects) if isinstance(c, CreateDataflow)}
        named = self._history.dataflows
        wanted = {n: held for n, held in named.items() if held.scheduled}
        # By what the lane has: what was sent to it may have been refused.
        self._unfinished = unfinished_replacements(objects, "compute")
        same = {
            name
            for name, held in wanted.items()
            if name in there and there[name].dataflow == held.create.dataflow
        }
        return ComputeEffects(
            (
                *self._end_unfinished(),
                # Readers before what they read, and all drops before a name is made anew.
                *(
                    self._drop_from_lane(name, replaced=name in named)
                    for name in reversed(there)
                    if name not in same
                ),
                *(c for n in wanted if n not in same for c in self._lane_commands(Schedule(n))),
            )
        )

    def _on_create(
        self, command: CreateDataflow, before: HeldDataflow | None, creation: int
    ) -> ComputeEffects:
        """Take a creation; `creation` is the number of the one before it."""
        held = self._history.dataflows[command.id]
        if held is before and command.creation == creation:
            # The history kept the object it had: the same command again. Forgetting here would
            # make the controller hear every frontier twice.
            return ComputeEffects()
        if held is before:
            # The same object goes on. What the controller was sent so far, and what is under way
            # to it, has a number that it takes no longer.
            self._reported[command.id] = _ControllerView(command.as_of)
            return ComputeEffects(responses=self._pending_responses(command.id))
        # An end of the old one under this name would be taken for the new one's.
        self._dropping.pop(command.id, None)
        self._forget(command.id)
        self._reported[command.id] = _ControllerView(command.as_of)
        self._expect(command.id, held)
        if before is None or not before.scheduled:
            return ComputeEffects()
        return ComputeEffects((self._drop_from_lane(command.id, replaced=True),))

    def _on_drop(self, name: str, before: HeldDataflow | None) -> ComputeEffects:
        if before is None:
            return ComputeEffects()
        seen_by_controller = self._reported[name]
        self._forget(name)
        if not before.scheduled:
            # The lane has never known it: no phase will come that ends it. But it may keep the one
            # before it, whose place this one was to take.
            drops = [self._drop_from_lane(name)] if name in self._unfinished else []
            return ComputeEffects(
                tuple(drops), responses=_last_responses(before, seen_by_controller)
            )
        # Its end is reported by `on_phase`: until then it still reads, and may still write.
        self._dropping[name] = before, seen_by_controller
        return ComputeEffects((self._drop_from_lane(name),))

    def _drop_from_lane(self, name: str, *, replaced: bool = False) -> lane.DropDataflow:
        """The lane's command for a drop; notes whether a successor is to follow."""
        if replaced:
            self._unfinished.add(name)
        else:
            self._unfinished.discard(name)
        return lane.DropDataflow(name, replaced=replaced, kind="compute")

    def _end_unfinished(self) -> list[lane.DropDataflow]:
        """The drops of what waits in the lane for a successor that nobody names any more."""
        left = sorted(self._unfinished - self._history.dataflows.keys())
        self._unfinished.difference_update(left)
        return [lane.DropDataflow(name, if_unfollowed=True, kind="compute") for name in left]

    def _with_lost_peeks(
        self, done: ComputeEffects, name: str, peeks: Mapping[str, Peek]
    ) -> ComputeEffects:
        """The effects, and the end of each of `peeks` that the history has just let go.

        Answered here, since what runs of them is ended: their answer would be of an object that is
        not there any more, or in part of the next one of its name.
        """
        lost = [uuid for uuid in peeks if uuid not in self._history.peeks]
        answers = (PeekResponse(uuid=uuid, error=str(_object_changed(name))) for uuid in lost)
        return replace(done, responses=(*done.responses, *answers), forgotten=tuple(lost))

    def _lane_commands(self, command: ComputeCommand) -> Iterator[lane.LaneCommand]:
        match command:
            case Schedule(name):
                self._unfinished.discard(name)
                held = self._history.dataflows[name]
                yield lane.CreateDataflow(
                    description=held.create.dataflow, as_of=self._history.as_of(name)
                )
            case AllowCompaction(name, None):
                # During a reconciliation the history is that of the new commands already.
                yield self._drop_from_lane(name, replaced=name in self._history.dataflows)
            case AllowWrites():
                yield lane.AllowWrites("compute")
            case UpdateConfiguration(settings):
                yield lane.UpdateConfiguration(settings)
            case CreateInstance(settings) if settings:
                yield lane.UpdateConfiguration(settings)
            case _:
                pass

    # -- from what runs ----------------------------------------------------------------------

    def on_observation(self, observation: Observation) -> ComputeEffects:
        """Take a report of a running object, or the answer to a peek."""
        match observation:
            case PeekResponse(uuid=uuid):
                return ComputeEffects(responses=self._on_answer(uuid, observation))
            case SubscribeResponse() | SubscribeDropped():
                return ComputeEffects(responses=self._on_batch(observation))
            case Progress() | Hydrated() | Ended() | Failed():
                if not self._current_epochs.admits(observation.id, observation.epoch):
                    return ComputeEffects()
                self._record(self._reports[observation.id], observation)
                return ComputeEffects(responses=self._pending_responses(observation.id))
            case _:
                return ComputeEffects()

    def on_phase(self, change: PhaseChange) -> ComputeEffects:
        """Take a change of phase from the lane; the end of a dropped dataflow is reported here."""
        self._current_epochs.on_phase(change)
        if change.phase == "dropped" and change.id in self._reports:
            # It is named still: by a follower's controller, whose holder has dropped it. The next
            # one of the name is another object.
            self._reports[change.id] = _ObjectReports()
        if change.phase != "dropped" or change.id not in self._dropping:
            return ComputeEffects()
        return ComputeEffects(responses=_last_responses(*self._dropping.pop(change.id)))

    def _on_answer(self, uuid: str, response: PeekResponse) -> tuple[ComputeResponse, ...]:
        if uuid not in self._history.peeks:
            return ()
        # An answered peek leaves the history, or the next reconciliation would run it again.
        self._history.append(CancelPeek(uuid))
        return (response,)

    def _on_batch(
        self, response: SubscribeResponse | SubscribeDropped
    ) -> tuple[ComputeResponse, ...]:
        seen_by_controller = self._reported.get(response.id)
        if seen_by_controller is None or seen_by_controller.upper is None:
            return ()
        if isinstance(response, SubscribeDropped):
            seen_by_controller.upper = None
        elif response.lower < seen_by_controller.upper:
            # The client has it already: of an earlier start of the same subscription.
            return ()
        else:
            seen_by_controller.upper = response.upper
        return (response,)

    @staticmethod
    def _record(seen: _ObjectReports, observation: Progress | Hydrated | Ended | Failed) -> None:
        match observation:
            case Progress():
                for name, time in _frontiers_of(observation):
                    # Reports come from several threads: a later one may be of an earlier time.
                    if name not in seen.frontiers or _is_later(time, seen.frontiers[name]):
                        seen.frontiers[name] = time
            case Hydrated():
                seen.hydrated = True
            case Ended():
                seen.frontiers = dict.fromkeys(("write", "input", "output"))
            case Failed():
                pass
            case _:
                assert_never(observation)

    def _pending_responses(self, name: str) -> tuple[ComputeResponse, ...]:
        """The responses that bring the controller's knowledge of an object up to date."""
        seen_by_controller, held = self._reported.get(name), self._history.dataflows.get(name)
        if seen_by_controller is None or held is None:
            return ()
        seen = self._reports[name]
        news: list[ComputeResponse] = []
        fresh = {
            field: time
            for field, time in seen.frontiers.items()
            if _is_later(
                time, seen_by_controller.frontiers.get(field, seen_by_controller.lower - 1)
            )
        }
        if fresh and not isinstance(held.create.dataflow, SubscribeDescription):
            seen_by_controller.frontiers |= fresh
            news.append(Frontiers(id=name, **fresh, creation=held.create.creation))
        if seen.hydrated and not seen_by_controller.hydrated:
            seen_by_controller.hydrated = True
            news.append(Hydration(name, hydrated=True, creation=held.create.creation))
        return tuple(news)

    # -- inside ------------------------------------------------------------------------------

    def _expect(self, name: str, held: HeldDataflow) -> None:
        self._current_epochs.expect(held.create.dataflow)
        self._reports.setdefault(name, _ObjectReports())

    def _forget(self, name: str) -> None:
        self._current_epochs.forget(name)
        self._reports.pop(name, None)
        self._reported.pop(name, None)


def _commands_that_create(objects: Mapping[str, LaneObject]) -> Iterator[ComputeCommand]:
    """The commands by which a controller would have made these objects of the lane."""
    for name, known in objects.items():
        description = known.description
        if isinstance(description, SourceDescription | SinkDescription) or known.life != "live":
            continue
        yield CreateDataflow(dataflow=description, as_of=known.as_of or 0)
        yield Schedule(name)


def _object_changed(name: str) -> Determinate:
    return Determinate(
        f"'{name}' was changed or dropped while the query ran",
        code="OBJECT_CHANGED",
        hint="ask again",
    )


def _is_request(command: ComputeCommand) -> TypeGuard[ComputeRequest]:
    """True if a command is carried out outside the lane."""
    if isinstance(command, AllowCompaction):
        return command.frontier is not None
    return isinstance(command, Peek | CancelPeek)


def _last_responses(
    held: HeldDataflow, seen_by_controller: _ControllerView
) -> tuple[ComputeResponse, ...]:
    """The last response about a dropped dataflow, unless the controller has had it already."""
    name = held.create.id
    if isinstance(held.create.dataflow, SubscribeDescription):
        upper = seen_by_controller.upper
        return () if upper is None else (SubscribeDropped(name, max(upper, held.create.as_of)),)
    fields = ("write", "input", "output")
    open_ones = {f: None for f in fields if seen_by_controller.frontiers.get(f, 0) is not None}
    creation = held.create.creation
    return (Frontiers(id=name, **open_ones, creation=creation),) if open_ones else ()


def _frontiers_of(progress: Progress) -> Iterator[tuple[str, _Time]]:
    """The frontiers of a report, by their names in `Frontiers`."""
    write, read = progress.write, progress.read
    if not isinstance(write, UnsetType):
        yield "write", write
    if progress.inputs:
        yield "input", min(progress.inputs.values(), key=_time_order)
    elif not isinstance(read, UnsetType):
        yield "input", read
    done = [time for time in (write, read) if not isinstance(time, UnsetType)]
    if done:
        yield "output", min(done, key=_time_order)


def _time_order(time: _Time) -> tuple[bool, int]:
    return time is None, time or 0


def _is_later(time: _Time, than: _Time) -> bool:
    return _time_order(time) > _time_order(than)
