"""Shaping turns updates into the rows that a sink's target takes: one function per envelope.

| envelope | rows | from a retraction |
|---|---|---|
| `none` | the object's columns | the sink fails |
| `diff` | the columns, `_ts`, `_diff` | a row with a negative `_diff` |
| `upsert` | the newest row of each key, `_ts`, `_deleted` | a key without a row: `_deleted` |
| `debezium` | `before`, `after`, `op` (c, u, d), `ts_ms` | a row with `before` |

`upsert` gives one row for each key that a micro-batch has changed, and none for one that it has
left as it was; `debezium` gives one event for each change of a key at each time, or, without a key,
one for each copy of a row that came or went.

Invariants:
    Rows depend on the updates only, not on their order.
    A key to which one micro-batch gives two rows is an error, not a choice. Rows of different
    micro-batches are not compared: that would need the input's contents at each change. If a key
    that identifies nothing gets its second row later, the newest row stands for it, and when that
    one goes the key counts as deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.datasource import InputPartition

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.json_texts import exact_json, key_text
from shardline.datasource.errors import Determinate, InvalidUsage, unknown_name
from shardline.datasource.frames import (
    can_consolidate,
    columns_since_load,
    net_changes,
    quoted,
    repeat_rows,
)
from shardline.datasource.schema import DIFF, TS, ShardSchema

__all__ = [
    "DELETED",
    "RETRACTION",
    "as_messages",
    "check_columns",
    "check_names",
    "delay_updates",
    "shape_rows",
]

DELETED: Final = "_deleted"
"""Column of `upsert`: true if the key has no row any more."""

RETRACTION: Final = "RETRACTION_IN_APPEND_ONLY_SINK"


def check_columns(sink: SinkDescription, planned: Iterable[InputPartition]) -> None:
    """Refuse rows without columns that the input has got since the sink's query was started.

    Args:
        sink: The sink.
        planned: The partitions of a micro-batch.

    Raises:
        Determinate: The next incarnation reads them.
    """
    added = columns_since_load(planned)
    if added:
        raise Determinate(
            f"'{sink.on}' has got the columns {', '.join(added)} since the sink was started: it "
            "is started again, to read them, too",
            code="SCHEMA_CHANGED",
            hint="nothing was given to the target without them",
        )


def check_names(sink: SinkDescription, columns: Iterable[str]) -> None:
    """Refuse an input with a column of the name that the sink's envelope adds.

    Args:
        sink: Its envelope is used.
        columns: Of its input.

    Raises:
        InvalidUsage: `RESERVED_NAME`.
    """
    taken = [name for name in columns if name.lower() == DELETED]
    if sink.envelope == "upsert" and taken:
        raise InvalidUsage(
            f"'{sink.on}' has a column '{taken[0]}', and the envelope upsert adds one of this name",
            code="RESERVED_NAME",
            hint="give it another name in a view, and make the sink from that",
        )


def delay_updates(updates: DataFrame, first: int) -> DataFrame:
    """Let updates before time `first` take effect then, with what cancels left out.

    Rows are the same if they are in shards. Of columns by which Spark cannot tell that, nothing is
    left out: what cancels comes as well, at one time.
    """
    columns = [name for name in updates.columns if name not in (TS, DIFF)]
    delayed = updates.withColumn(TS, F.greatest(F.col(TS), F.lit(first)))
    delayed = delayed.select(*map(quoted, columns), TS, DIFF)
    schema = ShardSchema.parse(delayed.drop(TS, DIFF).schema.json())
    # Not `_net`: -0.0 that becomes 0.0, or a text another one of the same collation, is a change.
    return net_changes(delayed, schema) if can_consolidate(schema) else delayed


def shape_rows(updates: DataFrame, sink: SinkDescription) -> DataFrame:
    """Turn updates into the rows of a sink's envelope.

    Args:
        updates: The object's columns, `_ts` and `_diff`.
        sink: Its envelope and key are used.

    Raises:
        InvalidUsage: A key is not among the columns, or one has a name that the envelope needs.
            Errors of rows are raised when Spark runs.
    """
    columns = [name for name in updates.columns if name not in (TS, DIFF)]
    check_names(sink, columns)
    for name in sink.key:
        if name not in columns:
            raise unknown_name("column", name, columns)
    match sink.envelope:
        case "none":
            return _added(updates)
        case "diff":
            return updates.select(*map(quoted, columns), TS, DIFF)
        case "upsert":
            return _newest(updates, columns, sink.key)
        case "debezium" if sink.key:
            return _events_of_keys(updates, columns, sink.key)
        case "debezium":
            return _events_of_rows(updates, columns)
        case _:
            assert_never(sink.envelope)


def as_messages(rows: DataFrame, sink: SinkDescription) -> DataFrame:
    """Turn shaped rows into columns `key` and `value` in JSON, as Kafka's writer takes them.

    A key that an upsert deletes is a tombstone: a null value. Messages of one key are in one
    partition of the frame, in the order of their times.
    """
    order = F.lit(None)
    match sink.envelope:
        case "upsert":
            kept = [name for name in rows.columns if name not in (TS, DELETED)]
            value = F.when(~F.col(DELETED), exact_json(map(quoted, kept)))
            parts = {name: quoted(name) for name in sink.key}
        case "debezium":
            order = F.col("ts_ms")
            value = exact_json("*")
            parts = {
                name: F.coalesce(F.col("after")[name], F.col("before")[name]) for name in sink.key
            }
        case _:
            order = F.struct(TS, DIFF) if sink.envelope == "diff" else order
            value = exact_json("*")
            parts = {name: quoted(name) for name in sink.key}
    key = key_text(rows, parts) if parts else F.lit(None).cast("string")
    messages = rows.select(key.alias("key"), value.alias("value"), order.alias("_order"))
    # Kafka keeps the messages of a key in the order in which one task sends them, and tasks send at
    # the same time. Rows come from a shuffle by time and key: without another one the events of a
    # key that changes twice in a micro-batch would overtake each other.
    if parts and sink.envelope in ("debezium", "diff"):
        messages = messages.repartition("key").sortWithinPartitions("key", "_order")
    return messages.select("key", "value")


def _added(updates: DataFrame) -> DataFrame:
    refusal = InvalidUsage(
        "a row was retracted, and the sink's envelope none has added rows only",
        code=RETRACTION,
        hint="give the sink the envelope diff, upsert or debezium",
    )
    checked = F.when(F.col(DIFF) < 0, _refused(refusal)).otherwise(F.col(DIFF))
    return repeat_rows(updates.withColumn(DIFF, checked).drop(TS))


def _newest(updates: DataFrame, columns: list[str], key: tuple[str, ...]) -> DataFrame:
    net = _net(updates, columns)
    whole = F.struct(*map(quoted, columns))
    there = F.col(DIFF) > 0
    found = net.groupBy(*_aliased(key)).agg(
        F.max(TS).alias(TS),
        F.first(F.when(there, whole), ignorenulls=True).alias("_row"),
        F.sum(F.when(there, F.col(DIFF))).alias("_rows"),
    )
    row = _single("_row", "_rows", key)
    places = {name: f"_key_{place}" for place, name in enumerate(key)}
    values = [
        (F.col(places[name]) if name in places else F.col("_row")[name]).alias(name)
        for name in columns
    ]
    checked = found.withColumn("_row", row)
    return checked.select(*values, TS, F.col("_row").isNull().alias(DELETED))


def _events_of_keys(updates: DataFrame, columns: list[str], key: tuple[str, ...]) -> DataFrame:
    net = _net(updates, columns, TS)
    whole = F.struct(*map(quoted, columns))
    gone, there = F.col(DIFF) < 0, F.col(DIFF) > 0
    found = net.groupBy(TS, *_aliased(key)).agg(
        F.first(F.when(gone, whole), ignorenulls=True).alias("before"),
        F.first(F.when(there, whole), ignorenulls=True).alias("after"),
        F.sum(F.when(gone, -F.col(DIFF))).alias("_gone"),
        F.sum(F.when(there, F.col(DIFF))).alias("_there"),
    )
    return _events(
        found.withColumn("before", _single("before", "_gone", key)).withColumn(
            "after", _single("after", "_there", key)
        )
    )


def _aliased(key: tuple[str, ...]) -> list[Column]:
    """The columns of a key under names that none of ours has."""
    return [quoted(name).alias(f"_key_{place}") for place, name in enumerate(key)]


def _events_of_rows(updates: DataFrame, columns: list[str]) -> DataFrame:
    net = _net(updates, columns, TS)
    whole = F.struct(*map(quoted, columns))
    events = net.select(
        TS,
        F.when(F.col(DIFF) < 0, whole).alias("before"),
        F.when(F.col(DIFF) > 0, whole).alias("after"),
        F.abs(F.col(DIFF)).alias(DIFF),
    )
    return _events(repeat_rows(events))


def _events(found: DataFrame) -> DataFrame:
    operation = (
        F.when(F.col("before").isNull(), "c").when(F.col("after").isNull(), "d").otherwise("u")
    )
    return found.select("before", "after", operation.alias("op"), F.col(TS).alias("ts_ms"))


def _net(updates: DataFrame, columns: list[str], *times: str) -> DataFrame:
    """The updates added up by row, or by row and time; those that cancel are left out."""
    rows = [quoted(name) for name in columns]
    newest = [] if times else [F.max(TS).alias(TS)]
    summed = updates.groupBy(*times, *rows).agg(F.sum(DIFF).alias(DIFF), *newest)
    return summed.where(F.col(DIFF) != 0)


def _single(row: str, count: str, key: tuple[str, ...]) -> Column:
    """Column `row`; raises an error in Spark for a key with several rows."""
    refusal = InvalidUsage(
        f"several rows have the same key ({', '.join(key)})",
        code="KEY_NOT_UNIQUE",
        hint="give the sink a key that identifies rows, or the envelope diff",
    )
    return F.when(F.col(count) > 1, _refused(refusal)).otherwise(F.col(row))


def _refused(refusal: InvalidUsage) -> Column:
    return F.raise_error(F.lit(str(refusal)))
