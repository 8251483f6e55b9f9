"""The queries of TPC-H and Nexmark are kept through changes, at every time against plain Spark.

Tens of rows, drawn so that each query sees the changes (`benchmark_data`); several times in each
step; changes on all sides of all joins at one time; rows that come twice, change and go; a table
that loses all of its rows and gets some of them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from support.spark.benchmark_data import NEXMARK_MAKERS, TPCH_MAKERS, Maker, Tables
from support.spark.benchmark_queries import NEXMARK, NEXMARK_TABLES, TPCH, TPCH_TABLES
from support.spark.view_world import START, ViewWorld

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardline.app.protocol.objects import ViewDescription

pytestmark = pytest.mark.spark

CUTS: Final = (START + 1, 31, 50, 60)
"""Ends of steps: the first one has the first rows."""

TPCH_CHANGES: Final[Mapping[int, Mapping[str, int]]] = {
    20: {
        "region": 1,
        "nation": 2,
        "supplier": 4,
        "customer": 4,
        "part": 4,
        "partsupp": 8,
        "orders": 8,
        "lineitem": 16,
    },
    22: {"orders": 8, "lineitem": 16, "customer": 4, "partsupp": 8},
    25: {"region": 1, "nation": 2, "part": 4, "partsupp": 8, "supplier": 4},
    33: {"orders": 8, "lineitem": 16, "supplier": 4, "customer": 4, "part": 4},
    40: {"lineitem": 16, "partsupp": 8, "nation": 2},
}
"""How many rows of which tables come at a time; others change and go."""

NEXMARK_CHANGES: Final[Mapping[int, Mapping[str, int]]] = {
    20: {"bid": 8, "auction": 2, "person": 2, "side_input": 1},
    22: {"bid": 4, "auction": 1},
    25: {"person": 2, "side_input": 1},
    33: {"bid": 8, "person": 1},
    40: {"auction": 2, "bid": 4},
}

GONE: Final = 43
"""At this time the largest table has no rows."""

AGAIN: Final = 52

SMALLER: Final = {
    "q2": ("LIMIT 100", "LIMIT 3"),
    "q3": ("LIMIT 10", "LIMIT 3"),
    "q10": ("LIMIT 20", "LIMIT 3"),
    "q11": ("0.0001", "0.1"),
    "q18": ("> 300", "> 100"),
    "q21": ("LIMIT 100", "LIMIT 2"),
}
"""What is too large in a text of TPC-H for so few rows, and what is there in its place."""


def smaller(name: str) -> str:
    """A query of TPC-H for few rows."""
    old, new = SMALLER.get(name, ("", ""))
    assert old in TPCH[name]
    return TPCH[name].replace(old, new)


class BenchmarkWorld(ViewWorld):
    """The tables of a benchmark, and its queries as views."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        columns: Mapping[str, str],
        makers: Mapping[str, tuple[int, Maker]],
        changes: Mapping[int, Mapping[str, int]],
        largest: str,
        seed: int,
        queries: Mapping[str, str],
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        self.times = (START, *changes, GONE, AGAIN)
        super().__init__(spark, folder, CUTS, self.times)
        tables = Tables(makers, seed)
        for name, ddl in columns.items():
            made = self.bench.input(name, to_arrow_schema(StructType.fromDDL(ddl), timezone="UTC"))
            made.push(START, *tables.first(name))
            self.inputs[name] = made
        for time, counts in changes.items():
            for name, count in counts.items():
                self.inputs[name].push(time, *tables.some(name, count))
        gone = tables.all_gone(largest)
        self.inputs[largest].push(GONE, *gone)
        self.inputs[largest].push(AGAIN, *tables.again(largest, gone))
        for found in self.inputs.values():
            found.idle(CUTS[-1])
        self.queries = queries
        self._kept: dict[str, ViewDescription] = {}

    def check(self, name: str) -> dict[str, int]:
        """Keep a query; its contents are right, and change; how many steps went which way."""
        query = self.queries[name]
        if not self._kept:
            self._kept = self.all_kept(self.queries)
        found = [self.by_spark(query, time) for time in self.times]
        rows = [sum(n for row, n in one.items() if any(v is not None for v in row)) for one in found]
        moves = sum(one != other for one, other in zip(found, found[1:], strict=False))
        assert max(rows) > 0
        assert moves >= 2, (moves, rows)
        self.follow(self._kept[name], partial(self.by_spark, query))
        return self.steps(name)


@pytest.fixture(scope="module")
def tpch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkWorld:
    queries = {name: smaller(name) for name in TPCH}
    folder = tmp_path_factory.mktemp("tpch")
    return BenchmarkWorld(
        spark, folder, TPCH_TABLES, TPCH_MAKERS, TPCH_CHANGES, "lineitem", 16, queries
    )


@pytest.fixture(scope="module")
def nexmark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkWorld:
    folder = tmp_path_factory.mktemp("nexmark")
    return BenchmarkWorld(
        spark, folder, NEXMARK_TABLES, NEXMARK_MAKERS, NEXMARK_CHANGES, "bid", 16, NEXMARK
    )


@pytest.mark.parametrize("name", NEXMARK)
def test_nexmark(nexmark: BenchmarkWorld, name: str) -> None:
    ways = nexmark.check(name)
    print("WAYS", name, dict(ways))


@pytest.mark.parametrize("name", TPCH)
def test_tpch(tpch: BenchmarkWorld, name: str) -> None:
    ways = tpch.check(name)
    print("WAYS", name, dict(ways))
