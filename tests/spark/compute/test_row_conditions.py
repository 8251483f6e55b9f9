"""Filters of a query are decided in Arrow for the rows of one input, as Spark decides them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.app.compute.view.column_trace import ColumnTraces
from shardline.app.compute.view.evaluation_order import EvaluationOrder
from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.compute.view.row_conditions import ConditionReader, rows_that_satisfy
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.datasource.frames import analyse_query
from support.profiles import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = (
    "i INT, n BIGINT, tiny TINYINT, m DECIMAL(12,2), big DECIMAL(38,4), s STRING, other STRING, "
    "d DATE, e DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, b BOOLEAN, f DOUBLE, bytes BINARY"
)

_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
_WALL = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - a column without a zone


def row(place: int) -> tuple[Any, ...]:
    """One of the rows: values around the constants of the conditions, and NULLs."""
    if place == 0:
        return (None,) * 14
    text = ["", "forest", "forest green", "a\nforest", "FOREST", "50%", "a_b", "é", "zz", "a\\b"]
    values = (
        place % 7 - 3,
        (place % 5) * 10**12,
        place % 4,
        Decimal(place % 9 - 4) / 4,
        Decimal(place % 3) * 10**30,
        text[place % len(text)],
        text[place * 3 % len(text)],
        date(1994, 1, 1 + place % 5),
        date(1994, 1, 1 + place % 3),
        _AT.replace(minute=place % 3),
        _WALL.replace(minute=place % 3),
        place % 2 == 0,
        [0.0, -0.0, float("nan"), 1.5][place % 4],
        bytes([place % 256]),
    )
    # Each column is NULL in a row of its own, beside values of the others.
    return tuple(None if place == column + 20 else one for column, one in enumerate(values))


EXACT = {
    "comparison": "i > 1",
    "turned": "1 > i",
    "wider": "i >= 2L AND n < 2000000000000",
    "tiny": "tiny = 3",
    "decimal": "m < 0.5",
    "decimal_and_whole": "m > 0",
    "whole_and_decimal": "i <= 1.5",
    "wide_decimal": "big = 1000000000000000000000000000000.0000",
    "text": "s = 'forest'",
    "order_of_bytes": "s > 'e'",
    "not_equal": "s <> 'forest'",
    "date": "d >= DATE'1994-01-03' AND d < DATE'1994-01-05'",
    "date_of_text": "d = '1994-01-02'",
    "computed_constant": "d < DATE'1993-12-31' + INTERVAL 3 DAYS",
    "columns": "d < e",
    "columns_of_text": "s = other",
    "timestamp": "at > TIMESTAMP'2026-03-01 12:00:30Z'",
    "wall": "wall <= TIMESTAMP_NTZ'2026-03-01 12:01:00'",
    "boolean": "b = true",
    "between": "i BETWEEN -1 AND 2",
    "listed": "i IN (1, 3)",
    "listed_of_years_that_python_lacks": "d IN (DATE'0000-01-01', DATE'1994-01-02')",
    "listed_text": "s IN ('zz', 'é', 'a_b')",
    "listed_decimals": "m IN (0.25, 0.50)",
    "not_listed": "i NOT IN (1, 3)",
    "prefix": "s LIKE 'forest%'",
    "inside": "s LIKE '%rest%'",
    "suffix": "s LIKE '%%rest'",
    "whole": "s LIKE 'a\nforest'",
    "any": "s LIKE '%'",
    "not_like": "s NOT LIKE '%e%'",
    "starts": "startswith(s, 'for')",
    "ends": "endswith(s, 'est')",
    "contains": "contains(s, 'rest')",
    "contains_special": "contains(s, '%') OR contains(s, '_')",
    "null": "s IS NULL",
    "not_null": "i IS NOT NULL",
    "or": "i = 1 OR s = 'zz'",
    "not_of_and": "NOT (i > 0 AND s = 'forest')",
    "not_of_or_with_null": "NOT (i > 0 OR d > DATE'1994-01-02')",
    "null_constant": "i = CAST(NULL AS INT)",
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([row(place) for place in range(120)], COLUMNS)


@pytest.fixture(scope="module")
def table(rows: DataFrame) -> pa.Table:
    return rows.toArrow()


def known(spark: SparkSession, query: str, rows: DataFrame) -> dict[QueryNode, Any]:
    analysed = plan_of(analyse_query(spark, query, {"t": rows, "u": rows}))
    root = query_tree(normal_form(spark, analysed))
    order = EvaluationOrder(spark)
    return ConditionReader(spark, ColumnTraces(), order).known(order.evaluated_first(root, {}))


def texts(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture(scope="module")
def let_through(spark: SparkSession, rows: DataFrame, table: pa.Table) -> Mapping[str, list[str]]:
    """By condition, the rows for which it is true: one query says it of all conditions."""
    conditions = [*EXACT.values(), *LOOSE.values()]
    values = ", ".join(f"({one}) IS TRUE AS c{n}" for n, one in enumerate(conditions))
    # Of the frame that `table` is of, and without a filter: the same rows in the same order.
    asked = analyse_query(spark, f"SELECT {values} FROM t", {"t": rows}).toArrow()  # noqa: S608
    return {one: texts(table.filter(asked.column(n))) for n, one in enumerate(conditions)}


def decided(spark: SparkSession, rows: DataFrame, table: pa.Table, condition: str) -> list[str]:
    """The rows that are kept by what is known of a condition."""
    query = f"SELECT * FROM t WHERE {condition}"  # noqa: S608 - ours
    (conditions,) = known(spark, query, rows).values()
    return texts(rows_that_satisfy(table, conditions))


@pytest.mark.parametrize("name", one_of(2, EXACT))
def test_what_is_known_is_what_spark_decides(
    spark: SparkSession,
    rows: DataFrame,
    table: pa.Table,
    let_through: Mapping[str, list[str]],
    name: str,
) -> None:
    """For values around the constant, NULL, and texts with every special character of patterns."""
    kept, expected = decided(spark, rows, table, EXACT[name]), let_through[EXACT[name]]
    assert len(expected) < table.num_rows
    assert kept == expected


LOOSE = {
    "unknown_side_of_and": "i > 1 AND length(s) > 4",
    "or_of_ands": "(i = 1 AND length(s) > 2) OR (i = 2 AND upper(s) = 'ZZ')",
    "columns_of_two_types": "i = 1 AND i < n",
    "nan": "f > 1.0 AND i > 0",
    "wildcard_inside": "s LIKE 'fo%t gr_n'",
    "one_letter_at_the_end": "s LIKE 'fores_'",
    "wildcards_around": "s LIKE '%o_s%'",
    "like_or": "s LIKE '_o%e%st' OR s = 'zz'",
}


@pytest.mark.parametrize("name", LOOSE)
def test_of_what_is_not_known_rows_are_kept(
    spark: SparkSession,
    rows: DataFrame,
    table: pa.Table,
    let_through: Mapping[str, list[str]],
    name: str,
) -> None:
    """What Arrow cannot decide leaves rows that Spark's filter will not let through."""
    kept, expected = decided(spark, rows, table, LOOSE[name]), let_through[LOOSE[name]]
    assert set(expected) < set(kept) < set(texts(table))


