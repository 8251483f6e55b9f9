"""The history reduces commands to the shortest list that a fresh runtime makes the same state of.

A list of all commands ever would grow without end, and its replay would create and drop what nobody
wants any more (Materialize: `CommandHistory`).

    history = ComputeHistory()
    history.append(command)             folds it in; refuses a command about an unknown object
    history.commands()                  the shortest list, for a new runtime
    reduce_compute(commands)            the same for a list, without refusals

A controller keeps one to send everything again after a new connection; a runtime keeps one to know
what it was sent before, for `reconcile`. Only the reduced form is kept: a history is as large as
the state it describes.

Invariants:
    Reducing never changes the state that a replica reaches, at any point and any number of times;
    to reduce twice is to reduce once.
    A dropped object is gone, with the peeks that read it: no peek ever reads another object that
    has got the name. Any other peek stays until it is cancelled.
    A frontier is folded into the `as_of` of its dataflow, also beyond a time that a peek still
    reads at: inputs may be gone at that time, and a view must not fail for a peek. So a controller
    that allows compaction beyond a time does not wait for rows of that time any more.
    A definition that comes again replaces; a frontier or an `as_of` of a sink never goes back.

The order of `commands`; within one kind that of their arrival:
    compute     Hello, CreateInstance, UpdateConfiguration, CreateDataflow, Schedule, Peek,
                InitializationComplete, AllowWrites
    storage     Hello, UpdateConfiguration, RunIngestion, RunSink, RunOneshotIngestion,
                AllowCompaction, InitializationComplete, AllowWrites
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import assert_never

import msgspec

from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    ComputeCommand,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from shardline.app.protocol.objects import SubscribeDescription
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    RunIngestion,
    RunOneshotIngestion,
    RunSink,
    StorageCommand,
)
from shardline.datasource.errors import InvalidUsage, nearest_name

__all__ = [
    "GONE_MAX",
    "ComputeHistory",
    "HeldDataflow",
    "HeldObject",
    "StorageHistory",
    "check_same_instance",
    "reduce_compute",
    "reduce_storage",
]

GONE_MAX = 4096
"""Most dropped names that a history remembers: a command about an older one counts as a mistake."""


@dataclass(slots=True)
class HeldDataflow:
    """The state of a dataflow after its commands.

    Attributes:
        create: The command that created it.
        since: Nobody reads it before this time.
        scheduled: True if it may start.
    """

    create: CreateDataflow
    since: int
    scheduled: bool = False

    def can_serve(self, other: CreateDataflow, as_of: int) -> bool:
        """True if this dataflow can be kept for `other`, which is read from `as_of` on.

        A subscription never can: its earlier batches went to the connection before, and the new one
        would miss them.
        """
        if isinstance(other.dataflow, SubscribeDescription):
            return False
        return self.create.dataflow == other.dataflow and self.since <= as_of


@dataclass(slots=True)
class HeldObject:
    """The state of a source or sink after its commands.

    Attributes:
        run: The newest definition; a sink's `as_of` is never before `since`.
        since: Nobody reads it before this time; None if no command has set it.
    """

    run: RunIngestion | RunSink
    since: int | None = None


class _History:
    """The part of a history that both protocols share."""

    __slots__ = ("_gone", "hello", "initialized", "settings", "writes")

    def __init__(self, gone: Iterable[str]) -> None:
        self.hello: Hello | None = None
        self.settings: dict[str, str] = {}
        self.initialized = False
        self.writes = False
        self._gone = dict.fromkeys(gone)

    def _remember(self, name: str) -> None:
        self._gone.pop(name, None)
        self._gone[name] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _common(
        self, command: Hello | InitializationComplete | AllowWrites | UpdateConfiguration
    ) -> None:
        match command:
            case Hello():
                self.hello = command
            case InitializationComplete():
                self.initialized = True
            case AllowWrites():
                self.writes = True
            case UpdateConfiguration(settings=settings):
                self.settings |= settings

    def _configuration(self) -> list[UpdateConfiguration]:
        return [UpdateConfiguration(dict(self.settings))] if self.settings else []

    def _end(self) -> list[InitializationComplete | AllowWrites]:
        done = [InitializationComplete()] if self.initialized else []
        return [*done, AllowWrites()] if self.writes else [*done]


class ComputeHistory(_History):
    """The reduced form of a list of compute commands. Used by one thread.

    Attributes:
        hello: The newest `Hello`; None if there was none.
        instance: The `CreateInstance`; None if there was none.
        settings: Of all `UpdateConfiguration`s together.
        dataflows: By name, in the order in which they were created.
        peeks: Those that are not cancelled, by uuid.
        initialized: True once `InitializationComplete` has come.
        writes: True once `AllowWrites` has come.
    """

    __slots__ = ("dataflows", "instance", "peeks")

    def __init__(self, commands: Iterable[ComputeCommand] = (), gone: Iterable[str] = ()) -> None:
        """Fold `commands`; none is refused, except a `CreateInstance` with other settings.

        Args:
            commands: In the order in which they came.
            gone: Names that were dropped before: a command about one of them is no mistake.
        """
        super().__init__(gone)
        self.instance: CreateInstance | None = None
        self.dataflows: dict[str, HeldDataflow] = {}
        self.peeks: dict[str, Peek] = {}
        for command in commands:
            self._apply(command)

    def append(self, command: ComputeCommand) -> None:
        """Fold one more command.

        Raises:
            InvalidUsage: With code UNKNOWN_OBJECT for an object that never was, with code
                INCOMPATIBLE_INSTANCE for other settings of the instance. The history is as before.
        """
        if isinstance(command, (Schedule, AllowCompaction)):
            _known(command.id, self.dataflows, self._gone)
        self._apply(command)

    def as_of(self, name: str) -> int:
        """The first time at which a dataflow may still be read."""
        return self.dataflows[name].since

    def commands(self) -> list[ComputeCommand]:
        """The shortest list that leads to the same state."""
        flows = self.dataflows
        return [
            *([self.hello] if self.hello else []),
            *([self.instance] if self.instance else []),
            *self._configuration(),
            *(msgspec.structs.replace(flow.create, as_of=flow.since) for flow in flows.values()),
            *(Schedule(name) for name, flow in flows.items() if flow.scheduled),
            *self.peeks.values(),
            *self._end(),
        ]

    def _apply(self, command: ComputeCommand) -> None:
        match command:
            case CreateInstance():
                check_same_instance(self.instance, command)
                self.instance = command
            case CreateDataflow():
                self._create(command)
            case Schedule(id=name):
                if name in self.dataflows:
                    self.dataflows[name].scheduled = True
            case AllowCompaction():
                self._compact(command)
            case Peek(uuid=uuid):
                self.peeks[uuid] = command
            case CancelPeek(uuid=uuid):
                self.peeks.pop(uuid, None)
            case Hello() | InitializationComplete() | AllowWrites() | UpdateConfiguration():
                self._common(command)
            case _:
                assert_never(command)

    def _create(self, command: CreateDataflow) -> None:
        there = self.dataflows.get(command.id)
        if there and there.can_serve(command, command.as_of):
            there.since = command.as_of
            # The controller takes responses with another number for those about a former dataflow
            # of this name: with the old one, nothing that this one reports would reach it.
            there.create = msgspec.structs.replace(there.create, creation=command.creation)
            return
        self._drop(command.id)
        # Also if there was none to drop: a peek of this name that came before it was created, or
        # after an earlier drop, would read another object than it was made for.
        self._cancel_readers(command.id)
        self._gone.pop(command.id, None)
        self.dataflows[command.id] = HeldDataflow(command, command.as_of)

    def _compact(self, command: AllowCompaction) -> None:
        held = self.dataflows.get(command.id)
        if command.frontier is None:
            self._drop(command.id)
        elif held:
            held.since = max(held.since, command.frontier)

    def _drop(self, name: str) -> None:
        if self.dataflows.pop(name, None):
            self._remember(name)
            self._cancel_readers(name)

    def _cancel_readers(self, name: str) -> None:
        self.peeks = {k: peek for k, peek in self.peeks.items() if name not in peek.inputs}


class StorageHistory(_History):
    """The reduced form of a list of storage commands. Used by one thread.

    Attributes:
        hello: The newest `Hello`; None if there was none.
        settings: Of all `UpdateConfiguration`s together.
        objects: Sources and sinks by name, in the order in which they were created.
        oneshots: Those that are not cancelled, by uuid.
        initialized: True once `InitializationComplete` has come.
        writes: True once `AllowWrites` has come.
    """

    __slots__ = ("objects", "oneshots")

    def __init__(self, commands: Iterable[StorageCommand] = (), gone: Iterable[str] = ()) -> None:
        """Fold `commands`; none is refused.

        Args:
            commands: In the order in which they came.
            gone: Names that were dropped before: a command about one of them is no mistake.
        """
        super().__init__(gone)
        self.objects: dict[str, HeldObject] = {}
        self.oneshots: dict[str, RunOneshotIngestion] = {}
        for command in commands:
            self._apply(command)

    def append(self, command: StorageCommand) -> None:
        """Fold one more command.

        Raises:
            InvalidUsage: With code UNKNOWN_OBJECT for an object that never was; the history is as
                before.
        """
        if isinstance(command, AllowCompaction):
            _known(command.id, self.objects, self._gone)
        self._apply(command)

    def commands(self) -> list[StorageCommand]:
        """The shortest list that leads to the same state."""
        runs = [held.run for held in self.objects.values()]
        return [
            *([self.hello] if self.hello else []),
            *self._configuration(),
            *(run for run in runs if isinstance(run, RunIngestion)),
            *(run for run in runs if isinstance(run, RunSink)),
            *self.oneshots.values(),
            *(
                AllowCompaction(name, held.since)
                for name, held in self.objects.items()
                if held.since is not None and isinstance(held.run, RunIngestion)
            ),
            *self._end(),
        ]

    def _apply(self, command: StorageCommand) -> None:
        match command:
            case RunIngestion() | RunSink():
                self._run(command)
            case AllowCompaction():
                self._compact(command)
            case RunOneshotIngestion(uuid=uuid):
                self.oneshots[uuid] = command
            case CancelOneshotIngestion(uuid=uuid):
                self.oneshots.pop(uuid, None)
            case Hello() | InitializationComplete() | AllowWrites() | UpdateConfiguration():
                self._common(command)
            case _:
                assert_never(command)

    def _run(self, command: RunIngestion | RunSink) -> None:
        there = self.objects.get(command.id)
        self._gone.pop(command.id, None)
        if there is None or type(there.run) is not type(command):
            self.objects.pop(command.id, None)  # a sink in the place of a source comes last
            self.objects[command.id] = HeldObject(command)
            there = self.objects[command.id]
        if isinstance(command, RunSink):
            there.since = _later(there.since, command.as_of)
            command = msgspec.structs.replace(command, as_of=there.since)
        there.run = command

    def _compact(self, command: AllowCompaction) -> None:
        held = self.objects.get(command.id)
        if held is None:
            return
        if command.frontier is None:
            del self.objects[command.id]
            self._remember(command.id)
            return
        held.since = _later(held.since, command.frontier)
        if isinstance(held.run, RunSink):
            held.run = msgspec.structs.replace(held.run, as_of=held.since)


def _later(since: int | None, frontier: int) -> int:
    return frontier if since is None else max(since, frontier)


def reduce_compute(commands: Iterable[ComputeCommand]) -> list[ComputeCommand]:
    """Reduce a list of compute commands to the shortest one that leads to the same state.

    Raises:
        InvalidUsage: With code INCOMPATIBLE_INSTANCE if two `CreateInstance`s differ.
    """
    return ComputeHistory(commands).commands()


def reduce_storage(commands: Iterable[StorageCommand]) -> list[StorageCommand]:
    """Reduce a list of storage commands to the shortest one that leads to the same state."""
    return StorageHistory(commands).commands()


def check_same_instance(before: CreateInstance | None, now: CreateInstance | None) -> None:
    """Refuse a `CreateInstance` whose settings differ from those of the one before.

    Raises:
        InvalidUsage: With code INCOMPATIBLE_INSTANCE.
    """
    if before and now and before != now:
        names = sorted(
            name
            for name in before.settings.keys() | now.settings.keys()
            if before.settings.get(name) != now.settings.get(name)
        )
        raise InvalidUsage(
            f"the runtime was created with other settings: {', '.join(names)} would change",
            code="INCOMPATIBLE_INSTANCE",
            hint="restart the runtime to change them",
        )


def _known(name: str, there: Collection[str], gone: Collection[str]) -> None:
    if name in there or name in gone:
        return
    near = nearest_name(name, there)
    raise InvalidUsage(
        f"nothing called '{name}' has been created",
        code="UNKNOWN_OBJECT",
        hint=f"did you mean '{near}'?" if near else "create it first",
    )
