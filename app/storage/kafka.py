"""Kafka's rows have a beginning, deletes and an order that Spark's source of it does not tell.

    with_defaults({"subscribe": "t"})     … and startingOffsets earliest, isolation read_committed
    with_marks(rows, ordered=False)       the columns `DELETED`, `PARTITION` and `AT`, for an upsert

Spark's stream of Kafka begins at the end of a topic: what is there already is left to a batch. A
source has no such batch. Its first micro-batch is the snapshot, all that is there when the source
is created: by Spark's default a topic with rows would be an empty snapshot, the source would be
hydrated, and the rows would never come. And Kafka hands out rows of transactions that are aborted
to everybody who does not ask for committed ones.

Of an upsert, a message without a value is a tombstone: it deletes its key. Its other columns say
where it stands, and are never null, so the general rule (nothing but its key) would never see one.

Kafka orders the messages of a partition by their offsets, and those of two partitions not at all. A
key is in two of them where partitions were added, and where several topics are read. Then the last
message of each partition is taken, and of these the newest by Kafka's timestamp. Offsets of two
partitions cannot be compared: the busier one would win, however old its message is. To refuse such
keys would stop every source of a topic that was ever given more partitions. The time does not come
first, as producers set it: within a partition it may go back, where Kafka's own compaction of a
topic keeps the last offset.

Invariants:
    What a source says itself stands.
    A source that exists keeps its place: where it began is in its checkpoint, and in its bindings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

__all__ = ["AT", "DELETED", "PARTITION", "is_kafka", "with_defaults", "with_marks"]

DELETED: Final = "_shardline_deleted"
"""Column of a decoded micro-batch: true if the message deletes its key."""

PARTITION: Final = "_shardline_partition"
"""Column of a decoded micro-batch: topic and partition, as text."""

AT: Final = "_shardline_at"
"""Column of a decoded micro-batch: the message's timestamp, in microseconds since the epoch."""

_STARTS: Final = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
"""Options of Spark that say where a stream begins; the first of them can name `earliest`."""

_ISOLATION: Final = "kafka.isolation.level"


def is_kafka(name: str) -> bool:
    """True if a format is Kafka's."""
    return name.lower() == "kafka"


def with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source of Kafka, with those that it leaves out and Spark has otherwise."""
    given = {name.lower() for name in options}
    chosen = dict(options)
    if given.isdisjoint(name.lower() for name in _STARTS):
        chosen[_STARTS[0]] = "earliest"
    if _ISOLATION not in given:
        chosen[_ISOLATION] = "read_committed"
    return chosen


def with_marks(rows: DataFrame, *, ordered: bool) -> DataFrame:
    """Rows of Kafka with the columns by which an upsert knows what they mean.

    Args:
        rows: Of a micro-batch.
        ordered: True if a column of the source's choice orders them, also between partitions: then
            there is only `DELETED`.
    """
    rows = rows.withColumn(DELETED, F.col("value").isNull())
    if ordered:
        return rows
    partition = F.concat_ws("/", "topic", F.col("partition").cast("string"))
    return rows.withColumns({PARTITION: partition, AT: F.unix_micros("timestamp")})
