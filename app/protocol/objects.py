"""What the runtime keeps: descriptions of sources, sinks, views, indexes and subscriptions.

A description says everything that decides an object's contents. Two objects are the same when their
descriptions are equal; where a definition was written is not part of it.

Names are those of the project: unique, and, for what has contents, the name of the shard that they
are in. `Envelope` and the keys mean what they mean for `format("shard")`.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

__all__ = [
    "Dataflow",
    "Description",
    "Envelope",
    "IndexDescription",
    "SinkDescription",
    "SourceDescription",
    "Strategy",
    "SubscribeDescription",
    "Time",
    "Value",
    "ViewDescription",
    "errors_shard",
    "fingerprint",
    "inputs_of",
    "progress_shard",
]

Envelope: TypeAlias = Literal["none", "diff", "upsert", "debezium"]

Strategy: TypeAlias = Literal["linear", "recompute"]
"""How a view follows its inputs: from their change alone, or by its query run anew."""


_TIME: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)

Time: TypeAlias = Annotated[int, _TIME]
"""A time of a shard: a signed integer of 64 bits, milliseconds since the epoch as a rule."""


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every description, command and response is: immutable, and read back as it was written.

    A field that nobody knows is refused: it would mean something that the reader does not do.
    """


class SourceDescription(Value, frozen=True, kw_only=True, tag="source"):
    """Something outside that is taken in.

    Attributes:
        name: The source's and its shard's.
        format: As `spark.readStream.format` takes it, or a load generator: `counter`, `auction`,
            `nexmark`.
        options: Of the format.
        schema: Columns in Spark's DDL, `year INT, carrier STRING`; "" for those of the format.
        envelope: What a row says.
        key: Columns that identify a row; for upsert and debezium.
        retain_ms: How far back the contents stay readable; None for no promise.
    """

    name: str
    format: str
    options: dict[str, str] = {}
    schema: str = ""
    envelope: Envelope = "none"
    key: tuple[str, ...] = ()
    retain_ms: int | None = None


class ViewDescription(Value, frozen=True, kw_only=True, tag="view"):
    """A query whose result is kept in a shard.

    Attributes:
        name: The view's and its shard's.
        query: SQL in Spark's dialect, as the analyzer has accepted it.
        inputs: Names that it reads, sorted; each is a source or a view.
        schema: Columns of the result in Spark's DDL.
        strategy: How it is kept up to date, and `reason` why not in a better way ("" if it is).
        retain_ms: As of a source.
    """

    name: str
    query: str
    inputs: tuple[str, ...]
    schema: str
    strategy: Strategy = "recompute"
    reason: str = ""
    retain_ms: int | None = None


class IndexDescription(Value, frozen=True, kw_only=True, tag="index"):
    """A source's or view's contents kept in memory.

    Attributes:
        name: The index's.
        on: Whose contents.
        key: Columns that look-ups give; () for all of them.
    """

    name: str
    on: str
    key: tuple[str, ...] = ()


class SubscribeDescription(Value, frozen=True, kw_only=True, tag="subscribe"):
    """A client that follows an object's changes.

    Attributes:
        name: Unique, `t` and something random.
        on: Whose changes.
        snapshot: Whether the contents at `as_of` come first.
        up_to: Changes before this time only; None for all.
    """

    name: str
    on: str
    snapshot: bool = True
    up_to: Time | None = None


class SinkDescription(Value, frozen=True, kw_only=True, tag="sink"):
    """Something outside that is kept up to date with an object.

    Attributes:
        name: The sink's.
        on: Whose contents.
        format: As `DataFrameWriter.format` takes it.
        options: Of the format.
        envelope: "none" for added rows only, "diff" for rows with `_ts` and `_diff`, "upsert" for
            the newest row of each key, "debezium" for `before` and `after`.
        key: Columns that identify a row; for upsert and debezium.
        snapshot: Whether the contents at the start go out first.
    """

    name: str
    on: str
    format: str
    options: dict[str, str] = {}
    envelope: Envelope = "diff"
    key: tuple[str, ...] = ()
    snapshot: bool = True


Dataflow: TypeAlias = ViewDescription | IndexDescription | SubscribeDescription
"""What the compute protocol creates."""

Description: TypeAlias = SourceDescription | SinkDescription | Dataflow


_PACING: Final = frozenset({"interval"})
"""Options of a sink that say how often it writes, and nothing of what."""


def fingerprint(description: Description) -> str:
    """16 hex digits that differ when two descriptions do, but for how often a sink writes."""
    if isinstance(description, SinkDescription):
        options = {k: v for k, v in description.options.items() if k not in _PACING}
        description = msgspec.structs.replace(description, options=options)
    encoded = msgspec.json.encode(description, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


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
