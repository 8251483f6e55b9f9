"""The relations of Spark's parsed plans: those of a query's objects, and no others."""

from __future__ import annotations

import json

import pytest

from shardline.app.sql.parsed_relations import refuse_foreign_relations
from shardline.datasource.errors import InvalidUsage

SPARK = "org.apache.spark.sql.catalyst"


def relation(*parts: str) -> dict[str, object]:
    """A relation as Spark 4.3 writes it."""
    return {
        "class": f"{SPARK}.analysis.UnresolvedRelation",
        "num-children": 0,
        "multipartIdentifier": f"[{', '.join(parts)}]",
        "options": None,
        "isStreaming": False,
    }


def within(name: str, inner: dict[str, object], outer: dict[str, object]) -> list[object]:
    """`WITH name AS (inner) SELECT (SELECT … FROM outer)`."""
    cte = {"product-class": "scala.Tuple3", "_1": name, "_2": [inner]}
    subquery = {
        "class": f"{SPARK}.expressions.ScalarSubquery",
        "num-children": 0,
        "plan": [outer],
    }
    return [
        {
            "class": f"{SPARK}.plans.logical.UnresolvedWith",
            "num-children": 1,
            "child": 0,
            "cteRelations": [cte],
            "allowRecursion": False,
        },
        {
            "class": f"{SPARK}.plans.logical.Project",
            "num-children": 1,
            "projectList": [[subquery]],
            "child": 0,
        },
        {"class": f"{SPARK}.plans.logical.OneRowRelation", "num-children": 0},
    ]


@pytest.mark.parametrize(
    "plan",
    [
        [relation("peek_1")],
        within("Delays", relation("PEEK_1"), relation("delays")),
        within("d", relation("peek_1"), relation("peek_1")),
    ],
)
def test_views_and_common_table_expressions_are_read(plan: list[object]) -> None:
    """In any case, as Spark compares names."""
    refuse_foreign_relations(json.dumps(plan), {"peek_1"}, "")


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ([relation("text", "/etc/passwd")], "'text./etc/passwd'"),
        ([relation("flights")], "'flights'"),
        (within("d", relation("spark_catalog", "default", "t"), relation("d")), "default.t'"),
        (within("d", relation("peek_1"), relation("json", "s3a://b/x")), "'json.s3a://b/x'"),
        # The same text as one name and as two.
        (within("text, /x", relation("peek_1"), relation("text", "/x")), "'text./x'"),
        (
            [{"class": f"{SPARK}.analysis.PlanWithUnresolvedIdentifier", "num-children": 0}],
            "IDENTIFIER computes",
        ),
    ],
)
def test_anything_else_is_refused(plan: list[object], named: str) -> None:
    """Wherever it stands, and the error names it."""
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT") as refused:
        refuse_foreign_relations(json.dumps(plan), {"peek_1"}, "")
    assert named in str(refused.value)


def test_a_made_name_is_no_common_table_expression() -> None:
    """Where it stands it may be out of scope, and is a table of the session there."""
    plan = json.dumps(within("elsewhere", relation("peek_1"), relation("elsewhere")))
    read = "SELECT a FROM (WITH elsewhere AS (SELECT a FROM peek_1) SELECT a FROM elsewhere)"
    refuse_foreign_relations(plan, {"peek_1"}, read)
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT") as refused:
        refuse_foreign_relations(plan, {"peek_1"}, f"{read}, IDENTIFIER('elsewhere') x")
    assert "'elsewhere'" in str(refused.value)


HIDDEN = "SELECT sum(a) OVER w FROM peek_1 WINDOW w AS (ORDER BY (SELECT max(b) FROM {}))"
WINDOWS: list[object] = [
    # As Spark 4.3 writes it: nothing of what is in the windows.
    {
        "class": f"{SPARK}.plans.logical.WithWindowDefinition",
        "num-children": 1,
        "windowDefinitions": None,
        "child": 0,
        "forPipeSQL": False,
    },
    relation("peek_1"),
]


@pytest.mark.parametrize("word", ["IDENTIFIER", "identifier", "Identifier /* a */ ", "ıdentıfıer"])
def test_a_window_clause_is_no_place_for_names_that_are_made(word: str) -> None:
    """The plan's JSON does not show what it reads, and the query's own parser no such name."""
    text = HIDDEN.format(f"{word}('text.`/etc/passwd`')")
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT") as refused:
        refuse_foreign_relations(json.dumps(WINDOWS), {"peek_1"}, text)
    assert "WINDOW" in str(refused.value)


@pytest.mark.parametrize("read", ["(TABLE hidden)", "(table\n`hidden`)"])
def test_a_window_clause_is_no_place_for_tables_that_look_like_columns(read: str) -> None:
    """To the query's own parser `(TABLE x)` is a column, called `TABLE`."""
    text = HIDDEN.replace("(SELECT max(b) FROM {})", read)
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT") as refused:
        refuse_foreign_relations(json.dumps(WINDOWS), {"peek_1"}, text)
    assert "WINDOW" in str(refused.value)


@pytest.mark.parametrize("read", ["peek_1", "peek_1 WHERE identifier = 'IDENTIFIER('"])
def test_a_window_clause_is_read_where_names_are_what_they_are(read: str) -> None:
    """A column may be called so, and a text may have the word."""
    refuse_foreign_relations(json.dumps(WINDOWS), {"peek_1"}, HIDDEN.format(read))
