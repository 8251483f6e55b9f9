"""Operators of a view that stand in the way of following changes alone are named as such."""

from __future__ import annotations

import pytest

from shardline.app.introspection.spark_plan.operator_strategy import explain_operator
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.protocol.objects import Strategy, ViewDescription
from support.fakes.introspection import FLIGHTS


def explained(query: str, strategy: Strategy, reason: str = "") -> list[str]:
    """Operators of a view's query, each with its strategy and reason."""
    view = ViewDescription(
        name="v", query=query, inputs=("t", "u"), schema="a INT", strategy=strategy, reason=reason
    )
    said = []
    for operator in operators_of(view):
        found, why = explain_operator(view, operator)
        if operator.lir is not None and operator.name not in ("Source", "Correction", "Persist"):
            said.append(f"{operator.name}: {found}" + (f", {why}" if why else ""))
    return said


CASES = {
    "SELECT a FROM t JOIN u USING (a) WHERE b > 0": ("", [
        "Join: incremental", "Filter: linear", "Project: linear",
    ]),
    "SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > 1": ("an aggregate (first)", [
        "Aggregate: recompute, an aggregate", "Filter: linear", "Project: linear",
    ]),
    "SELECT a, sum(b) FROM t GROUP BY a": ("LIMIT", [
        "Aggregate: None", "Project: linear",
    ]),
    "SELECT t.a FROM t FULL OUTER JOIN u ON t.a < u.a": ("a full outer join of two inputs", [
        "Join: recompute, a full outer join of two inputs", "Project: linear",
    ]),
    "SELECT t.a FROM t FULL OUTER JOIN u ON t.a = u.a": ("LIMIT", [
        "Join: None", "Project: linear",
    ]),
    "SELECT DISTINCT a FROM t LIMIT 3": ("LIMIT", [
        "Project: linear", "Distinct: None", "Limit: recompute, LIMIT",
    ]),
    "SELECT rank() OVER (ORDER BY a) FROM t": ("a window function (rank)", [
        "Window: recompute, a window function", "Project: linear",
    ]),
    "SELECT a FROM t UNION SELECT a FROM u": ("DISTINCT", [
        "Project: linear", "Project: linear", "Union: recompute, DISTINCT",
    ]),
    "SELECT a FROM t EXCEPT SELECT a FROM u": ("EXCEPT", [
        "Project: linear", "Project: linear", "Except: recompute, EXCEPT",
    ]),
    "SELECT a FROM t WHERE a IN (SELECT a FROM u)": ("LIMIT", [
        "Project: linear", "Filter: None", "Project: linear",
    ]),
    "SELECT 1": ("", ["Constant: None", "Project: linear"]),
    "SELECT a FROM other, t": ("", [
        "Scan: None", "Join: incremental", "Project: linear",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("query", CASES)
def test_what_stands_in_the_way_is_named_at_its_operator(query: str) -> None:
    """In the words of the choice; what is not known is not said to be linear."""
    reason, expected = CASES[query]
    assert explained(query, "recompute", reason) == expected


def test_of_a_linear_view_all_operators_are_linear() -> None:
    """Spark's plan has borne it out, a generator's as well."""
    query = "SELECT e FROM t LATERAL VIEW explode(b) AS e UNION ALL SELECT a FROM u"
    assert {said.split(": ")[1] for said in explained(query, "linear")} == {"linear"}


def test_of_an_incremental_view_what_takes_rows_one_by_one_is_linear() -> None:
    """Joins need what they join changes with, aggregates and windows all rows of their keys."""
    query = "SELECT a, rank() OVER (PARTITION BY a ORDER BY b) FROM t UNION SELECT a, b FROM u"
    assert explained(query, "incremental", "a window function") == [
        "Window: incremental", "Project: linear", "Project: linear", "Union: incremental",
    ]  # fmt: skip
    within = "SELECT a FROM t WHERE a IN (SELECT a FROM u)"
    assert explained(within, "incremental", "a semi join") == [
        "Project: linear", "Filter: incremental", "Project: linear",
    ]  # fmt: skip
    query = "SELECT t.a FROM t LEFT JOIN u ON t.a = u.a WHERE b > 0"
    assert explained(query, "incremental", "a left outer join") == [
        "Join: incremental", "Filter: linear", "Project: linear",
    ]  # fmt: skip


def test_a_generator_may_be_a_table_function_in_python() -> None:
    """Then nothing is claimed of it."""
    query = "SELECT e FROM t LATERAL VIEW f(b) AS e"
    reason = "a table function in Python, which may look at many rows"
    assert explained(query, "recompute", reason)[0] == "Generate: None"
    assert explained(query, "recompute", "a scalar subquery")[0] == "Generate: linear"


def test_a_query_that_cannot_be_taken_apart_has_the_reason_of_its_view() -> None:
    """Nothing more is known."""
    assert explained("SELECT FROM WHERE", "recompute", "a join") == ["Query: recompute, a join"]


def test_only_what_computes_has_a_strategy() -> None:
    """A source has none, nor have phases, and what reads and writes a view."""
    assert all(explain_operator(FLIGHTS, one) == (None, None) for one in operators_of(FLIGHTS))
    view = ViewDescription(name="v", query="SELECT a FROM t", inputs=("t",), schema="a INT",
                           strategy="linear")  # fmt: skip
    found = {one.name: explain_operator(view, one) for one in operators_of(view)}
    assert found["Source"] == found["Persist"] == found["addBatch"] == (None, None)
    assert found["Correction"] == ("linear", "it appends what the changes of the inputs give")