@pytest.mark.parametrize(
    "condition",
    [
        "f > 1.0",
        "NOT (i > 1 AND length(s) > 4)",
        "s LIKE 'a\\\\_b'",
        "s LIKE '_'",
        "s LIKE '__%_'",
        "s NOT LIKE 'for%st'",
        "s LIKE 'for%st' OR length(s) > 4",
        "s LIKE 'a/_b' ESCAPE '/'",
        "s COLLATE UTF8_LCASE = 'forest'",
        "CAST(n AS INT) = 1",
        "i + 1 = 2",
        "i = 1 OR length(s) > 2",
        "i <=> NULL",
        "rand() < 0.5",
        "10 / i > 2 AND i > 1",
    ],
)
def test_other_conditions_are_not_known(
    spark: SparkSession, rows: DataFrame, condition: str
) -> None:
    """Nothing is guessed; and where a division may fail first, nothing is left out before it."""
    assert not known(spark, f"SELECT * FROM t WHERE {condition}", rows)  # noqa: S608 - ours


NO_UTF8 = [
    *(b"axb", b"a\xffb", b"\xff", b"a\xff", b"\xffb", b"x\xffay", b"a\xf0ab", b"\xc3\xc3\xa9"),
    # A letter before a byte of nothing, a cut one, one with a byte too many, and half of a pair.
    *(b"\xc3\xa9\xff", b"\xf0\x9f\x98ab", b"\xc1\xa1b", b"\xed\xa0\xbdb", b"\xf0\x9f\x98\x80b"),
]


PATTERNS = [
    *("a%b", "a_b", "_", "%", "", "a%", "%b", "%a%", "axb", "%a_%", "a%ab", "%é", "é%"),
    *("_é", "é_", "%_é%", "_a%b", "\U0001f600_", "__b", "_%a_", "%a%b"),
]


