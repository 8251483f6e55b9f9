"""Rows of sinks on Spark: how updates are shaped, without a sink that runs."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.json_texts import key_text
from shardline.app.storage.sinks.rows import as_messages, delay_updates, shape_rows
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

STEPS = range(1, 9)


@pytest.fixture
def updates(spark: SparkSession) -> Iterator[DataFrame]:
    """20 keys that change at 8 times after the first, in any order, and in many tasks."""
    rows = [(k, "0", 100, 1) for k in range(20)]
    for k in range(20):
        for step in STEPS:
            rows += [(k, f"{step - 1}", 100 + step, -1), (k, f"{step}", 100 + step, 1)]
    random.Random(1).shuffle(rows)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    frame = spark.createDataFrame(rows, "k BIGINT, v STRING, _ts BIGINT, _diff BIGINT")
    yield frame.repartition(8, "_ts", "k")
    spark.conf.set("spark.sql.shuffle.partitions", before or "2")


def sent(updates: DataFrame, sink: SinkDescription) -> dict[int, list[dict[str, Any]]]:
    """The messages of each key as tasks would send them; fails if two tasks have one key."""
    messages = as_messages(shape_rows(updates, sink), sink)
    tasks, values = defaultdict[int, set[int]](set), defaultdict[int, list[dict[str, Any]]](list)
    # Not sorted: rows of a partition come in the order in which its task sends them.
    for key, value, task in messages.withColumn("task", F.spark_partition_id()).collect():
        k = json.loads(key)["k"]
        tasks[k].add(task)
        values[k].append(json.loads(value))
    assert {len(one) for one in tasks.values()} == {1}
    return values


def test_change_events_of_a_key_keep_their_order(updates: DataFrame) -> None:
    """A consumer of one key sees its changes in the order in which they were."""
    sink = SinkDescription(name="out", on="in", format="kafka", envelope="debezium", key=("k",))
    events = {
        k: [
            (one["ts_ms"], one.get("before", {}).get("v"), one.get("after", {}).get("v"))
            for one in values
        ]
        for k, values in sent(updates, sink).items()
    }

    changes = [(100 + step, f"{step - 1}", f"{step}") for step in STEPS]
    assert events == {k: [(100, None, "0"), *changes] for k in range(20)}


def test_diffs_of_a_key_keep_their_order(updates: DataFrame) -> None:
    """So are diffs of a key in order; what goes at a time is before what comes."""
    sink = SinkDescription(name="out", on="in", format="kafka", envelope="diff", key=("k",))
    found = {
        k: [(one["_ts"], one["v"], one["_diff"]) for one in values]
        for k, values in sent(updates, sink).items()
    }

    changes = [
        (100 + step, v, diff) for step in STEPS for v, diff in [(f"{step - 1}", -1), (f"{step}", 1)]
    ]
    assert found == {k: [(100, "0", 1), *changes] for k in range(20)}


def delayed(updates: DataFrame, value: str = "v") -> list[tuple[Any, ...]]:
    """The updates when those before time 30 take effect then, sorted; values as text."""
    rows = delay_updates(updates, 30).select(F.expr(f"CAST({value} AS STRING)"), "_ts", "_diff")
    return sorted(tuple(row) for row in rows.collect())


def test_delayed_updates_that_cancel_are_left_out(spark: SparkSession) -> None:
    """Rows come at the later time, added up; what is later stays, and columns keep their places."""
    rows = [("a", 10, 1), ("a", 20, -1), ("b", 20, 2), ("b", 25, 1), ("a", 40, 1), ("c", 20, -1)]
    found = delay_updates(spark.createDataFrame(rows, "v STRING, _ts BIGINT, _diff BIGINT"), 30)
    assert found.columns == ["v", "_ts", "_diff"]
    assert delayed(found) == [("a", 40, 1), ("b", 30, 3), ("c", 30, -1)]


@pytest.mark.parametrize(
    ("column", "gone", "came", "value"),
    [
        ("v DOUBLE", 0.0, -0.0, "v"),
        ("v FLOAT", -0.0, 0.0, "v"),
        ("v STRING COLLATE UTF8_LCASE", "Oslo", "OSLO", "v"),
        ("v STRUCT<x: DOUBLE>", (0.0,), (-0.0,), "v.x"),
    ],
)
def test_delayed_rows_are_told_apart_as_shards_do(
    spark: SparkSession, column: str, gone: Any, came: Any, value: str
) -> None:
    """A change of a row into one that Spark's own grouping takes for the same is a change."""
    rows = [(gone, 10, -1), (came, 10, 1)]
    updates = spark.createDataFrame(rows, f"{column}, _ts BIGINT, _diff BIGINT")
    texts = [str(one[0] if isinstance(one, tuple) else one) for one in (gone, came)]
    assert delayed(updates, value) == sorted([(texts[0], 30, -1), (texts[1], 30, 1)])
    assert delay_updates(updates, 30).schema["v"].dataType == updates.schema["v"].dataType


