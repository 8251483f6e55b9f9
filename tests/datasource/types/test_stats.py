"""Statistics: bounds enclose every value, parts that share a row overlap, budgets are kept."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Record, SparkType, path_text
from shardline.datasource.types.stats import (
    ColumnStats,
    PartStats,
    bounds,
    decode_stats,
    encode_stats,
    may_overlap,
    merge_stats,
    stats_size,
)
from support.strategies.rows import (
    PLAIN_TYPES,
    Case,
    ample,
    bounded,
    cases,
    row_identity,
    schemas,
    to_table,
)
from support.strategies.rows import rows as rows_of

AMPLE = 10**9


def leaves(
    row: Any, record: Record, path: tuple[str, ...] = ()
) -> dict[str, tuple[Any, SparkType]]:
    """Path text -> plain value of each column and struct field of a row."""
    found: dict[str, tuple[Any, SparkType]] = {}
    for position, field in enumerate(record.fields):
        value = None if row is None else row[position]
        here = (*path, field.name)
        found[path_text(here)] = (value, field.type)
        if isinstance(field.type, Record):
            found |= leaves(value, field.type, here)
    return found


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.slow
@given(cases())
@ample
def test_bounds_enclose_all_values_and_counts_are_exact(case: Case) -> None:
    """Every leaf of every type, also after JSON, also when text is cut to the budget."""
    for budget in (AMPLE, 300):
        stats = collect_part_stats(case.table, case.schema, budget_bytes=budget)
        assert msgspec.json.decode(msgspec.json.encode(stats), type=PartStats) == stats
        assert stats.rows == len(case.rows)
        if budget == AMPLE and not case.rows:
            assert set(stats.columns) == set(leaves(None, case.schema.record))
        for row in case.rows:
            for path, (value, _) in leaves(row, case.schema.record).items():
                if path not in stats.columns:
                    assert budget != AMPLE
                    continue
                lo, hi = bounds(stats, path)
                if value is None or is_nan(value):
                    continue
                assert lo is None or lo <= value
                assert hi is None or value <= hi
        for path, column in stats.columns.items():
            found = [leaves(r, case.schema.record)[path][0] for r in case.rows]
            assert column.nulls == sum(v is None for v in found)
            assert column.nans == sum(is_nan(v) for v in found)


@given(cases(st.sampled_from(PLAIN_TYPES)))
@bounded
def test_bounds_are_tight_when_nothing_is_cut(case: Case) -> None:
    """Least and greatest value exactly, up to the 64 bytes that text may have."""
    stats = collect_part_stats(case.table, case.schema, budget_bytes=AMPLE)
    for position, name in enumerate(case.schema.names):
        found = [
            r[position] for r in case.rows if r[position] is not None and not is_nan(r[position])
        ]
        expected = (min(found), max(found)) if found else (None, None)
        if not any(isinstance(v, str | bytes) and len(v) > 16 for v in found):
            assert bounds(stats, name) == expected


@given(st.text(min_size=1), st.text(), st.text())
@bounded
def test_cut_bounds_of_text_are_valid_text_and_still_bounds(a: str, b: str, c: str) -> None:
    """Also at the end of the code space and beside the surrogates."""
    some = [(v * 40,) for v in (a, b, c, "\U0010ffff" + a, "\ud7ff" + a)]
    schema = ShardSchema.from_arrow(pa.schema([("t", pa.string())]))
    stats = collect_part_stats(to_table(some, schema), schema)
    assert stats_size(stats) <= 1024
    lo, hi = bounds(stats, "t")
    assert lo is not None
    for (value,) in some:
        assert str(lo).encode() <= value.encode()
        assert hi is None or value.encode() <= str(hi).encode()


def test_cut_bounds_of_known_text() -> None:
    """By hand: the upper bound's last code point is the next one, over the surrogates."""
    schema = ShardSchema.from_arrow(pa.schema([("t", pa.string())]))

    def upper(text: str) -> Any:
        return bounds(collect_part_stats(to_table([(text,)], schema), schema), "t")[1]

    assert upper("a" * 65) == "a" * 63 + "b"
    assert upper("é" * 33) == "é" * 31 + "ê"
    assert upper("\ud7ff" * 30) == "\ud7ff" * 20 + "\ue000"
    assert upper("b" + "\U0010ffff" * 30) == "c"
    assert upper("\U0010ffff" * 30) is None


