"""Plans of Spark as trees: read from its JSON, and what strategy and determinism see in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardline.app.sql.determinism import find_clock_literal, find_nondeterminism
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.strategy import choose_strategy

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."

Nodes = list[dict[str, Any]]


def op(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    """An operator as Spark writes it: itself, then its children in pre-order."""
    head = {"class": LOGICAL + kind, "num-children": len(children), **fields}
    return [head, *(node for child in children for node in child)]


def expr(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    head = {"class": EXPRESSIONS + kind, "num-children": len(children), **fields}
    return [head, *(node for child in children for node in child)]


INPUT = op("View", op("LogicalRDD"))


def strategy(plan: Nodes, *refusals: str) -> tuple[str, str]:
    return choose_strategy(plan_tree(json.dumps(plan)), refusals)


def test_a_tree_has_the_nodes_in_order() -> None:
    """Children by their count, expressions from fields, however deep in lists."""
    plan = op("Union", op("Project", INPUT, projectList=[[*expr("Rand")], [*expr("Uuid")]]), INPUT)
    tree = plan_tree(json.dumps(plan))
    kinds = [node.kind for node in tree.walk()]
    assert kinds == [
        "Union", "Project", "Rand", "Uuid", "View", "LogicalRDD", "View", "LogicalRDD"
    ]  # fmt: skip
    assert [child.kind for child in tree.children] == ["Project", "View"]


def test_a_deep_plan_needs_no_deep_stack() -> None:
    """Ten thousand filters are read like one."""
    plan = INPUT
    head = {"class": LOGICAL + "Filter", "num-children": 1}
    assert strategy([head] * 10_000 + plan) == ("linear", "")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (op("Project", op("Filter", INPUT)), ""),
        (op("Union", INPUT, op("Generate", INPUT)), ""),
        (op("Distinct", INPUT), "DISTINCT"),
        (op("SomethingNew", INPUT), "the operator SomethingNew"),
        (op("Union", INPUT, op("Project", op("OneRowRelation"))), ""),
        (op("Project", op("OneRowRelation")), "rows that come from no input"),
        (op("Filter", INPUT, condition=expr("Not", expr("Exists", plan=INPUT))),
         "a subquery in EXISTS"),
        (
            op("Join", INPUT, op("LocalRelation"), joinType={"object": "x.FullOuter$"}),
            "a full outer join of two inputs",
        ),
        (op("Join", INPUT, INPUT, joinType={"object": "x.SomethingNew$"}), "a join of two inputs"),
        (op("AsOfJoin", INPUT, INPUT, joinType={"object": "x.Inner$"}), "a join of two inputs"),
        (op("Join", op("Distinct", INPUT), INPUT, joinType={"object": "x.Inner$"}), "DISTINCT"),
        (op("Generate", INPUT, generator=expr("PythonUDTF")),
         "a table function in Python, which may look at many rows"),
    ],
)  # fmt: skip
def test_only_what_is_known_to_be_linear_is(plan: Nodes, reason: str) -> None:
    """The list says what is linear; all else is recomputed, with a reason."""
    assert strategy(plan) == ("recompute" if reason else "linear", reason)


GROUPED = op(
    "Aggregate",
    INPUT,
    aggregateExpressions=[
        expr("Alias", expr("AggregateExpression", expr("Average"))),
        expr("Alias", expr("AggregateExpression", expr("CountIf"))),
    ],
)
ROWS = op("Aggregate", INPUT, aggregateExpressions=[expr("AttributeReference")])


@pytest.mark.parametrize(
    ("plan", "refusals", "found"),
    [
        (GROUPED, [""], ("incremental", "an aggregate (avg, count_if)")),
        (ROWS, [""], ("incremental", "distinct rows")),
        (GROUPED, ["an aggregate (avg of DOUBLE)"], ("recompute", "an aggregate (avg of DOUBLE)")),
        (op("Union", ROWS, GROUPED), ["", "groups by MAP"], ("recompute", "groups by MAP")),
        (op("Union", *[ROWS] * 8), [""] * 8, ("incremental", "distinct rows")),
        (op("Union", *[ROWS] * 9), [""] * 9, ("recompute", "more than 8 aggregates")),
        (op("Distinct", ROWS), [""], ("recompute", "DISTINCT")),
    ],
)
def test_aggregates_follow_changes_unless_they_are_refused(
    plan: Nodes, refusals: list[str], found: tuple[str, str]
) -> None:
    """Refusals are in the order of the plan."""
    assert strategy(plan, *refusals) == found


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Inner", "a join of two inputs"),
        ("Cross", "a cross join of two inputs"),
        ("LeftOuter", "a left outer join (run anew where its right side changes)"),
        ("RightOuter", "a right outer join (run anew where its left side changes)"),
        ("LeftSemi", "a semi join, as IN is (run anew where its right side changes)"),
        ("LeftAnti", "an anti join, as NOT EXISTS is (run anew where its right side changes)"),
    ],
)
def test_joins_follow_changes_with_what_is_there(kind: str, reason: str) -> None:
    """Their reason says why their view is not linear, and when it is recomputed all the same."""
    join = op("Join", op("Filter", INPUT), INPUT, joinType={"object": f"x.{kind}$"})
    assert strategy(op("Project", join)) == ("incremental", reason)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("SELECT DATE 'today'", 7),
        ("SELECT timestamp_ntz ' NOW '", 7),
        ("SELECT DATE '2020-01-01'", None),
        ("SELECT 'today', date, 'now'", None),
    ],
)
def test_literals_that_mean_now_are_seen_in_the_text(text: str, offset: int | None) -> None:
    """Spark's parser replaces them, so that only the text shows them."""
    assert find_clock_literal(text) == offset


