"""Native reads and writes by s3a: which requests they make, and through what they get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shardline import datasource
from shardline.datasource.client import ShardClient
from support.faults.fault_proxy import FaultProxy, fault_proxy
from support.processes.s3_server import options_for, s3_server
from support.spark import stored
from support.spark.native import collected
from support.spark.s3a import CHOSEN, server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3a,
    pytest.mark.skipif(not CHOSEN, reason="SHARDLINE_TEST_S3A=true has Spark fetch s3a's jars"),
]

MANY = 2_000
"""Rows that are too many to be staged again by the driver."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Everything goes through it, of buckets that are given to `reach_by`."""
    with fault_proxy(server().host, server().port, seed=20261127) as running:
        yield running


def reach_by(spark: SparkSession, bucket: str, endpoint: str) -> None:
    """Let s3a find a bucket, of which it has read nothing yet, behind an endpoint of its own."""
    conf = spark._jsc.hadoopConfiguration()
    conf.set(f"fs.s3a.bucket.{bucket}.endpoint", endpoint)


def test_no_file_is_copied(spark: SparkSession, proxy: FaultProxy, checkpoint: str) -> None:
    """Of an object store a renamed file is a copy, which Hadoop's way to commit makes twice.

    What is there in the end is what the records name.
    """
    bucket = server().new_bucket()
    reach_by(spark, bucket, proxy.endpoint)
    place, options = f"s3://{bucket}/lake", options_for(proxy.endpoint)
    datasource.save(spark.range(0, MANY, 1, 4), f"{place}/saved", storage=options)
    spark.range(0, MANY, 1, 4).write.format("shard").options(**options).mode("append").save(
        f"{place}/appended"
    )
    feed = spark.readStream.format("shard").options(**options).load(f"{place}/saved")
    writer = feed.writeStream.format("shard").options(**options, nativeWrites="true")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    assert writer.start(f"{place}/streamed").awaitTermination(120)

    assert proxy.requests["PUT"] >= 12
    assert proxy.requests["COPY"] == 0
    there = ShardClient.open(place, options)
    for name in ("saved", "appended", "streamed"):
        assert set(stored.makers(place, name)) == {"native"}
        known = {p.key for b in there.state(name).trace.batches for p in b.parts}
        entries = {entry.key for entry in there.location.blob.list(f"{name}/part/")}
        assert entries == known
        frame = datasource.snapshot(spark, f"{place}/{name}", options=options)
        assert collected(frame) == [(n,) for n in range(MANY)]


def test_rows_are_right_through_faults(
    spark: SparkSession, proxy: FaultProxy, native_reads: NativeReads
) -> None:
    """Answers that are lost, late, wrong or cut: a write that returns is there once, and read."""
    bucket = server().new_bucket()
    reach_by(spark, bucket, proxy.endpoint)
    place, options = f"s3://{bucket}/lake", options_for(proxy.endpoint)
    datasource.save(spark.range(1), f"{place}/in", storage=options)
    proxy.kinds = ("lost_response", "reset_before", "e500_before", "e500_after", "e503", "late")
    proxy.probability = 0.15
    for number in range(5):
        rows = spark.range(number * MANY, (number + 1) * MANY, 1, 2).selectExpr("id + 1 AS id")
        datasource.save(rows, f"{place}/in", storage=options, txn=("me", number))
    loaded = spark.read.format("shard").options(**options).load(f"{place}/in")
    assert Counter(row.id for row in loaded.collect()) == Counter(range(5 * MANY + 1))
    proxy.calm()
    assert native_reads.counts() == {"native": 1}
    assert sum(proxy.injected.values()) > 3
    assert "native" in stored.makers(place, "in")


def test_another_store_has_a_bucket_of_that_name(spark: SparkSession) -> None:
    """Spark would write there, where no reader looks: Python workers write, and leave nothing."""
    bucket = server().new_bucket()
    with s3_server() as other:
        assert other.request("PUT", f"/{bucket}")[0] == 200
        reach_by(spark, bucket, other.endpoint)
        datasource.save(spark.range(MANY), f"s3://{bucket}/lake/in")
        loaded = spark.read.format("shard").load(f"s3://{bucket}/lake/in")
        assert loaded.count() == MANY
        assert b"<Key>" not in other.request("GET", f"/{bucket}?list-type=2")[1]
    assert set(stored.makers(f"s3://{bucket}/lake", "in")) == {"workers"}
