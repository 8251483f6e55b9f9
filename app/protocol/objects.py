"""Descriptions define objects: sources, sinks, views, indexes and subscriptions.

A description contains everything that decides an object's contents, and nothing else, such as the
file it was written in. So two objects are the same exactly if their descriptions are equal: that is
how a deployment, and a runtime after a new connection, decide what may run on.

Names are those of the project: unique, and, for objects with contents, the name of their shard.
`Envelope` and the keys mean what they mean for `format("shard")`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

__all__ = [
    "STATES_MAX",
    "Dataflow",
    "Description",
    "Envelope",
    "IndexDescription",
    "ProtocolValue",
    "SinkDescription",
    "SourceDescription",
    "Strategy",
    "SubscribeDescription",
    "Time",
    "ViewDescription",
    "errors_shard",
    "inputs_of",
    "is_runtime_shard",
    "progress_shard",
    "reads_shards",
    "shards_of",
    "skipped_shard",
    "source_shards",
    "state_shards",
]

Envelope: TypeAlias = Literal["none", "diff", "upsert", "debezium"]
"""The meaning of a row that comes in or goes out; see `shardline.app.storage.envelope`."""

Strategy: TypeAlias = Literal["linear", "incremental", "recompute"]
"""The way in which a view follows its inputs.

Linear: its change is computed from their changes. Incremental: from their changes and, where these
are joined with others, from what was there before; a change that needs more is recomputed.
Recompute: its query runs anew at each change.
"""

STATES_MAX: Final = 12
"""Most states of a view: each has a shard."""

_TIME: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)

Time: TypeAlias = Annotated[int, _TIME]
"""A time of a shard: a signed integer of 64 bits, milliseconds since the epoch as a rule."""


class ProtocolValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all descriptions, commands and responses: immutable, and equal after a round trip.

    An unknown field is refused: to ignore it would be to do something else than was asked for.
    """


class SourceDescription(ProtocolValue, frozen=True, kw_only=True, tag="source"):
    """A source: data from outside that is ingested into a shard.

    Attributes:
        name: Name of the source and of its shard.
        format: As `spark.readStream.format` takes it, or a load generator: `counter`, `auction`,
            `nexmark`.
        options: Options of the format.
        schema: Columns in Spark's DDL, `year INT, carrier STRING`; "" for those of the format.
        envelope: The meaning of a row.
        key: Columns that identify a row; for upsert and debezium.
        retain_ms: Retention: how far back contents stay readable; None for no promise.
    """

    name: str
    format: str
    options: dict[str, str] = {}
    schema: str = ""
    envelope: Envelope = "none"
    key: tuple[str, ...] = ()
    retain_ms: int | None = None


class ViewDescription(ProtocolValue, frozen=True, kw_only=True, tag="view"):
    """A materialized view: a query whose result is kept in a shard.

    Attributes:
        name: Name of the view and of its shard.
        query: SQL in Spark's dialect, as the analyzer has accepted it.
        inputs: Names of the sources and views that it reads, sorted.
        schema: Columns of the result in Spark's DDL.
        strategy: The way it is maintained.
        reason: Why no better strategy is possible; "" for the best one.
        retain_ms: Retention, as of a source.
    """

    name: str
    query: str
    inputs: tuple[str, ...]
    schema: str
    strategy: Strategy = "recompute"
    reason: str = ""
    retain_ms: int | None = None


class IndexDescription(ProtocolValue, frozen=True, kw_only=True, tag="index"):
    """An index: a source's or view's contents kept in memory, by key.

    Attributes:
        name: Name of the index.
        on: Name of the source or view.
        key: Columns by which it is looked up; () for all of them.
    """

    name: str
    on: str
    key: tuple[str, ...] = ()


class SubscribeDescription(ProtocolValue, frozen=True, kw_only=True, tag="subscribe"):
    """A subscription: every change of an object, for one client.

    Attributes:
        name: Unique: `t` and a random token.
        on: Name of the source or view.
        snapshot: True if the contents at `as_of` come first.
        up_to: Changes before this time only; None for all.
        shard: Id of the shard that it goes on with. The object may have been dropped and made again
            since, with other contents at the same times; then it cannot. "" for any shard.
    """

    name: str
    on: str
    snapshot: bool = True
    up_to: Time | None = None
    shard: str = ""


class SinkDescription(ProtocolValue, frozen=True, kw_only=True, tag="sink"):
    """A sink: something outside that is kept up to date with an object.

    Attributes:
        name: Name of the sink.
        on: Name of the source or view.
        format: As `DataFrameWriter.format` takes it.
        options: Options of the format.
        envelope: "none" for added rows only, "diff" for rows with `_ts` and `_diff`, "upsert" for
            the newest row of each key, "debezium" for `before` and `after`.
        key: Columns that identify a row; for upsert and debezium.
        snapshot: True if the contents at the start are written first.
    """

    name: str
    on: str
    format: str
    options: dict[str, str] = {}
    envelope: Envelope = "diff"
    key: tuple[str, ...] = ()
    snapshot: bool = True


Dataflow: TypeAlias = ViewDescription | IndexDescription | SubscribeDescription
"""An object of the compute protocol."""

Description: TypeAlias = SourceDescription | SinkDescription | Dataflow


def inputs_of(description: Description) -> tuple[str, ...]:
    """Names of the objects that an object reads."""
    match description:
        case SourceDescription():
            return ()
        case ViewDescription():
            return description.inputs
        case IndexDescription() | SinkDescription() | SubscribeDescription():
            return (description.on,)


def progress_shard(source: str) -> str:
    """Name of the shard that binds a source's offsets to times."""
    return f"{source}_progress"


def errors_shard(name: str) -> str:
    """Name of the shard with the errors of a source or view."""
    return f"{name}_errors"


def skipped_shard(source: str) -> str:
    """Name of the shard with the rows that a source has left out; not every source has one."""
    return f"{source}_skipped"


def state_shards(view: str) -> tuple[str, ...]:
    """Names of the shards in which a view may keep states; most views have none, or one."""
    return tuple(f"{view}_state_{place}" for place in range(1, STATES_MAX + 1))


def source_shards(source: str) -> tuple[str, ...]:
    """Names of the shards that a source keeps; its own one last."""
    return (skipped_shard(source), errors_shard(source), progress_shard(source), source)


def is_runtime_shard(name: str) -> bool:
    """True for a shard of the runtime itself, such as the lane's: no object has such a name."""
    return name.startswith("_")


def reads_shards(source: SourceDescription) -> bool:
    """True if a source is made of shards, of its own location or of another one."""
    return source.format.lower() == "shard"


def shards_of(description: Description) -> tuple[str, ...]:
    """Names of the shards that an object keeps, whether they are there or not; its own one last.

    The target of a sink is none of them, though it may be a shard, too.
    """
    name = description.name
    match description:
        case SourceDescription():
            return source_shards(name)
        case ViewDescription():
            return (*state_shards(name), errors_shard(name), name)
        case SinkDescription():
            return (progress_shard(name),)
        case IndexDescription() | SubscribeDescription():
            return ()
