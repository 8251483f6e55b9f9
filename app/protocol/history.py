"""What a list of commands amounts to: the shortest list that a fresh runtime makes the same of.

    history = ComputeHistory()
    history.append(command)             folds it in; an error if it is about what never was there
    history.commands()                  the shortest list, to be said to a runtime that is new
    reduce_compute(commands)            the same of a list, where nothing is refused

A controller keeps one to say everything anew after a reconnect; a runtime keeps one to know what it
was told before, for `reconcile`. What is kept is what `commands` gives, never the list that came:
a history is as large as what is there.

Invariants:
    Reducing never changes what a replica comes to, at any point and any number of times; and
    reduced twice is reduced once.
    What was dropped is gone, with the peeks that read it: no peek ever reads another thing that
    has got the name. Any other peek is there until it is cancelled.
    A frontier is folded into the `as_of` of its dataflow, also beyond a time that a peek still
    reads at: inputs may be gone at that time, and a view must not fail for a peek. So who lets a
    time go does not wait for rows of that time any more.
    A definition that comes again replaces; a frontier or an `as_of` of a sink never goes back.

The order of what is given; within one kind that of their arrival:
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
from shardline.datasource.errors import InvalidUsage, nearest

__all__ = [
    "GONE_MAX",
    "ComputeHistory",
    "HeldDataflow",
    "HeldObject",
    "StorageHistory",
    "reduce_compute",
    "reduce_storage",
    "same_instance",
]

GONE_MAX = 4096
"""So many dropped names a history knows: what is said of an older one is taken for a mistake."""


@dataclass(slots=True)
class HeldDataflow:
    """A dataflow as its commands have left it.

    Attributes:
        create: The command that made it.
        since: Nobody reads it before this time.
        scheduled: Whether it may start.
    """

    create: CreateDataflow
    since: int
    scheduled: bool = False

    def goes_on_as(self, other: CreateDataflow, as_of: int) -> bool:
        """Whether this one serves who asks for `other`, and reads it from `as_of` on.

        A subscription never does: the one who asks has not seen what was told to somebody else.
        """
        if isinstance(other.dataflow, SubscribeDescription):
            return False
        return self.create.dataflow == other.dataflow and self.since <= as_of


@dataclass(slots=True)
class HeldObject:
    """A source or sink as its commands have left it.

    Attributes:
        run: The newest definition; a sink's `as_of` is never before `since`.
        since: Nobody reads it before this time; None if nothing has been said.
    """

    run: RunIngestion | RunSink
    since: int | None = None


class _History:
    """What both kinds have in common."""

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
    """What a list of compute commands amounts to. Used by one thread.

    Attributes:
        hello: The newest `Hello`; None if there was none.
        instance: The `CreateInstance`; None if there was none.
        settings: Of all `UpdateConfiguration`s together.
        dataflows: By name, in the order in which they were made.
        peeks: Those that are not cancelled, by uuid.
        initialized: Whether `InitializationComplete` has come.
        writes: Whether `AllowWrites` has come.
    """

    __slots__ = ("dataflows", "instance", "peeks")

    def __init__(self, commands: Iterable[ComputeCommand] = (), gone: Iterable[str] = ()) -> None:
        """Fold `commands`, which are taken as they are: nothing in them is refused but an instance.

        Args:
            commands: In the order in which they came.
            gone: Names that were dropped before: what is said of them is no mistake.
        """
        super().__init__(gone)
        self.instance: CreateInstance | None = None
        self.dataflows: dict[str, HeldDataflow] = {}
        self.peeks: dict[str, Peek] = {}
        for command in commands:
            self._apply(command)

    def append(self, command: ComputeCommand) -> None:
        """Fold one more command in.

        Raises:
            InvalidUsage: With code UNKNOWN_OBJECT for something that never was there, with code
                INCOMPATIBLE_INSTANCE for other settings of the whole. The history is as before.
        """
        if isinstance(command, (Schedule, AllowCompaction)):
            _known(command.id, self.dataflows, self._gone)
        self._apply(command)

    def as_of(self, name: str) -> int:
        """The first time at which somebody may still read a dataflow."""
        return self.dataflows[name].since

    def commands(self) -> list[ComputeCommand]:
        """The shortest list that amounts to the same."""
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
                same_instance(self.instance, command)
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
        if there and there.goes_on_as(command, command.as_of):
            there.since = command.as_of
            return
        self._drop(command.id)
        self._cancel_readers(command.id)  # what they read was something else
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
    """What a list of storage commands amounts to. Used by one thread.

    Attributes:
        hello: The newest `Hello`; None if there was none.
        settings: Of all `UpdateConfiguration`s together.
        objects: Sources and sinks by name, in the order in which they were made.
        oneshots: Those that are not cancelled, by uuid.
        initialized: Whether `InitializationComplete` has come.
        writes: Whether `AllowWrites` has come.
    """

    __slots__ = ("objects", "oneshots")

    def __init__(self, commands: Iterable[StorageCommand] = (), gone: Iterable[str] = ()) -> None:
        """Fold `commands`, which are taken as they are: nothing in them is refused.

        Args:
            commands: In the order in which they came.
            gone: Names that were dropped before: what is said of them is no mistake.
        """
        super().__init__(gone)
        self.objects: dict[str, HeldObject] = {}
        self.oneshots: dict[str, RunOneshotIngestion] = {}
        for command in commands:
            self._apply(command)

    def append(self, command: StorageCommand) -> None:
        """Fold one more command in.

        Raises:
            InvalidUsage: With code UNKNOWN_OBJECT for something that never was there; the history
                is as before.
        """
        if isinstance(command, AllowCompaction):
            _known(command.id, self.objects, self._gone)
        self._apply(command)

    def commands(self) -> list[StorageCommand]:
        """The shortest list that amounts to the same."""
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
    """The shortest list of compute commands that amounts to the same.

    Raises:
        InvalidUsage: With code INCOMPATIBLE_INSTANCE if they disagree on the settings of the whole.
    """
    return ComputeHistory(commands).commands()


def reduce_storage(commands: Iterable[StorageCommand]) -> list[StorageCommand]:
    """The shortest list of storage commands that amounts to the same."""
    return StorageHistory(commands).commands()


def same_instance(before: CreateInstance | None, now: CreateInstance | None) -> None:
    """Check that settings of the whole that were said are not said differently.

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
    near = nearest(name, there)
    raise InvalidUsage(
        f"nothing called '{name}' has been created",
        code="UNKNOWN_OBJECT",
        hint=f"did you mean '{near}'?" if near else "create it first",
    )
