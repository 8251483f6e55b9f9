"""Filters: each row's answer is Spark's, and statistics never deny a row that passes."""

from __future__ import annotations

import io
import math
import operator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardline.datasource.filters.parser import Condition, Where
from shardline.datasource.filters.predicates import (
    FALSE,
    NULL,
    TRUE,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Path,
    Predicate,
    StartsWith,
)
from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.parts.part_file import encode_parquet
from shardline.datasource.parts.prune import Pruner
from shardline.datasource.parts.row_groups import RowGroups
from shardline.datasource.shard.batch import Part
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Atomic
from shardline.datasource.types.stats import encode_stats, kind_of
from support.profiles import wide_examples
from support.strategies.rows import PLAIN_TYPES, Case, bounded, cases, plain, values

Answer = bool | None

OPERATORS: tuple[Operator, ...] = ("=", "<", "<=", ">", ">=")
FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
AMPLE = 1 << 20


# --- the model: one row after the other, in plain Python -----------------------------------------


def rank(value: Any) -> tuple[Any, ...]:
    """Where a value stands among those of its type."""
    if isinstance(value, float):
        return (1, 0) if math.isnan(value) else (0, value)
    return (0, value.encode() if isinstance(value, str) else value)


_HOLDS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def answer(predicate: Predicate, row: dict[str, Any]) -> Answer:  # noqa: C901, PLR0911
    """SQL's answer for a row."""
    match predicate:
        case Constant(value):
            return value
        case Not(part):
            found = answer(part, row)
            return None if found is None else not found
        case And(parts):
            found_all = [answer(part, row) for part in parts]
            if False in found_all:
                return False
            return None if None in found_all else True
        case Or(parts):
            found_any = [answer(part, row) for part in parts]
            if True in found_any:
                return True
            return None if None in found_any else False
        case IsNull(column):
            return row[column[0]] is None
        case Compare(column, _, sign, literal):
            value = row[column[0]]
            return None if value is None else bool(_HOLDS[sign](rank(value), rank(literal)))
        case In(column, _, literals, null):
            value = row[column[0]]
            if value is None:
                return None
            return True if rank(value) in map(rank, literals) else (None if null else False)
        case StartsWith(column, prefix):
            value = row[column[0]]
            return None if value is None else value.startswith(prefix)
    raise AssertionError(predicate)


# --- examples ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filtered:
    case: Case
    predicate: Predicate

    @property
    def answers(self) -> list[Answer]:
        names = self.case.schema.names
        return [
            answer(self.predicate, dict(zip(names, row, strict=True))) for row in self.case.rows
        ]


@st.composite
def leaves(draw: st.DrawFn, case: Case) -> Predicate:
    field = draw(st.sampled_from(case.schema.record.fields))
    column, kind = (field.name,), kind_of(field)
    assert kind is not None
    present = [row[case.schema.names.index(field.name)] for row in case.rows]
    literals = values(field.type, nullable=False)
    if some := [value for value in present if value is not None]:
        literals = literals | st.sampled_from(some)
    match draw(st.integers(0, 9)):
        case 0:
            return IsNull(column)
        case 1:
            return Constant(draw(st.sampled_from([True, False, None])))
        case 2 | 3:
            found = draw(st.lists(literals, max_size=3))
            return In(column, kind, tuple(found), draw(st.booleans()))
        case 4 | 5 | 6 if kind == "str":
            text = draw(literals)
            return StartsWith(column, text[: draw(st.integers(0, 3))])
    return Compare(column, kind, draw(st.sampled_from(OPERATORS)), draw(literals))


def trees(case: Case) -> st.SearchStrategy[Predicate]:
    return st.recursive(
        leaves(case),
        lambda inner: (
            st.builds(Not, inner)
            | st.builds(lambda parts: And(tuple(parts)), st.lists(inner, min_size=1, max_size=3))
            | st.builds(lambda parts: Or(tuple(parts)), st.lists(inner, min_size=1, max_size=3))
        ),
        max_leaves=4,
    )


