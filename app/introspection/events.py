"""Events are all that the sink learns of the world: immutable values, made in any thread.

From the lane: `LaneOpened`, `Following`, `TakenOver`, `Installed`, `Phase`, `Dropped`, `Recorded`.
From the coordinator: `Wanted`. From the listener: `QueryStarted`, `QueryProgress`, `QueryIdle`,
`QueryTerminated`. From Spark's status store: `Harvested`.
From the process itself: `ProcessStarted`, `SparkSeen`, `ServerSeen`, `RuntimeSeen`, `ClientsSeen`.
From running objects: everything in `shardline.app.execution.observations`. From the storage worker:
`StatusUpdate`, `StatisticsUpdates`. From peeks, maintenance and the poll of shards: the rest.

Fields that end in `_ms` are durations, or times since the epoch, in milliseconds. Frontiers are
times of the data, and None is the empty one.

Invariants:
    No object of Spark's is in an event: a callback converts, so that a conversion that fails is
    counted where it happens.
    A value that was not observed is UNSET or absent, never 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shardline.app.execution.observations import Observation
from shardline.app.protocol.object_state import ShownPhase
from shardline.app.protocol.objects import Description
from shardline.app.protocol.storage import StatisticsUpdates, StatusUpdate
from shardline.datasource.report import ShardReport

__all__ = [
    "Acted",
    "ActionOutcome",
    "Client",
    "ClientsSeen",
    "ControllerSeen",
    "Domain",
    "Dropped",
    "Event",
    "Following",
    "Harvested",
    "InputProgress",
    "Installed",
    "LaneOpened",
    "Maintenance",
    "PeekDecided",
    "PeekEnded",
    "PeekPath",
    "PeekStarted",
    "Phase",
    "Polled",
    "ProcessStarted",
    "QueryIdle",
    "QueryProgress",
    "QueryStarted",
    "QueryTerminated",
    "Recorded",
    "Remembered",
    "RuntimeSeen",
    "ServerSeen",
    "ShardGone",
    "ShardSeen",
    "SparkSeen",
    "StateProgress",
    "TakenOver",
    "Wanted",
    "WantedObject",
    "WriterMerged",
]

Domain: TypeAlias = Literal["storage", "compute"]

# --- the lane ----------------------------------------------------------------------------------


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """An object was created, or installed anew with another definition or incarnation.

    Attributes:
        id: The object's name, as in all events.
        global_id: Its id for ever.
        domain: The protocol that created it.
        description: Its definition.
        dataflow: Number of the dataflow.
        epoch: Number of the incarnation; 0 before the first.
        operators: First number of its operators, and how many there are.
        as_of: First time at which its output is to be right; None where a source decides it.
        at_ms: When it was created.
    """

    id: str
    global_id: str
    domain: Domain
    description: Description
    dataflow: int
    operators: tuple[int, int]
    at_ms: int
    epoch: int = 0
    as_of: int | None = None


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The lane has moved an object to another phase.

    Attributes:
        id: The object.
        epoch: The incarnation that this is about; one later than known begins with it. 0 if the
            object has none at the moment.
        phase: The new phase.
        at_ms: When.
        failures: Failures in a row.
        retry_at_ms: When a suspended object is started again; None for any other.
    """

    id: str
    epoch: int
    phase: ShownPhase
    at_ms: int
    failures: int = 0
    retry_at_ms: int | None = None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An object was dropped; every row about it goes, but for the histories.

    Attributes:
        id: The object's name.
        at_ms: When the last of it was gone.
        global_id: Its id for ever: nothing goes of another object that has got the name; "" for
            whichever has it.
    """

    id: str
    at_ms: int
    global_id: str = ""


class LaneOpened(msgspec.Struct, frozen=True, kw_only=True):
    """An application has begun, with the objects that the lane has.

    What was recorded of others before is over: the application before may have been killed right
    after it has dropped them.
    """

    objects: tuple[str, ...]
    at_ms: int


class Following(msgspec.Struct, frozen=True):
    """This process follows the one that holds the location, and writes nothing."""


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """This process, which has followed the holder, holds the location itself.

    Attributes:
        objects: Names of the objects that the lane has.
        at_ms: When it took the lane.
    """

    objects: tuple[str, ...]
    at_ms: int


class WantedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that the project asks for.

    Attributes:
        id: Its name.
        description: Its definition, without secrets.
        error: What keeps it from being created; "" if its inputs have not begun, or nothing does.
        hint: What to do about that.
    """

    id: str
    description: Description
    error: str = ""
    hint: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """All objects that the project asks for; those of an earlier event alone it does no more.

    Relations show what is known here of those that the lane has not (yet, or at this moment: to
    change a definition is to drop and to create), so that an object is never in none of them.
    """

    objects: tuple[WantedObject, ...]
    at_ms: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the lane.

    Attributes:
        index: Its position in the order of the lane.
        producer: The connection or part of the runtime that sent the command.
        at_ms: When.
        kind: Kind of the command.
        object_id: The object that it is about; "" if it is about none.
        command: The whole command as JSON, without secrets.
        says: What it asks for, in a sentence without its full stop.
    """

    index: int
    producer: str
    at_ms: int
    kind: str
    object_id: str = ""
    command: str = ""
    says: str = ""


# --- Spark's listener --------------------------------------------------------------------------


class QueryStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query runs; `name` is its `Incarnation.query_name` if it is one of ours."""

    query: str
    run: str
    name: str
    at_ms: int


