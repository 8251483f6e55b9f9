"""Frames into several shards at once, and the ordinary ways to write and read registered shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.spark_native import transaction as module
from shardline.datasource.spark_native.save import NativeWrite
from shardline.datasource.types.schema import ShardSchema
from support.models.shards import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def frame(spark: SparkSession, *some: tuple[int, str]) -> DataFrame:
    return spark.createDataFrame(list(some), "id bigint, v string").coalesce(1)


def contents(location: str, name: str) -> Counter[Any]:
    with ShardClient.open(location).reader(name) as reader:
        return rows(reader.snapshot())


def shown(read: DataFrame) -> Counter[Any]:
    return Counter(tuple(row) for row in read.collect())


@pytest.mark.parametrize("native", [True, False])
def test_frames_go_into_several_shards_together(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """Staged by Spark's writer or by tasks; all at one time, or after an error nothing at all."""
    if not native:
        monkeypatch.setattr(module, "plan_native_write", lambda *_: None)
    with datasource.transaction(spark, location) as t:
        t.append("orders", frame(spark, (1, "a"), (2, "b")), key=["id"])
        t.overwrite("customers", frame(spark, (7, "x")))
    with datasource.transaction(spark, location) as t:
        assert shown(t.read("customers")) == Counter([(7, "x")])
        t.append("orders", frame(spark, (3, "c")))
        t.overwrite("customers", frame(spark, (7, "x"), (8, "y")))
    parts = set(Path(location).rglob("*.parquet"))

    def halfway() -> None:
        with datasource.transaction(spark, location) as t:
            t.append("orders", frame(spark, *((n, "lost" * 50) for n in range(500))))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        halfway()

    assert contents(location, "orders") == Counter([(1, "a"), (2, "b"), (3, "c")])
    assert contents(location, "customers") == Counter([(7, "x"), (8, "y")])
    assert set(Path(location).rglob("*.parquet")) == parts
    orders, customers = ShardClient.open(location).readable("orders", "customers")
    assert orders.upper == customers.upper
    read = spark.read.format("shard").option("location", location)
    assert shown(read.option("shard", "customers").load()) == Counter([(7, "x"), (8, "y")])


@pytest.mark.parametrize("call", ["append", "overwrite"])
def test_arguments_of_a_wrong_kind_are_refused_by_their_names(
    spark: SparkSession, location: str, call: str
) -> None:
    """A text is a sequence of letters: of key `id` it would make the key (i, d)."""
    letters = spark.createDataFrame([(1, 2, 3)], "i int, d int, id int")
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("orders", letters), {"key": "id"}, r"'key' cannot be 'id'"),
        ((letters, "orders"), {}, r"was given str for the rows"),
        (("orders", pa.table({"id": [1]})), {}, r"was given Table for the rows"),
    ]
    for given, named, told in wrong:
        with datasource.transaction(spark, location) as t, pytest.raises(InvalidUsage, match=told):
            getattr(t, call)(*given, **named)
    assert ShardClient.open(location).shards() == []
    with pytest.raises(InvalidUsage, match="'storage' cannot be 'str'"):
        datasource.transaction(spark, location, storage="s3.endpoint")  # type: ignore[arg-type]
    flags: Any = {"s3.path-style": True}
    with datasource.transaction(spark, location, storage=flags) as t:
        t.append("orders", letters, key=["id"])
    assert datasource.snapshot(spark, f"{location}/orders", storage=flags).count() == 1


