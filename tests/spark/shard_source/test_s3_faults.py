"""Spark over an unreliable wire: a stream from shard to shard while 15 of 100 requests go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.settings import ShardSettings
from support.faults.fault_proxy import FaultProxy, fault_proxy
from support.processes.s3_server import S3Server, options_for, s3_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

RESTARTS_MAX = 10


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.host, server.port, seed=20261121) as running:
        yield running


def contents(client: ShardClient, name: str) -> Counter[tuple[Any, ...]]:
    with client.reader(name) as reader:
        table = reader.snapshot()
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.night
def test_a_stream_from_shard_to_shard_over_an_unreliable_wire(
    spark: SparkSession, server: S3Server, proxy: FaultProxy, checkpoint: str
) -> None:
    """Batch writes, retractions, a stream, merges and collection: contents as without faults."""
    place = f"s3://{server.new_bucket()}/läke"
    # The oracle looks past the proxy, and says what should be there by itself.
    direct = ShardClient.open(place, server.options, settings=ShardSettings(rollup_every=8))
    options = {**options_for(proxy.endpoint), "s3.read-timeout-ms": "5000", "rollupEvery": "8"}
    expected: Counter[tuple[Any, ...]] = Counter()

    def write(frame: DataFrame, number: int) -> None:
        again = {"txnAppId": "writer", "txnVersion": str(number)}
        frame.write.format("shard").mode("append").options(**options, **again).save(f"{place}/in")

    def stream() -> None:
        feed = spark.readStream.format("shard").options(**options, readChangeFeed="true")
        query = (
            feed.load(f"{place}/in")
            .drop("_ts")
            .writeStream.format("shard")
            .options(**options, envelope="diff", inlinePartBytes="0")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(f"{place}/out")
        )
        try:
            assert query.awaitTermination(120), "it hangs"
        finally:
            query.stop()

    write(spark.range(0).selectExpr("id", "id % 7 as k", "1L as _diff"), 0)
    proxy.probability = 0.15
    for number in range(1, 4):
        ids = range(100 * number, 100 * number + 100)
        frame = spark.range(ids.start, ids.stop).selectExpr("id", "id % 7 as k", "1L as _diff")
        gone = spark.range(ids.start - 100, ids.start - 90) if number > 1 else spark.range(0)
        frame = frame.union(gone.selectExpr("id", "id % 7 as k", "-1L as _diff"))
        expected.update((i, i % 7) for i in ids)
        expected.subtract((i, i % 7) for i in range(ids.start - 100, ids.start - 90) if number > 1)
        attempts(lambda frame=frame, number=number: write(frame, number))
        attempts(stream)
        direct.compact("in", force=number == 2)
        direct.collect_garbage("in")
    batch = spark.read.format("shard").options(**options)
    found = Counter(map(tuple, batch.load(f"{place}/out").collect()))
    proxy.calm()

    assert found == contents(direct, "in") == contents(direct, "out") == +expected
    assert sum(proxy.injected.values()) > 0.08 * sum(proxy.requests.values())
    assert len(proxy.injected) > 8, proxy.injected


def attempts(run: Any) -> None:
    """Repeat what failed because the store could not be reached, as a supervisor does."""
    for _ in range(RESTARTS_MAX):
        try:
            run()
        except Exception as error:
            if not any(code in str(error) for code in ("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN")):
                raise
        else:
            return
    raise AssertionError(f"failed {RESTARTS_MAX} times")