@pytest.fixture(scope="module")
def like(spark: SparkSession) -> Mapping[str, list[int]]:
    """By condition, the numbers of the texts that Spark lets through: one query for all."""
    written = spark.createDataFrame(list(enumerate(NO_UTF8)), "i INT, b BINARY")
    given = written.selectExpr("i", "CAST(b AS STRING) AS s")
    conditions = [f"s {word} '{one}'" for word in ("LIKE", "NOT LIKE") for one in PATTERNS]
    found = given.selectExpr("i", *conditions).collect()
    return {one: sorted(row[0] for row in found if row[n]) for n, one in enumerate(conditions, 1)}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_that_are_no_utf8_are_decided_as_spark_does(
    spark: SparkSession, rows: DataFrame, like: Mapping[str, list[int]], pattern: str
) -> None:
    """A row that Spark's filter lets through is kept, whatever its bytes are.

    Of patterns that go by characters the rows that have their texts, and all for NOT.
    """
    texts = pa.array(NO_UTF8, pa.binary()).view(pa.string())
    table = pa.table({"i": range(len(NO_UTF8)), "s": texts})
    for word in ("LIKE", "NOT LIKE"):
        condition = f"s {word} '{pattern}'"
        found = known(spark, f"SELECT * FROM t WHERE {condition}", rows)  # noqa: S608 - ours
        kept = rows_that_satisfy(table, *found.values())["i"].to_pylist() if found else None
        loose = "_" in pattern or "%" in pattern.strip("%")
        assert (kept is None) == (loose and (word == "NOT LIKE" or not pattern.strip("%_")))
        if kept is not None:
            expected = like[condition]
            assert set(expected) <= set(kept) if loose else kept == expected


@pytest.mark.parametrize(
    ("query", "inputs"),
    [
        ("SELECT * FROM t JOIN u ON t.i = u.i WHERE t.s = 'zz' AND u.n > 3", ["t", "u"]),
        ("SELECT * FROM t JOIN u ON t.i = u.i AND t.s = 'zz'", ["t"]),
        ("SELECT * FROM t LEFT JOIN u ON t.i = u.i AND t.s = 'zz' WHERE t.n > 3", ["t"]),
        ("SELECT * FROM t LEFT JOIN u ON t.i = u.i AND u.s = 'zz'", []),
        ("SELECT * FROM t FULL JOIN u ON t.i = u.i WHERE t.n > 3", ["t"]),
        ("SELECT * FROM t FULL JOIN u ON t.i = u.i WHERE coalesce(t.n, 9) > 3", []),
        ("SELECT * FROM t LEFT SEMI JOIN u ON t.i = u.i WHERE t.n > 3", ["t"]),
        ("SELECT * FROM t WHERE s = 'zz' AND i IN (SELECT i FROM u WHERE n > 3)", ["t", "u"]),
        (
            "SELECT k FROM (SELECT i AS k FROM t UNION ALL SELECT tiny FROM u) WHERE k > 1",
            ["t", "u"],
        ),
        ("SELECT * FROM (SELECT i, count(*) AS c FROM t GROUP BY i) WHERE i > 1", []),
        ("SELECT * FROM (SELECT i, rank() OVER (ORDER BY i) AS r FROM t) WHERE i > 1", []),
        ("SELECT * FROM (SELECT i, 10 / i AS q FROM t) WHERE i > 1", []),
        ("SELECT x FROM (SELECT *, i AS x FROM t) WHERE x > 1", ["t"]),
        # Spark may take the division down to where the other condition is, and before it.
        ("SELECT t.* FROM t JOIN u ON t.i = u.i AND t.n > 5 WHERE 10 / t.i > 0", []),
        (
            "SELECT * FROM (SELECT CAST(t.s AS INT) AS q FROM t JOIN u ON t.n > 5) WHERE q > 3",
            [],
        ),
        ("SELECT CAST(t.s AS INT) AS q FROM t JOIN u ON t.n > 5", ["t"]),
        ("SELECT * FROM t, u WHERE (t.i = u.i AND t.s = 'a') OR (t.i = u.i AND t.s = 'b')", ["t"]),
    ],
)
def test_conditions_are_known_of_rows_that_come_to_nothing_without_them(
    spark: SparkSession, rows: DataFrame, query: str, inputs: list[str]
) -> None:
    """A condition of a join says nothing of the side whose rows are kept without it."""
    assert sorted(node.input for node in known(spark, query, rows)) == inputs


def test_an_error_before_a_filter_stays_one(spark: SparkSession, rows: DataFrame) -> None:
    """A row that the filter leaves out fails in Spark before it, and so must not be left out."""
    query = "SELECT q FROM (SELECT i, 10 / i AS q FROM t) WHERE q > 1 AND i > 1"
    assert not known(spark, query, rows)
    assert json.loads(plan_of(analyse_query(spark, query, {"t": rows})).toJSON())
