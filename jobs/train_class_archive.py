"""Load what most commands load, so that a JVM that archives its classes at exit archives those.

    SPARK_SUBMIT_OPTS=-XX:ArchiveClassesAtExit=FILE python -m shardline.jobs.train_class_archive

`spark-submit.sh` runs it once for each environment and Java, and gives every later JVM the file
(`-XX:SharedArchiveFile`, Java's class-data sharing). Half of the processor time until the first
query of a new JVM has its result is the reading, checking and linking of some fifteen thousand
classes, which the archive holds as they are in memory.

A class that is missing here is loaded in the usual way: more work here makes the file larger, and
no result different.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardline.app.spark_session import open_session, settings_within
from shardline.app.testing import Lab

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_COLUMNS: Final = "id INT, price INT"

_PROJECT: Final = """
CREATE SOURCE orders USING csv OPTIONS (path '/none') SCHEMA (id INT, price INT, day DATE);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW daily AS
  SELECT o.day, count(*) AS n, sum(l.price) AS total FROM orders o JOIN large l USING (id)
  GROUP BY o.day;
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return when the JVM has ended and its archive is written; the status is 0."""
    del arguments
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session("class archive", settings_within(Path(scratch)))
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no other door to the JVM
        _load_files_and_streams(spark, Path(scratch))
        _load_views(spark)
        spark.stop()
    # PySpark leaves the JVM to end by itself once its input is closed, which it archives after.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return 0


def _load_files_and_streams(spark: SparkSession, folder: Path) -> None:
    for name, text in (("csv", "id,price\n1,60\n2,10\n"), ("json", '{"id": 1, "price": 60}\n')):
        (folder / name).mkdir()
        (folder / name / f"a.{name}").write_text(text)
        rows = spark.read.schema(_COLUMNS).option("header", "true").format(name)
        rows.load(f"{folder}/{name}").write.mode("append").parquet(f"{folder}/parquet")
    kept = spark.read.parquet(f"{folder}/parquet")
    kept.createOrReplaceTempView("kept")
    spark.sql(
        "SELECT id, rank() OVER (PARTITION BY id ORDER BY n)"
        " FROM (SELECT id, count(*) AS n FROM kept GROUP BY id)"
    ).toArrow()
    location = f"{folder}/shards"
    kept.write.format("shard").mode("append").save(f"{location}/kept")
    spark.read.format("shard").load(f"{location}/kept").collect()
    query = (
        spark.readStream.schema(_COLUMNS)
        .option("header", "true")
        .csv(f"{folder}/csv")
        .writeStream.foreachBatch(_load_micro_batch)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _load_micro_batch(rows: DataFrame, batch: int) -> None:
    del batch
    rows.toArrow()


def _load_views(spark: SparkSession) -> None:
    with Lab(spark, _PROJECT) as lab:
        lab.push("orders", [(1, 60, None), (2, 10, None)], at=1000)
        lab.advance(2000)
        lab.contents("daily").collect()


if __name__ == "__main__":
    sys.exit(main())
