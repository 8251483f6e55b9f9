"""Plans of Spark as trees: read from its JSON, and what strategy and determinism see in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardline.app.sql.determinism import find_clock_literal, find_nondeterminism
from shardline.app.sql.plan_tree import plan_tree
from shardline.app.sql.strategy import Verdict, choose_strategy

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


KEPT = Verdict()
KEYED = Verdict(by_key=True)


def strategy(plan: Nodes, *verdicts: Verdict) -> tuple[str, str]:
    return choose_strategy(plan_tree(json.dumps(plan)), verdicts)


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
    joins = sum(node.kind == "Join" for node in plan_tree(json.dumps(plan)).walk())
    found = "recompute" if reason else "linear"
    assert strategy(plan, *[KEPT] * joins) == (found, reason)


GROUPED = op(
    "Aggregate",
    INPUT,
    aggregateExpressions=[
        expr("Alias", expr("AggregateExpression", expr("Average"))),
        expr("Alias", expr("AggregateExpression", expr("CountIf"))),
    ],
)
ROWS = op("Aggregate", INPUT, aggregateExpressions=[expr("AttributeReference")])
RANKED = op(
    "Window",
    INPUT,
    windowExpressions=[
        expr("Alias", expr("WindowExpression", expr("RowNumber"))),
        expr("Alias", expr("WindowExpression", expr("AggregateExpression", expr("Sum")))),
    ],
)
RANKS = "a window function (row_number, sum)"


@pytest.mark.parametrize(
    ("plan", "verdicts", "found"),
    [
        (GROUPED, [KEPT], ("incremental", "an aggregate (avg, count_if)")),
        (
            GROUPED,
            [KEYED],
            ("incremental", "an aggregate (avg, count_if) anew for each group that changes"),
        ),
        (ROWS, [KEPT], ("incremental", "distinct rows")),
        (
            GROUPED,
            [Verdict("an aggregate (avg of DOUBLE)")],
            ("recompute", "an aggregate (avg of DOUBLE)"),
        ),
        (
            op("Union", ROWS, GROUPED),
            [KEPT, Verdict("groups by MAP")],
            ("recompute", "groups by MAP"),
        ),
        (op("Union", *[ROWS] * 12), [KEPT] * 12, ("incremental", "distinct rows")),
        (
            op("Union", *[ROWS] * 13),
            [KEPT] * 13,
            ("recompute", "more than 12 aggregates, temporal filters and first rows"),
        ),
        (
            op("Union", *[ROWS] * 13),
            [KEYED] * 13,
            ("incremental", "distinct rows anew for each group that changes"),
        ),
        (op("Distinct", ROWS), [KEPT], ("recompute", "DISTINCT")),
        (RANKED, [KEYED], ("incremental", f"{RANKS} anew for each partition that changes")),
        (op("Filter", RANKED), [KEPT], ("recompute", RANKS)),
    ],
)
def test_aggregates_and_windows_follow_changes_unless_they_are_refused(
    plan: Nodes, verdicts: list[Verdict], found: tuple[str, str]
) -> None:
    """Verdicts are in the order of the plan. Only what is kept as a state counts as one."""
    assert strategy(plan, *verdicts) == found


@pytest.mark.parametrize(
    ("kind", "without", "by_key"),
    [
        ("Inner", "a join of two inputs", "a join anew for each key that changes"),
        (
            "LeftOuter",
            "a left outer join (run anew where its right side changes)",
            "a left outer join anew for each key that changes",
        ),
        (
            "RightOuter",
            "a right outer join (run anew where its left side changes)",
            "a right outer join anew for each key that changes",
        ),
        (
            "LeftSemi",
            "a semi join, as IN is (run anew where its right side changes)",
            "a semi join, as IN is, anew for each key that changes",
        ),
        (
            "LeftAnti",
            "an anti join, as NOT EXISTS is (run anew where its right side changes)",
            "an anti join, as NOT EXISTS is, anew for each key that changes",
        ),
        ("FullOuter", "", "a full outer join anew for each key that changes"),
        ("LeftSingle", "", "a subquery of one row anew for each key that changes"),
    ],
)
def test_joins_follow_changes_with_what_is_there(kind: str, without: str, by_key: str) -> None:
    """Their reason says why their view is not linear, and when it is recomputed all the same."""
    join = op("Join", op("Filter", INPUT), INPUT, joinType={"object": f"x.{kind}$"})
    alone = strategy(op("Project", join), KEPT)
    assert alone == ("incremental", without) if without else alone[0] == "recompute"
    assert strategy(op("Project", join), KEYED) == ("incremental", by_key)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("SELECT DATE 'today'", 7),
        ("SELECT timestamp_ntz ' NOW '", 7),
        ("SELECT DATE 'today UTC'", 7),
        ("SELECT TIMESTAMP 'Tomorrow\tEurope/Berlin'", 7),
        ("SELECT DATE 'yesterday+01:00'", 7),
        ("SELECT DATE r'today'", 7),
        ("SELECT DATE 'to' \"day UTC\"", 7),
        ("SELECT DATE '\\u0074oday'", 7),
        ("SELECT DATE '2020-01-01'", None),
        ("SELECT 'today', date, 'now'", None),
        ("SELECT DATE 'todays', '\\n'", None),
    ],
)
def test_literals_that_mean_now_are_seen_in_the_text(text: str, offset: int | None) -> None:
    """Spark's parser replaces them, so that only the text shows them."""
    assert find_clock_literal(text) == offset


