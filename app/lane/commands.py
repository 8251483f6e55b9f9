"""What the lane puts in order: commands of both kinds, each with its position once it has one.

A command says what is wanted of an object, never what became of it. It is decided before it is
recorded: a record holds all that the fold needs (the number of operators, the holder), so that a
replay by another version, on another machine, gives the same ids.

Invariants:
    A record is never changed. Its JSON is read for ever: fields are only ever added, with defaults.
    `(producer, sequence)` occurs at most once in the order; a repetition is answered with what the
    first one got.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from shardline.app.protocol.objects import (
    Description,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
)

__all__ = [
    "KINDS",
    "LANE",
    "AllowWrites",
    "CreateDataflow",
    "DropDataflow",
    "Dropped",
    "Hold",
    "Holder",
    "Kind",
    "LaneCommand",
    "Opened",
    "Record",
    "Submission",
    "SuspendAndRestart",
    "UpdateConfiguration",
    "command_kind",
    "is_transient",
    "kind_of",
]

Kind: TypeAlias = Literal["compute", "storage"]
"""Which controller an object belongs to."""

KINDS: Final[tuple[Kind, ...]] = ("compute", "storage")

LANE: Final = "lane"
"""The producer of what the lane submits to itself."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds the lane, or held it.

    Attributes:
        token: Unlike that of any other holder.
        host: Name of its machine.
        boot: Id of the machine's run, and of the container: what its process id is valid in.
        pid: Its process id there.
        started: When that process began, in the machine's own ticks; tells it from a later process
            with the same id. 0 where the machine does not say.
        application: What it calls itself.
        since_ms: Since when it holds the lane, ms since the epoch.
        lease: The leased reader of the lane's shard that says that it lives.
    """

    token: str
    host: str
    boot: str
    pid: int
    started: int
    application: str
    since_ms: int
    lease: str = ""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A runtime has taken the lane: all that lives begins a new epoch, and nothing older may go on.

    Attributes:
        holder: Who.
        epochs: Epochs that its objects have reached without the lane, as a read-only runtime.
    """

    holder: Holder
    epochs: dict[str, int] = {}


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """The holder says anew how it can be seen that it lives; it goes on as it was."""

    holder: Holder


class CreateDataflow(msgspec.Struct, frozen=True, kw_only=True, tag="create_dataflow"):
    """There shall be an object with this description; of that name there is no other.

    Attributes:
        description: What.
        as_of: The first time at which its output is to be right; None where that is the source's.
        operators: How many operator numbers it needs; at least 1.
    """

    description: Description
    as_of: int | None = None
    operators: int = 1

    @property
    def id(self) -> str:
        """The object's name."""
        return self.description.name


class DropDataflow(msgspec.Struct, frozen=True, tag="drop_dataflow"):
    """The object shall be gone. The first of two phases: it is stopped, and nothing starts it."""

    id: str


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """The second phase: nothing of the object runs any more, and what it left behind is gone.

    Attributes:
        id: The object's name.
        epoch: The life that ended; without effect if it has another one by now.
    """

    id: str
    epoch: int


class SuspendAndRestart(msgspec.Struct, frozen=True, tag="suspend_and_restart"):
    """This life of the object shall end and the next one begin.

    Attributes:
        id: The object's name.
        epoch: The life that is meant; without effect if it is over already.
        reason: Why, in a sentence.
    """

    id: str
    epoch: int
    reason: str


class AllowWrites(msgspec.Struct, frozen=True, tag="allow_writes"):
    """Objects of a kind may write from here on, in this runtime and in those that follow it."""

    kind: Kind


class UpdateConfiguration(msgspec.Struct, frozen=True, tag="update_configuration"):
    """Settings for what starts from here on; what is not named stays.

    Attributes:
        settings: By name.
    """

    settings: dict[str, str]


LaneCommand: TypeAlias = (
    Opened
    | Hold
    | CreateDataflow
    | DropDataflow
    | Dropped
    | SuspendAndRestart
    | AllowWrites
    | UpdateConfiguration
)


class Submission(msgspec.Struct, frozen=True):
    """A command that has no position yet.

    Attributes:
        producer: Who asks for it.
        sequence: Its number among those of the producer; greater than all before.
        command: What.
    """

    producer: str
    sequence: int
    command: LaneCommand


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A command at its position in the order.

    Attributes:
        index: The position: 0, 1, 2, …
        producer: Who asked for it.
        sequence: Its number among those of the producer.
        epoch: Which runtime recorded it, counted from 1.
        at_ms: When, ms since the epoch by that runtime's clock; may go back.
        command: What.
    """

    index: int
    producer: str
    sequence: int
    epoch: int
    at_ms: int
    command: LaneCommand


def kind_of(description: Description) -> Kind:
    """Whose object this is."""
    return "storage" if isinstance(description, SourceDescription | SinkDescription) else "compute"


def is_transient(description: Description) -> bool:
    """Whether an object ends with the runtime that it was made in: it serves a connection of it."""
    return isinstance(description, SubscribeDescription)


def command_kind(command: LaneCommand) -> str:
    """The name under which a command is recorded: `create_dataflow` and so on."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str), command
    return tag
