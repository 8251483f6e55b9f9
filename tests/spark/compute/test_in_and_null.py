"""IN with a NULL among its rows has no value, which is not false, also where views follow changes.

Spark's rule for subqueries makes a join of IN, which says false then. It is right where NOT stands
right above, and the optimizer brings NOT down before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import pytest

from shardline.app.testing import Lab
from support.profiles import some_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

INPUTS = """
CREATE SOURCE a USING json OPTIONS (path 'nowhere') SCHEMA (k INT, x INT);
CREATE SOURCE b USING json OPTIONS (path 'nowhere') SCHEMA (y INT);
"""

QUERIES = {
    "plain": "SELECT k, x FROM a WHERE x NOT IN (FROM b)",
    "not_and": "SELECT k, x FROM a WHERE NOT (x IN (FROM b) AND k > 1)",
    "not_or": "SELECT k, x FROM a WHERE NOT (x IN (FROM b) OR k > 10)",
    "not_or_two": "SELECT k, x FROM a WHERE NOT (x IN (FROM b) OR k IN (SELECT y + 100 FROM b))",
    "not_deep": "SELECT k, x FROM a WHERE NOT (k > 2 AND NOT (k < 9 OR NOT x IN (FROM b)))",
    "is_false": "SELECT k, x FROM a WHERE (x IN (FROM b)) = false OR k > 10",
    "same": "SELECT k, x FROM a WHERE (x IN (FROM b)) = (k > 1)",
    "is_null": "SELECT k, x FROM a WHERE (x IN (FROM b)) IS NULL",
    "within": "SELECT k FROM a WHERE k IN (SELECT k FROM a WHERE NOT (x IN (FROM b) OR k > 5))",
    "selected": "SELECT k, x, NOT (x IN (FROM b) AND k > 1) AS w FROM a",
    "a_case": "SELECT k, x FROM a WHERE CASE WHEN k > 1 THEN x NOT IN (FROM b) ELSE false END",
    "deeper": "SELECT k FROM a WHERE k > (SELECT count(*) FROM b WHERE y IN (SELECT x FROM a))",
    "filtered": "SELECT count(*) FILTER (WHERE NOT (x IN (FROM b) AND k > 1)) AS n FROM a",
    "summed": "SELECT k, sum(if(x NOT IN (FROM b), 1, 10)) AS n FROM a GROUP BY k",
    "an_if": "SELECT k, if(NOT (x IN (FROM b) AND k > 0), 'out', 'in') AS w FROM a",
}

FOLLOWED = {"not_and", "not_or", "is_false", "deeper", "filtered", "summed", "an_if"}
"""Views that must follow changes: others may be recomputed."""

SETS = {
    "one of each kind": ("not_and", "is_null", "selected", "filtered"),
    "all": tuple(QUERIES),
}

Step: TypeAlias = dict[str, list[tuple[int | None, ...]]]

STEPS: list[Step] = [
    {"a": [(2, 2)], "b": [(None,), (7,)]},
    {"a": [(3, 4), (3, 7), (1, 5), (4, None)]},
    {"a": [(12, 8)], "b": [(8,)]},
]

LAST: Step = {"b": [(None,)]}
"""The rows that are taken away at the end."""


def rows_of(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, frame.collect()))


@pytest.mark.parametrize("chosen", some_of(SETS, {"one of each kind"}))
def test_no_value_is_not_false(spark: SparkSession, chosen: str) -> None:
    """At each time, and without the NULL again at the end."""
    queries = {name: QUERIES[name] for name in SETS[chosen]}
    views = "".join(f"CREATE MATERIALIZED VIEW {n} AS {query};" for n, query in queries.items())
    there: dict[str, Counter[tuple[int | None, ...]]] = {"a": Counter(), "b": Counter()}
    columns = {"a": "k INT, x INT", "b": "y INT"}
    plain = spark.newSession()  # its views are nobody else's
    with Lab(spark, INPUTS + views, follow_changes=True) as lab:
        for number, step in enumerate([*STEPS, LAST], 1):
            diff = 1 if number <= len(STEPS) else -1
            for name, rows in step.items():
                lab.push(name, rows, at=number, diff=diff)
                for row in rows:
                    there[name][row] += diff
            lab.advance(number + 1)
            for name, kind in columns.items():
                now = list(there[name].elements())
                plain.createDataFrame(now, kind).createOrReplaceTempView(name)
            for name, query in queries.items():
                assert rows_of(lab.contents(name)) == rows_of(plain.sql(query)), (number, name)
        ways = {name: {one.way for one in lab.steps(name)} for name in queries}
    followed = {name for name, taken in ways.items() if "incremental" in taken}
    assert followed >= FOLLOWED & queries.keys()
