"""The queries of TPC-H and Nexmark follow changes, by Spark's analyzer alone: nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.sql.catalyst import Catalyst
from shardline.app.sql.strategy import choose_strategy
from shardline.datasource.clock import SystemIds
from support.spark.benchmark_queries import NEXMARK, NEXMARK_TABLES, TPCH, TPCH_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def strategies(
    spark: SparkSession, tables: Mapping[str, str], queries: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The strategy of each query, and its reason."""
    found: dict[str, tuple[str, str]] = {}
    with Catalyst(spark, SystemIds()) as catalyst:
        for name, columns in tables.items():
            catalyst.add(name, catalyst.columns(columns))
            # By its own name, too, which the queries have: a view of the analyzer like its others.
            catalyst._spark.table(catalyst.views[name]).createOrReplaceTempView(name)
            catalyst.views[f"{name} itself"] = name
        for name, text in queries.items():
            plan = catalyst.query(text)
            found[name] = choose_strategy(plan.normal_tree, plan.verdicts)
    return found


LIMITED = {"q2", "q3", "q10", "q18", "q21"}
"""Their LIMIT is of rows that follow changes."""


@pytest.mark.night
def test_queries_of_tpch(spark: SparkSession) -> None:
    """All follow changes."""
    found = strategies(spark, TPCH_TABLES, TPCH)
    assert len(found) == 22
    assert {way for way, _ in found.values()} == {"incremental"}
    over = {name for name, (_, why) in found.items() if "LIMIT, run anew over states" in why}
    assert over == LIMITED


def test_queries_of_nexmark(spark: SparkSession) -> None:
    """All follow changes."""
    found = strategies(spark, NEXMARK_TABLES, NEXMARK)
    ways = {name: way for name, (way, _) in found.items()}
    linear = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}
    assert ways == {f"q{n}": "linear" if f"q{n}" in linear else "incremental" for n in range(24)}