@st.composite
def filtered(draw: st.DrawFn) -> Filtered:
    case = draw(cases(st.sampled_from(PLAIN_TYPES), most=8))
    return Filtered(case, draw(trees(case)))


def possible(answers: list[Answer]) -> int:
    bits = {True: TRUE, False: FALSE, None: NULL}
    return sum({bits[one] for one in answers})


@given(filtered())
@bounded
def test_every_row_gets_sqls_answer(some: Filtered) -> None:
    """Over all types: three-valued logic, NaN, both zeros, nulls, text by its bytes."""
    found = some.predicate.mask(some.case.table)
    assert found.to_pylist() == some.answers
    passed = [row for row, one in zip(some.case.rows, some.answers, strict=True) if one]
    for batch in some.case.table.combine_chunks().to_batches():
        assert Where("", some.predicate).passes(batch).num_rows == len(passed)


# --- as text -------------------------------------------------------------------------------------

SPELLABLE = (
    *("boolean", "byte", "short", "integer", "long", "float", "double"),
    *("decimal(9,4)", "decimal(38,10)", "string", "binary"),
)


def literal_sql(value: Any, kind: str) -> str:
    """A value of a column as SQL; refused if SQL cannot say it without escapes."""
    match kind:
        case "boolean":
            return str(value).lower()
        case "float" | "double":
            return f"double('{value!r}')"
        case "decimal":
            return format(value, "f")
        case "string":
            assume(not set(value) & set("\\'$"))
            return f"'{value}'"
        case "binary":
            return f"X'{value.hex()}'"
    return str(value)


@st.composite
def spellings(draw: st.DrawFn, predicate: Predicate, case: Case) -> str:  # noqa: C901, PLR0912
    """One of the ways to write a predicate."""

    def spelt(inner: Predicate) -> str:
        return draw(spellings(inner, case))

    def literal(column: Path, value: Any) -> str:
        field = next(one for one in case.schema.record.fields if one.name == column[0])
        assert isinstance(field.type, Atomic)
        return literal_sql(value, field.type.name.partition("(")[0])

    ways: list[str] = []
    match predicate:
        case Constant(value):
            ways = [str(value).lower() if value is not None else "null"]
        case And(parts) | Or(parts):
            word = " and " if isinstance(predicate, And) else " or "
            ways = [word.join(f"({spelt(part)})" for part in parts)]
        case IsNull(column):
            ways = [f"{column[0]} is null", f"isnull({column[0]})", f"{column[0]} <=> null"]
        case Compare(column, _, sign, value):
            text = literal(column, value)
            ways = [f"{column[0]} {sign} {text}", f"{text} {FLIPPED[sign]} {column[0]}"]
        case In(column, _, some, null):
            listed = [*(literal(column, one) for one in some), *(["null"] if null else [])]
            assume(listed)
            ways = [f"{column[0]} in ({', '.join(listed)})"]
        case StartsWith(column, prefix):
            ways = [f"startswith({column[0]}, {literal(column, prefix)})"]
            if not set(prefix) & set("%_"):
                ways.append(f"{column[0]} like {literal(column, prefix + '%')}")
        case Not(part):
            ways = [f"not ({spelt(part)})", f"not {spelt(part)}"]
            if isinstance(part, And | Or | Not):
                ways.pop()
            text = spelt(part)
            for word in ("in", "like"):
                before = f"{next(iter(part.columns), '')} {word} "
                if text.startswith(before):
                    ways.append(text.replace(f" {word} ", f" not {word} ", 1))
            if isinstance(part, IsNull):
                ways.append(f"{part.column[0]} is not null")
            if isinstance(part, Compare) and part.operator == "=":
                ways.append(f"{part.column[0]} <> {literal(part.column, part.value)}")
        case _:
            raise AssertionError(predicate)
    return draw(st.sampled_from(ways))


