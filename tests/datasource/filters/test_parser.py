"""Option `where`: SQL text means what Spark means by it, or is refused by the piece."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.filters.predicates import Compare
from shardline.datasource.types.schema import ShardSchema
from support.profiles import one_of

ZONE = "Europe/Berlin"

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("at", pa.struct([("City", pa.string()), ("no.", pa.int64())])),
    ]
)

# The clocks of Berlin: 2026-03-29 02:00 becomes 03:00 (01:00 UTC), 2026-10-25 03:00 becomes 02:00.
HOUR = 3_600_000_000
SPRING, AUTUMN = 1_774_746_000_000_000, 1_792_890_000_000_000

COLUMNS: dict[str, list[Any]] = {
    "n": [0, 1, -1, 2**31 - 1, -(2**31), None, 5, 5],
    "big": [0, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, None, 5, 10**6],
    "price": [
        *map(Decimal, ("0.00", "10.55", "10.56", "99999999.99", "-99999999.99")),
        None,
        Decimal("10.50"),
        Decimal("-0.01"),
    ],
    "x": [0.0, -0.0, math.nan, math.inf, -math.inf, None, 0.1, 1e6],
    "f": [0.0, -0.0, math.nan, math.inf, -math.inf, None, 0.1, 16777216.0],
    "s": ["", "a", "ab", "a%", "\U0010ffff", None, "EU", "\ud7ffz"],
    "b": [True, False, None, True, False, None, True, False],
    "d": [0, 20541, 20542, -1, 20751, None, 20454, 20453],
    "ts": [0, SPRING - 1, SPRING, AUTUMN - HOUR, AUTUMN, None, AUTUMN - 1, SPRING + HOUR],
    "ntz": [0, SPRING - 1, SPRING, AUTUMN - HOUR, AUTUMN, None, AUTUMN - 1, SPRING + HOUR],
    "at": [{"City": c, "no.": i} for i, c in enumerate("abcdef")] + [None, {"City": None}],
}

ROWS = pa.table({"id": list(range(8)), **COLUMNS}, SCHEMA)


def ids(text: str, zone: str = ZONE) -> list[int]:
    """Which rows pass."""
    where = Condition(text, zone).bind(ShardSchema.from_arrow(SCHEMA))
    again = pickle.loads(pickle.dumps(where))  # noqa: S301 - as it travels to a task
    [batch] = ROWS.combine_chunks().to_batches()
    found: list[int] = again.passes(batch).column("id").to_pylist()
    return found


def oracle(text: str) -> list[int]:
    """The same by DuckDB, in the same time zone."""
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = '{ZONE}'")
        connection.register("rows", ROWS)
        found = connection.table("rows").filter(text).order("id").fetchall()
    return [row[0] for row in found]


@pytest.mark.parametrize(
    "text",
    one_of(
        2,
        [
            "n = 5 or n < 0",
            "not (n = 5 or n < 0)",
            "n > 0 and (n <= 5 or s = 'a')",
            "n > 1.5",
            "n >= -0.5 and n <= 0.5",
            "n = 3000000000",
            "n < 3000000000",
            "n > -3000000000.5",
            "n between -1 and 5",
            "n not between -1 and 5",
            "5 <= n",
            "n in (0, 5, 7)",
            "n not in (0, 5)",
            "n in (0, null)",
            "n not in (0, null)",
            "n is null",
            "n is not null and not n = 5",
            "n is distinct from 5",
            "n is not distinct from null",
            "n = null",
            "null or n = 5",
            "true",
            "n <> 5 and true",
            "big = 9007199254740993",
            "big > 9223372036854775807",
            "big = 9223372036854775808",
            "big < 9223372036854775806.5 or n <> 9223372036854775808",
            "big >= -9223372036854775808",
            "price = 10.55",
            "price > 10.555",
            "price <= 10.555",
            "price = 10.555",
            "price < 100000000",
            "price >= 1e1",
            "price in (10.5, 10.560, 3)",
            "price <> 10.50",
            "x = 0",
            "x = 0.1",
            "x > 5",
            "x >= 1e6",
            "x < 5",
            "x <> 0",
            "x in (0.0, 1000000)",
            "f > 5",
            "f = 16777216",
            "s = ''",
            "s > 'a'",
            "s <= 'ab'",
            "s like 'a%'",
            "s like 'ab'",
            "s like '%'",
            "not s like 'a%'",
            "s not like 'a%'",
            "not s not like 'a%'",
            "s not like 'ab'",
            "s not like '%' or n = 5",
            "s in ('EU', 'US', 'a')",
            "b",
            "not b",
            "b = false",
            "b is true",
            "b is not true",
            "b is not false",
            "b or n = 5",
            "d = date '2026-03-29'",
            "d >= '2026-03-28' and d < date '2026-03-30'",
            "d in ('2026-03-29', date '2026-10-25')",
            "ts = timestamptz '2026-03-29 03:00:00'",
            "ts >= '2026-03-29'",
            "ts < '2026-03-29 03:00:00'",
            "ts >= '2026-03-29 03:00:00+02:00'",
            "ts >= '2026-10-25 03:00:00' or ts < '1970-01-01 01:00:00.000001'",
            "ts between '2026-10-25 00:00:00Z' and '2026-10-25 01:00:00Z'",
            "ts = date '2026-03-29'",
            "ntz > '2026-03-29 01:00:00'",
            "ntz <= timestamp '2026-03-29 00:59:59.999999'",
            "ntz >= date '2026-10-25'",
        ],
    ),
)
def test_rows_are_those_that_another_engine_keeps(text: str) -> None:
    """Over the edges of every type."""
    # The one spelling in which the two dialects differ.
    own = text.replace("timestamptz '", "timestamp '") if "timestamptz" in text else text
    own = own.replace("ntz <= timestamp ", "ntz <= timestamp_ntz ")
    assert ids(own) == oracle(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n <=> 5", [6, 7]),
        ("n <=> null", [5]),
        ("not n <=> 5", [0, 1, 2, 3, 4, 5]),
        ("f = cast(0.1F as double)", [6]),
        ("x = cast(0.1F as double)", []),
        ("price = 1e-400", [0]),
        ("n = 5L or n = 1S or n = 0Y", [0, 1, 6, 7]),
        ("price = 10.5BD", [6]),
        ("x = 0.1D", [6]),
        ("f = 0.1", []),
        ("f = 0.1F", [6]),
        ("n > 16777215F or n <= -1F", [2, 3, 4]),
        ("x = double('NaN')", [2]),
        ("x <= cast('nan' as double)", [0, 1, 2, 3, 4, 6, 7]),
        ("x = float('-inf')", [4]),
        ("isnan(x)", [2]),
        ("not isnan(x)", [0, 1, 3, 4, 5, 6, 7]),
        ("isnull(x) or isnotnull(n) and n = 1", [1, 5]),
        ("startswith(s, 'a')", [1, 2, 3]),
        ("at.city = 'c'", [2]),
        ("`at`.`no.` >= 4", [4, 5]),
        ("AT.City is null", [6, 7]),
        ("at is null", [6]),
        ("s = 'EU' -- and \"more\"", [6]),
        # Skipped by the clocks: an hour later. Twice on the clocks: the first time.
        ("ts = '2026-03-29 02:00:00'", [2]),
        ("ts = timestamp '2026-10-25 02:00:00'", [3]),
        ("ts = '2026-10-25 02:00:00 UTC+01:00'", [4]),
        ("ts = '2026-10-25 02:00:00 Africa/Lagos'", [4]),
        ("ts = timestamp_ntz '2026-10-25 03:00:00'", []),
    ],
)
def test_sparks_own_spellings(text: str, expected: list[int]) -> None:
    """What only Spark has, and what happens where clocks change."""
    assert ids(text) == expected


def test_the_session_time_zone_counts() -> None:
    """A timestamp without a zone is another instant elsewhere."""
    assert ids("ts < '1970-01-01 00:00:01'", "UTC") == [0]
    assert ids("ts < '1970-01-01 00:00:01'", ZONE) == []


def test_days_times_and_intervals() -> None:
    """Types that the other engine has not, by what they are stored as."""
    schema = pa.schema([("t", pa.time64("ns")), ("i", pa.duration("us")), ("y", pa.binary())])
    for text, value in [
        ("t = time '07:30:00.5'", 27_000_500_000_000),
        ("i > interval '1 02:03:04.5' day to second", 93_784_500_000),
        ("i > interval 90 minutes", 5_400_000_000),
        ("i > interval '-2' hours", -7_200_000_000),
        ("y = X'00ff'", b"\x00\xff"),
    ]:
        bound = Condition(text).bind(ShardSchema.from_arrow(schema)).predicate
        assert isinstance(bound, Compare)
        assert bound.value == value
        bound.mask(schema.empty_table())


@pytest.mark.parametrize(
    "text",
    [
        "i = interval -'5' hour",
        "i = interval (5) hour",
        "i = interval '1 24:00:00' day to second",
        "i = interval '1 00:60:00' day to second",
        "i = interval '106751992' day",
        "t = cast('07:30:00.5' as time(0))",
        "y = X'0g'",
    ],
)
def test_days_times_and_intervals_that_are_not_understood(text: str) -> None:
    """A sign in another place, a precision, fields beyond their range."""
    schema = pa.schema([("t", pa.time64("ns")), ("i", pa.duration("us")), ("y", pa.binary())])
    with pytest.raises(InvalidUsage, match="INVALID_WHERE"):
        Condition(text).bind(ShardSchema.from_arrow(schema))


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "not one SQL expression"),
        ("n =", "no SQL expression"),
        ("null", "it is null"),
        ("(null)", "it is null"),
        ("n = 1; drop table t", "not one SQL expression"),
        ("select 1", "SELECT 1"),
        ("n = (select 1)", r"\(SELECT 1\)"),
        ("n + 1 = 2", r"n \+ 1 = 2"),
        ("n = big", "'big' stands where a literal"),
        ("1 = 1", "compares no column"),
        ("upper(s) = 'A'", "UPPER"),
        ("s like '%a'", "prefix%"),
        ("s like 'a_'", "prefix%"),
        ("s like 'a%' escape '!'", "ESCAPE"),
        ("s ilike 'a%'", "ILIKE"),
        ("s = 'a\\nb'", "backslash"),
        # Columns to a session with spark.sql.ansi.doubleQuotedIdentifiers, and text to others.
        ('s = "b"', "may be text or a column"),
        ("s in ('a', r\"b\")", "may be text or a column"),
        ('"n" = 1', "may be text or a column"),
        ("n = '5'", "'n' is of type integer"),
        ("s = 5", "'s' is of type string"),
        ("s > date '2026-01-01'", "'s' is of type string"),
        ("b = 1", "'b' is of type boolean"),
        ("at = 1", "'at' is of type struct"),
        ("n", "'n' is of type integer"),
        ("d = timestamp '2026-01-01 00:00:00'", "'d' is of type date"),
        ("ntz = timestamp '2026-01-01 00:00:00'", "'ntz' is of type timestamp_ntz"),
        # Spark ignores the zone.
        ("ts = timestamp_ntz '2026-10-25 02:00:00+05:00'", "has a time zone"),
        ("ts in (cast('2026-10-25 02:00:00 UTC' as timestamp_ntz))", "has a time zone"),
        ("ntz = '2026-10-25 02:00:00Z'", "has a time zone"),
        # Spark ignores what comes after the day.
        ("ts = date '2026-10-25 02:00:00'", "not a date"),
        ("ntz < cast('2026-10-25T02:00:00' as date)", "not a date"),
        # Without ANSI these are compared as text.
        ("ts not in ('2026-10-25 02:00:00', null)", "write timestamp"),
        ("ntz in ('2026-10-25')", "write timestamp"),
        ("d in (date '2026-10-25', '2026-3-29')", "write date"),
        ("d in ('2026-03-29 ')", "write date"),
        ("ts = 'now'", "'now' is not a timestamp"),
        ("d = '2026-02-30'", "no date"),
        ("ts = '2026-01-01 00:00:00 Mars/Here'", "no time zone 'Mars/Here'"),
        ("big = 1e17", "rounded"),
        ("price = 1.5F", "rounded"),
        # Without ANSI Spark compares whole numbers and floats as floats.
        ("n = 16777216F", "rounded"),
        ("n not in (-16777217F)", "rounded"),
        ("big < 1e8F", "rounded"),
        # Spark compares them as doubles, and without ANSI rounds the literal to a float.
        ("f >= 16777217", "rounded"),
        ("f in (1, -16777217)", "rounded"),
        ("f < 9223372036854775807", "rounded"),
        ("big in (1, 1e3)", "mixes"),
        ("price = cast(1.25 as decimal(3,1))", "stands where a literal"),
        ("x = cast('y' as double)", "stands where a literal"),
        ("n = cast(1.5 as int)", "stands where a literal"),
        ("n = 1e999", "beyond the largest double"),
        ("big < 9223372036854775808", "a long can hold"),
        ("n >= -9223372036854775808.5", "a long can hold"),
        ("n = double('inf')", "'n' is of type integer"),
        ("n = 1" + "0" * 500, "38 digits"),
        ("n = " + "1" * 39, "38 digits"),
        ("x = 0." + "0" * 38 + "1", "38 digits"),
        ("x < 1e400", "beyond the largest double"),
        ("f < 1e39F", "beyond the largest float"),
        ("f < cast(1e39 as float)", "beyond the largest float"),
        ("x = 1e", "'1e' is no number"),
        ("big = 1.0000000000000000000000000000000000001", "38 digits"),
        ("big in (1.0000000000000000000000000000000000001, 2)", "38 digits"),
        ("s not like 'a%' escape '!'", "ESCAPE"),
        ("s not like '%a'", "prefix%"),
        ("s like any ('a%', 'b%')", "ANY"),
        ("s not like all ('a%', 'b%')", "ALL"),
        ("s = cast('A' as string collate utf8_lcase)", "COLLATE"),
        ("ts = cast('2026-01-01 00:00:00.5' as timestamp(0))", "stands where a literal"),
        ("n = cast(5 as int format '9')", "FORMAT"),
        ("x = cast(0.1D as decimal(2, 1))", "stands where a literal"),
        ("big = cast(9007199254740993D as bigint)", "stands where a literal"),
        ("n = cast(cast(5 as double) as int)", "stands where a literal"),
        ("b is unknown", "unknown"),
        ("n in (1, 2,)", "comma"),
        ("s = '${spark.app.name}'", r"\$\{"),
        ("n = 0x1F", "0x1F"),
        ("ts = '2026-01-01 00:00:00 +25:00'", "no time zone"),
        ("ts = '2026-01-01 00:00:00 +18:01'", "no time zone"),
        ("ts = '2026-01-01 00:00:00 +01:60'", "no time zone"),
        ("ts = '2026-01-01 00:00:00 right/Europe/Berlin'", "no time zone"),
        ("d = '\u0662\u0660\u0662\u0666-01-01'", "not a date"),
        ("(at).city = 'a'", "at"),
        ("(" * 5000 + "b" + ")" * 5000, "recursion|nested"),
        ("case when b then true end", "CASE"),
        ("n = :name", ":name"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, piece: str) -> None:
    """By the piece, and with what would be understood."""
    with pytest.raises(InvalidUsage, match=rf"(?s)INVALID_WHERE.*({piece}).*hint: compare columns"):
        ids(text)


@pytest.mark.parametrize("text", ["c = 'ab'", "c in ('ab', 'b')", "c < 'ab'", "'ab' <=> c"])
def test_texts_that_spark_pads_are_left_to_it(text: str) -> None:
    """A CHAR of a catalog's table: Spark makes both sides as long as the column."""
    record = """{"type":"struct","fields":[{"name":"c","type":"string","nullable":true,"metadata":
        {"__CHAR_VARCHAR_TYPE_STRING":"char(5)"}}]}"""
    schema = ShardSchema.parse(record)
    with pytest.raises(InvalidUsage, match="is a CHAR"):
        Condition(text, "UTC").bind(schema)
    bound = ShardSchema.parse(record.replace("char(5)", "varchar(5)"))
    assert Condition(text, "UTC").bind(bound) is not None


def test_names_in_another_case_are_told() -> None:
    """Spark may be told to know columns by their exact spelling only."""
    record = "price = 1", "at.City = 'a'", "`price` > 1 AND at.City IS NULL"
    other = "PRICE = 1", "At.City = 'a'", "at.city = 'a'", "price > 1 AND at.CITY IS NULL"
    schema = ShardSchema.from_arrow(SCHEMA)
    bound = {text: Condition(text).bind(schema).in_case for text in (*record, *other)}
    assert bound == {**dict.fromkeys(record, True), **dict.fromkeys(other, False)}


@pytest.mark.parametrize(
    ("text", "near"), [("pric = 1", "price"), ("at.cty = 'a'", "at.City"), ("n = 1 and m = 2", "n")]
)
def test_unknown_columns_come_with_the_nearest_name(text: str, near: str) -> None:
    """Inside of structs, too."""
    with pytest.raises(InvalidUsage, match=rf"UNKNOWN_COLUMN.*(mean '{near}'|{near})"):
        ids(text)
