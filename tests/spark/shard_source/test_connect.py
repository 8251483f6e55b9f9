"""`format("shard")` through Spark Connect, where the client's process holds no JVM.

A process that has a classic session cannot have a remote one, so the client is a process of its
own; its `.remote("local[2]")` brings its own server. Needs what `pip install "pyspark[connect]"`
brings; this project does not depend on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.tree import ROOT

for needed in ("grpc", "grpc_status", "zstandard"):
    pytest.importorskip(needed, reason='Spark Connect needs pip install "pyspark[connect]"')

pytestmark = [pytest.mark.spark, pytest.mark.slow]


CLIENT = """
import glob, json, os, sys
from pyspark.sql import SparkSession, functions as F

place = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
seen = {"session": type(spark).__module__}


def ids(name):
    return sorted(row.id for row in spark.read.format("shard").load(f"{place}/{name}").collect())


def append(name, *values):
    frame = spark.createDataFrame([(n,) for n in values], "id bigint")
    frame.write.format("shard").mode("append").save(f"{place}/{name}")


def streamed(name):
    return spark.readStream.format("shard").option("readChangeFeed", "true").load(f"{place}/{name}")


def drain(writer, checkpoint):
    writer = writer.option("checkpointLocation", f"{place}/{checkpoint}")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300), "the query did not end"
    assert query.exception() is None, query.exception()


def transactional(frame, number):
    frame.select("id").write.format("shard").mode("append").option(
        "txnAppId", "copy").option("txnVersion", number).option(
        "checkpointLocation", f"{place}/copying").save(f"{place}/copied")


append("in", 1, 2, 3)
seen["batch"] = ids("in")
counts = streamed("in").groupBy(F.expr("id % 2 as id")).agg(F.sum("_diff").alias("n"))
sink = counts.writeStream.outputMode("complete").format("shard").option("path", f"{place}/counts")
for more in ((), (5, 7)):
    append("in", *more) if more else None
    drain(sink, "counting")
    drain(streamed("in").writeStream.foreachBatch(transactional), "copying")
rows = spark.read.format("shard").load(f"{place}/counts").collect()
seen["counts"] = sorted([row.id, row.n] for row in rows)
seen["copied"] = ids("copied")
spark.sql(f"CREATE TEMPORARY VIEW v USING shard OPTIONS (path '{place}/in')")
seen["sql"] = spark.sql("SELECT count(*) AS n FROM v").first().n
try:
    spark.read.format("shard").option("timestampAsof", "soon").load(f"{place}/in").collect()
except Exception as error:
    seen["refusal"] = str(error)
append("in", 9)
last = max(glob.glob(f"{place}/copying/commits/[0-9]*"), key=lambda one: int(one.split("/")[-1]))
for name in (last, last.replace("/commits/", "/offsets/")):
    os.remove(name)
    os.remove(os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.crc"))
try:
    drain(streamed("in").writeStream.foreachBatch(transactional), "copying")
except Exception as error:
    seen["rolled back"] = str(error)
print(json.dumps(seen))
spark.stop()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a client saw, in one session."""
    place = tmp_path_factory.mktemp("connect")
    client = place / "client.py"
    client.write_text(CLIENT)
    settings = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(ROOT / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(client), str(place)],
        cwd=place, env={**settings, **os.environ},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in said["session"]
    return said


def test_the_format_is_there_without_a_call(seen: dict[str, Any]) -> None:
    """A client's session finds, writes and reads shards, in the DataFrame API and in SQL."""
    assert seen["batch"] == [1, 2, 3]
    assert seen["sql"] == 5


def test_streams_go_on_from_their_checkpoint(seen: dict[str, Any]) -> None:
    """A stream from a shard into a shard, restarted, has taken in each row once."""
    assert seen["counts"] == [[0, 1], [1, 4]]


def test_for_each_batch_writes_exactly_once(seen: dict[str, Any]) -> None:
    """`foreachBatch` runs in a Python process of the server and can write shards there."""
    assert seen["copied"] == [1, 2, 3, 5, 7]


def test_a_checkpoint_that_is_rolled_back_loses_nothing_silently(seen: dict[str, Any]) -> None:
    """The write names the checkpoint, as nothing else tells which query it is of."""
    assert "[OTHER_RANGE]" in seen["rolled back"]


def test_refusals_keep_their_code(seen: dict[str, Any]) -> None:
    """An error of the source reaches the client with code and hint."""
    assert "[INVALID_OPTION] option 'timestampAsOf' cannot be 'soon'" in seen["refusal"]