@st.composite
def written(draw: st.DrawFn) -> tuple[Filtered, str]:
    case = draw(cases(st.sampled_from([*SPELLABLE, *["string"] * 4]), most=8))
    predicate = draw(trees(case) | st.builds(Not, leaves(case)))
    text = draw(spellings(predicate, case))
    assume(text.strip("()") != "null")  # which is no condition
    return Filtered(case, predicate), text


@pytest.mark.slow
@given(written())
@wide_examples(4)
def test_every_spelling_gets_sqls_answer(some: tuple[Filtered, str]) -> None:
    """What is written is what is meant, in every way to write it: NOT in all of its places, too."""
    filtered_rows, text = some
    where = Condition(text).bind(filtered_rows.case.schema)
    assert where.predicate.mask(filtered_rows.case.table).to_pylist() == filtered_rows.answers


def test_a_part_that_is_left_out_has_no_row_that_passes() -> None:
    """By a part's statistics, with any budget; and some parts really are left out."""
    out = 0

    @given(filtered(), st.sampled_from([AMPLE, 120]))
    @wide_examples(1.5, derandomize=True)  # how many are left out is a matter of luck
    def check(some: Filtered, budget: int) -> None:
        nonlocal out
        schema, table = some.case.schema, some.case.table
        if table.num_rows == 0:
            return
        stats = collect_part_stats(table, schema, budget_bytes=budget)
        part = Part("p", table.num_rows, 1, 0, encoded_stats=encode_stats(stats))
        if not Pruner(Where("", some.predicate), {0: schema.json}).may_pass(part):
            out += 1
            assert True not in some.answers

    check()
    assert out > 3


def test_a_row_group_that_is_left_out_has_no_row_that_passes() -> None:
    """By the footer of a Parquet file, row group by row group; and some really are left out."""
    out = 0

    @given(filtered())
    @wide_examples(1.5, derandomize=True)
    def check(some: Filtered) -> None:
        nonlocal out
        schema, table = some.case.schema, some.case.table
        if table.num_rows == 0:
            return
        data = encode_parquet(table, row_group_rows=2)
        groups = RowGroups(pq.read_metadata(io.BytesIO(data)), schema)
        for group in range(groups.count):
            if not groups.may_pass(group, Where("", some.predicate)):
                out += 1
                assert True not in some.answers[2 * group : 2 * group + 2]

    check()
    assert out > 3


# --- what statistics tell ------------------------------------------------------------------------


def outcomes(predicate: Compare | In | StartsWith, **columns: Any) -> int:
    """What a filter may answer over the rows of a part, by its statistics."""
    table = pa.table(columns)
    schema = ShardSchema.from_arrow(table.schema)
    part = Part(
        "p", table.num_rows, 1, 0, encoded_stats=encode_stats(collect_part_stats(table, schema))
    )

    def may_pass(one: Predicate) -> bool:
        return Pruner(Where("", one), {0: schema.json}).may_pass(part)

    asked = ((TRUE, predicate), (FALSE, Not(predicate)), (NULL, IsNull(predicate.column)))
    return sum(bit for bit, one in asked if may_pass(one))


@pytest.mark.parametrize(
    ("sign", "literal", "expected"),
    [
        ("=", 0, FALSE),
        ("=", 1, TRUE | FALSE),
        ("=", 6, FALSE),
        ("<", 1, FALSE),
        ("<=", 1, TRUE | FALSE),
        ("<=", 5, TRUE),
        (">", 5, FALSE),
        (">=", 1, TRUE),
        (">=", 5, TRUE | FALSE),
    ],
)
def test_bounds_decide_where_they_can(sign: Operator, literal: int, expected: int) -> None:
    """Of integers between one and five."""
    assert outcomes(Compare(("a",), "int", sign, literal), a=[1, 5]) == expected
    assert outcomes(Compare(("a",), "int", sign, literal), a=[1, None, 5]) == expected | NULL


