"""The queries of TPC-H and Nexmark are kept through changes, at every time against plain Spark.

Some hundred rows, drawn so that each query sees the changes (`benchmark_data`): several times in a
step, changes on all sides of all joins at one time, tables that lose all of their rows. To plan a
join of eight tables takes ten seconds whatever the rows: all queries run with
`--hypothesis-profile=night`, and a part of them else.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from shardline.app.compute.view.view_columns import parse_columns
from support.profiles import some_of
from support.spark.benchmark_data import (
    FIRST,
    NEXMARK_CHANGES,
    TPCH_CHANGES,
    Changes,
    history,
)
from support.spark.benchmark_queries import NEXMARK, NEXMARK_TABLES, TPCH, TPCH_TABLES
from support.spark.view_world import START, ViewWorld

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

SEED: Final = 16
"""One by which each query has rows, and other ones later."""

CUTS: Final = (START + 1, 31, 60)
"""Ends of steps: the first has the first rows, the others have several times of changes."""

INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""To compile joins of eight tables costs more than all rows here, and is for others to test."""

SMALLER: Final = {
    "q2": ("LIMIT 100", "LIMIT 3"),
    "q3": ("LIMIT 10", "LIMIT 3"),
    "q10": ("LIMIT 20", "LIMIT 3"),
    "q11": ("0.0001", "0.1"),
    "q18": ("> 300", "> 100"),
    "q21": ("LIMIT 100", "LIMIT 2"),
}
"""What in a text of TPC-H is too large for so few rows, and what is there in its place."""

CHOSEN: Final = frozenset({"q4"})
"""A query of TPC-H with a subquery that each run follows."""

SOME: Final = frozenset({"q5"})
"""A query of Nexmark that each run follows: the greatest of windows."""


class BenchmarkWorld(ViewWorld):
    """The tables of a benchmark, and its queries as views."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        columns: Mapping[str, str],
        changes: Changes,
        queries: Mapping[str, str],
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert FIRST == START
        super().__init__(spark, folder, CUTS, changes.times)
        for session in (self.session, self.plain):
            for name, value in INTERPRETED.items():
                session.conf.set(name, value)
        for name, ddl in columns.items():
            schema = to_arrow_schema(parse_columns(ddl), timezone="UTC")
            self.inputs[name] = self.bench.input(name, schema)
        for time, name, updates in history(changes, SEED):
            self.inputs[name].push(time, *updates)
        for found in self.inputs.values():
            found.idle(CUTS[-1])
        self._times = changes.times
        self._queries = queries

    def check(self, name: str) -> Counter[str]:
        """Keep a query, whose answer changes; how many steps were taken in each way."""
        right = partial(self.by_spark, self._queries[name])
        answers = [right(time) for time in self._times]
        rows = [row for one in answers for row in one if any(value is not None for value in row)]
        assert rows
        assert sum(one != other for one, other in pairwise(answers)) >= 2
        self.follow(self.kept(name, self._queries[name]), right)
        return self.steps(name)


@pytest.fixture(scope="module")
def tpch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkWorld:
    queries = {name: text.replace(*SMALLER.get(name, ("", ""))) for name, text in TPCH.items()}
    assert {name for name in TPCH if queries[name] != TPCH[name]} == set(SMALLER)
    folder = tmp_path_factory.mktemp("tpch")
    return BenchmarkWorld(spark, folder, TPCH_TABLES, TPCH_CHANGES, queries)


@pytest.fixture(scope="module")
def nexmark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkWorld:
    folder = tmp_path_factory.mktemp("nexmark")
    return BenchmarkWorld(spark, folder, NEXMARK_TABLES, NEXMARK_CHANGES, NEXMARK)


FOLLOWED: Final = {"recompute": 1, "incremental": 2}
"""The first contents count as a run of the query, and two steps follow changes."""

OVER_GROUPS: Final = {"recompute": 1, "incremental": 4}
"""What is above the groups is run anew at each time, over states that follow changes."""

OTHERWISE: Final = {
    "q2": {"recompute": 1, "incremental": 3},  # as those, where its rows change
    "q3": OVER_GROUPS,
    "q10": OVER_GROUPS,
    "q15": {"recompute": 5},  # the greatest of all groups goes in both steps, and has no key
    "q16": {"recompute": 3, "incremental": 1},  # NOT IN, and what is in it changes
    "q18": OVER_GROUPS,
    "q21": OVER_GROUPS,
}
LINEAR: Final = frozenset({"q0", "q1", "q2", "q10", "q14", "q21", "q22"})
"""Queries of Nexmark that take rows one by one."""


@pytest.mark.parametrize("name", some_of(TPCH, CHOSEN))
def test_queries_of_tpch(tpch: BenchmarkWorld, name: str) -> None:
    """Contents are Spark's at each time, and the steps were taken in the ways that are said."""
    assert tpch.check(name) == OTHERWISE.get(name, FOLLOWED)


@pytest.mark.parametrize("name", some_of(NEXMARK, SOME))
def test_queries_of_nexmark(nexmark: BenchmarkWorld, name: str) -> None:
    """The same."""
    way = "linear" if name in LINEAR else "incremental"
    assert nexmark.check(name) == {"recompute": 1, way: 2}