class InputProgress(msgspec.Struct, frozen=True):
    """One source of a query in one micro-batch: rows as Spark counted them."""

    rows: int


class StateProgress(msgspec.Struct, frozen=True):
    """One stateful operator of Spark's in one micro-batch.

    Attributes:
        name: Spark's name of the operator.
        rows: Keys that are kept.
        memory_bytes: Memory used.
        stores: Instances of the state store.
    """

    name: str
    rows: int
    memory_bytes: int
    stores: int


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch has been done.

    Attributes:
        micro_batch: Its number, from 0.
        at_ms: When it was triggered.
        phases_ms: How long each phase took; `triggerExecution` is all of it.
        in_group: True of a step that a streaming query of a group has triggered: it may have had no
            job.
    """

    query: str
    run: str
    name: str
    micro_batch: int
    at_ms: int
    phases_ms: dict[str, int]
    inputs: tuple[InputProgress, ...] = ()
    states: tuple[StateProgress, ...] = ()
    in_group: bool = False


class Harvested(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and times of each operator in one micro-batch, as far as Spark's plans tell them.

    Attributes:
        rows: Position of a receiving operator, its port, and the rows that have gone into it.
        took_ms: Position of an operator, and the time of Spark's tasks for it.
    """

    query: str
    run: str
    name: str
    micro_batch: int
    rows: tuple[tuple[int, int, int], ...] = ()
    took_ms: tuple[tuple[int, float], ...] = ()


class QueryIdle(msgspec.Struct, frozen=True, kw_only=True):
    """A query looked for data and found none."""

    query: str
    run: str
    at_ms: int


class QueryTerminated(msgspec.Struct, frozen=True, kw_only=True):
    """A run has ended; Spark's event does not have the query's name.

    Attributes:
        query: Id of the query.
        run: Id of the run.
        error: The error that ended it, in one line; "" if it was stopped.
    """

    query: str
    run: str
    error: str = ""


# --- peeks, shards, maintenance ------------------------------------------------------------------


PeekPath: TypeAlias = Literal["index", "persist", "constant"]
"""The source of an answer: the memory of an index; shards; or nothing that is stored."""


class PeekStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A peek was asked for.

    Attributes:
        uuid: Of the peek.
        inputs: Objects that it reads.
        time: The time that it reads at.
        at_ms: When it was asked for.
        path: Source of the answer; None while that is not decided.
    """

    uuid: str
    inputs: tuple[str, ...]
    time: int
    at_ms: int
    path: PeekPath | None = None


class PeekDecided(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a peek's answer was decided."""

    uuid: str
    path: PeekPath


class PeekEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A peek was answered, or given up.

    Attributes:
        uuid: Of the peek.
        took_ms: Time since it was started.
    """

    uuid: str
    took_ms: float


class Polled(msgspec.Struct, frozen=True, kw_only=True):
    """Frontiers and contents of an object's shard, read from its state.

    Attributes:
        id: The object.
        dataflow: Its dataflow, as it was known before the state was read; 0 if it was not.
        since: Of its shard.
        upper: Of its shard.
        rows: Of its newest contents.
        size_bytes: Of its parts, encoded.
        errors: Number of rows in its errors shard; UNSET if it has none.
        columns: Name and SQL type of each of its columns.
    """

    id: str
    dataflow: int = 0
    since: int | None
    upper: int | None
    rows: int = 0
    size_bytes: int = 0
    errors: int | msgspec.UnsetType = msgspec.UNSET
    columns: tuple[tuple[str, str], ...] = ()


class ShardSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A shard was inspected.

    Attributes:
        report: Of its newest state.
        at_ms: When.
        lost: Keys of the parts that the store did not have when it was asked last; None if it was
            not asked yet.
    """

    report: ShardReport
    at_ms: int
    lost: tuple[str, ...] | None = None