def test_variants_are_delayed(spark: SparkSession) -> None:
    """Spark cannot group them: each update comes, though later."""
    frame = spark.createDataFrame([(10, 1), (20, 1), (40, 1)], "_ts BIGINT, _diff BIGINT")
    updates = frame.select(F.parse_json(F.lit("1")).alias("v"), "_ts", "_diff")
    assert delayed(updates) == [("1", 30, 1), ("1", 30, 1), ("1", 40, 1)]


@pytest.mark.parametrize("envelope", ["upsert", "debezium"])
def test_keys_that_differ_by_a_microsecond_are_two_keys(spark: SparkSession, envelope: Any) -> None:
    """Spark's JSON ends at milliseconds: the delete of one key would delete the other one."""
    first, second = (datetime(2026, 1, 1, 0, 0, 0, n) for n in (1, 2))  # noqa: DTZ001
    rows = [(first, first, 3, -1), (second, second, 3, 1)]
    updates = spark.createDataFrame(rows, "a TIMESTAMP, n TIMESTAMP_NTZ, _ts LONG, _diff LONG")
    sink = SinkDescription(name="out", on="in", format="kafka", envelope=envelope, key=("a", "n"))
    messages = as_messages(shape_rows(updates, sink), sink).collect()
    keys = spark.createDataFrame([(row.key,) for row in messages], "j STRING")
    read = keys.select(F.from_json("j", "a TIMESTAMP, n TIMESTAMP_NTZ").alias("k")).select("k.*")
    assert sorted(map(tuple, read.collect())) == [(first, first), (second, second)]
    if envelope == "upsert":
        assert [row.value is None for row in sorted(messages)] == [True, False]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_a_key_has_its_text_for_ever(spark: SparkSession, zone: str) -> None:
    """As Spark writes it in UTC, which older messages have; with microseconds where they count."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    text = "2026-01-01T00:00:00"
    times = {f"{text}.001": ".001", f"{text}.000001": ".000001", text: ".000"}
    rows = [*enumerate(times)]
    texts = session.createDataFrame(rows, "n INT, at STRING")
    at = F.to_timestamp(F.concat("at", F.lit("Z")))
    frame = texts.select("n", at.alias("t"), F.to_timestamp_ntz("at").alias("u"))
    own = frame.select("n", key_text(frame, {"n": F.col("n"), "t": F.col("t"), "u": F.col("u")}))
    found = dict(map(tuple, own.collect()))
    assert [json.loads(found[n]) for n in range(len(times))] == [
        {"n": n, "t": f"{text}{part}Z", "u": f"{text}{part}"}
        for n, part in enumerate(times.values())
    ]
    inner = frame.select("n", F.struct("t").alias("s"))
    deep = dict(map(tuple, inner.select("n", key_text(inner, {"s": F.col("s")})).collect()))
    assert [json.loads(deep[n])["s"]["t"][19:] for n in range(len(times))] == [
        f"{float(part):.6f}Z"[1:] for part in times.values()
    ]
    nulls = frame.select("n", F.lit(None).cast("timestamp").alias("t"))
    assert nulls.select(key_text(nulls, {"n": F.col("n"), "t": F.col("t")})).first() == ('{"n":0}',)


@pytest.mark.parametrize("envelope", ["upsert", "debezium"])
def test_columns_may_have_any_name(spark: SparkSession, envelope: Any) -> None:
    """Also those that rows of other envelopes have; in the key, too."""
    names = ("_row", "_rows", "before", "after", "_gone", "_there", "_key_0", "op", "ts_ms")
    rows = [(*range(1, len(names) + 1), 3, 1)]
    updates = spark.createDataFrame(rows, [*names, "_ts", "_diff"])
    sink = SinkDescription(name="out", on="in", format="kafka", envelope=envelope, key=names[:6])
    (message,) = as_messages(shape_rows(updates, sink), sink).collect()
    row = {name: number for number, name in enumerate(names, 1)}
    assert json.loads(message.key) == {name: row[name] for name in names[:6]}
    found = json.loads(message.value)
    assert (found["after"] if envelope == "debezium" else found) == row


def test_a_column_of_a_name_that_the_envelope_adds_is_refused(spark: SparkSession) -> None:
    """In any case, as to Spark both are one."""
    updates = spark.sql("SELECT 1 k, true _Deleted, 3L _ts, 1L _diff")
    sink = SinkDescription(name="out", on="in", format="kafka", envelope="upsert", key=("k",))
    with pytest.raises(InvalidUsage, match=r"RESERVED_NAME.*'_Deleted'"):
        shape_rows(updates, sink)
    diffs = SinkDescription(name="out", on="in", format="kafka", envelope="diff")
    assert shape_rows(updates, diffs).columns == ["k", "_Deleted", "_ts", "_diff"]
