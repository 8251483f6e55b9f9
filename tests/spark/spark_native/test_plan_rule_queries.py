"""Any query over plain reads of `format("shard")` has the rows of the same one over plain rows."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

import shardline
from shardline.datasource.rows.updates import stamp
from support.profiles import examples
from support.spark.native import client_at, fresh_rule, put
from support.strategies.frame_queries import Query, queries, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

SCHEMA: Final = "id bigint, t string, x double"
FLOATS: Final = [float("nan"), -0.0, 0.0, None, 1.5]


def rows(*numbers: int) -> pa.Table:
    texts = [None if n % 7 == 0 else f"t{n % 3}" for n in numbers]
    floats = pa.array([FLOATS[n % 5] for n in numbers], pa.float64())
    return pa.table({"id": pa.array(numbers, pa.int64()), "t": texts, "x": floats})


@pytest.fixture(scope="module")
def families(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, DataFrame]]]:
    """The same contents natively, by Arrow, and as rows of Spark's own."""
    location = str(tmp_path_factory.mktemp("queries"))
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    put(client, "in", 2, rows(*range(20, 40)))
    put(client, "in", 3, stamp(rows(3, 4, 25), 3, -1))
    put(client_at(location, inline_part_bytes=4096), "in", 4, rows(3, 3, 60))
    put(client, "other", 3, rows(*range(30, 50), 30))
    kept = [n for n in range(40) if n not in {3, 4, 25}]
    plain = {
        "now": rows(*kept, 3, 3, 60),
        "then": rows(*range(40)),
        "other": rows(*range(30, 50), 30),
    }
    loads: dict[str, dict[str, Any]] = {
        "now": {"shard": "in"},
        "then": {"shard": "in", "timestampAsOf": 2},
        "other": {"shard": "other"},
    }
    rule = ExitStack()
    installed = rule.enter_context(fresh_rule(spark))
    found: dict[str, dict[str, DataFrame]] = {
        "plain": {
            name: spark.createDataFrame([tuple(row.values()) for row in t.to_pylist()], SCHEMA)
            for name, t in plain.items()
        }
    }
    for path in ("native", "arrow"):
        spark.conf.set("spark.shardline.nativeReads", str(path == "native").lower())
        found[path] = {
            name: spark.read.format("shard").option("location", location).options(**o).load()
            for name, o in loads.items()
        }
        for frame in found[path].values():
            frame._jdf.queryExecution().optimizedPlan()
    spark.conf.unset("spark.shardline.nativeReads")
    assert installed.counts() == {"left: turned off": 3, "native": 3}
    yield found
    rule.close()


@pytest.mark.disk
@examples(0.5)
@given(queries)
def test_rows_are_those_of_plain_rows(
    spark: SparkSession, families: dict[str, dict[str, DataFrame]], query: Query
) -> None:
    """Self-joins at two times, subqueries, caches, unions, views, functions: on either path."""
    try:
        found = {path: shown(query.ask(frames)) for path, frames in families.items()}
    finally:
        spark.catalog.clearCache()
    assert found["native"] == found["plain"]
    assert found["arrow"] == found["plain"]