class ShardGone(msgspec.Struct, frozen=True, kw_only=True):
    """A shard does not exist any more."""

    name: str


ActionOutcome: TypeAlias = Literal["done", "refused", "unknown"]
"""What came of an action; unknown: it may have been done, or may be done yet."""


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """A person has asked for an action.

    Attributes:
        at_ms: When it ended.
        action: Its name.
        target: What it is about: an object, a shard, a hold, a setting with its value.
        outcome: What came of it.
        message: The error, if it was not done.
    """

    at_ms: int
    action: str
    target: str
    outcome: ActionOutcome
    message: str = ""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """A round of maintenance has changed, or failed to change, one shard.

    Attributes:
        shard: Name of the shard.
        at_ms: When it ended.
        took_ms: How long it took.
        merges: Merges applied.
        collected: Blobs that a collection deleted; None if there was none.
        swept: Blobs that a sweep deleted; None if there was none.
        failed: Steps that failed.
    """

    shard: str
    at_ms: int
    took_ms: float
    merges: int = 0
    collected: int | None = None
    swept: int | None = None
    failed: tuple[str, ...] = ()


class WriterMerged(msgspec.Struct, frozen=True, kw_only=True):
    """A writer has merged batches of a shard after a commit.

    Attributes:
        shard: Name of the shard.
        merges: Merges applied.
    """

    shard: str
    merges: int


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a history that earlier runs have stored.

    Attributes:
        relation: Name of the history.
        rows: When each was made, and its values.
    """

    relation: str
    rows: tuple[tuple[int, tuple[object, ...]], ...]


# --- the process -------------------------------------------------------------------------------


class ProcessStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The process of the runtime has started.

    Attributes:
        location: URL of the location, without secrets.
        location_id: Id of the location.
        version: Of this program.
        data_folder: Its folder on this machine.
        checkpoints: Folder of the checkpoints of streaming queries.
        at_ms: When.
    """

    location: str
    version: str
    data_folder: str
    checkpoints: str
    at_ms: int
    location_id: str = ""


class SparkSeen(msgspec.Struct, frozen=True):
    """Spark's own pages were found at this address."""

    ui: str


class ServerSeen(msgspec.Struct, frozen=True):
    """The application is served at this address."""

    address: str


class ControllerSeen(msgspec.Struct, frozen=True):
    """A controller that is connected.

    Attributes:
        name: Of the connection: protocol and nonce.
        is_reconciled: True once the runtime has taken its desired state.
    """

    name: str
    is_reconciled: bool


class RuntimeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime, as it is at a moment; looked at once a second.

    Attributes:
        at_ms: When.
        project: Name of the project whose objects run, or its folder; "" if nobody has said.
        holder: The process that holds the location, in words; "" for none.
        held_since_ms: When it took the location; None for none.
        epoch: How often the location was taken so far.
        read_only: True while this runtime only follows the holder.
        queue: Commands that wait for their place in the order.
        controllers: Those that are connected.
    """

    at_ms: int
    project: str
    holder: str
    held_since_ms: int | None
    epoch: int
    read_only: bool
    queue: int
    controllers: tuple[ControllerSeen, ...]


class Client(msgspec.Struct, frozen=True):
    """A client that follows relations.

    Attributes:
        kind: A page in a browser, or another program.
        name: Its address.
        since_ms: When it connected.
    """

    kind: Literal["page", "subscriber"]
    name: str
    since_ms: int


class ClientsSeen(msgspec.Struct, frozen=True):
    """All clients that follow relations at this moment, in the place of those of before."""

    clients: tuple[Client, ...]


Event: TypeAlias = (
    Installed
    | Phase
    | Dropped
    | LaneOpened
    | Following
    | TakenOver
    | Wanted
    | Recorded
    | QueryStarted
    | QueryProgress
    | Harvested
    | QueryIdle
    | QueryTerminated
    | PeekStarted
    | PeekDecided
    | PeekEnded
    | Polled
    | ShardSeen
    | ShardGone
    | Maintenance
    | WriterMerged
    | Acted
    | Remembered
    | ProcessStarted
    | SparkSeen
    | ServerSeen
    | RuntimeSeen
    | ClientsSeen
    | StatusUpdate
    | StatisticsUpdates
    | Observation
)