@pytest.mark.parametrize("native", [True, False])
def test_a_name_of_a_column_is_no_path(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """A dot in it leads into no struct, nor has a backtick a meaning; a key is a list of names."""
    if not native:
        monkeypatch.setattr(module, "plan_native_write", lambda *_: None)
    named = spark.range(2).selectExpr("id AS `a.b`", "'x' AS `c``d`", "struct(7 AS b) AS a")
    with datasource.transaction(spark, location) as t:
        t.append("odd", named, key=["a.b"])
        with pytest.raises(InvalidUsage, match=r"key=\['a.b'\]"):
            t.append("other", named, key="a.b")
    with ShardClient.open(location).reader("odd") as reader:
        found = [tuple(row.values()) for row in reader.snapshot().to_pylist()]
    assert sorted(found) == [(0, "x", {"b": 7}), (1, "x", {"b": 7})]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("call", ["append", "overwrite"])
def test_rows_of_a_shard_that_is_gone_are_refused(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch, native: bool, call: str
) -> None:
    """A shard that is made again during Spark's job has other columns: nobody could read them."""
    if not native:
        monkeypatch.setattr(module, "plan_native_write", lambda *_: None)
    client = ShardClient.open(location)

    def make(*columns: tuple[str, pa.DataType]) -> None:
        client.create("orders", ShardSchema.from_arrow(pa.schema(columns)))

    make(("id", pa.int64()), ("v", pa.string()))

    for of, name in ((module, "stage_by_tasks"), (NativeWrite, "stage")):
        real = getattr(of, name)

        def stage_and_make_again(*given: Any, real: Any = real) -> Any:
            monkeypatch.undo()
            staged = real(*given)
            client.drop("orders")
            make(("id", pa.string()), ("v", pa.int64()))
            return staged

        monkeypatch.setattr(of, name, stage_and_make_again)
    many = frame(spark, *((n, "lost" * 50) for n in range(500)))
    with (
        pytest.raises(InvalidUsage, match="SHARD_CHANGED"),
        datasource.transaction(spark, location) as t,
    ):
        getattr(t, call)("orders", many)
    assert contents(location, "orders") == Counter()
    assert not [*Path(location).rglob("*.parquet")]


def test_a_micro_batch_goes_into_two_shards_once(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """`foreachBatch` with `txn`, run again after it has committed, has no effect twice."""
    client = ShardClient.open(location)
    with datasource.transaction(spark, location) as t:
        t.append("in", frame(spark, (1, "a")))

    def each(found: DataFrame, batch: int) -> None:
        for _ in range(2):
            with datasource.transaction(spark, location, txn=("split", batch)) as t:
                t.append("odd", found.where("id % 2 = 1"))
                t.append("even", found.where("id % 2 = 0"))

    def run() -> None:
        source = spark.readStream.format("shard").option("path", f"{location}/in").load()
        query = source.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    with datasource.transaction(spark, location) as t:
        t.append("in", frame(spark, (2, "b"), (3, "c")))
    run()
    client.transactions().advance()

    assert contents(location, "odd") == Counter([(1, "a"), (3, "c")])
    assert contents(location, "even") == Counter([(2, "b")])


def test_the_sink_writes_into_a_registered_shard(
    spark: SparkSession, location: str, checkpoint: str
) -> None:
    """Batch and stream, append and overwrite: as into any other shard, and exactly once."""
    client = ShardClient.open(location)

    def write(name: str, mode: str, version: int, *some: tuple[int, str]) -> None:
        out = frame(spark, *some).write.format("shard").option("path", f"{location}/{name}")
        out = out.option("txnAppId", "etl").option("txnVersion", version)
        out.mode(mode).save()

    write("out", "append", 1, (1, "a"))
    client.transactions().register("out")
    write("out", "append", 1, (1, "a"))
    write("out", "append", 2, (2, "b"))
    client.transactions().forget("out")
    write("out", "append", 2, (2, "b"))
    client.transactions().register("out")
    write("out", "overwrite", 3, (2, "b"), (3, "c"))
    datasource.save(frame(spark, (4, "d")), f"{location}/out", txn=("saved", 1))
    datasource.save(frame(spark, (4, "d")), f"{location}/out", txn=("saved", 1))
    assert contents(location, "out") == Counter([(2, "b"), (3, "c"), (4, "d")])

    source = spark.readStream.format("shard").option("path", f"{location}/out").load()
    query = source.writeStream.format("shard").option("checkpointLocation", checkpoint)
    client.create("copy", datasource_schema(client, "out"))
    client.transactions().register("copy")
    query.option("path", f"{location}/copy").trigger(availableNow=True).start().awaitTermination()
    assert contents(location, "copy") == Counter([(2, "b"), (3, "c"), (4, "d")])
    assert set(client.transactions().registered()) == {"copy", "out"}


def datasource_schema(client: ShardClient, name: str) -> Any:
    from shardline.datasource.read import current_schema

    return current_schema(client.state(name))
