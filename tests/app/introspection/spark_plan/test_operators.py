"""Plans of operators: what the lane counts and the relations number."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.introspection.spark_plan.operators import PHASES, OperatorPlan, operators_of
from shardline.app.introspection.spark_plan.relational import relational_nodes
from shardline.app.protocol.objects import Description, SubscribeDescription, ViewDescription
from support.fakes.introspection import DELAYS, FAST, FLIGHTS, OUT

ALL: tuple[Description, ...] = (
    FLIGHTS,
    DELAYS,
    FAST,
    OUT,
    SubscribeDescription(name="t1", on="delays"),
)


def names(description: Description) -> list[str]:
    return [operator.name for operator in operators_of(description)[1 + len(PHASES) :]]


def check(plan: tuple[OperatorPlan, ...]) -> None:
    """What the module promises of every plan."""
    assert plan[0].parent is None
    for at, operator in enumerate(plan[1:], 1):
        assert operator.parent is not None
        assert operator.parent < at
        assert all(0 < i < at for i in operator.inputs)
    lirs = [operator.lir for operator in plan if operator.lir is not None]
    assert lirs == list(range(1, len(lirs) + 1))


@pytest.mark.parametrize("description", ALL, ids=lambda d: d.name)
def test_every_kind_of_object_has_a_plan(description: Description) -> None:
    """The dataflow, the phases of a micro-batch, then what rows go through."""
    plan = operators_of(description)
    check(plan)
    assert [operator.name for operator in plan[: 1 + len(PHASES)]] == ["Dataflow", *PHASES]
    assert plan == operators_of(description)


def test_a_source_is_a_chain() -> None:
    """Read, bound to times, decoded, made into updates, written."""
    assert names(FLIGHTS) == ["Source", "Reclock", "Decode", "Envelope", "Persist"]


@pytest.mark.process
def test_counting_operators_needs_no_spark() -> None:
    """The lane does it, on paths that never start a JVM."""
    module = "shardline.app.introspection.spark_plan.operators"
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM t", ["Project(t)"]),
        ("SELECT 1", ["Constant()", "Project(0)"]),
        ("SELECT a FROM t WHERE b > 0", ["Filter(t)", "Project(0)"]),
        ("SELECT a FROM t JOIN u USING (a)", ["Join(t, u)", "Project(0)"]),
        ("SELECT count(*) FROM t", ["Aggregate(t)", "Project(0)"]),
        (
            "SELECT a, sum(b) FROM t GROUP BY a HAVING sum(b) > 1",
            ["Aggregate(t)", "Filter(0)", "Project(1)"],
        ),
        (
            "SELECT DISTINCT a FROM t ORDER BY a LIMIT 3",
            ["Project(t)", "Distinct(0)", "Sort(1)", "Limit(2)"],
        ),
        ("SELECT rank() OVER (ORDER BY a) FROM t", ["Window(t)", "Project(0)"]),
        ("SELECT sum(a) OVER (ORDER BY a) FROM t", ["Window(t)", "Project(0)"]),
        (
            "SELECT a FROM t UNION ALL SELECT a FROM u",
            ["Project(t)", "Project(u)", "Union(0, 1)"],
        ),
        (
            "WITH t AS (SELECT a FROM u) SELECT * FROM t",
            ["Project(u)", "Project(0)"],
        ),
        (
            "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
            ["Project(u)", "Filter(t, 0)", "Project(1)"],
        ),
        ("SELECT x.a FROM (SELECT a FROM T) x", ["Project(t)", "Project(0)"]),
        ("SELECT e FROM t LATERAL VIEW explode(b) AS e", ["Generate(t)", "Project(0)"]),
        ("SELECT a FROM other", ["Scan()", "Project(0)"]),
        ("SELECT FROM WHERE", []),
    ],
)
def test_a_query_is_taken_apart_as_it_is_written(query: str, expected: list[str]) -> None:
    """Nodes in the order of evaluation, each with what it takes."""
    nodes = relational_nodes(query, ("t", "u"))
    assert [f"{n.name}({', '.join(map(str, n.inputs))})" for n in nodes] == expected


def test_a_query_that_cannot_be_taken_apart_is_one_operator() -> None:
    """A plan is never refused: not for what cannot be parsed, nor for what is too large."""
    odd = ViewDescription(name="v", query="SELECT FROM WHERE", inputs=("t",), schema="a INT")
    assert names(odd) == ["Source", "Query", "Correction", "Persist"]
    huge = " UNION ALL ".join(["SELECT a FROM t"] * 400)
    large = ViewDescription(name="v", query=huge, inputs=("t",), schema="a INT")
    assert names(large) == ["Source", "Query", "Correction", "Persist"]


PIECES = st.sampled_from(
    ["SELECT a FROM t", "SELECT a, count(*) FROM u GROUP BY a", "SELECT max(a) FROM t WHERE b"]
)
QUERIES = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) UNION ({p[1]})"),
        inner.map(
            lambda q: f"SELECT a FROM ({q}) x ORDER BY a LIMIT 1"  # noqa: S608 - parsed, never run
        ),
        st.tuples(inner, inner).map(
            lambda p: f"WITH t AS ({p[0]}) SELECT * FROM t, ({p[1]}) y"  # noqa: S608 - as above
        ),
    ),
    max_leaves=6,
)


@given(QUERIES)
def test_plans_of_any_query_are_in_order(query: str) -> None:
    """A parent and an input come before the operator itself."""
    view = ViewDescription(name="v", query=query, inputs=("t", "u"), schema="a INT")
    check(operators_of(view))
