"""Row keys: equal exactly for equal values, one order everywhere, natural for plain columns."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.rows.sorting import compare_rows, order_rows, take
from shardline.datasource.types import row_keys as rowkey
from shardline.datasource.types.schema import ShardSchema
from support.strategies.rows import (
    PLAIN_TYPES,
    Case,
    ample,
    bounded,
    cases,
    cut,
    plain_rows,
    row_identity,
    to_table,
)

plain_cases = cases(st.sampled_from(PLAIN_TYPES))


def keys(table: pa.Table) -> list[tuple[Any, ...]]:
    found = rowkey.key_columns(table, table.column_names)
    return list(zip(*(k.to_pylist() for k in found), strict=True)) if found else []


def identities(case: Case) -> list[Any]:
    return [row_identity(r, case.schema) for r in case.rows]


@given(cases(), st.lists(st.integers(0, 12)))
@bounded
def test_keys_are_equal_exactly_for_equal_values(case: Case, places: list[int]) -> None:
    """For every type, across tables, and whatever the chunks and slices."""
    one, two = keys(case.table), keys(cut(case.table, places))
    assert one == two
    single = [keys(case.table.slice(i, 1))[0] for i in range(case.table.num_rows)]
    assert single == one
    by_identity: dict[Any, set[Any]] = {}
    for identity, key in zip(identities(case), one, strict=True):
        by_identity.setdefault(identity, set()).add(key)
    assert all(len(found) == 1 for found in by_identity.values())
    assert len(set().union(*by_identity.values())) == len(by_identity)


@pytest.mark.slow
@given(cases())
@ample
def test_sorting_agrees_with_comparing_rows_pairwise(case: Case) -> None:
    """The vectorised sort, Arrow's sort of the surrogates and row comparison are one order."""
    names = case.table.column_names
    order = order_rows(case.table, names)
    result = order.apply(case.table)
    assert order_rows(result, names).indices is None
    for i in range(1, result.num_rows):
        assert compare_rows(result, i - 1, result, i, names) <= 0

    def compared(i: int, j: int) -> int:
        return compare_rows(case.table, i, case.table, j, names)

    by_hand = sorted(
        range(case.table.num_rows),
        key=functools.cmp_to_key(compared),
    )
    ids = identities(case)
    indices = range(len(ids)) if order.indices is None else order.indices.tolist()
    assert [ids[i] for i in indices] == [ids[i] for i in by_hand]
    starts = range(len(ids)) if order.starts is None else order.starts.tolist()
    sorted_ids = [ids[i] for i in indices]
    assert list(starts) == [
        i for i in range(len(ids)) if i == 0 or sorted_ids[i] != sorted_ids[i - 1]
    ]


def natural(value: Any) -> tuple[Any, ...]:
    """Sorts plain values as the documentation says."""
    if value is None:
        return (0,)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value, math.copysign(1, value))
    return (1, value)


@given(plain_cases)
@bounded
def test_plain_columns_have_their_natural_order(case: Case) -> None:
    """Nulls first, NaN last, -0.0 before 0.0, text by bytes, numbers and times by value."""
    result = order_rows(case.table, case.table.column_names).apply(case.table)
    expected = sorted(case.rows, key=lambda r: tuple(natural(v) for v in r))
    assert [row_identity(r, case.schema) for r in plain_rows(result)] == [
        row_identity(r, case.schema) for r in expected
    ]


def test_numbers_inside_structs_sort_by_value() -> None:
    """Negative before positive, nulls first: as they would outside."""
    record = pa.array([{"x": 1}, {"x": -1}, {"x": None}, None, {"x": 0}])
    table = pa.table({"c": record})
    found = order_rows(table, ["c"]).apply(table)["c"].to_pylist()
    assert found == [None, {"x": None}, {"x": -1}, {"x": 0}, {"x": 1}]


def schema_of(kind: Any) -> ShardSchema:
    field = {"name": "c", "type": kind, "nullable": True, "metadata": {}}
    return ShardSchema.parse(json.dumps({"type": "struct", "fields": [field]}))


