"""Compute's bookkeeping between a connection and the lane; no I/O, no threads, no Spark.

    done = worker.on_reconcile(commands)     all up to `InitializationComplete`, at once
    done = worker.on_command(command)        one behind it
    done = worker.on_observation(report)     what a running object tells
    done = worker.on_phase(change)           what the lane tells

Each gives what is to be done about it: commands for the lane, requests for whoever answers peeks,
responses for the controller. The caller submits commands in order, under the same lock or on the
same thread under which it calls.

What becomes of a failure is the lane's business: it hears of it from the same reports.

Invariants:
    A dataflow comes into the lane when it is scheduled, not when it is created.
    Frontiers are told of objects only that this controller has created, from their `as_of` on, and
    only when they advance. What it has not named, or dropped by leaving it out, it hears nothing
    about.
    The empty frontier, or `SubscribeDropped`, of what was dropped comes once, when nothing of it
    runs any more. If the name was taken again before that, it does not come: it would be taken for
    the new one's.
    Reports of any life but the present one are ignored.
    A peek of this connection is answered once; those of earlier ones never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeGuard, assert_never

from msgspec import UnsetType

from shardline.app.execution.observations import Ended, Failed, Hydrated, Observation, Progress
from shardline.app.lane import commands as lane
from shardline.app.lane.current_epochs import Lives
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject
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

__all__ = ["ComputeDone", "ComputeRequest", "ComputeWorker"]

ComputeRequest: TypeAlias = Peek | CancelPeek | AllowCompaction
"""What is answered or heeded outside the lane: by the server of peeks and the holder of holds."""

_Time: TypeAlias = int | None

_BEFORE: Final = -(2**63)
"""Before every time."""


@dataclass(frozen=True, slots=True)
class ComputeDone:
    """What follows from something that has happened.

    Attributes:
        commands: For the lane, in this order.
        requests: For those who answer peeks and let go of the past, after the commands.
        responses: For the controller, in this order.
        forgotten: Peeks that are to end without an answer, before the requests.
    """

    commands: tuple[lane.LaneCommand, ...] = ()
    requests: tuple[ComputeRequest, ...] = ()
    responses: tuple[ComputeResponse, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What the present definition of an object has reported, whoever is told.

    Attributes:
        frontiers: The newest ones, by their names in `Frontiers`.
        hydrated: Whether it has caught up with its `as_of`.
    """

    frontiers: dict[str, _Time] = field(default_factory=dict)
    hydrated: bool = False


@dataclass(slots=True)
class _Told:
    """What the present controller knows of an object that it has named.

    Attributes:
        lower: No frontier before this time is told.
        frontiers: Those that were told, by their names in `Frontiers`.
        upper: Of the last batch of a subscription; None after the last one ever.
        hydrated: Whether it knows that.
    """

    lower: int
    frontiers: dict[str, _Time] = field(default_factory=dict)
    upper: int | None = _BEFORE
    hydrated: bool = False


