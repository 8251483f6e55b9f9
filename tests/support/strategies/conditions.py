"""A grammar of conditions in SQL, over rows with the edges of every type.

    rows_sql()                  a query of the rows, for Spark; columns `id` and those of `COLUMNS`
    conditions(depth)           a strategy for texts: what option `where` has, and what it has not

Texts are made from text, not from what a filter is understood as: so they have every spelling that
people write, those that no reader has thought of included. None has an expectation of its own;
Spark says what each means.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

__all__ = ["COLUMNS", "FORMS", "conditions", "rows_sql", "whole_conditions"]

COLUMNS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "n": ("int", ("0", "1", "-1", "5", "16777217", "2147483647", "-2147483648", "null")),
    "h": ("smallint", ("0", "1", "-1", "32767", "-32768", "null")),
    "big": (
        "bigint",
        (
            "0",
            "9007199254740992L",
            "9007199254740993L",
            "9223372036854775807L",
            "-9223372036854775807L",
            "1000000L",
            "5L",
            "null",
        ),
    ),
    "price": (
        "decimal(10,2)",
        ("0.00", "10.55", "10.56", "99999999.99", "-99999999.99", "10.50", "-0.01", "null"),
    ),
    "wide": (
        "decimal(38,10)",
        (
            "0",
            "1.5",
            "9999999999999999999999999999.9999999999",
            "-9999999999999999999999999999.9999999999",
            "0.0000000001",
            "null",
        ),
    ),
    "x": (
        "double",
        (
            "0D",
            "-0D",
            "double('nan')",
            "double('inf')",
            "double('-inf')",
            "0.1D",
            "1e6",
            "4.9E-324D",
            "double(0.1F)",
            "null",
        ),
    ),
    "f": (
        "float",
        (
            "0F",
            "-0F",
            "float('nan')",
            "float('inf')",
            "float('-inf')",
            "0.1F",
            "16777216F",
            "1.4E-45F",
            "null",
        ),
    ),
    "s": (
        "string",
        (
            "''",
            "'a'",
            "'ab'",
            "'a%'",
            "'EU'",
            "'é'",
            "'\U0010ffff'",
            "'\ud7ffz'",
            "'a '",
            "'A'",
            "'_'",
            '"it\'s"',
            "null",
        ),
    ),
    "b": ("boolean", ("true", "false", "null")),
    "d": (
        "date",
        (
            "date'1970-01-01'",
            "date'2026-03-29'",
            "date'1582-10-04'",
            "date'1582-10-15'",
            "date'0001-01-01'",
            "date'9999-12-31'",
            "null",
        ),
    ),
    "ts": (
        "timestamp",
        (
            "timestamp'1970-01-01 00:00:00Z'",
            "timestamp'2026-03-29 00:59:59.999999Z'",
            "timestamp'2026-03-29 01:00:00Z'",
            "timestamp'2026-10-25 00:00:00Z'",
            "timestamp'2026-10-25 01:00:00Z'",
            "timestamp'1582-10-04 00:00:00Z'",
            "timestamp'1900-01-01 00:00:00Z'",
            "null",
        ),
    ),
    "ntz": (
        "timestamp_ntz",
        (
            "timestamp_ntz'1970-01-01 00:00:00'",
            "timestamp_ntz'2026-03-29 02:30:00'",
            "timestamp_ntz'1582-10-10 00:00:00'",
            "null",
        ),
    ),
    "y": ("binary", ("X''", "X'00'", "X'00ff'", "X'ff'", "null")),
    "i": (
        "interval day to second",
        (
            "interval '0 00:00:00' day to second",
            "interval '5' hour",
            "interval '-1 02:03:04.5' day to second",
            "null",
        ),
    ),
}
"""Of each column its type, and values as SQL."""

_ROWS: Final = 40


def rows_sql() -> str:
    """Every value of every column beside others; the same rows each time."""
    lines = []
    for row in range(_ROWS):
        # Steps that differ: each pair of columns has many pairs of values.
        cells = [
            f"cast({values[(row * step + row // len(values)) % len(values)]} as {kind})"
            for step, (kind, values) in enumerate(COLUMNS.values(), 1)
        ]
        lines.append(f"({row}, {', '.join(cells)})")
    return f"select * from values {', '.join(lines)} as t(id, {', '.join(COLUMNS)})"  # noqa: S608


_NUMBERS: Final = [
    "0",
    "1",
    "-1",
    "5",
    "-5",
    "1.5",
    "-0.5",
    "10.55",
    "10.555",
    "10.560",
    "1.",
    ".5",
    "05",
    "-0.0",
    "2147483647",
    "2147483648",
    "-2147483649",
    "32768",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "16777217",
    "1e6",
    "1e2",
    "0.1",
    "0e0",
    "1e308",
    "1e400",
    "-1e400",
    "1e-400",
    "4.9e-324",
    "0.1D",
    "0.1F",
    "-0D",
    "1e39F",
    "3.5e38F",
    "3.4028235e38F",
    "1e-45F",
    "16777217F",
    "5L",
    "5S",
    "5Y",
    "300Y",
    "1.5L",
    "1.50BD",
    "1e2BD",
    "9007199254740993D",
    "0.30000000000000004",
    "123456789012345678",
    "99999999999999999999999999999999999999",
    "999999999999999999999999999999999999999",
    "9999999999999999999999999999.9999999999",
    "0.00000000000000000000000000000000000001",
    "1.00000000000000000000",
    "1.00000017881393432617187501F",
    "double('nan')",
    "float('nan')",
    "double('inf')",
    "float('-inf')",
    "double(1)",
    "float(0.1)",
    "int('5')",
    "null",
    "-(5)",
    "cast('nan' as double)",
    "cast('1e400' as double)",
    "cast(1e39 as float)",
    "cast('5' as int)",
    "cast(' +5 ' as int)",
    "try_cast('5.5' as int)",
    "cast(1.5 as decimal(3,1))",
    "cast('1.5' as decimal(38,20))",
    "cast(0.1F as double)",
    "cast(0.1D as float)",
    "cast('1.00000017881393432617187499' as float)",
    "cast('1_0' as int)",
    "- -5",
]
_TEXTS: Final = [
    *("''", "'a'", "'ab'", "'a%'", "'é'", '"a"', "'A'", "' a'", "'\U0010ffff'", "null", "'it''s'"),
    *("string('a')", "cast('a' as string)", "cast('A' as string collate utf8_lcase)"),
    *("'a' 'b'", "r'a'", "'_'"),
]
_DATES: Final = [
    *("'1970-01-01'", "date '2026-03-29'", "'2026-3-29'", "date '1582-10-10'", "'1582-10-04'"),
    *("date '0001-01-01'", "'0000-01-01'", "'9999-12-31'", "cast('2026-03-29' as date)", "'2026'"),
    *("' 2026-03-29 '", "'2026-02-29'", "null", "'26-03-29'", "'+2026-03-29'", "'2026-03-29T'"),
]
_TIMES: Final = [
    *_DATES,
    *("timestamp '2026-03-29 02:00:00'", "'2026-03-29 02:30:00'", "'2026-10-25 02:30:00'"),
    *("'2026-10-25 02:00:00+01:00'", "'2026-10-25 02:00:00 +01:00'", "'2026-10-25T02:00:00Z'"),
    *("'2026-10-25 2:0:0'", "timestamp_ntz '2026-03-29 02:30:00'", "'1890-01-01 00:00:00'"),
    *("timestamp_ntz '1970-01-01 01:00:00+05:00'", "cast('1969-12-31 19:00:00Z' as timestamp_ntz)"),
    *("date '1970-01-01 01:00:00'", "cast('2026-03-29 02:30:00' as date)"),
    *("timestamp_ltz '2026-03-29 02:30:00'", "timestamp '1582-10-10 00:00:00'"),
    *("'1970-01-01 00:00:00.000001'", "'1970-01-01 00:00:00.0000001'", "'1970-01-01 24:00:00'"),
    *("'1970-01-01 01:00:00 UTC+01:00'", "'1970-01-01 01:00:00 Europe/Berlin'"),
    *("'1970-01-01 01:00:00 +18:00'", "'1970-01-01 01:00:00 +25:00'"),
    *("cast('1970-01-01 01:00:00.5' as timestamp)", "cast('1970-01-01 01:00:00' as timestamp(0))"),
]
_BYTES: Final = ["X''", "X'00'", "X'0'", "x'00FF'", "X'ff'", "null", "0xFF"]
_SPANS: Final = [
    *("interval '5' hour", "interval 5 hours", "interval '-5' hour", "interval -'5' hour"),
    *("-interval '5' hour", "interval '-1 02:03:04.5' day to second", "interval 0 seconds"),
    *("interval '106751992' day", "interval '1 24:00:00' day to second", "null"),
    *("interval 5 hours 3 minutes", "interval '5' month", "interval '1 2' day to hour"),
]
_LITERALS: Final[dict[str, list[str]]] = {
    **dict.fromkeys(("n", "h", "big", "price", "wide", "x", "f"), _NUMBERS),
    "s": _TEXTS,
    "b": ["true", "false", "null"],
    "d": _DATES,
    "ts": _TIMES,
    "ntz": _TIMES,
    "y": _BYTES,
    "i": _SPANS,
}
_PATTERNS: Final = [
    *("'a%'", "'a'", "'%'", "''", "'é%'", "'ab%%'", "'_%'", "'%a'", '"a%"', "null"),
    *("'a!%' escape '!'", "'a/%%' escape '/'", "any ('a%', 'E%')", "all ('a%', 'ab%')"),
]

FORMS: Final = (
    *("compare", "flipped", "in", "between", "null", "distinct", "like", "starts", "nan"),
    *("boolean", "constant"),
)
"""The forms of a condition without `and`, `or` and `not`."""


@st.composite
def simple_conditions(draw: st.DrawFn, form: str | None = None) -> str:
    """A condition of one form, or of any."""
    form = draw(st.sampled_from(FORMS)) if form is None else form
    column = draw(st.sampled_from(sorted(_LITERALS)))
    literals = st.sampled_from(_LITERALS[column])
    one, other, negated = draw(literals), draw(literals), draw(st.sampled_from(["", " not"]))
    sign = draw(st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"]))
    listed = ", ".join(draw(st.lists(literals, min_size=1, max_size=4)))
    spellings = {
        "compare": [f"{column} {sign} {one}"],
        "flipped": [f"{one} {sign} {column}"],
        "in": [f"{column}{negated} in ({listed})"],
        "between": [f"{column}{negated} between {one} and {other}"],
        "null": [f"{column} is{negated} null", f"isnull({column})", f"isnotnull({column})"],
        "distinct": [f"{column} is{negated} distinct from {one}"],
        "like": [f"s{negated} like {pattern}" for pattern in _PATTERNS],
        "starts": [f"startswith(s, {text})" for text in _TEXTS],
        "nan": ["isnan(x)", "isnan(f)"],
        "boolean": [
            *("b", "!b", "b = true is true", "n = 1 is null"),
            *(f"b is{negated} {word}" for word in ("true", "false", "unknown")),
        ],
        "constant": ["true", "false", "null", "(true)"],
    }
    return draw(st.sampled_from(spellings[form]))


def whole_conditions(depth: int = 2) -> st.SearchStrategy[str]:
    """Conditions joined by `and`, `or` and `not`, with parentheses and without."""
    if depth == 0:
        return simple_conditions()
    inner = whole_conditions(depth - 1)
    joined = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join)
    return st.one_of(
        simple_conditions(),
        inner.map(lambda text: f"not {text}"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"not ({text})"),
        joined,
        joined,
    )


def conditions() -> st.SearchStrategy[list[str]]:
    """Some of every form, and some joined: a job of Spark costs more than a condition."""
    each = [simple_conditions(form) for form in FORMS]
    return st.tuples(*each, st.lists(whole_conditions(), min_size=8, max_size=8)).map(
        lambda some: [*some[:-1], *some[-1]]
    )
