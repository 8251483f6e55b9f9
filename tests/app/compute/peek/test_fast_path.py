"""Queries that are simple enough are answered without Spark, by keys where there are some."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shardline.app.compute.peek.fast_path import lookup_keys, read_simple_select, spark_schema
from shardline.datasource.types.schema import ShardSchema

SCHEMA = ShardSchema.from_arrow(
    pa.schema(
        [
            ("k", pa.int64()),
            ("v", pa.string()),
            ("d", pa.float64()),
            ("b", pa.bool_()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(9, 2)),
        ]
    )
)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k + 1 FROM t",
        "SELECT K FROM t",
        "SELECT nope FROM t",
        "SELECT * EXCEPT (k) FROM t",
        "SELECT DISTINCT k FROM t",
        "SELECT k FROM t ORDER BY k",
        "SELECT k FROM t GROUP BY k",
        "SELECT k FROM t LIMIT 1 OFFSET 1",
        "SELECT k FROM t LIMIT 1 + 1",
        "SELECT k FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT k FROM t, t AS u",
        "SELECT k FROM t JOIN u ON t.k = u.k",
        "SELECT k FROM u",
        "SELECT k FROM x.t",
        "SELECT k FROM t AS u (a, b)",
        "SELECT k FROM (SELECT * FROM t)",
        "WITH t AS (SELECT 1 AS k) SELECT k FROM t",
        "SELECT k FROM t UNION ALL SELECT k FROM t",
        "SELECT k FROM t WHERE k + 1 = 2",
        "SELECT k FROM t WHERE k = (SELECT 1)",
        "SELECT k FROM t WHERE v = 'a\\\\b'",
        "SELECT k FROM t WHERE v RLIKE 'a'",
        "SELECT k FROM t WHERE v = 1",
        "SELECT /*+ BROADCAST(t) */ k FROM t",
        "SELECT k FROM t AS k WHERE k.k = 1",
        "SELECT u.k FROM t",
        "SELECT count(*) FROM t",
        "SELECT k FROM t QUALIFY row_number() OVER (ORDER BY k) = 1",
        "SELECT k FROM t LATERAL VIEW explode(array(1)) AS x",
        "SELECT k FROM t; SELECT 1",
        "SELECT k AS v FROM t |> WHERE v = 'a'",
        "SELECT k FROM t LIMIT 5 |> WHERE k > 1",
        "FROM t |> LIMIT 3",
        "SELECT k FROM t |> LIMIT 5",
        "not a query",
    ],
)
def test_what_is_not_certain_is_for_spark(query: str) -> None:
    """Anything beyond columns, a condition of shards and a limit is left alone."""
    assert read_simple_select(query, "t", SCHEMA, "UTC") is None


@pytest.mark.parametrize(
    ("query", "columns", "names", "limit"),
    [
        ("SELECT v, k AS key FROM t", ("v", "k"), ("v", "key"), None),
        ("select x.`k` from T x where x.v like 'a%' limit 3", ("k",), ("k",), 3),
        (
            "SELECT k, k k2 FROM t WHERE k BETWEEN 1 AND 2 OR v IS NULL",
            ("k", "k"),
            ("k", "k2"),
            None,
        ),
        ("SELECT * FROM t LIMIT 0", SCHEMA.names, SCHEMA.names, 0),
    ],
)
def test_simple_ones_are_read(
    query: str, columns: tuple[str, ...], names: tuple[str, ...], limit: int | None
) -> None:
    """Columns, their names, a condition and a limit are all that they have."""
    found = read_simple_select(query, "t", SCHEMA, "UTC")
    assert found is not None
    assert (found.columns, found.names, found.limit) == (columns, names, limit)


@pytest.mark.parametrize(
    ("where", "key", "count"),
    [
        ("k = 1", ("k",), 1),
        ("1 = k AND v = 'a'", ("v", "k"), 1),
        ("k IN (1, 2, 2) AND v IN ('a', 'b') AND b", ("k", "v"), 4),
        ("b AND at = timestamp '2020-01-01'", ("b", "at"), 1),
        ("day = '2020-01-01' AND price = 1.5", ("day", "price"), 1),
        ("k IN (1, null)", ("k",), 1),
        ("k = 1", ("k", "v"), None),
        ("k = 1 OR k = 2", ("k",), None),
        ("NOT k = 1", ("k",), None),
        ("k > 1", ("k",), None),
        ("d = 0.0D", ("d",), None),
        (f"k IN ({', '.join(map(str, range(200)))})", ("k",), None),
    ],
)
def test_keys_are_found_where_every_row_must_have_one(
    where: str, key: tuple[str, ...], count: int | None
) -> None:
    """Equalities and lists joined by AND; doubles never, of which two zeros are equal."""
    found = read_simple_select(f"SELECT * FROM t WHERE {where}", "t", SCHEMA, "UTC")  # noqa: S608
    assert found is not None
    keys = lookup_keys(found, key, SCHEMA)
    assert (None if keys is None else len(keys)) == count
    for one in keys or []:
        assert one.schema.types == [SCHEMA.arrow.field(name).type for name in key]


def test_types_that_spark_gives_otherwise_are_for_spark() -> None:
    """The schema of an answer is that of `toArrow`, or there is none."""
    told = spark_schema(SCHEMA)
    assert told is not None
    assert told.types == SCHEMA.arrow.types
    void = ShardSchema.from_arrow(pa.schema([("n", pa.null())]))
    assert spark_schema(void) is None or spark_schema(void).types == void.arrow.types  # type: ignore[union-attr]
