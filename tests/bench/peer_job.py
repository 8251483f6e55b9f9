"""Times one table format beside Spark's own Parquet, in a process and an environment of its own.

    python peer_job.py FORMAT DATA FOLDER ROUNDS [PACKAGES]

Runs under whatever Spark its environment has, so it imports nothing of this project but, for the
format `shard`, what a user imports. Prints one line of JSON: Spark's version, and for each question
the seconds of Parquet and of the format, best of all rounds but the first, taken in turns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NARROW = ("l_orderkey", "l_quantity")
_PRUNED = 46
"""Orders of one in so many are left by the filter."""

_COMMITS = 20
_COMMITTED_ROWS = 20_000

_SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    },
    "shard": {},
}


class Tables:
    """Tables of one format, by name, below a folder."""

    def __init__(self, kind: str, folder: Path, spark: SparkSession) -> None:
        self.kind = kind
        self.folder = folder
        self.spark = spark

    def read(self, name: str) -> DataFrame:
        if self.kind == "iceberg":
            return self.spark.table(f"ice.{name}")
        return self.spark.read.format(self.kind).load(self._path(name))

    def append(self, frame: DataFrame, name: str) -> None:
        if self.kind == "iceberg":
            made = self.spark.catalog.tableExists(f"ice.{name}")
            writer = frame.writeTo(f"ice.{name}").using("iceberg")
            writer.append() if made else writer.create()
        else:
            frame.write.format(self.kind).mode("append").save(self._path(name))

    def _path(self, name: str) -> str:
        return str(self.folder / self.kind / name)


def main(kind: str, data: str, folder: str, rounds: str, packages: str = "") -> None:
    """Measure, and print what was found."""
    if kind == "shard":
        import shardline  # noqa: F401 - its reads are native from here on
    from pyspark.sql import SparkSession

    place = Path(folder)
    builder = SparkSession.builder.master("local[2]").appName(f"peer {kind}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.sql.catalog.ice.warehouse": str(place / "iceberg"),
        **({"spark.jars.packages": packages} if packages else {}),
        **_SETTINGS[kind],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found = measure(spark, kind, data, place, int(rounds))
    print(json.dumps({"spark": spark.version, "seconds": found}), flush=True)
    spark.stop()


def measure(
    spark: SparkSession, kind: str, data: str, place: Path, rounds: int
) -> dict[str, dict[str, float]]:
    """Seconds of each question, by Parquet and by the format."""
    rows = spark.read.parquet(data)
    sides = {one: Tables(one, place, spark) for one in ("parquet", kind)}
    for tables in sides.values():
        tables.append(rows, "lineitem")
    least, most = rows.selectExpr("min(l_orderkey)", "max(l_orderkey)").collect()[0]
    some = f"l_orderkey < {least + (most - least) // _PRUNED}"
    numbers = iter(range(1_000_000))
    tiny = rows.limit(_COMMITTED_ROWS).cache()
    tiny.count()

    def commits(tables: Tables) -> None:
        name = f"commits{next(numbers)}"
        for _ in range(_COMMITS):
            tables.append(tiny, name)

    questions: dict[str, Callable[[Tables], Any]] = {
        "read 16 columns": lambda t: _consume(t.read("lineitem")),
        "`.select` of 2 columns": lambda t: _consume(t.read("lineitem").select(*_NARROW)),
        "`.where` that keeps 1/46, count": lambda t: t.read("lineitem").where(some).count(),
        "write": lambda t: t.append(rows, f"written{next(numbers)}"),
        f"{_COMMITS} commits of {_COMMITTED_ROWS // 1000}k rows": commits,
    }
    return {
        name: _in_turns(rounds, {one: partial(ask, tables) for one, tables in sides.items()})
        for name, ask in questions.items()
    }


def _seconds() -> float:
    return time.perf_counter()  # noqa: TID251 - there is no `Clock` in a peer's environment


def _consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _in_turns(rounds: int, cases: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for number in range(rounds + 1):
        for name, case in cases.items():
            began = _seconds()
            case()
            if number:  # the first round starts processes and compiles code
                best[name] = min(best[name], _seconds() - began)
    return best


if __name__ == "__main__":
    main(*sys.argv[1:])