def limited(plan: Nodes) -> Nodes:
    return op("GlobalLimit", op("LocalLimit", plan))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (limited(op("Project", op("Sort", INPUT, order=expr("AttributeReference")))), ""),
        (limited(op("Project", op("Sort", INPUT, order=expr("Literal")))), "LIMIT"),
        (limited(op("Aggregate", INPUT, groupingExpressions=[])), ""),
        (limited(op("Aggregate", INPUT, groupingExpressions=[expr("Literal")])), "LIMIT"),
        (limited(op("Project", INPUT)), "LIMIT"),
        (op("Filter", INPUT, condition=expr("Exists", plan=limited(INPUT))), ""),
        (op("Filter", INPUT, condition=expr("ScalarSubquery", plan=limited(INPUT))), "LIMIT"),
        (op("Sample", INPUT), "sample"),
        (op("Aggregate", INPUT, e=[expr("aggregate.CollectSet")]), "collect_set()"),
        (op("Aggregate", INPUT, e=[expr("SortArray", expr("AggregateExpression",
            expr("aggregate.CollectSet")))]), ""),
        (op("Aggregate", INPUT, e=[expr("SortArray", expr("Concat", expr("AggregateExpression",
            expr("aggregate.CollectSet"))))]), "collect_set()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.AnyValue")]), "any_value()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.Mode", reverseOpt=None)]), "mode()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.Mode", reverseOpt=True)]), ""),
        (op("Window", INPUT, e=[expr("aggregate.Mode", reverseOpt=None)]), "mode()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.ApproximatePercentile")]),
         "approx_percentile()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.KllSketchAggBigint")]), "a KLL sketch"),
        (op("Aggregate", INPUT, e=[expr("aggregate.HyperLogLogPlusPlus")]), ""),
        (op("Project", INPUT, e=[expr("Cast", expr("Literal", value="now"), dataType="timestamp")]),
         "'now' as a date"),
        (op("Project", INPUT, e=[expr("Cast", expr("Literal", value="now"), dataType="string")]),
         ""),
    ],
)  # fmt: skip
def test_what_its_inputs_do_not_decide_is_found(plan: Nodes, said: str) -> None:
    """Order of rows, samples, and the present time in disguise."""
    found = find_nondeterminism(plan_tree(json.dumps(plan)))
    assert (found is None) == (said == "")
    assert found is None or said in found[0]