FIRST = expr("aggregate.First")


def limited(plan: Nodes) -> Nodes:
    return op("GlobalLimit", op("LocalLimit", plan))


def exists(plan: Nodes) -> Nodes:
    return op("Filter", INPUT, condition=expr("Exists", plan=plan))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (limited(op("Project", op("Sort", INPUT, order=expr("AttributeReference")))), ""),
        (limited(op("Project", op("Sort", INPUT, order=expr("Literal")))), "LIMIT"),
        (limited(op("Aggregate", INPUT, groupingExpressions=[])), ""),
        (limited(op("Aggregate", INPUT, groupingExpressions=[expr("Literal")])), "LIMIT"),
        (limited(op("Project", INPUT)), "LIMIT"),
        (exists(limited(INPUT)), ""),
        (exists(limited(op("Offset", op("Project", INPUT)))), ""),
        (exists(op("SubqueryAlias", op("Sort", limited(INPUT)))), ""),
        (exists(op("Project", op("Window", INPUT, e=[FIRST]))), ""),
        (exists(op("Aggregate", INPUT, groupingExpressions=[expr("Literal")], e=[FIRST])), ""),
        (exists(op("WithCTE", op("CTERelationDef", INPUT), limited(INPUT))), ""),
        (exists(op("WithCTE", op("CTERelationDef", limited(INPUT)), limited(INPUT))), "LIMIT"),
        (exists(op("Filter", limited(INPUT))), "LIMIT"),
        (exists(limited(op("Filter", limited(INPUT)))), "LIMIT"),
        (exists(op("Distinct", limited(INPUT))), "LIMIT"),
        (exists(op("Join", INPUT, limited(INPUT))), "LIMIT"),
        (exists(op("Aggregate", limited(INPUT), groupingExpressions=[expr("Literal")])), "LIMIT"),
        (exists(op("Aggregate", INPUT, groupingExpressions=[
            expr("ScalarSubquery", plan=limited(INPUT))])), "LIMIT"),
        (exists(op("Filter", op("Aggregate", INPUT, e=[FIRST]))), "first()"),
        (exists(op("Filter", op("Window", INPUT, e=[expr("aggregate.Mode", reverseOpt=None)]))),
         "mode()"),
        (exists(op("Sample", INPUT)), "sample"),
        (op("Filter", INPUT, condition=expr("ScalarSubquery", plan=limited(INPUT))), "LIMIT"),
        (op("Sample", INPUT), "sample"),
        (op("Aggregate", INPUT, e=[expr("aggregate.CollectSet")]), "collect_set()"),
        (op("Aggregate", INPUT, e=[expr("aggregate.CollectUnion")]), "collect_union()"),
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
        (op("Project", INPUT, e=[expr("ParseToTimestamp", expr("Literal", value="12:30"))]),
         "'12:30' as a date"),
        (op("Project", INPUT, e=[expr("ParseToTimestamp", expr("Literal", value="12:30"),
            expr("Literal", value="HH:mm"))]), ""),
    ],
)  # fmt: skip
def test_what_its_inputs_do_not_decide_is_found(plan: Nodes, said: str) -> None:
    """Order of rows, samples, and the present time in disguise."""
    found = find_nondeterminism(plan_tree(json.dumps(plan)))
    assert (found is None) == (said == "")
    assert found is None or said in found[0]