class ComputeWorker:
    """What is known of dataflows, and what the present controller knows. For one thread at a time.

    Args:
        objects: What the lane has found when it was opened: what the first controller does not name
            is dropped.
    """

    def __init__(self, objects: Mapping[str, LaneObject]) -> None:
        self._history = ComputeHistory(_as_said(objects))
        self._lives = Lives()
        self._seen: dict[str, _Seen] = {}
        self._told: dict[str, _Told] = {}
        self._dropping: dict[str, tuple[HeldDataflow, _Told]] = {}
        for name, held in self._history.dataflows.items():
            self._expect(name, held)

    # -- from the controller -----------------------------------------------------------------

    def on_reconcile(self, commands: Sequence[ComputeCommand]) -> ComputeDone:
        """A new controller has said what there should be; the one before is not heard any more.

        Raises:
            InvalidUsage: It speaks of what never was there; nothing has changed then.
        """
        found = reconcile_compute(self._history.commands(), commands)
        self._history = ComputeHistory(commands, gone=(*found.dropped, *found.replaced))
        self._dropping = {}
        for name in (*found.dropped, *found.replaced):
            self._forget(name)
        self._told = {name: _Told(lower) for name, lower in found.lower.items()}
        for name in found.lower:
            self._expect(name, self._history.dataflows[name])
        return ComputeDone(
            tuple(c for command in found.todo for c in self._for_the_lane(command)),
            tuple(filter(_is_request, found.todo)),
            tuple(r for name in found.kept for r in self._news(name)),
            found.forgotten,
        )

    def on_command(self, command: ComputeCommand) -> ComputeDone:
        """A command behind `InitializationComplete`.

        Raises:
            InvalidUsage: It speaks of what never was there; nothing has changed then.
        """
        before = dict(self._history.dataflows)
        self._history.append(command)
        match command:
            case CreateDataflow():
                return self._created(command, before.get(command.id))
            case AllowCompaction(name, None):
                return self._dropped(name, before.get(name))
            case AllowCompaction(name) if name not in before:
                return ComputeDone()
            case _ if _is_request(command):
                return ComputeDone(requests=(command,))
            case _:
                return ComputeDone(tuple(self._for_the_lane(command)))

    def catch_up(self, objects: Mapping[str, LaneObject]) -> ComputeDone:
        """What the lane lacks of what the controller has said; it may have refused some of it.

        Args:
            objects: What the lane has. Commands that are on their way to it do no harm.
        """
        there = {c.id: c for c in _as_said(objects) if isinstance(c, CreateDataflow)}
        wanted = {n: held for n, held in self._history.dataflows.items() if held.scheduled}
        same = {
            name
            for name, held in wanted.items()
            if name in there and there[name].dataflow == held.create.dataflow
        }
        return ComputeDone(
            (
                *(lane.DropDataflow(name) for name in reversed(there) if name not in same),
                *(c for n in wanted if n not in same for c in self._for_the_lane(Schedule(n))),
            )
        )

    def _created(self, command: CreateDataflow, before: HeldDataflow | None) -> ComputeDone:
        held = self._history.dataflows[command.id]
        if held is before:
            return ComputeDone()
        self._dropping.pop(command.id, None)
        self._forget(command.id)
        self._told[command.id] = _Told(command.as_of)
        self._expect(command.id, held)
        replaced = before is not None and before.scheduled
        return ComputeDone((lane.DropDataflow(command.id),) if replaced else ())

    def _dropped(self, name: str, before: HeldDataflow | None) -> ComputeDone:
        if before is None:
            return ComputeDone()
        told = self._told[name]
        self._forget(name)
        if not before.scheduled:
            # The lane has never heard of it.
            return ComputeDone(responses=_end(before, told))
        self._dropping[name] = before, told
        return ComputeDone((lane.DropDataflow(name),))

    def _for_the_lane(self, command: ComputeCommand) -> Iterator[lane.LaneCommand]:
        match command:
            case Schedule(name):
                held = self._history.dataflows[name]
                yield lane.CreateDataflow(
                    description=held.create.dataflow, as_of=self._history.as_of(name)
                )
            case AllowCompaction(name, None):
                yield lane.DropDataflow(name)
            case AllowWrites():
                yield lane.AllowWrites("compute")
            case UpdateConfiguration(settings):
                yield lane.UpdateConfiguration(settings)
            case CreateInstance(settings) if settings:
                yield lane.UpdateConfiguration(settings)
            case _:
                pass

    # -- from what runs ----------------------------------------------------------------------

    def on_observation(self, observation: Observation) -> ComputeDone:
        """Something that runs, or answers a peek, has told something."""
        match observation:
            case PeekResponse(uuid=uuid):
                return ComputeDone(responses=self._answered(uuid, observation))
            case SubscribeResponse() | SubscribeDropped():
                return ComputeDone(responses=self._batch(observation))
            case Progress() | Hydrated() | Ended() | Failed():
                if not self._lives.admits(observation.id, observation.epoch):
                    return ComputeDone()
                self._see(self._seen[observation.id], observation)
                return ComputeDone(responses=self._news(observation.id))
            case _:
                return ComputeDone()

    def on_phase(self, change: PhaseChange) -> ComputeDone:
        """The lane has told of a phase."""
        self._lives.on_phase(change)
        if change.phase != "dropped" or change.id not in self._dropping:
            return ComputeDone()
        return ComputeDone(responses=_end(*self._dropping.pop(change.id)))

    def _answered(self, uuid: str, response: PeekResponse) -> tuple[ComputeResponse, ...]:
        if uuid not in self._history.peeks:
            return ()
        self._history.append(CancelPeek(uuid))
        return (response,)

    def _batch(self, response: SubscribeResponse | SubscribeDropped) -> tuple[ComputeResponse, ...]:
        told = self._told.get(response.id)
        if told is None or told.upper is None:
            return ()
        if isinstance(response, SubscribeDropped):
            told.upper = None
        elif response.lower < told.upper:
            return ()
        else:
            told.upper = response.upper
        return (response,)

    @staticmethod
    def _see(seen: _Seen, observation: Progress | Hydrated | Ended | Failed) -> None:
        match observation:
            case Progress():
                for name, time in _frontiers(observation):
                    if name not in seen.frontiers or _later(time, seen.frontiers[name]):
                        seen.frontiers[name] = time
            case Hydrated():
                seen.hydrated = True
            case Ended():
                seen.frontiers = dict.fromkeys(("write", "input", "output"))
            case Failed():
                pass
            case _:
                assert_never(observation)

    def _news(self, name: str) -> tuple[ComputeResponse, ...]:
        """What the controller does not know yet of an object."""
        told, held = self._told.get(name), self._history.dataflows.get(name)
        if told is None or held is None:
            return ()
        seen = self._seen[name]
        news: list[ComputeResponse] = []
        fresh = {
            field: time
            for field, time in seen.frontiers.items()
            if _later(time, told.frontiers.get(field, told.lower - 1))
        }
        if fresh and not isinstance(held.create.dataflow, SubscribeDescription):
            told.frontiers |= fresh
            news.append(Frontiers(id=name, **fresh))
        if seen.hydrated and not told.hydrated:
            told.hydrated = True
            news.append(Hydration(name, hydrated=True))
        return tuple(news)

    # -- inside ------------------------------------------------------------------------------

    def _expect(self, name: str, held: HeldDataflow) -> None:
        self._lives.expect(held.create.dataflow)
        self._seen.setdefault(name, _Seen())

    def _forget(self, name: str) -> None:
        self._lives.forget(name)
        self._seen.pop(name, None)
        self._told.pop(name, None)


