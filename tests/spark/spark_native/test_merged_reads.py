"""Native reads of keyed shards whose parts retract, against a plain model and the Arrow path."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardline import datasource
from shardline.datasource.frontier import Frontier
from shardline.datasource.rows.updates import stamp
from shardline.datasource.spark_native import touched_rows
from shardline.datasource.types.schema import ShardSchema
from support.spark.native import client_at, plan_of, put, upsert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.client import ShardClient

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

# The second name is one that native plans would use for a column of their own.
ROWS = pa.schema([("a", pa.int64()), ("_Shardline_Hash", pa.string()), ("v", pa.int32())])
KEY = ("a", "_Shardline_Hash")
Row = tuple[int | None, str | None, int | None]


def table(rows: list[Row], diffs: list[int] | None = None) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    made = pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], ROWS)
    return made if diffs is None else made.append_column("_diff", pa.array(diffs, pa.int64()))


def closing_times(client: ShardClient) -> list[int]:
    parts = (part for batch in client.state("in").trace.batches for part in batch.parts)
    return [part.ts or 0 for part in parts if part.closes]


def test_upserts_are_read_without_consolidation(spark: SparkSession, location: str) -> None:
    """Rows are looked up by key among those taken back; nothing is shuffled, few columns read."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, table([(n, "x", n) for n in range(20)]), KEY)
    first: list[Row] = [(1, "x", 100), (2, "x", 2), (3, "x", None), (30, "x", 30)]
    upsert(f"{location}/in", table(first), inlinePartBytes="0")

    frame = datasource.snapshot(spark, f"{location}/in", columns=["v"])
    plan = plan_of(frame)
    assert "LeftAnti" in plan
    assert "Exchange hashpartitioning" not in plan
    assert "Exchange SinglePartition" not in plan
    left = {*range(20), 30, 100} - {1, 3}
    assert Counter(row.v for row in frame.collect()) == Counter(left)


def test_any_history_of_a_key(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upserts, deletes, plain appends, copies and merges; at each time, what a model has."""
    monkeypatch.setattr(touched_rows, "_LEAST_ROWS", 1)
    chosen = random.Random(17)
    blobs = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    there: Counter[Row] = Counter({(n, "x", 0): 1 for n in range(12)})
    put(blobs, "in", 0, table(list(there)), KEY)
    seen: dict[int, Counter[Row]] = {}

    def key() -> tuple[Any, ...]:
        return chosen.choice([None, *range(6)]), chosen.choice(["x", None])

    def note() -> None:
        upper = blobs.state("in").upper.time
        assert upper is not None
        seen[upper - 1] = +there

    for number in range(7):
        if number in (2, 5):  # not by key: copies, and several rows of a key
            some: list[Row] = [(*key(), chosen.choice([0, 1])) for _ in range(4)]
            upper = blobs.state("in").upper
            assert upper.time is not None
            diffs = [chosen.choice([1, 2]) for _ in some]
            handle = blobs.writer("in")
            handle.compare_and_append(table(some, diffs), upper, Frontier(upper.time + 1))
            there.update(dict.fromkeys(some, 0))
            for row, diff in zip(some, diffs, strict=True):
                there[row] += diff
        else:
            new = {key(): chosen.choice([0, 1, 2, None]) for _ in range(3)}
            rows: list[Row] = [(*k, v) for k, v in new.items()]
            upsert(f"{location}/in", table(rows), inlinePartBytes=chosen.choice(["0", "4096"]))
            there = Counter({row: n for row, n in there.items() if row[:2] not in new})
            there.update(row for row in rows if row[2] is not None)
        note()
    assert closing_times(blobs)

    def check(as_of: int) -> None:
        frame = datasource.snapshot(spark, f"{location}/in", as_of=as_of)
        assert Counter(map(tuple, frame.collect())) == seen[as_of], as_of

    check(chosen.choice(sorted(seen)))
    last = max(seen)
    by_arrow = spark.read.format("shard").option("nativeReads", "false")
    assert Counter(map(tuple, by_arrow.load(f"{location}/in").collect())) == seen[last]
    check(last)


@pytest.mark.parametrize("read", ["contents", "changes"])
def test_inline_parts_of_an_older_schema(spark: SparkSession, location: str, read: str) -> None:
    """They are read whichever partition, which has the schemas of its own parts only, is first."""
    inline = client_at(location, inline_part_bytes=4096, compact_inline_bytes=0)
    blobs = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(inline, "in", 1, pa.table({"k": [100], "v": [1]}), ("k",))
    wider = pa.table({"k": [1, 100], "v": [1, 2], "w": [1, 2]})
    blobs.evolve("in", ShardSchema.from_arrow(wider.schema))
    put(blobs, "in", 2, wider.slice(0, 1), ("k",))
    put(blobs, "in", 3, stamp(wider.slice(0, 1), 3, -1), ("k",))
    put(blobs, "in", 4, wider.slice(1), ("k",))
    put(blobs, "in", 5, stamp(wider.slice(1), 5, -1), ("k",))

    # One byte: each part is a partition.
    options = {"partitionBytes": "1"}
    expected: list[tuple[int, int, int | None]]
    if read == "contents":
        frame = datasource.snapshot(spark, f"{location}/in", options=options)
        expected = [(100, 1, None)]
    else:
        frame = datasource.changes(spark, f"{location}/in", options=options)
        frame = frame.where("_diff > 0").select("k", "v", "w")
        expected = [(1, 1, 1), (100, 1, None), (100, 2, 2)]
    assert sorted(map(tuple, frame.collect())) == expected


@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UNICODE_CI_RTRIM"])
def test_texts_that_a_collation_takes_for_equal_are_not_merged(
    spark: SparkSession, location: str, collation: str
) -> None:
    """Rows are the same if their bytes are; the column still has its collation."""
    columns = StructType(
        [StructField("id", LongType()), StructField("s", StringType(collation))],
    )
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    client.create("in", ShardSchema.parse(columns.json()))
    rows = pa.table({"id": [1, 1, 1], "s": ["A", "a", "b"]})
    handle = client.writer("in")
    handle.compare_and_append(rows, Frontier(0), Frontier(1))
    handle.compare_and_append(stamp(rows.slice(2), 1, -1), Frontier(1), Frontier(2))

    frame = datasource.snapshot(spark, f"{location}/in")
    assert not any("MapInArrow" in line for line in plan_of(frame).splitlines())
    assert Counter(map(tuple, frame.collect())) == {(1, "A"): 1, (1, "a"): 1}
    assert frame.schema == columns
