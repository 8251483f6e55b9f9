"""The text of a query over changes: columns handed on, and everything else as it was."""

from __future__ import annotations

import pytest

from shardline.app.sql.over_changes import NotLinear, rewrite_over_changes


@pytest.mark.parametrize(
    ("query", "rewritten"),
    [
        ("SELECT a FROM t", "SELECT a , _ts, _diff FROM t"),
        ("select *, a*b from t", "select * EXCEPT (_ts, _diff), a*b , _ts, _diff from t"),
        ("SELECT t.* FROM t", "SELECT t.* EXCEPT (_ts, _diff) , _ts, _diff FROM t"),
        ("SELECT * EXCEPT (a) FROM t", "SELECT * EXCEPT (a, _ts, _diff) , _ts, _diff FROM t"),
        (
            "SELECT a FROM t UNION ALL SELECT b FROM u",
            "SELECT a , _ts, _diff FROM t UNION ALL SELECT b , _ts, _diff FROM u",
        ),
        (
            "WITH c AS (SELECT a FROM t) SELECT a FROM (SELECT * FROM c) d",
            (
                "WITH c AS (SELECT a , _ts, _diff FROM t) SELECT a , _ts, _diff FROM "
                "(SELECT * EXCEPT (_ts, _diff) , _ts, _diff FROM c) d"
            ),
        ),
        (
            "SELECT 'from * -- select', `from`, 1.50e3 /* from */ FROM t -- from",
            "SELECT 'from * -- select', `from`, 1.50e3 /* from */ , _ts, _diff FROM t -- from",
        ),
        (
            "SELECT extract(YEAR FROM d), trim(BOTH ' ' FROM s) FROM t",
            "SELECT extract(YEAR FROM d), trim(BOTH ' ' FROM s) , _ts, _diff FROM t",
        ),
        (
            "SELECT a IS DISTINCT FROM b, NOT a IS NOT DISTINCT FROM b AS e FROM t",
            "SELECT a IS DISTINCT FROM b, NOT a IS NOT DISTINCT FROM b AS e , _ts, _diff FROM t",
        ),
        ("SELECT a AS select, t.from FROM t", "SELECT a AS select, t.from , _ts, _diff FROM t"),
        ("SELECT 'ä€😀' AS x FROM t", "SELECT 'ä€😀' AS x , _ts, _diff FROM t"),
    ],
)
def test_columns_are_handed_on(query: str, rewritten: str) -> None:
    """Text is inserted before each FROM and after each star, and nothing is changed."""
    assert rewrite_over_changes(query) == rewritten


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "VALUES (1)",
        "FROM t SELECT a",
        "FROM t |> WHERE a > 1 |> SELECT a",
        "TABLE t",
        "SELECT a FROM t UNION ALL SELECT 1",
        "SELECT 1 UNION ALL SELECT a FROM t",
        "WITH c AS (SELECT 1 AS a) SELECT a FROM c",
        "SELECT a IN (SELECT 1), extract(YEAR FROM d) FROM t",
    ],
)
def test_a_select_without_from_is_refused(query: str) -> None:
    """A constant row is no change of an input: there is nothing to hand on."""
    assert isinstance(rewrite_over_changes(query), NotLinear)