def _as_said(objects: Mapping[str, LaneObject]) -> Iterator[ComputeCommand]:
    """What a controller must have said, for the lane to have these objects."""
    for name, known in objects.items():
        description = known.description
        if isinstance(description, SourceDescription | SinkDescription) or known.life != "live":
            continue
        yield CreateDataflow(dataflow=description, as_of=known.as_of or 0)
        yield Schedule(name)


def _is_request(command: ComputeCommand) -> TypeGuard[ComputeRequest]:
    """Whether a command is for others than the lane."""
    if isinstance(command, AllowCompaction):
        return command.frontier is not None
    return isinstance(command, Peek | CancelPeek)


def _end(held: HeldDataflow, told: _Told) -> tuple[ComputeResponse, ...]:
    """That nothing more comes about a dropped dataflow, unless that was said already."""
    name = held.create.id
    if isinstance(held.create.dataflow, SubscribeDescription):
        upper = told.upper
        return () if upper is None else (SubscribeDropped(name, max(upper, held.create.as_of)),)
    fields = ("write", "input", "output")
    open_ones = {f: None for f in fields if told.frontiers.get(f, 0) is not None}
    return (Frontiers(id=name, **open_ones),) if open_ones else ()


def _frontiers(progress: Progress) -> Iterator[tuple[str, _Time]]:
    """A report in the terms of `Frontiers`."""
    write, read = progress.write, progress.read
    if not isinstance(write, UnsetType):
        yield "write", write
    if progress.inputs:
        yield "input", min(progress.inputs.values(), key=_key)
    elif not isinstance(read, UnsetType):
        yield "input", read
    done = [time for time in (write, read) if not isinstance(time, UnsetType)]
    if done:
        yield "output", min(done, key=_key)


def _key(time: _Time) -> tuple[bool, int]:
    return time is None, time or 0


def _later(time: _Time, than: _Time) -> bool:
    return _key(time) > _key(than)