ARRAY = {"type": "array", "elementType": "string", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
PAIR = {
    "type": "struct",
    "fields": [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in ("a", "b")],
}


@pytest.mark.parametrize(
    ("kind", "one", "two", "same"),
    [
        ("string", None, "", False),
        ("string", "a", "a\0", False),
        ("double", 0.0, -0.0, False),
        ("double", math.nan, -math.nan, True),
        (ARRAY, None, [], False),
        (ARRAY, [], [None], False),
        (ARRAY, [None], [""], False),
        (ARRAY, ["ab", ""], ["a", "b"], False),
        (ARRAY, ["a"], ["a", None], False),
        (PAIR, (None, None), None, False),
        (PAIR, ("a", None), (None, "a"), False),
        (PAIR, ("a\0", ""), ("a", "\0"), False),
        (MAP, [("x", 1.0), ("y", math.nan)], [("y", -math.nan), ("x", 1.0)], True),
        (MAP, [("x", 0.0)], [("x", -0.0)], False),
        (MAP, [("x", None)], [], False),
        (MAP, [("x", 1.0), ("x", 2.0)], [("x", 2.0), ("x", 1.0)], True),
    ],
)
def test_values_that_are_easily_confused(kind: Any, one: Any, two: Any, same: bool) -> None:
    """Each pair is one value or two, as documented."""
    table = to_table([(one,), (two,)], schema_of(kind))
    found = keys(table)
    assert (found[0] == found[1]) is same


def test_garbage_under_nulls_is_not_looked_at() -> None:
    """Null lists, structs and numbers are equal whatever bytes stand beneath them."""
    mask = pa.array([True, True])
    numbers = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\0"), pa.array([5, 6]).buffers()[1]]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3]), pa.array([7, 8, 9]), mask=mask)
    records = pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=mask)
    texts = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\0"), *pa.array(["a", "bc"]).buffers()[1:]]
    )
    for array in (numbers, lists, records, texts):
        assert array.null_count == 2
        table = pa.table({"c": array})
        order = order_rows(table, ["c"])
        assert order.starts is not None
        assert order.starts.tolist() == [0]


@pytest.mark.parametrize("words", [0, 2, 512])
@given(st.lists(st.binary(max_size=40), max_size=30), st.binary(max_size=20))
@bounded
def test_text_is_sorted_by_bytes_beyond_shared_prefixes(
    words: int, texts: list[bytes], prefix: bytes
) -> None:
    """Long common beginnings and trailing zero bytes included, also behind the first words."""
    shared = [prefix + t for t in texts] + [t + b"\0" for t in texts]
    some = [(text, number % 2) for number, text in enumerate(shared + shared)]
    table = pa.table({"c": pa.array([c for c, _ in some], pa.binary()), "n": [n for _, n in some]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rowkey, "_WORDS_MAX", words)
        order = order_rows(table, ["c", "n"])
    found = order.apply(table)
    assert list(zip(*found.to_pydict().values(), strict=True)) == sorted(some)
    distinct = len(some) if order.starts is None else len(order.starts)
    assert distinct == len(set(some))


def test_long_texts_are_not_compared_word_by_word() -> None:
    """Whatever their length, and NULL beside them."""
    long = "x" * 1_000_000
    table = pa.table({"c": [long, None, long + "b", long, None, long + "a"]})
    assert len(rowkey.sort_words(rowkey.surrogate(table["c"].chunk(0)))) < 1_000
    order = order_rows(table, ["c"])
    assert order.starts is not None
    assert order.starts.tolist() == [0, 2, 4, 5]
    assert order.apply(table)["c"].to_pylist() == [None, None, long, long, long + "a", long + "b"]


def test_columns_beyond_the_offset_limit_are_sorted_and_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the limit of 2 GiB lowered, results come in several chunks of the same type."""
    monkeypatch.setattr(rowkey, "CONTIGUOUS_BYTES", 1000)
    texts = [f"{i % 97:03d}" * 10 for i in range(400)]
    table = pa.table({"c": pa.chunked_array([texts[:100], texts[100:]]), "n": range(400)})
    result = order_rows(table, ["c", "n"]).apply(table)
    assert result.schema == table.schema
    assert result["c"].num_chunks > 1
    expected = sorted(zip(texts, range(400), strict=True))
    assert list(zip(*result.to_pydict().values(), strict=True)) == expected


def test_a_table_in_order_is_returned_itself() -> None:
    """No copy for data that is sorted already."""
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", ""]})
    order = order_rows(table, ["a", "b"])
    assert order.indices is None
    assert order.apply(table) is table


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@bounded
def test_many_rows_with_few_values_sort_like_python(seed: int, spread: int) -> None:
    """Ties at every level: long runs of equal rows over several columns."""
    random = np.random.default_rng(seed)
    size = 500
    wide = random.integers(-(2**63), 2**63 - 1, spread, dtype=np.int64)
    data = {
        "a": random.integers(0, spread, size),
        "b": [f"same beginning {v}" for v in random.integers(0, spread, size)],
        "c": wide[random.integers(0, spread, size)],
    }
    table = pa.table(data)
    result = order_rows(table, ["a", "b", "c"]).apply(table)
    expected = sorted(zip(*(table[n].to_pylist() for n in "abc"), strict=True))
    assert list(zip(*(result[n].to_pylist() for n in "abc"), strict=True)) == expected


def test_take_of_no_rows_keeps_the_schema() -> None:
    """An empty selection of a chunked table."""
    table = cut(pa.table({"a": [1, 2, 3]}), [1, 2])
    assert take(table, np.array([], np.int64)).schema == table.schema
