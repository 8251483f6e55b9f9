"""A process with a SparkSession and two queries, which copy the changes of one shard to another.

    arrow     format("shard") to format("shard"): rows through Python workers
    native    foreachBatch with `shardline.micro_batch` and `shardline.save`

A query that fails is started again from its checkpoint; a process whose JVM is gone ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from shardline import datasource
from shardline.app.spark_session import open_session
from shardline.datasource.clock import SystemClock
from soak.child import Place, Task, say, take_task
from soak.known import COPIES, SOURCE

__all__: list[str] = []

_FAILURES_MAX: Final = 40
"""A query that fails so often without a micro-batch in between cannot be helped."""

_PAUSE_MS: Final = 200.0
_TRIGGER: Final = "200 milliseconds"
_MEMORY: Final = "700m"


def _main(task: Task) -> None:
    folder = Path(task.place.folder)
    spark = open_session(
        "shardline soak",
        {
            "spark.master": task.master,
            "spark.driver.memory": _MEMORY,
            "spark.executor.memory": "512m",
            "spark.local.dir": str(folder / "spark"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.minBatchesToRetain": "20",
        },
    )
    spark.sparkContext.setLogLevel("FATAL")
    say({"ready": spark.sparkContext.applicationId, "home": _find_spark_home()})
    try:
        _keep_running(spark, task.place)
    except (Py4JError, OSError) as error:
        say({"ended": type(error).__name__})


def _keep_running(spark: SparkSession, place: Place) -> None:
    clock, never = SystemClock(), threading.Event()
    start: dict[str, Callable[[], StreamingQuery]] = {
        "arrow": lambda: _arrow(spark, place),
        "native": lambda: _native(spark, place),
    }
    running = {name: start[name]() for name in COPIES}
    failures = dict.fromkeys(COPIES, 0)
    while True:
        for name, query in running.items():
            if query.isActive:
                if query.recentProgress:
                    failures[name] = 0
                continue
            failures[name] += 1
            say({"restarts": name, "after": str(query.exception())[:400]})
            assert failures[name] < _FAILURES_MAX, name
            running[name] = start[name]()
        clock.wait(never, _PAUSE_MS)


def _changes(spark: SparkSession, place: Place, name: str) -> DataFrame:
    feed = (
        spark.readStream.format("shard")
        .options(**place.storage)
        .option("readChangeFeed", "true")
        .option("hold", f"soak-{name}")
        .option("leaseMs", place.lease_ms)
    )
    return feed.load(f"{place.url}/{SOURCE}").drop("_ts")


def _arrow(spark: SparkSession, place: Place) -> StreamingQuery:
    return (
        _changes(spark, place, "arrow")
        .writeStream.queryName("arrow")
        .format("shard")
        .options(**place.storage)
        .option("envelope", "diff")
        .option("rollupEvery", place.rollup_every)
        .option("checkpointLocation", f"{place.folder}/checkpoint-arrow")
        .trigger(processingTime=_TRIGGER)
        .start(f"{place.url}/arrow")
    )


def _native(spark: SparkSession, place: Place) -> StreamingQuery:
    def copy(frame: DataFrame, number: int) -> None:
        changes = datasource.micro_batch(frame, number).drop("_ts")
        datasource.save(
            changes,
            f"{place.url}/native",
            txn=("soak-native", number),
            storage=place.storage,
            options={"rollupEvery": place.rollup_every},
        )

    return (
        _changes(spark, place, "native")
        .writeStream.queryName("native")
        .foreachBatch(copy)
        .option("checkpointLocation", f"{place.folder}/checkpoint-native")
        .trigger(processingTime=_TRIGGER)
        .start()
    )


if __name__ == "__main__":
    _main(take_task())
