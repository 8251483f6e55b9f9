"""Consolidation against a plain model: a dictionary of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.rows.sorting import order_rows
from shardline.datasource.rows.updates import (
    advance_times,
    consolidate,
    consolidate_snapshot,
    expand_copies,
    negate,
    sort_rows,
    stamp,
    update_schema,
)
from support.strategies.rows import (
    Case,
    ample,
    bounded,
    cases,
    contents,
    plain_rows,
    row_identity,
    summed,
    updates_of,
)

TIMES = st.integers(0, 3)
DIFFS = st.integers(-2, 2)


@st.composite
def updated(draw: st.DrawFn) -> tuple[Case, list[int], list[int]]:
    case = draw(cases())
    size = len(case.rows)
    times = draw(st.lists(TIMES, min_size=size, max_size=size))
    return case, times, draw(st.lists(DIFFS, min_size=size, max_size=size))


def model(case: Case, times: list[int], diffs: list[int]) -> dict[Any, int]:
    ids = (row_identity(r, case.schema) for r in case.rows)
    return summed(((i, t), d) for i, t, d in zip(ids, times, diffs, strict=True))


@pytest.mark.slow
@given(updated(), TIMES)
@ample
def test_consolidating_sums_equal_rows_at_equal_times(
    some: tuple[Case, list[int], list[int]], since: int
) -> None:
    """For every type: the model's sums, sorted, without zeros, and nothing to do twice."""
    case, times, diffs = some
    result = consolidate(advance_times(updates_of(case, times, diffs), since))
    expected = model(case, [max(t, since) for t in times], diffs)
    found = contents(result, case)
    assert len(found) == len(expected)
    assert dict(found) == expected
    assert result.schema.equals(update_schema(case.table.schema), check_metadata=True)
    assert order_rows(result, [*case.schema.names, "_ts"]).indices is None
    assert consolidate(result) is result


@pytest.mark.slow
@given(updated())
@ample
def test_a_snapshot_sums_over_all_times_or_says_what_is_wrong(
    some: tuple[Case, list[int], list[int]],
) -> None:
    """Negative sums are an error; otherwise each row once, and `expand_copies` gives each copy."""
    case, times, diffs = some
    updates = updates_of(case, times, diffs)
    expected = {k[0]: d for k, d in model(case, [0] * len(times), diffs).items()}
    if any(d < 0 for d in expected.values()):
        with pytest.raises(Corrupt) as refused:
            consolidate_snapshot(updates)
        assert refused.value.code == "NEGATIVE_MULTIPLICITY"
        return
    result = consolidate_snapshot(updates)
    ids = [row_identity(r, case.schema) for r in plain_rows(result, case.schema.names)]
    assert dict(zip(ids, result["_diff"].to_pylist(), strict=True)) == expected
    assert len(ids) == len(expected)
    copies = list(expand_copies(result, rows_max=3))
    assert all(1 <= c.num_rows <= 3 for c in copies)
    every = [(row_identity(r, case.schema), 1) for c in copies for r in plain_rows(c)]
    assert summed(every) == expected


@given(updated())
@bounded
def test_updates_and_their_negation_cancel(some: tuple[Case, list[int], list[int]]) -> None:
    """What was written can be retracted exactly: NaN, -0.0 and maps included."""
    case, times, diffs = some
    updates = updates_of(case, times, diffs)
    both = pa.concat_tables([updates, negate(updates)])
    assert consolidate(both).num_rows == 0


def test_key_columns_come_first_in_the_order() -> None:
    """Then the rest of the row in table order, then time."""
    updates = stamp(pa.table({"a": [1, 2, 1], "k": [5, 4, 4]}), 1)
    assert plain_rows(consolidate(updates, ["k"]), ["k", "a"]) == [(4, 1), (4, 2), (5, 1)]
    assert plain_rows(sort_rows(updates, ["k"]), ["k", "a"]) == [(4, 1), (4, 2), (5, 1)]


def diffs_at_one_row(diffs: list[int]) -> pa.Table:
    table = stamp(pa.table({"a": [1] * len(diffs)}), 1)
    return table.set_column(2, "_diff", pa.array(diffs, pa.int64()))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63)]), min_size=2)
)
@bounded
def test_sums_are_exact_or_refused(diffs: list[int]) -> None:
    """Also where partial sums leave int64 and come back."""
    total = sum(diffs)
    if not -(2**63) <= total < 2**63:
        with pytest.raises(InvalidUsage) as refused:
            consolidate(diffs_at_one_row(diffs))
        assert refused.value.code == "DIFF_OVERFLOW"
        return
    found = consolidate(diffs_at_one_row(diffs))["_diff"].to_pylist()
    assert found == ([total] if total else [])


def test_zero_diffs_vanish_even_when_all_rows_differ() -> None:
    """A row added no times is not there."""
    updates = stamp(pa.table({"a": [2, 1, 3]}), 1).set_column(2, "_diff", pa.array([1, 0, 1]))
    assert consolidate(updates)["a"].to_pylist() == [2, 3]


def test_a_huge_multiplicity_is_expanded_piece_by_piece() -> None:
    """Memory is bounded by the piece, not by the diff."""
    pieces = expand_copies(
        stamp(pa.table({"a": [1, 2]}), 0, 2**62).drop_columns(["_ts"]), rows_max=10
    )
    first = [next(pieces) for _ in range(3)]
    assert [p["a"].to_pylist() for p in first] == [[1] * 10] * 3


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 5))
@example([1, 0, 1], 3)
@example([0], 1)
@bounded
def test_a_row_without_copies_is_no_row(diffs: list[int], rows_max: int) -> None:
    """Wherever it stands, also among rows of which there is one each."""
    counted = pa.table({"a": list(range(len(diffs))), "_diff": pa.array(diffs, pa.int64())})
    pieces = list(expand_copies(counted, rows_max))
    assert all(1 <= piece.num_rows <= rows_max for piece in pieces)
    found = [row for piece in pieces for row in piece["a"].to_pylist()]
    assert found == [row for row, diff in enumerate(diffs) for _ in range(diff)]


def test_empty_updates_stay_empty() -> None:
    """Nothing in, nothing out, same schema."""
    nothing = stamp(pa.table({"a": pa.array([], pa.string())}), 1)
    assert consolidate(nothing).schema == nothing.schema
    assert consolidate_snapshot(nothing).num_rows == 0
    assert list(expand_copies(consolidate_snapshot(nothing))) == []
    assert advance_times(nothing, 5).num_rows == 0


def test_many_toggles_of_few_rows_sum_like_numpy() -> None:
    """Every row ties with many others; the sums come from numpy's histogram."""
    random = np.random.default_rng(7)
    size = 200_000
    row, diff = random.integers(0, 50, size), random.choice([-1, 1], size)
    updates = stamp(pa.table({"a": row, "b": [f"text {r}" for r in row]}), 1)
    result = consolidate(updates.set_column(3, "_diff", pa.array(diff)))
    expected = np.bincount(row, weights=diff).astype(int)
    found = dict(zip(result["a"].to_pylist(), result["_diff"].to_pylist(), strict=True))
    assert found == {i: d for i, d in enumerate(expected.tolist()) if d}
