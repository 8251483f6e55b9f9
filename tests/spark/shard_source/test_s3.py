"""`format("shard")` on S3, against a real server process: the same promises as on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.client import ShardClient
from support.processes.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_write_stream_read(spark: SparkSession, server: S3Server, checkpoint: str) -> None:
    """A batch write, a stream with an aggregation behind it, and reads, all on a bucket."""
    options = server.options
    place = f"s3://{server.new_bucket()}/a lake"
    frame = spark.range(1000).selectExpr("id", "id % 3 as k")
    frame.write.format("shard").mode("append").options(**options).save(f"{place}/in")
    frame.where("id < 10").selectExpr("*", "-1L as _diff").write.format("shard").mode(
        "append"
    ).options(**options).save(f"{place}/in")
    feed = spark.readStream.format("shard").options(**options, readChangeFeed="true")
    counts = feed.load(f"{place}/in").groupBy("k").agg({"_diff": "sum"}).toDF("k", "n")
    query = (
        counts.writeStream.format("shard")
        .outputMode("complete")
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(f"{place}/out")
    )

    assert query.awaitTermination(120)
    back = spark.read.format("shard").options(**options).load(f"{place}/out")
    assert Counter(map(tuple, back.collect())) == Counter([(0, 330), (1, 330), (2, 330)])
    shards = ShardClient.open(place, options, create=False).shards()
    assert shards == ["in", "out"]


def test_plain_reads_are_left_to_python_without_s3a(
    spark: SparkSession,
    server: S3Server,
    native_reads: NativeReads,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Batch and stream, where Spark has no file system for S3: shown, counted, said once."""
    options = server.options
    place = f"s3://{server.new_bucket()}/a lake"
    frame = spark.range(100).selectExpr("id", "id % 3 as k")
    writer = frame.write.format("shard").mode("append").options(**options, inlinePartBytes="0")
    writer.save(f"{place}/in")
    loaded = spark.read.format("shard").options(**options).load(f"{place}/in")
    assert loaded.where("id < 10").selectExpr("sum(id)").collect() == [(45,)]
    stream = spark.readStream.format("shard").options(**options).load(f"{place}/in")
    seen: list[int] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: seen.extend(r.id for r in batch.collect()))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(seen) == list(range(100))

    reason = "Spark has no file system for 's3'"
    assert native_reads.counts() == {f"left: {reason}": 2}
    for plan in (loaded._jdf.queryExecution().toString(), query._jsq.explainInternal(False)):
        assert f"not native: {reason}" in plan
    said = [r.getMessage() for r in caplog.records if "Python workers" in r.getMessage()]
    assert said == [f'reads of format("shard") are left to Python workers: {reason}']


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"s3.endpoint": "http://127.0.0.1:9"}, r"\[STORE_UNAVAILABLE\].*'http://127.0.0.1:9'"),
        ({"s3.endpint": "x"}, r"\[UNKNOWN_\w+\].*'s3.endpoint'"),
    ],
)
def test_bad_options(
    spark: SparkSession, server: S3Server, change: dict[str, str], message: str
) -> None:
    """A server that does not answer, and an unknown option, are told as such."""
    options = {**server.options, **change}

    with pytest.raises(Exception, match=message):
        spark.range(1).write.format("shard").mode("append").options(**options).save(
            f"s3://{server.new_bucket()}/lake/in"
        )


def test_a_missing_bucket(spark: SparkSession, server: S3Server) -> None:
    """A bucket that is not there is named, with what to do."""
    with pytest.raises(Exception, match=r"\[\w+\].*no-such-bucket"):
        spark.range(1).write.format("shard").mode("append").options(**server.options).save(
            "s3://no-such-bucket/lake/in"
        )