def test_text_that_is_no_utf8_has_no_bounds() -> None:
    """Spark can make such strings; they are kept, and never pruned by."""
    column = pa.array([b"\xff", b"a"], pa.binary()).view(pa.string())
    schema = ShardSchema.from_arrow(pa.schema([("t", pa.string())]))
    stats = collect_part_stats(pa.table({"t": column}), schema)
    assert bounds(stats, "t") == (None, None)


def test_the_budget_drops_the_largest_columns_but_never_time_like_or_kept_ones() -> None:
    """What prunes best stays, even if it does not fit."""
    names = [f"text_{i}" for i in range(60)] + ["created_at", "eventTime", "last_seen", "key"]
    schema = ShardSchema.from_arrow(pa.schema([(n, pa.string()) for n in names]))
    table = to_table([tuple("x" * 100 for _ in names)], schema)
    stats = collect_part_stats(table, schema, keep=["key"])
    assert {"created_at", "eventTime", "last_seen", "key"} <= set(stats.columns)
    assert stats_size(stats) <= 1024
    tight = collect_part_stats(table, schema, keep=["key"], budget_bytes=10)
    assert set(tight.columns) == {"created_at", "eventTime", "last_seen", "key"}


def test_the_written_form_is_for_ever() -> None:
    """State holds it: one line per type, exact."""
    schema = ShardSchema.from_arrow(
        pa.schema(
            [
                ("i", pa.int64()),
                ("f", pa.float64()),
                ("d", pa.decimal128(38, 2)),
                ("s", pa.string()),
                ("b", pa.binary()),
                ("day", pa.date32()),
                ("at", pa.timestamp("us", "UTC")),
                ("n", pa.struct([("x", pa.bool_())])),
                ("l", pa.list_(pa.int8())),
            ]
        )
    )
    row = (-(2**63), -math.inf, Decimal("99999999999999999999999999999999999.99"), "é", b"\0\xff")
    table = to_table([(*row, 3, 4, (True,), [1]), (None, math.nan) + (None,) * 7], schema)
    assert json.loads(msgspec.json.encode(collect_part_stats(table, schema))) == {
        "rows": 2,
        "columns": {
            "i": {"nulls": 1, "kind": "int", "lo": -(2**63), "hi": -(2**63)},
            "f": {"nulls": 0, "kind": "float", "lo": "-inf", "hi": "-inf", "nans": 1},
            "d": {"nulls": 1, "kind": "dec", "lo": str(row[2]), "hi": str(row[2])},
            "s": {"nulls": 1, "kind": "str", "lo": "é", "hi": "é"},
            "b": {"nulls": 1, "kind": "bin", "lo": "AP8=", "hi": "AP8="},
            "day": {"nulls": 1, "kind": "date", "lo": 3, "hi": 3},
            "at": {"nulls": 1, "kind": "ts", "lo": 4, "hi": 4},
            "n": {"nulls": 1},
            "n.x": {"nulls": 1, "kind": "bool", "lo": 1, "hi": 1},
            "l": {"nulls": 1},
        },
    }


# --- several parts -----------------------------------------------------------------------------


@st.composite
def two_parts(draw: st.DrawFn) -> tuple[ShardSchema, list[Any], list[Any]]:
    schema = draw(schemas(most=2))
    return schema, draw(rows_of(schema, 3)), draw(rows_of(schema, 3))


