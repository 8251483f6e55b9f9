"""Times one table format beside Spark's own Parquet, in a process and an environment of its own.

    python peer_job.py FORMAT DATA FOLDER ROUNDS [PACKAGES]

Runs under whatever Spark its environment has, so it imports nothing of this project but, for the
format `shard`, what a user imports. Prints one line of JSON: Spark's version, and for each question
what it cost with Parquet and with the format, taken in turns: seconds of the clock, and CPU seconds
of the driver's tree of processes, which other work on the machine disturbs less. Each is the least
of all rounds but the first, in which processes start and code is compiled.

Parquet cannot replace rows. The only way, against which upserts are compared, writes all rows anew.
"""

from __future__ import annotations

import json
import os
import shutil
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
_STREAMED = 50
"""Commits that a stream reads, of as many rows each."""

_KEY = ("l_orderkey", "l_linenumber")
_BUCKET = f"pmod(xxhash64({', '.join(_KEY)}, 7), 100)"
"""A number below 100 that each row has for ever: a hundredth of the rows has each."""

_REPLACED = 10
"""Hundredths of the rows that are replaced before the merged reads."""

Cost = dict[str, float]
Found = dict[str, dict[str, Cost]]

_SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
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

    def follow(self, name: str) -> DataFrame:
        """The same as a stream, from the first commit on."""
        reader = self.spark.readStream
        if self.kind == "iceberg":
            return reader.format("iceberg").load(f"ice.{name}")
        if self.kind == "parquet":
            return reader.schema(self.read(name).schema).parquet(self._path(name))
        return reader.format(self.kind).load(self._path(name))

    def append(self, frame: DataFrame, name: str) -> None:
        if self.kind == "iceberg":
            made = self.spark.catalog.tableExists(f"ice.{name}")
            writer = frame.writeTo(f"ice.{name}").using("iceberg")
            writer.append() if made else writer.create()
        else:
            frame.write.format(self.kind).mode("append").save(self._path(name))

    def create_keyed(self, frame: DataFrame, name: str) -> None:
        """A table of `frame` whose rows can be replaced by `_KEY`."""
        if self.kind == "iceberg":
            writer = frame.writeTo(f"ice.{name}").using("iceberg")
            for action in ("merge", "update", "delete"):
                writer = writer.tableProperty(f"write.{action}.mode", "merge-on-read")
            writer.tableProperty("format-version", "3").create()
            return
        options = {"key": ",".join(_KEY)} if self.kind == "shard" else {}
        frame.write.format(self.kind).options(**options).mode("append").save(self._path(name))

    def upsert(self, frame: DataFrame, name: str) -> None:
        """Replace the rows that have the keys of `frame` by its rows."""
        if self.kind == "shard":
            writer = frame.write.format("shard").option("envelope", "upsert")
            writer.mode("append").save(self._path(name))
        elif self.kind == "parquet":
            made = Path(self._path(f"{name}.made"))
            kept = self.read(name).join(frame.select(*_KEY), list(_KEY), "left_anti")
            kept.unionByName(frame).write.parquet(str(made))
            shutil.rmtree(self._path(name))
            made.rename(self._path(name))
        else:
            frame.createOrReplaceTempView("changes")
            target = f"ice.{name}" if self.kind == "iceberg" else f"delta.`{self._path(name)}`"
            same = " AND ".join(f"t.{column} = c.{column}" for column in _KEY)
            self.spark.sql(
                f"MERGE INTO {target} t USING changes c ON {same} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

    def size_bytes(self, name: str) -> int:
        """Bytes of all files of a table."""
        files = Path(self._path(name)).rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())

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
    found, sizes = measure(spark, kind, data, place, int(rounds))
    print(json.dumps({"spark": spark.version, "found": found, "bytes": sizes}), flush=True)
    spark.stop()


def measure(
    spark: SparkSession, kind: str, data: str, place: Path, rounds: int
) -> tuple[Found, dict[str, float]]:
    """The cost of each question, by Parquet and by the format; and bytes that the format wrote."""
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

    for tables in sides.values():
        for _ in range(_STREAMED):
            tables.append(tiny, "streamed")

    def stream(tables: Tables) -> None:
        writer = tables.follow("streamed").writeStream.trigger(availableNow=True)
        checkpoint = str(place / f"checkpoint{next(numbers)}")
        writer = writer.option("checkpointLocation", checkpoint)
        writer.foreachBatch(lambda frame, _: _consume(frame)).start().awaitTermination()

    questions: dict[str, Callable[[Tables], Any]] = {
        "read 16 columns": lambda t: _consume(t.read("lineitem")),
        "`.select` of 2 columns": lambda t: _consume(t.read("lineitem").select(*_NARROW)),
        "`.where` that keeps 1/46, count": lambda t: t.read("lineitem").where(some).count(),
        "write": lambda t: t.append(rows, f"written{next(numbers)}"),
        f"{_COMMITS} commits of {_COMMITTED_ROWS // 1000}k rows": commits,
        f"a stream of {_STREAMED} such commits, started and stopped": stream,
    }
    found = {}
    for name, ask in questions.items():
        found[name], _ = _in_turns(rounds, {o: partial(ask, t) for o, t in sides.items()})
    replaced, sizes = _replacements(rows, sides, place, rounds)
    return {**found, **replaced}, sizes


