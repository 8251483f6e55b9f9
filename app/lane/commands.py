"""Lane commands are the vocabulary of the order; a record is a command at its position.

A command says what is desired of an object, not what became of it; the exceptions are those that
the lane submits itself (`Dropped`, `SuspendAndRestart`, `HolderLease`, `Opened`), and `Repaired`.
All is decided before it is recorded: a record holds everything that the fold needs (the number of
operators, the holder), so that a replay by another version, on another machine, gives the same ids.

Invariants:
    A record is never changed. Its JSON is read for ever: fields are only ever added, with defaults.
    `(producer, sequence)` occurs at most once in the order; a repetition gets the position of the
    first.
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
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.datasource.errors import InvalidUsage

__all__ = [
    "KINDS",
    "LANE",
    "READ_ONLY",
    "AllowWrites",
    "CreateDataflow",
    "DropDataflow",
    "Dropped",
    "Holder",
    "HolderLease",
    "Kind",
    "LaneCommand",
    "Opened",
    "PauseDataflow",
    "Record",
    "RepairErrors",
    "Repaired",
    "RestartDataflow",
    "ResumeDataflow",
    "Submission",
    "SuspendAndRestart",
    "UpdateConfiguration",
    "UseProject",
    "check_recordable",
    "command_kind",
    "is_transient",
    "kind_of",
]

Kind: TypeAlias = Literal["compute", "storage"]
"""The controller that an object belongs to."""

KINDS: Final[tuple[Kind, ...]] = ("compute", "storage")

LANE: Final = "lane"
"""The producer of the commands that the lane submits itself."""

READ_ONLY: Final = "READ_ONLY_RUNTIME"
"""Code of the refusal of a change by a runtime that only follows another one."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds the lane, or held it.

    Attributes:
        token: Random; no other holder has it.
        host: Name of its machine.
        boot: Id of the machine's run, and of the container: the scope of its process id.
        pid: Its process id there.
        started: When that process began, in the machine's own ticks; tells it from a later process
            with the same id. 0 where the machine does not say.
        application: Name of the application.
        since_ms: When it took the lane, ms since the epoch.
        lease: Its leased reader of the lane's shard, which ends when it does not renew it.
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
    """A runtime has taken the lane: all objects begin a new epoch, and nothing older may go on.

    Attributes:
        holder: The new holder.
        epochs: Epochs that its objects have reached as a follower's, which are not in the order.
    """

    holder: Holder
    epochs: dict[str, int] = {}


class HolderLease(msgspec.Struct, frozen=True, tag="hold"):
    """The holder has taken another lease; it stays the holder, and no epoch changes."""

    holder: Holder


