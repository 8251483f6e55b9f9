"""A query that calls Spark's own functions only means the same as long as settings do."""

from __future__ import annotations

import pytest

from shardline.app.sql.session_fingerprint import calls_only

FUNCTIONS = frozenset({"sum", "count", "left", "decimal", "array", "range", "filter"})
OTHERS = frozenset({"mine", "using"})


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, sum(n) AS n FROM t WHERE n IN (1, 2) GROUP BY (a)",
        "SELECT Count (*) FILTER (WHERE n > (1)) OVER (PARTITION BY a) FROM (SELECT 1) WITH_IT",
        "SELECT `sum`(n), CAST(n AS DECIMAL(10, 2)), left(s, 1) /* mine( */ FROM t -- mine(",
        "SELECT 'mine(' AS x, \"mine(\" FROM range(3)",
        "SELECT n FROM t GROUP BY GROUPING SETS ((a), (b))",
        "SELECT a.mine FROM a JOIN b ON (a.x = b.x)",
        "SELECT n FROM t",
    ],
)
def test_own_functions_are_decided(text: str) -> None:
    """In any case, quoted or not; parentheses of the grammar call nothing."""
    assert calls_only(text, FUNCTIONS, OTHERS)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT mine(n) FROM t",
        "SELECT MINE (n) FROM t",
        "SELECT mine/* x */(n) FROM t",
        "SELECT `mine`(n) FROM t",
        "SELECT `my own`(n) FROM t",
        "SELECT other(n) FROM t",
        "SELECT 3d_distance(n) FROM t",
        "SELECT db.sum(n) FROM t",
        "SELECT `db`.`sum`(n) FROM t",
        "SELECT sum(n) FROM t WHERE a = (SELECT max(mine(n)) FROM u)",
        "SELECT IDENTIFIER('mine')(n) FROM t",
        "SELECT * FROM made(3)",
        "SELECT using(n) FROM t",
        "SELECT `in`(n) FROM t",
        "SELECT sum(n) OVER w FROM t WINDOW w AS (PARTITION BY mine(n))",
    ],
)
def test_functions_of_others_are_not(text: str) -> None:
    """Those of a user, of a catalog, and those that nothing is known of."""
    assert not calls_only(text, FUNCTIONS, OTHERS)