def test_nan_is_never_within_bounds() -> None:
    """It equals itself and exceeds every number; only its count tells that it is there."""

    def compare(sign: Operator, literal: float) -> Compare:
        return Compare(("a",), "float", sign, literal)

    some, none, only = [1.0, math.nan], [1.0], [math.nan]
    assert outcomes(compare(">", 5.0), a=some) == TRUE | FALSE
    assert outcomes(compare(">", 5.0), a=none) == FALSE
    assert outcomes(compare("=", math.nan), a=some) == TRUE | FALSE
    assert outcomes(compare("=", math.nan), a=none) == FALSE
    assert outcomes(compare("<", math.nan), a=none) == TRUE
    assert outcomes(compare("<", 5.0), a=only) == FALSE
    assert outcomes(compare("<=", math.nan), a=only) == TRUE
    assert outcomes(In(("a",), "float", (math.nan,)), a=only) == TRUE
    assert outcomes(In(("a",), "float", (7.0,)), a=some) == FALSE


def test_text_that_was_cut_is_not_taken_for_whole() -> None:
    """A bound of long text is a prefix, or the prefix after it: neither is a value."""
    long = "x" * 200
    assert outcomes(Compare(("a",), "str", "=", long), a=[long]) == TRUE | FALSE
    assert outcomes(Compare(("a",), "str", "=", "x" * 64), a=[long]) & TRUE
    assert outcomes(StartsWith(("a",), "x" * 100), a=[long]) & TRUE
    assert outcomes(StartsWith(("a",), "w"), a=[long]) == FALSE
    assert outcomes(StartsWith(("a",), "ab"), a=["abc", "abd"]) == TRUE


def test_what_is_not_known_may_be_anything() -> None:
    """No statistics, a column that they leave out, an inline part, lists, other writers' types."""
    schema = ShardSchema.from_arrow(pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64()))]))
    never = Compare(("a",), "int", "=", 7)
    pruner = Pruner(Where("", never), {0: schema.json})
    table = pa.table({"a": [1], "l": [[1]]}, schema.arrow)
    stats = collect_part_stats(table, schema)
    assert not pruner.may_pass(Part("p", 1, 1, 0, encoded_stats=encode_stats(stats)))
    assert pruner.may_pass(Part("p", 1, 1, 0))
    assert pruner.may_pass(
        Part(
            "p",
            1,
            1,
            0,
            encoded_stats=encode_stats(collect_part_stats(table, schema, budget_bytes=1)),
        )
    )
    assert pruner.may_pass(Part("p", 1, 1, 0, encoded_stats=encode_stats(stats), inline=b"rows"))
    lists = Pruner(Where("", IsNull(("l",))), {0: schema.json})
    assert not lists.may_pass(Part("p", 1, 1, 0, encoded_stats=encode_stats(stats)))
    for foreign in (pa.array([1], pa.uint32()), pa.array(["1"]), pa.array([Decimal(1)])):
        sink = io.BytesIO()
        pq.write_table(pa.table({"a": foreign}), sink)
        assert RowGroups(pq.read_metadata(sink), schema).may_pass(0, Where("", never))


def test_decimals_are_compared_by_value_whatever_the_file_makes_of_them() -> None:
    """As 32 and 64 bit integers, as bytes, and of another scale than the schema's."""
    equal = Compare(("a",), "dec", "=", Decimal("1.50"))
    other = Compare(("a",), "dec", "=", Decimal("2.50"))
    schema = ShardSchema.from_arrow(pa.schema([("a", pa.decimal128(30, 2))]))
    for kind in (pa.decimal128(5, 1), pa.decimal128(15, 3), pa.decimal128(38, 4)):
        for as_integer in (True, False):
            sink = io.BytesIO()
            column = pa.array([Decimal("1.5")], kind)
            pq.write_table(pa.table({"a": column}), sink, store_decimal_as_integer=as_integer)
            groups = RowGroups(pq.read_metadata(sink), schema)
            assert groups.may_pass(0, Where("", equal)), kind
            assert not groups.may_pass(0, Where("", other)), kind