class CreateDataflow(msgspec.Struct, frozen=True, kw_only=True, tag="create_dataflow"):
    """Create an object, or change the one of that name to this description.

    Attributes:
        description: The definition.
        as_of: The first time at which its output must be right; None for a source, which sets its
            own.
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
    """Drop an object. The first of two phases: it is stopped, and nothing starts it.

    Attributes:
        id: The object's name.
        replaced: True if another definition of this name follows: then a pause of the name stays,
            and nothing is removed that the other one takes over. If it does not follow after all
            (a crash came in between), another `DropDataflow` without this ends the object.
        if_unfollowed: True for that other one: without effect on anything but an object that still
            waits for its successor. By now the name may be another object's, of the other
            controller, too, and its drop would be one that nobody has asked for.
        kind: The controller whose object is meant; without effect on one of the other. The two
            controllers know nothing of each other: where a name changes from one to the other, the
            drop may get its place behind the creation. "" in records of versions that did not write
            it, and of who drops a name whatever has it: any.
    """

    id: str
    replaced: bool = False
    if_unfollowed: bool = False
    kind: Kind | Literal[""] = ""


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """The second phase of a drop: nothing of the object runs any more, its leftovers are removed.

    Attributes:
        id: The object's name.
        epoch: Epoch of the drop; without effect if the object has another one by now.
        global_id: The object's; without effect on another one that has got the name, whose epochs
            begin at 1 again. "" in records of versions that did not write it: any.
    """

    id: str
    epoch: int
    global_id: str = ""


class SuspendAndRestart(msgspec.Struct, frozen=True, tag="suspend_and_restart"):
    """End this incarnation of an object and begin the next one.

    Attributes:
        id: The object's name.
        epoch: Epoch of the incarnation; without effect if that is over already.
        reason: The failure, in a sentence.
        global_id: The object's, as of `Dropped`.
    """

    id: str
    epoch: int
    reason: str
    global_id: str = ""


class PauseDataflow(msgspec.Struct, frozen=True, tag="pause_dataflow"):
    """Stop an object and start it no more until it is resumed; it keeps its ids and its holds."""

    id: str


class ResumeDataflow(msgspec.Struct, frozen=True, tag="resume_dataflow"):
    """End the pause of an object: its next incarnation begins. Without effect on others."""

    id: str


class RestartDataflow(msgspec.Struct, frozen=True, tag="restart_dataflow"):
    """End this incarnation of an object and begin the next one, without a pause in between.

    A person has asked for it: `SuspendAndRestart` is the lane's own answer to a failure, and names
    the epoch that has failed.
    """

    id: str


class RepairErrors(msgspec.Struct, frozen=True, kw_only=True, tag="repair_errors"):
    """Take errors of a source away: see `shardline.app.storage.repair`.

    Its position is the number of the repair, by which shards know it again.

    Attributes:
        id: Name of the source.
        act: What becomes of the rows.
        as_of: The time at which the errors were live.
        errors: Ids of those that are meant; empty for all.
    """

    id: str
    act: Literal["retract", "skip"]
    as_of: int
    errors: tuple[str, ...] = ()


class Repaired(msgspec.Struct, frozen=True, tag="repaired"):
    """A repair is done, or can never be: its holder need not carry it out any more.

    Attributes:
        id: Name of the source.
        index: Position of the `RepairErrors`.
        error: Why it can never be done; "" if it is done.
    """

    id: str
    index: int
    error: str = ""


class AllowWrites(msgspec.Struct, frozen=True, tag="allow_writes"):
    """Let objects of a kind write from here on, in this runtime and in all that come after it."""

    kind: Kind


class UpdateConfiguration(msgspec.Struct, frozen=True, tag="update_configuration"):
    """Change settings; those that are not named stay.

    Attributes:
        settings: Values by name.
    """

    settings: dict[str, str]


class UseProject(msgspec.Struct, frozen=True, tag="use_project"):
    """The objects are those of this project from here on: another one must not drop them."""

    project: ProjectIdentity


LaneCommand: TypeAlias = (
    Opened
    | HolderLease
    | CreateDataflow
    | DropDataflow
    | Dropped
    | SuspendAndRestart
    | PauseDataflow
    | ResumeDataflow
    | RestartDataflow
    | RepairErrors
    | Repaired
    | AllowWrites
    | UpdateConfiguration
    | UseProject
)


class Submission(msgspec.Struct, frozen=True):
    """A command that has no position yet.

    Attributes:
        producer: Name of the caller.
        sequence: Its number among those of the producer; greater than all before.
        command: The command.
    """

    producer: str
    sequence: int
    command: LaneCommand


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A command at its position in the order.

    Attributes:
        index: The position: 0, 1, 2, …
        producer: Name of the caller.
        sequence: Its number among those of the producer.
        epoch: Number of the runtime that recorded it, from 1.
        at_ms: Time of the record, ms since the epoch by that runtime's clock; may go back.
        command: The command.
    """

    index: int
    producer: str
    sequence: int
    epoch: int
    at_ms: int
    command: LaneCommand


def kind_of(description: Description) -> Kind:
    """The controller that an object with this description belongs to."""
    return "storage" if isinstance(description, SourceDescription | SinkDescription) else "compute"


def is_transient(description: Description) -> bool:
    """True if the object ends with the runtime that created it: it serves one connection of it."""
    return isinstance(description, SubscribeDescription)


def command_kind(command: LaneCommand) -> str:
    """The name under which a command is recorded: `create_dataflow` and so on."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str), command
    return tag


def check_recordable(command: LaneCommand) -> None:
    """Refuse a command that could not be read again from what would be recorded of it.

    Types are checked where a value is decoded, and not where it is made. A record that nobody can
    decode stays for ever, and with it no runtime of the location can start.

    Raises:
        InvalidUsage: `NOT_RECORDABLE`, with the place of the value.
    """
    try:
        msgspec.json.decode(msgspec.json.encode(command), type=LaneCommand)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError) as error:
        raise InvalidUsage(
            f"the command '{command_kind(command)}' cannot be recorded: {error}",
            code="NOT_RECORDABLE",
            hint="give values of the types that the protocol describes",
        ) from error
