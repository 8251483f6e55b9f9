"""What the sink is told: immutable values, made in any thread, read by the sink's alone.

From the lane: `Installed`, `Phase`, `Dropped`, `Recorded`. From the listener: `QueryStarted`,
`QueryProgress`, `QueryIdle`, `QueryTerminated`. From Spark's status store: `Harvested`.
From running objects: everything in `shardline.app.execution.observations`. From the storage worker:
`StatusUpdate`, `StatisticsUpdates`. From peeks, maintenance and the poll of shards: the rest.

Times are milliseconds since the epoch where they say when something happened, and frontiers where
they say how far something is: there None is the empty frontier.

Invariants:
    Nothing of Spark's is in an event: a callback converts, so that a conversion that fails is
    counted where it happens.
    What was not observed is UNSET or absent, never 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shardline.app.execution.observations import Observation
from shardline.app.protocol.objects import Description
from shardline.app.protocol.storage import StatisticsUpdates, StatusUpdate
from shardline.datasource.inspect.report import ShardReport

__all__ = [
    "Domain",
    "Dropped",
    "Event",
    "Harvested",
    "InputProgress",
    "Installed",
    "Maintenance",
    "PeekDecided",
    "PeekEnded",
    "PeekPath",
    "PeekStarted",
    "Phase",
    "PhaseName",
    "Polled",
    "QueryIdle",
    "QueryProgress",
    "QueryStarted",
    "QueryTerminated",
    "Recorded",
    "Remembered",
    "ShardGone",
    "ShardSeen",
    "StateProgress",
]

Domain: TypeAlias = Literal["storage", "compute"]

PhaseName: TypeAlias = Literal[
    "created", "waiting", "starting", "running", "stopping", "suspended", "stopped"
]
"""Where the lane has an object: `waiting` for a slot to hydrate in, `suspended` until it is
started again after a failure, `stopped` for good or by a shutdown."""

# --- the lane ----------------------------------------------------------------------------------


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """An object is there, or is there anew: with another definition, or in another incarnation.

    Attributes:
        id: The object's name; so in all of these.
        global_id: Its id for ever.
        domain: Which of the two protocols created it.
        description: What it is.
        dataflow: Number of the dataflow.
        epoch: Number of the incarnation; 0 before the first.
        operators: First number of its operators, and how many there are.
        as_of: First time at which its output is to be right; None where that is the source's.
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
    """The lane has moved an object.

    Attributes:
        epoch: The incarnation that this is about; a later one than known begins with it. 0 if the
            object has none at the moment.
    """

    id: str
    epoch: int
    phase: PhaseName
    at_ms: int


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An object is gone, and every row about it."""

    id: str
    at_ms: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the lane.

    Attributes:
        index: Its position in the one order.
        producer: Who asked.
        kind: Which command.
        object_id: About what; "" if about nothing in particular.
        command: All of it, as JSON.
    """

    index: int
    producer: str
    at_ms: int
    kind: str
    object_id: str = ""
    command: str = ""


# --- Spark's listener --------------------------------------------------------------------------


class QueryStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Spark says that a streaming query runs; `name` is `Incarnation.query_name` of ours."""

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
    """

    query: str
    run: str
    name: str
    micro_batch: int
    at_ms: int
    phases_ms: dict[str, int]
    inputs: tuple[InputProgress, ...] = ()
    states: tuple[StateProgress, ...] = ()


class Harvested(msgspec.Struct, frozen=True, kw_only=True):
    """What Spark has done for each operator in one micro-batch, as far as that is known.

    Attributes:
        rows: Position of a receiver, its port, and the rows that have gone into it.
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
    """A run has ended; Spark does not say of which name.

    Attributes:
        error: What ended it, in one line; "" if it was stopped.
    """

    query: str
    run: str
    error: str = ""


# --- peeks, shards, maintenance ------------------------------------------------------------------


PeekPath: TypeAlias = Literal["index", "persist", "constant"]
"""Where an answer comes from: the memory of an index; shards; nothing that is stored."""


class PeekStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asks.

    Attributes:
        uuid: Names the peek.
        inputs: Objects that it reads.
        time: As of when.
        path: Where the answer comes from; None while that is not decided.
    """

    uuid: str
    inputs: tuple[str, ...]
    time: int
    at_ms: int
    path: PeekPath | None = None


class PeekDecided(msgspec.Struct, frozen=True, kw_only=True):
    """It is decided where the answer to a peek comes from."""

    uuid: str
    path: PeekPath


class PeekEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A peek was answered, or given up.

    Attributes:
        took_ms: Since it was started.
    """

    uuid: str
    took_ms: float


class Polled(msgspec.Struct, frozen=True, kw_only=True):
    """Frontiers of an object's shard, as its state says.

    Attributes:
        errors: Rows in its shard of errors.
    """

    id: str
    since: int | None
    upper: int | None
    errors: int | msgspec.UnsetType = msgspec.UNSET


class ShardSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A shard was looked into."""

    report: ShardReport
    at_ms: int


class ShardGone(msgspec.Struct, frozen=True, kw_only=True):
    """There is no such shard any more."""

    name: str


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """A round of maintenance on one shard did something.

    Attributes:
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


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a history that former runs have kept.

    Attributes:
        relation: Name of the history.
        rows: When each was made, and what it says.
    """

    relation: str
    rows: tuple[tuple[int, tuple[object, ...]], ...]


Event: TypeAlias = (
    Installed
    | Phase
    | Dropped
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
    | Remembered
    | StatusUpdate
    | StatisticsUpdates
    | Observation
)
