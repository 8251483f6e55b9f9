"""Measures the queries of TPC-H as views under its refresh stream: changes against running anew.

In each round a thousandth of all orders comes, with its line items, and another thousandth goes
(the benchmark's refresh functions); and a thousandth of the rows of the other large tables gets
another price or balance, since some queries read none of the first two. Two views of each query
take the same changes in turns, one that follows them and one that runs its query anew and compares.
A step is all that a micro-batch does, the commit included, but for Spark's planning of the
micro-batch.

The queries are measured one after the other, over inputs that go on changing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bench.copies import generator
from bench.rounds import Measured, alternate
from bench.views import WAYS, Followed, first_contents
from shardline import datasource
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.project.project import Project
from shardline.app.protocol.objects import Strategy, ViewDescription
from shardline.datasource.clock import Clock
from shardline.datasource.shard.commands.append import Appended
from support.spark.benchmark_queries import TPCH, TPCH_TABLES
from support.spark.views import Bench, Input

__all__ = ["generated_tables", "measure_tpch"]

# ruff: noqa: S608 - names are ours

_START: Final = 10
_SHARE: Final = 1000
"""One row of so many comes in a refresh, and one goes."""

_NEW_KEYS: Final = 1 << 40
"""Added to the key of an order that comes again as a new one, once for each refresh."""

_REFRESHED: Final = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
"""Tables of which rows come and go, and the key of their orders."""

_UPDATED: Final = {
    "customer": ("c_custkey", "c_acctbal"),
    "part": ("p_partkey", "p_retailprice"),
    "partsupp": ("ps_partkey", "ps_supplycost"),
    "supplier": ("s_suppkey", "s_acctbal"),
}
"""Tables of which rows are replaced: a key, and the column that gets another value."""

_WARM: Final = 3
"""Further steps before those that are measured, as of a view that has run for a while."""

_AIM: Final = 10.0


def measure_tpch(
    spark: SparkSession, clock: Clock, data: Path, place: Path, rounds: int
) -> list[Measured]:
    """Milliseconds of a step of each query, and the geometric mean of the ratios.

    Args:
        spark: The session.
        clock: Of the process.
        data: Folder of the tables (`generated_tables`).
        place: Where shards are made.
        rounds: Refreshes that are measured, after those that warm up.
    """
    world = _World(spark, data, place)
    lines: list[Measured] = []
    ratios: list[float] = []
    for name in TPCH:
        cases: dict[str, Callable[[], object]] = {"news": world.refresh}
        cases |= {word: partial(world.step, world.view(name, way)) for word, way in WAYS.items()}
        alternate(clock, 1, cases)  # makes states and compiles
        warm = {name: case for name, case in cases.items() if name != "anew"}
        alternate(clock, _WARM, warm)  # kept plans are proved
        taken = alternate(clock, rounds, cases)
        anew, changes = taken["anew"] * 1000.0, taken["changes"] * 1000.0
        ratios.append(anew / changes)
        lines += [
            Measured(f"TPC-H {name}: anew", anew, "ms"),
            Measured(f"TPC-H {name}: changes", changes, "ms", anew / changes),
        ]
        print(f"{name}: {anew:,.0f} ms anew, {changes:,.0f} ms by changes", file=sys.stderr)
    mean = exp(sum(map(log, ratios)) / len(ratios))
    lines.append(Measured("TPC-H, geometric mean of the ratios", mean, "x", mean, _AIM))
    return lines


def generated_tables(folder: Path, scale: float) -> Path:
    """A folder with a Parquet file of each table, generated once."""
    target = folder / f"tpch-{scale:g}-all"
    if not target.is_dir():
        making = folder / f"{target.name}.making"
        words = ["parquet", "-q", "-s", f"{scale:g}", "--output-dir", str(making)]
        subprocess.run([str(generator()), *words], check=True)
        making.rename(target)
    return target


@dataclass
class _World:
    """The tables of TPC-H as shards, and the stream of their refreshes."""

    spark: SparkSession
    data: Path
    place: Path
    inputs: dict[str, Input] = field(default_factory=dict)
    upper: int = _START + 1
    refreshes: int = 0

    def __post_init__(self) -> None:
        self.bench = Bench(self.spark, str(self.place / "lake"), self.place / "checkpoints")
        self.session = self.spark.newSession()
        self.project = Project()
        self.files = duckdb.connect()
        for name, columns in TPCH_TABLES.items():
            path = self.data / f"{name}.parquet"
            frame = self.spark.read.parquet(str(path)).selectExpr(
                *(f"CAST({f.name} AS {f.dataType.simpleString()})" for f in parse_columns(columns))
            )
            schema = frame.limit(0).toArrow().schema
            self.inputs[name] = self.bench.input(name, schema)
            self.files.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
            self.project.source(name, "csv", options={"path": "later"}, schema=columns)
            made = datasource.compare_and_append(
                frame,
                location=self.bench.client.location.url,
                shard=name,
                lower=0,
                upper=self.upper,
                writer=("bench", 1),
            )
            assert isinstance(made, Appended), made
            self.inputs[name].upper = self.upper
        for name, query in TPCH.items():
            self.project.view(name, query)
        self.kept = self.project.check(self.spark).descriptions

    def view(self, name: str, strategy: Strategy) -> Followed:
        """A view that has its first contents."""
        kept = self.kept[name]
        assert isinstance(kept, ViewDescription)
        made = replace(kept, name=f"{name}_{strategy}", strategy=strategy)
        return first_contents(self.bench, self.session, made, self.upper)

    def refresh(self) -> None:
        """A thousandth of the orders comes anew, and another one goes."""
        time, place = self.upper, self.refreshes
        self.refreshes += 1
        self.upper = time + 1
        for name, found in self.inputs.items():
            table = None
            if key := _REFRESHED.get(name):
                replaced = {key: f"{key} + {_NEW_KEYS * (place + 1)}"}
                table = self._changes(found, time, key, (2 * place, 2 * place + 1), replaced)
            elif name in _UPDATED:
                key, column = _UPDATED[name]
                table = self._changes(found, time, key, (place, place), {column: f"{column} + 1"})
            found.append_table(table, self.upper)

    def step(self, followed: Followed) -> None:
        """Bring a view up to the last refresh."""
        followed.step(self.session, self.upper)

    def _changes(
        self,
        found: Input,
        time: int,
        key: str,
        remainders: tuple[int, int],
        replaced: dict[str, str],
    ) -> pa.Table:
        """Rows whose key has one remainder come with other values; those with another one go."""
        # Hashed: keys of orders are 8 of each 32 numbers. No row is chosen in two refreshes.
        remainder = f"hash({key}) % {_SHARE}"
        columns = ", ".join(found.schema.names)
        news = ", ".join(replaced.get(name, name) for name in found.schema.names)
        rows = self.files.sql(
            f"SELECT {news}, {time}::BIGINT, 1::BIGINT FROM {found.name} "
            f"WHERE {remainder} = {remainders[0]} UNION ALL "
            f"SELECT {columns}, {time}::BIGINT, -1::BIGINT FROM {found.name} "
            f"WHERE {remainder} = {remainders[1]}"
        ).to_arrow_table()
        times = [pa.field("_ts", pa.int64()), pa.field("_diff", pa.int64())]
        schema = pa.schema([*found.schema, *times])
        return rows.rename_columns(schema.names).cast(schema)