def test_a_load_that_is_left_to_the_workers_is_planned_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By two threads at the same time, as adaptive execution plans both sides of a self-join.

    Each plan has a lease of its own, by which two plans differ, and a latest time of its own.
    """
    put(client_at(str(tmp_path)), "in", 1, rows(1))
    with fresh_rule(spark):
        frame = spark.read.format("shard").option("nativeReads", "false").load(f"{tmp_path}/in")
        scan = frame._jdf.queryExecution().optimizedPlan().collectLeaves().head().scan()
    both = threading.Barrier(2)

    def planned() -> list[bytes]:
        both.wait()
        return [bytes(one.pickedPartition()) for one in scan.toBatch().planInputPartitions()]

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(planned) for _ in range(2)])
    assert first == second


@pytest.mark.parametrize("kind", ["BIGINT", "INT"])
def test_a_name_of_sparks_parquet_reader_is_a_name_like_others(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Spark would give the positions of rows in their files, and of no other type at all."""
    path, name = f"{tmp_path}/in", "_tmp_metadata_row_index"
    rows = spark.range(6000).selectExpr("id", f"CAST(id + 1000000 AS {kind}) AS {name}")
    with fresh_rule(spark):
        rows.write.format("shard").mode("append").save(path)
        ways = {
            "batch": spark.read.format("shard").load(path),
            "snapshot": shardline.snapshot(spark, path),
            "changes": shardline.changes(spark, path),
        }
        ends = {way: frame.agg(F.min(name), F.max(name)).collect() for way, frame in ways.items()}
    assert {way: tuple(found[0]) for way, found in ends.items()} == dict.fromkeys(
        ways, (1000000, 1005999)
    )


RUNTIME_FILTERS: Final = {
    "bloom": {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
        "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": str(2**63 - 1),
    },
    "partitions": {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly": "false",
        "spark.sql.optimizer.dynamicPartitionPruning.fallbackFilterRatio": "1e15",
    },
}
"""Settings by which Spark puts a subquery into a filter, after it has optimized the query's own."""

IN_PLAN: Final = {"bloom": "might_contain", "partitions": "dynamicpruning"}


@pytest.mark.parametrize("kind", RUNTIME_FILTERS)
@pytest.mark.parametrize("way", ["native", "workers"])
def test_a_filter_at_run_time_is_of_the_time_that_the_query_shows(
    spark: SparkSession, tmp_path: Path, kind: str, way: str
) -> None:
    """By another time it would leave out rows that match."""
    path, facts = f"{tmp_path}/in", f"{tmp_path}/facts"
    session = spark.newSession()
    rows = session.range(1000).selectExpr("id", "concat('n', id % 4) AS name")
    written = session.range(20_000).selectExpr("id AS number", "id % 10 AS f").write
    (written if kind == "bloom" else written.partitionBy("f")).parquet(facts)
    with fresh_rule(spark):
        session.conf.set("spark.shardline.nativeReads", str(way == "native").lower())
        rows.write.format("shard").mode("append").option("key", "id").save(path)
        some = session.read.format("shard").load(path).where("name = 'n1'")
        joined = session.read.parquet(facts).join(some, F.col("f") == some["id"])
        assert joined.count() == 6_000
        gone = rows.where("id >= 5").selectExpr("*", "true AS gone")
        upsert = gone.write.format("shard").mode("append").option("envelope", "upsert")
        upsert.option("deleteColumn", "gone").save(path)
        for name, value in RUNTIME_FILTERS[kind].items():
            session.conf.set(name, value)
        filtered = session.read.parquet(facts).join(some, F.col("f") == some["id"])
        assert IN_PLAN[kind] in filtered._jdf.queryExecution().optimizedPlan().toString()
        assert filtered.count() == 6_000
        assert session.read.format("shard").load(path).count() == 5


def test_partitions_are_pruned_by_a_shard_as_by_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What decides them is the broadcast of the join, which the subquery has to be equal to."""
    facts = f"{tmp_path}/facts"
    spark.range(2_000).selectExpr("id", "id % 20 AS f").write.partitionBy("f").parquet(facts)
    with fresh_rule(spark):
        path = f"{tmp_path}/in"
        rows = spark.range(20).selectExpr("id AS f", "concat('n', id) AS name")
        rows.write.format("shard").mode("append").save(path)
        few = F.broadcast(spark.read.format("shard").load(path).where("name = 'n7'"))
        joined = spark.read.parquet(facts).join(few, "f")
        assert len(joined.collect()) == 100
        plan = joined._jdf.queryExecution().executedPlan().toString()
        assert "dynamicpruningexpression(true)" not in plan
        assert "dynamicpruningexpression(" in plan
