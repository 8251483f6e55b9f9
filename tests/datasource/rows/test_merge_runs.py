"""The streaming merge: the same as consolidating everything at once, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import Corrupt
from shardline.datasource.rows.merge_runs import merge, merge_snapshot
from shardline.datasource.rows.sorting import order_rows
from shardline.datasource.rows.updates import (
    advance_times,
    consolidate,
    consolidate_snapshot,
    row_columns,
    sort_rows,
    stamp,
)
from support.strategies.rows import (
    Case,
    ample,
    cases,
    contents,
    plain_rows,
    row_identity,
    updates_of,
)


def in_batches(run: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, run.num_rows, rows):
        yield run.slice(start, rows)


@pytest.mark.slow
@given(cases(most=30), st.data())
@ample
def test_merging_is_consolidating_everything(case: Case, data: st.DataObject) -> None:
    """Any runs, batch sizes, keys and since; every type; output in order, in full batches."""
    size = len(case.rows)
    times = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    diffs = data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size))
    updates = updates_of(case, times, diffs)
    key = data.draw(st.sampled_from([(), case.schema.names[:1]]))
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), int)
    runs = []
    for run in range(4):
        mine = updates.filter(pa.array(owner == run, pa.bool_()))
        # By the key alone: rows that agree in it keep the order of arrival.
        ordered = order_rows(mine, key or row_columns(mine)).apply(mine)
        runs.append(in_batches(ordered, data.draw(st.integers(1, 5))))
    since = data.draw(st.none() | st.integers(0, 3))
    tables = list(merge(runs, key, since, rows_out=4))
    assert all(t.num_rows == 4 for t in tables[:-1])
    expected = consolidate(updates if since is None else advance_times(updates, since), key)
    found = pa.concat_tables(tables) if tables else expected.slice(0, 0)
    assert contents(found, case) == contents(expected, case)


@pytest.mark.slow
@given(cases(most=30), st.integers(1, 5))
@ample
def test_merging_a_snapshot_is_consolidating_it(case: Case, rows: int) -> None:
    """Times are summed over; every row once."""
    half = len(case.rows) // 2
    parts = [stamp(case.table.slice(0, half), 1), stamp(case.table.slice(half), 2)]
    runs = [in_batches(sort_rows(p), rows) for p in parts]
    tables = list(merge_snapshot(runs))
    expected = consolidate_snapshot(pa.concat_tables(parts))
    found = pa.concat_tables(tables) if tables else expected.slice(0, 0)
    assert [row_identity(r, case.schema) for r in plain_rows(found, case.schema.names)] == [
        row_identity(r, case.schema) for r in plain_rows(expected, case.schema.names)
    ]
    assert found["_diff"].to_pylist() == expected["_diff"].to_pylist()


def numbered(start: int, step: int, rows: int, batch: int) -> Iterator[pa.Table]:
    for first in range(0, rows, batch):
        values = np.arange(first, min(first + batch, rows)) * step + start
        yield stamp(pa.table({"a": values, "text": [f"some text {v}" for v in values]}), 1)


@pytest.mark.slow
def test_memory_is_bounded_by_runs_times_batch() -> None:
    """Twenty interleaved runs of thirty batches each: never more than a few batches per run."""
    runs, batch, batches = 20, 500, 30
    before = pa.total_allocated_bytes()
    one = sum(c.nbytes for c in next(numbered(0, 20, batch, batch)).columns)
    peak, rows, previous = 0, 0, -1
    for table in merge(
        [numbered(r, runs, batch * batches, batch) for r in range(runs)], ["a"], rows_out=4_000
    ):
        peak = max(peak, pa.total_allocated_bytes() - before)
        values = table["a"].to_numpy()
        assert values[0] == previous + 1
        previous = values[-1]
        rows += table.num_rows
    assert rows == runs * batch * batches
    assert previous == rows - 1
    output = 4_000 / batch
    assert peak < (4 * runs + 4 * output) * one < runs * batches * one / 2


def test_runs_are_read_only_as_far_as_needed() -> None:
    """A run whose rows come much later is not drained while another is merged."""
    pulled = 0

    def late() -> Iterator[pa.Table]:
        nonlocal pulled
        for i in range(10):
            pulled += 1
            yield stamp(pa.table({"a": [1_000_000 + i]}), 1)

    merged = merge([numbered_ints(range(0, 900, 3)), late()], ["a"], rows_out=10)
    assert next(merged)["a"].to_pylist() == list(range(0, 30, 3))
    assert pulled == 1


def numbered_ints(values: range) -> Iterator[pa.Table]:
    for v in values:
        yield stamp(pa.table({"a": [v]}), 1)


def test_a_group_of_equal_keys_longer_than_many_batches() -> None:
    """All rows of a key are summed together although each run has them in many batches."""

    def run(diff: int) -> Iterator[pa.Table]:
        for _ in range(20):
            yield stamp(pa.table({"a": [5, 5]}), 1, diff)
        yield stamp(pa.table({"a": [6]}), 1, diff)

    merged = list(merge([run(1), run(2), run(-1)], ["a"]))
    assert pa.concat_tables(merged).to_pylist() == [
        {"a": 5, "_ts": 1, "_diff": 80},
        {"a": 6, "_ts": 1, "_diff": 2},
    ]


def test_record_batches_and_empty_tables_are_runs_too() -> None:
    """Whatever a Parquet reader yields."""
    table = stamp(pa.table({"a": [1, 2]}), 1)
    runs = [iter(table.to_batches()), iter([table.slice(0, 0), table]), iter([])]
    assert pa.concat_tables(list(merge(runs)))["_diff"].to_pylist() == [2, 2]
    assert list(merge([])) == []


def test_a_run_that_steps_back_is_refused() -> None:
    """An unsorted part would silently break the sums."""
    tables = [stamp(pa.table({"a": [3, 4]}), 1), stamp(pa.table({"a": [1]}), 1)]
    with pytest.raises(Corrupt) as refused:
        list(merge([iter(tables)], ["a"]))
    assert refused.value.code == "RUN_NOT_SORTED"
