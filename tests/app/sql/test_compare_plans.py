"""Plans over changes beside those of the query: the same but for columns that are handed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardline.app.sql.compare_plans import compare_plans
from shardline.app.sql.plan_tree import plan_tree

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."

Nodes = list[dict[str, Any]]

A, B, TS, DIFF = ("a", 1), ("b", 2), ("_ts", 3), ("_diff", 4)


def op(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    head = {"class": LOGICAL + kind, "num-children": len(children), **fields}
    return [head, *(node for child in children for node in child)]


def expr(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    head = {"class": EXPRESSIONS + kind, "num-children": len(children), **fields}
    return [head, *(node for child in children for node in child)]


def numbered(number: int) -> dict[str, Any]:
    return {"product-class": EXPRESSIONS + "ExprId", "id": number, "jvmId": "j"}


def column(name: str, number: int) -> Nodes:
    return expr("AttributeReference", name=name, exprId=numbered(number))


def alias(value: Nodes, name: str, number: int) -> Nodes:
    return expr("Alias", value, name=name, exprId=numbered(number))


def table(*columns: tuple[str, int], name: str = "t") -> Nodes:
    leaf = op("LocalRelation", output=[column(*each) for each in columns])
    return op("View", leaf, desc={"identifier": {"table": name}})


def select(below: Nodes, *columns: Nodes | tuple[str, int]) -> Nodes:
    listed = [one if isinstance(one, list) else column(*one) for one in columns]
    return op("Project", below, projectList=listed)


PLAIN, CHANGES = table(A, B), table(A, B, TS, DIFF)
# The same input once more, as Spark numbers its second use, in other ids than the query's own.
AGAIN, CHANGES_AGAIN = (
    table(("a", 11), ("b", 12)),
    table(*((n, i + 20) for n, i in (A, B, TS, DIFF))),
)


def compared(plain: Nodes, changed: Nodes) -> str:
    return compare_plans(plan_tree(json.dumps(plain)), plan_tree(json.dumps(changed)))


def expanded(below: Nodes, output: list[tuple[str, int]], *rows: list[tuple[str, int]]) -> Nodes:
    return op(
        "Expand",
        below,
        projections=[[column(*each) for each in row] for row in rows],
        output=[column(*each) for each in output],
    )


def generated(below: Nodes, output: tuple[str, int]) -> Nodes:
    return op("Generate", below, unrequiredChildIndex=[], generatorOutput=[column(*output)])


def union(*branches: Nodes) -> Nodes:
    return op("Union", *branches, byName=False)


SAME = [
    (select(PLAIN, A), select(CHANGES, A, TS, DIFF)),
    (
        select(op("Filter", PLAIN, condition=expr("IsNull", column(*B))), B, A),
        select(op("Filter", CHANGES, condition=expr("IsNull", column(*B))), B, A, TS, DIFF),
    ),
    (
        union(select(PLAIN, A), select(AGAIN, ("b", 12))),
        union(
            select(CHANGES, A, TS, DIFF),
            select(CHANGES_AGAIN, ("b", 22), ("_ts", 23), ("_diff", 24)),
        ),
    ),
    (
        select(select(PLAIN, alias(column(*A), "x", 5)), ("x", 5)),
        select(
            select(
                CHANGES, alias(column(*A), "x", 7),
                alias(column(*TS), "_ts", 8), alias(column(*DIFF), "_diff", 9),
            ),
            ("x", 7), ("_ts", 8), ("_diff", 9),
        ),
    ),
    (
        select(expanded(PLAIN, [A], [A], [B]), A),
        select(expanded(CHANGES, [TS, A, DIFF], [TS, A, DIFF], [TS, B, DIFF]), A, TS, DIFF),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "changed"), SAME)
def test_columns_may_be_handed_on(plain: Nodes, changed: Nodes) -> None:
    """Through every list of columns, under whatever ids, to the end of the last one."""
    assert compared(plain, changed) == ""


@pytest.mark.parametrize(
    ("plain", "changed", "reason"),
    [
        (
            select(PLAIN, alias(expr("Greatest", column(*A), column(*B)), "g", 5)),
            select(
                CHANGES,
                alias(expr("Greatest", *(column(*c) for c in (A, B, TS, DIFF))), "g", 5),
                TS, DIFF,
            ),
            "Greatest over all columns",
        ),
        (
            select(PLAIN, alias(expr("IsNull", column(*A)), "g", 5)),
            select(CHANGES, alias(expr("IsNull", column(*TS)), "g", 5), TS, DIFF),
            "sees _ts",
        ),
        (
            select(op("Filter", PLAIN, condition=expr("IsNull", column(*A))), A),
            select(op("Filter", CHANGES, condition=expr("IsNull", column(*DIFF))), A, TS, DIFF),
            "sees _diff",
        ),
        (select(PLAIN, A, B), select(CHANGES, A, TS, DIFF, B), "not handed on at the end"),
        (select(PLAIN, A), select(CHANGES, A, DIFF, TS), "not handed on at the end"),
        (select(PLAIN, A), select(CHANGES, A), "not handed on at the end"),
        (select(PLAIN, A), select(CHANGES, TS, A, TS, DIFF), "among those of the query"),
        (
            select(PLAIN, A),
            select(CHANGES, A, alias(column(*TS), "x", 8), alias(column(*DIFF), "_diff", 9)),
            "x, which would mean something else",
        ),
        (generated(PLAIN, ("v", 5)), generated(CHANGES, ("v", 3)), "a name that means a column"),
        (select(PLAIN, A), select(CHANGES, B, TS, DIFF), "b, which would mean something else"),
        (
            select(PLAIN, alias(column(*A), "_ts", 5)),
            select(CHANGES, alias(column(*TS), "_ts", 5), TS, DIFF),
            "sees _ts",
        ),
        (
            union(select(PLAIN, A), select(AGAIN, ("b", 12))),
            union(
                select(CHANGES, A, TS, DIFF),
                select(CHANGES_AGAIN, ("b", 22), ("_diff", 24), ("_ts", 23)),
            ),
            "branches of a union",
        ),
        (
            select(expanded(PLAIN, [A], [A], [B]), A),
            select(expanded(CHANGES, [TS, A, DIFF], [TS, A, DIFF], [B, TS, DIFF]), A, TS, DIFF),
            "rows that hand columns on",
        ),
        (select(PLAIN, A), select(table(A, B, TS, DIFF, name="u"), A, TS, DIFF), "another input"),
        (select(PLAIN, A), select(table(A, TS, DIFF), A, TS, DIFF), "other columns of an input"),
        (op("Distinct", PLAIN), op("Distinct", CHANGES), "the operator Distinct"),
        (select(PLAIN, A), op("Filter", CHANGES), "the operator Filter in the place of Project"),
        (
            op("Sort", PLAIN, **{"global": True}),
            op("Sort", CHANGES, **{"global": False}),
            "a property",
        ),
    ],
)  # fmt: skip
def test_anything_else_is_another_query(plain: Nodes, changed: Nodes, reason: str) -> None:
    """What sees a hidden column, what moves one, and what is not known: a reason each."""
    assert reason in compared(plain, changed)


def test_a_deep_plan_is_given_up() -> None:
    """Beyond the stack there is the other way."""
    heads = [{"class": LOGICAL + "Filter", "num-children": 1}] * 5_000
    assert "too deep" in compared(heads + PLAIN, heads + CHANGES)
