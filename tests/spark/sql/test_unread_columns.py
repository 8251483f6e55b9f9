"""Columns that cannot be compared keep no join from following where nothing reads them."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.strategy import INPUT
from shardline.datasource.frames import analyse_query, children_of, frame_of, kind_of, read_sequence
from shardline.testing import Lab
from support.profiles import some_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS: Final = "k INT, i INT, m MAP<STRING, INT>"

QUERIES: Final = {
    "left": "SELECT t.i, u.v FROM t LEFT JOIN u ON t.k = u.k",
    "full": "SELECT t.i, u.v FROM t FULL JOIN u ON t.k = u.k",
    "semi": "SELECT i FROM t WHERE k IN (SELECT k FROM u)",
    "anti": "SELECT i FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "twice": "SELECT a.i, b.i AS j, u.v FROM t a JOIN t b ON a.k = b.k LEFT JOIN u ON u.k = a.k",
    "counted": "SELECT u.v, count(*) AS n FROM u LEFT JOIN t ON t.k = u.k GROUP BY u.v",
    "derived": "SELECT n, v FROM (SELECT k, i + 1 AS n, m FROM t) s LEFT JOIN u ON s.k = u.k",
}


def inputs(plan: Any) -> Iterator[Any]:
    if kind_of(plan) == INPUT:
        yield plan
        return
    for child in children_of(plan):
        yield from inputs(child)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    rows = spark.createDataFrame(
        [(1, 10, {"a": 1}), (1, 11, None), (2, 12, {}), (None, 13, {"b": 2})],
        COLUMNS,
    )
    others = spark.createDataFrame([(1, 5), (3, 6), (None, 7)], "k INT, v INT")
    return {"t": rows.selectExpr("*", "parse_json('[1]') AS raw"), "u": others}


@pytest.mark.parametrize("name", some_of(QUERIES, {"left", "twice"}))
def test_rows_and_inputs_stay_as_they_are(
    spark: SparkSession, tables: dict[str, DataFrame], name: str
) -> None:
    """The view of an input has all of its columns: it is what changes are found for."""
    asked = plan_of(analyse_query(spark, QUERIES[name], tables))
    plan = normal_form(spark, asked)
    assert {len(read_sequence(view.output())) for view in inputs(plan)} == {2, 4}
    session = spark._jsparkSession
    made, given = (Counter(frame_of(spark, session, one).collect()) for one in (plan, asked))
    assert made == given


def test_a_query_over_other_types_is_left_alone(
    spark: SparkSession, tables: dict[str, DataFrame]
) -> None:
    """Its plan shows the joins as they were written."""
    query = "SELECT a.v FROM u a LEFT JOIN u b ON a.k = b.k"
    plan = normal_form(spark, plan_of(analyse_query(spark, query, tables)))
    assert "Project" not in [kind_of(one) for one in children_of(plan.children().head())]


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(QUERIES, {"full", "twice"}))
def test_a_view_follows_both_sides(spark: SparkSession, name: str) -> None:
    """At each of some times its contents are those of the query over the inputs' contents."""
    query = QUERIES[name]
    sources = (
        f"CREATE SOURCE t USING json OPTIONS (path 'x') SCHEMA ({COLUMNS});"
        "CREATE SOURCE u USING csv OPTIONS (path 'x') SCHEMA (k INT, v INT);"
    )
    chance = random.Random(5)
    view = f"CREATE MATERIALIZED VIEW {name} AS {query};"
    with Lab(spark, sources + view, follow_changes=True) as lab:
        for time in range(1, 5):
            rows = [(chance.randint(1, 4), n, {"p": n}) for n in range(chance.randint(1, 4))]
            lab.push("t", rows, at=time)
            lab.push("u", [(chance.randint(1, 4), time)], at=time)
            lab.advance(time + 1)
            given = {one: lab.contents(one) for one in ("t", "u")}
            wanted = Counter(analyse_query(spark, query, given).collect())
            assert Counter(lab.contents(name).collect()) == wanted, time
        ways = {one.way for one in lab.steps(name)[1:]}
    assert ways == {"incremental"}
