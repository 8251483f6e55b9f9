"""Of an input's updates those are left out that a view can tell from none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given as given_rows
from hypothesis import strategies as st

from shardline.app.compute.view.concern import Concern

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("note", pa.string(), nullable=False),
        pa.field("_ts", pa.int64()),
        pa.field("_diff", pa.int64()),
    ]
)


def updates(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def concern(*columns: str) -> Concern:
    return Concern(frozenset(columns), ((),))


def test_an_update_of_an_unread_column_is_no_update() -> None:
    given = updates((1, 0.5, "old", 7, -1), (1, 0.5, "new", 7, 1), (2, 0.5, "come", 7, 1))
    left = concern("k", "x").of(given)
    assert left.schema == SCHEMA
    assert left.drop_columns(["note"]).to_pylist() == [{"k": 2, "x": 0.5, "_ts": 7, "_diff": 1}]
    assert left.column("note").null_count == 0
    assert concern("k").of(updates((1, 1.0, "a", 7, -1), (1, 2.0, "b", 7, 1))).num_rows == 0


@pytest.mark.parametrize(
    "rows",
    [
        ((1, 0.5, "old", 7, -1), (1, 0.5, "new", 8, 1)),  # there is a time between the two
        ((1, 0.0, "old", 7, -1), (1, -0.0, "new", 7, 1)),  # two values, as a view shows them
        ((1, None, "old", 7, -1), (1, 0.0, "new", 7, 1)),
        ((1, 0.5, "old", 7, 1), (1, 0.5, "new", 7, 1)),  # twice the same row
        ((1, 0.5, "old", 7, -1), (2, 0.5, "old", 7, 1)),
    ],
)
def test_what_can_be_told_from_none_stays(rows: tuple[tuple[Any, ...], ...]) -> None:
    given = updates(*rows)
    assert concern("k", "x").of(given) is given


def test_where_all_columns_are_read_updates_stay_as_they_are() -> None:
    given = updates((1, 0.5, "a", 7, -1), (1, 0.5, "a", 7, 1))
    assert concern("k", "x", "note").of(given) is given


@given_rows(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0.0, -0.0, float("nan"), None]),
            st.sampled_from(["a", "b"]),
            st.integers(5, 6),
            st.sampled_from([-2, -1, 1, 2]),
        ),
        max_size=12,
    )
)
def test_the_read_columns_add_up_to_the_same_at_each_time(rows: list[tuple[Any, ...]]) -> None:
    """By a model that adds up diffs of rows, told apart by their texts."""

    def sums(table: pa.Table) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in table.to_pylist():
            key = repr((one["k"], one["x"], one["_ts"]))
            found[key] = found.get(key, 0) + one["_diff"]
        return {key: diff for key, diff in found.items() if diff}

    table = updates(*rows)
    left = concern("k", "x").of(table)
    assert sums(left) == sums(table)
    assert left.schema == SCHEMA


def test_values_that_are_not_read_are_not_handed_over() -> None:
    """Those that may be NULL; rows and columns stay."""
    given = updates((1, 0.5, "a", 7, -1), (2, 1.5, "b", 8, 2))
    left = concern("k").without_unread(given)
    assert left.schema == SCHEMA
    assert left.to_pylist() == [
        {"k": 1, "x": None, "note": "a", "_ts": 7, "_diff": -1},
        {"k": 2, "x": None, "note": "b", "_ts": 8, "_diff": 2},
    ]
    assert concern("k", "x").without_unread(given) == given