@given(two_parts())
@bounded
def test_parts_that_share_a_row_always_overlap(
    parts: tuple[ShardSchema, list[Any], list[Any]],
) -> None:
    """In any column, with any budget."""
    schema, one, two = parts
    for budget in (AMPLE, 200):
        a, b = (
            collect_part_stats(to_table(p, schema), schema, budget_bytes=budget) for p in (one, two)
        )
        for position, name in enumerate(schema.names):
            seen = {row_identity(r, schema)[position] for r in one}
            if any(row_identity(r, schema)[position] in seen for r in two):
                assert may_overlap(a, b, [name])
                assert may_overlap(b, a, [name])
        if {row_identity(r, schema) for r in one} & {row_identity(r, schema) for r in two}:
            assert may_overlap(a, b)


def stats_of(**columns: Any) -> PartStats:
    table = pa.table(columns)
    return collect_part_stats(table, ShardSchema.from_arrow(table.schema))


def test_disjoint_parts_are_known_to_be() -> None:
    """By range, by nulls on one side only, and by NaN on one side only."""
    nulls = pa.array([None], pa.int64())
    assert not may_overlap(stats_of(a=[1, 2]), stats_of(a=[3]))
    assert may_overlap(stats_of(a=[1, 3]), stats_of(a=[3]))
    assert not may_overlap(stats_of(a=[1, 2], b=["x", "y"]), stats_of(a=[1, 2], b=["z", "z"]))
    assert may_overlap(stats_of(a=[1, 2], b=["x", "y"]), stats_of(a=[1, 2], b=["z", "z"]), ["a"])
    assert not may_overlap(stats_of(a=nulls), stats_of(a=[1]))
    assert may_overlap(stats_of(a=nulls), stats_of(a=nulls))
    assert not may_overlap(stats_of(a=[math.nan]), stats_of(a=[math.inf]))
    assert may_overlap(stats_of(a=[math.nan, 1.0]), stats_of(a=[math.nan, 2.0]))
    assert not may_overlap(stats_of(a=[1]).__class__(0, {}), stats_of(a=[1]))


@given(two_parts())
@bounded
def test_merged_statistics_hold_for_both_parts(
    parts: tuple[ShardSchema, list[Any], list[Any]],
) -> None:
    """With everything known they equal the statistics of both parts together."""
    schema, one, two = parts
    each = [collect_part_stats(to_table(p, schema), schema, budget_bytes=AMPLE) for p in (one, two)]
    together = collect_part_stats(to_table(one + two, schema), schema, budget_bytes=AMPLE)
    merged = merge_stats(each)
    assert merged.rows == together.rows
    for path, column in together.columns.items():
        assert merged.columns[path].nulls == column.nulls
        assert merged.columns[path].nans == column.nans
        assert bounds(merged, path) == bounds(together, path)


def test_merging_forgets_what_one_part_does_not_know() -> None:
    """A dropped column, another kind, or a missing bound stays unknown."""
    a = PartStats(1, {"x": ColumnStats(0, "int", 1, 1), "y": ColumnStats(0, "str", "a", None)})
    b = PartStats(1, {"x": ColumnStats(0, "date", 1, 1), "y": ColumnStats(0, "str", "b", "c")})
    assert merge_stats([a, b]).columns == {"y": ColumnStats(0, "str", "a", None)}
    assert merge_stats([a, PartStats(1, {})]).columns == {}
    assert merge_stats([]) == PartStats(0, {})


def test_statistics_that_cannot_be_understood_are_none() -> None:
    """A hint in another shape than today's tells nothing; it is no reason not to read the part."""
    stats = PartStats(2, {"id": ColumnStats(0, "int", 1, 2)})
    assert decode_stats(encode_stats(stats)) == stats
    assert decode_stats(encode_stats(None)) is None
    for strange in (b"5", b'{"rows":"many"}', b'{"rows":1,"columns":{"id":{"nulls":-'):
        assert decode_stats(msgspec.Raw(strange)) is None