def test_units_of_time_are_the_files_own() -> None:
    """Milliseconds are exact in microseconds; nanoseconds and another kind of clock are unknown."""
    schema = ShardSchema.from_arrow(pa.schema([("a", pa.timestamp("us", "UTC"))]))
    late = Compare(("a",), "ts", ">", 2_000_000)
    for unit, zone, value, passes in [
        ("ms", "UTC", 1_000, False),
        ("ms", "UTC", 3_000, True),
        ("us", "UTC", 1_000_000, False),
        ("ns", "UTC", 1, True),
        ("us", None, 1, True),
    ]:
        sink = io.BytesIO()
        pq.write_table(pa.table({"a": pa.array([value], pa.timestamp(unit, zone))}), sink)
        groups = RowGroups(pq.read_metadata(sink), schema)
        assert groups.may_pass(0, Where("", late)) is passes, (unit, zone)


def test_a_dot_in_a_name_is_no_path() -> None:
    """Column `a.b` and field `b` of `a` have one path in Parquet: then neither is known."""
    inner = pa.array([{"b": 1}], pa.struct([("b", pa.int64())]))
    table = pa.table({"a": inner, "a.b": [5]})
    schema = ShardSchema.from_arrow(table.schema)
    groups = RowGroups(
        pq.read_metadata(io.BytesIO(encode_parquet(table, row_group_rows=9))), schema
    )
    assert groups.may_pass(0, Where("", Compare(("a.b",), "int", "=", 1)))
    stats = collect_part_stats(table, schema)
    part = Part("p", 1, 1, 0, encoded_stats=encode_stats(stats))
    for path, value in ((("a.b",), 5), (("a", "b"), 1)):
        one, two = Compare(path, "int", "=", value), Compare(path, "int", "=", 3)
        assert Pruner(Where("", one), {0: schema.json}).may_pass(part)
        assert not Pruner(Where("", two), {0: schema.json}).may_pass(part)
        assert one.mask(table).to_pylist() == [True]


def test_fields_of_null_structs_are_null() -> None:
    """In rows and in statistics."""
    kind = pa.struct([("b", pa.int64())])
    table = pa.table({"a": pa.array([None, {"b": 1}, {"b": None}], kind)})
    is_one, absent = Compare(("a", "b"), "int", "=", 1), IsNull(("a", "b"))
    assert is_one.mask(table).to_pylist() == [None, True, None]
    assert absent.mask(table).to_pylist() == [True, False, True]
    assert plain(table["a"][0]) is None
    schema = ShardSchema.from_arrow(table.schema)
    only = Part(
        "p", 3, 1, 0, encoded_stats=encode_stats(collect_part_stats(table.slice(0, 1), schema))
    )
    assert not Pruner(Where("", is_one), {0: schema.json}).may_pass(only)
    assert Pruner(Where("", absent), {0: schema.json}).may_pass(only)


def test_a_row_is_one_of_a_list_of_its_type() -> None:
    """Zero is both zeros, NaN is NaN, and what is not found beside a null is unknown."""
    table = pa.table({"a": pa.array([0.0, -0.0, math.nan, 1.0, None])})
    found = In(("a",), "float", (-0.0, math.nan)).mask(table)
    assert found.to_pylist() == [True, True, True, False, None]
    signed = pa.table({"a": pa.array(np.copysign([math.nan, 1.0], -1))})
    assert In(("a",), "float", (math.nan,)).mask(signed).to_pylist() == [True, False]
    assert In(("a",), "float", (-math.nan, 2.0)).mask(table)[2].as_py() is True
    with_null = In(("a",), "float", (1.0,), null=True).mask(table)
    assert with_null.to_pylist() == [None, None, None, True, None]