def _replacements(
    rows: DataFrame, sides: dict[str, Tables], place: Path, rounds: int
) -> tuple[Found, dict[str, float]]:
    """The cost of upserts, and of reads of what they leave."""
    spark = rows.sparkSession
    changed = rows.selectExpr(
        *(c for c in rows.columns if c != "l_comment"), "concat('new: ', l_comment) AS l_comment"
    )
    for tables in sides.values():
        tables.create_keyed(rows.select(*changed.columns), "keyed")
    for number in range(rounds + 1):
        some = changed.where(f"{_BUCKET} = {number}")
        some.coalesce(1).write.parquet(str(place / f"hundredth{number}"))
    changed.where(f"{_BUCKET} >= {100 - _REPLACED}").write.parquet(str(place / "tenth"))
    *_, own = sides.values()
    before = own.size_bytes("keyed")
    turns = {name: iter(range(rounds + 1)) for name in sides}

    def upsert(name: str) -> None:
        frame = spark.read.parquet(str(place / f"hundredth{next(turns[name])}"))
        sides[name].upsert(frame, "keyed")

    best, first = _in_turns(rounds, {name: partial(upsert, name) for name in sides})
    found = {"upsert of 1 % of the rows": best, "the same, the first of a session": first}
    added = (own.size_bytes("keyed") - before) / (rounds + 1)
    sizes = {"MB that an upsert of 1 % adds": added / 1e6}
    for tables in sides.values():
        # Apart from the upserts: a table in which one tenth of the rows was replaced, at once.
        tables.create_keyed(rows.select(*changed.columns), "merged")
        tables.upsert(spark.read.parquet(str(place / "tenth")), "merged")
    reads: dict[str, Callable[[Tables], Any]] = {
        f"read after {_REPLACED} % were replaced": lambda t: _consume(t.read("merged")),
        "the same, 2 columns": lambda t: _consume(t.read("merged").select(*_NARROW)),
    }
    for name, ask in reads.items():
        found[name], _ = _in_turns(rounds, {o: partial(ask, t) for o, t in sides.items()})
    counts = {
        one: t.read("merged").where("l_comment LIKE 'new: %'").count() for one, t in sides.items()
    }
    assert len(set(counts.values())) == 1, counts
    return found, sizes


def _seconds() -> float:
    return time.perf_counter()  # noqa: TID251 - there is no `Clock` in a peer's environment


def _consume(frame: DataFrame) -> None:
    # Not into `noop`: Delta 4.4 refuses to write what it reads of a table with deletion vectors.
    frame._jdf.queryExecution().toRdd().count()


def _cpu_seconds() -> tuple[float, set[int]]:
    """CPU seconds so far of this process and of all below it, and their ids."""
    own: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        own[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    tree, count = {os.getpid()}, 0
    while len(tree) > count:
        count = len(tree)
        tree |= {pid for pid, (parent, _) in own.items() if parent in tree}
    ticks = sum(own[pid][1] for pid in tree if pid in own)
    return ticks / os.sysconf("SC_CLK_TCK"), tree


def _in_turns(
    rounds: int, cases: dict[str, Callable[[], Any]]
) -> tuple[dict[str, Cost], dict[str, Cost]]:
    """The least cost of each case over all rounds but the first, and that of the first."""
    best = {name: {"wall": float("inf"), "cpu": float("inf")} for name in cases}
    first = {}
    for number in range(rounds + 1):
        for name, case in cases.items():
            began, (used, alive) = _seconds(), _cpu_seconds()
            case()
            wall, (total, left) = _seconds() - began, _cpu_seconds()
            # Spark ends idle workers: what one has used in all its life would be taken off.
            cost = {"wall": wall, "cpu": total - used if alive <= left else float("inf")}
            if number:  # the first round starts processes and compiles code
                best[name] = {what: min(best[name][what], cost[what]) for what in cost}
            else:
                first[name] = cost
    return best, first


if __name__ == "__main__":
    main(*sys.argv[1:])
