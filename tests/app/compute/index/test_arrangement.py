"""An arrangement against a model: any updates in any cutting, any time, any key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.compute.index import arrangement, runs
from shardline.app.compute.index.arrangement import Arrangement
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.rows.updates import consolidate
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Row, contents, model_at, updates_of
from support.profiles import examples

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("v", pa.float64())])
LAST = 12


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Row, int, int]]:
    """Updates that never take away what is not there, in order of time."""
    keys = st.tuples(
        st.sampled_from([None, 0, 1, 2, 2**62]),
        st.sampled_from([None, "", "a", "ä", "a" * 40]),
        st.sampled_from([None, 0.0, -0.0, 1.5, float("inf")]),
    )
    there: dict[str, tuple[Row, int]] = {}  # by how they are written: -0.0 is not 0.0 in a shard
    found: list[tuple[Row, int, int]] = []
    for time in range(LAST):
        for _ in range(draw(st.integers(0, 4))):
            alive = [text for text, (_, count) in there.items() if count > 0]
            retracts = draw(st.booleans())
            if alive and retracts:
                row, count = there[draw(st.sampled_from(alive))]
                diff = -draw(st.integers(1, count))
            else:
                row, diff = draw(keys), draw(st.integers(1, 3))
            there[repr(row)] = (row, there.get(repr(row), (row, 0))[1] + diff)
            found.append((row, time, diff))
    return found


def shown(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(c.to_pylist() for c in table.columns), strict=True)))


def model(rows: list[tuple[Row, int, int]], as_of: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for row, time, diff in rows:
        if time <= as_of:
            total[repr(row)] += diff
    return Counter({row: count for row, count in total.items() if count})


def arranged(
    rows: list[tuple[Row, int, int]], key: tuple[str, ...], cuts: list[int], since: int
) -> Arrangement:
    """Contents at `since`, then the changes in the steps that `cuts` make."""
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), key, since)
    first = [(row, since, diff) for row, time, diff in rows if time <= since]
    found.append(updates_of(first, SCHEMA), Frontier(since + 1))
    lower = since + 1
    for upper in sorted({cut for cut in cuts if cut > lower} | {LAST}):
        step = [one for one in rows if lower <= one[1] < upper]
        found.append(updates_of(step, SCHEMA), Frontier(upper))
        lower = upper
    return found


@pytest.mark.slow
@examples()
@given(
    rows=histories(),
    key=st.sampled_from([(), ("k",), ("t",), ("t", "k"), ("v",)]),
    cuts=st.lists(st.integers(1, LAST - 1), max_size=8),
    since=st.integers(0, LAST - 2),
    compacted=st.integers(0, LAST - 1),
)
def test_contents_are_those_of_the_model_at_every_time(
    rows: list[tuple[Row, int, int]],
    key: tuple[str, ...],
    cuts: list[int],
    since: int,
    compacted: int,
) -> None:
    """Scans and look-ups at every readable time are what adding up all updates gives."""
    _check_all_times(rows, key, cuts, since, compacted)


@pytest.mark.slow
@examples()
@given(
    rows=histories(),
    key=st.sampled_from([(), ("k",), ("t",), ("t", "k"), ("v",)]),
    cuts=st.lists(st.integers(1, LAST - 1), max_size=8),
    times=st.tuples(st.integers(0, LAST - 2), st.integers(0, LAST - 1)),
    piece_bytes=st.integers(1, 400),
)
def test_contents_in_pieces_are_those_of_the_model(
    rows: list[tuple[Row, int, int]],
    key: tuple[str, ...],
    cuts: list[int],
    times: tuple[int, int],
    piece_bytes: int,
) -> None:
    """However small they are, and also where one key, or one hash, has more rows than a piece."""
    with mock.patch.multiple(runs, PIECE_BYTES=piece_bytes, _SAMPLE=2, _STRETCH=1):
        _check_all_times(rows, key, cuts, *times)


def _check_all_times(
    rows: list[tuple[Row, int, int]],
    key: tuple[str, ...],
    cuts: list[int],
    since: int,
    compacted: int,
) -> None:
    found = arranged(rows, key, cuts, since)
    found.compact(compacted)
    for as_of in range(max(since, compacted), LAST):
        expected = model(rows, as_of)
        assert shown(found.scan(as_of)) == expected
        names = key or tuple(SCHEMA.names)
        seen = {tuple(row[SCHEMA.get_field_index(n)] for n in names) for row, _, _ in rows}
        for value in [*seen, tuple(None for _ in names)]:
            wanted: Counter[str] = Counter()
            for row, time, diff in rows:
                own = tuple(row[SCHEMA.get_field_index(n)] for n in names)
                if time <= as_of and repr(own) == repr(value):
                    wanted[repr(row)] += diff
            wanted = Counter({r: n for r, n in wanted.items() if n})
            assert shown(found.lookup(value, as_of)) == wanted


@pytest.mark.parametrize("as_of", [1, 2, LAST, LAST + 5])
def test_a_time_outside_of_the_frontiers_is_refused(as_of: int) -> None:
    """Before since history is gone, at upper nothing is known yet: neither is answered."""
    found = arranged([((1, "a", 1.0), 0, 1)], ("k",), [], since=1)
    found.compact(3)
    with pytest.raises(InvalidUsage, match=r"\[NOT_ARRANGED\].*from 3 on, before \[12\]"):
        found.lookup((1,), as_of)
    with pytest.raises(InvalidUsage, match="NOT_ARRANGED"):
        found.scan(as_of)


def test_the_last_settled_time_is_never_compacted_away() -> None:
    """However far compaction is allowed, the newest contents stay readable."""
    found = arranged([((1, "a", 1.0), 5, 1)], ("k",), [], since=0)
    found.compact(10**9)
    assert found.view.since == LAST - 1
    assert contents(found.scan(LAST - 1)) == Counter({(1, "a", 1.0): 1})


def test_a_finished_object_is_readable_for_ever() -> None:
    """At the empty frontier every later time is settled."""
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
    found.append(updates_of([((1, "a", 1.0), 0, 1)], SCHEMA), EMPTY)
    assert found.lookup((1,), 10**15).num_rows == 1


def test_memory_follows_the_contents_and_not_the_changes() -> None:
    """A row that is replaced hundreds of times leaves a few updates once history is compacted."""
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
    rows = [((i, "row", 0.0), 0, 1) for i in range(100)]
    found.append(updates_of(rows, SCHEMA), Frontier(1))
    for time in range(1, 300):
        change = [((7, "row", time - 1.0), time, -1), ((7, "row", float(time)), time, 1)]
        found.append(updates_of(change, SCHEMA), Frontier(time + 1))
        found.compact(time)
    assert found.view.records < 400
    assert len(found.view.runs) < 10
    assert contents(found.lookup((7,), 299)) == Counter({(7, "row", 299.0): 1})
    assert found.scan(299).num_rows == 100


def test_keys_of_every_kind_are_found() -> None:
    """Decimals of any width, dates, timestamps, binary, booleans and structs are keys."""
    schema = pa.schema(
        [
            ("n", pa.decimal128(9, 2)),
            ("w", pa.decimal128(38, 4)),
            ("d", pa.date32()),
            ("s", pa.timestamp("us", tz="UTC")),
            ("b", pa.binary()),
            ("f", pa.bool_()),
            ("r", pa.struct([("x", pa.int32())])),
        ]
    )
    value = (Decimal("1.50"), Decimal("12345678901234567890.5000"), 3, 4, b"\x00", True, {"x": 5})
    other = (Decimal("1.51"), *value[1:])
    table = pa.table(
        [pa.array([a, b], f.type) for a, b, f in zip(value, other, schema, strict=True)],
        schema=schema,
    )
    stamped = table.append_column("_ts", pa.array([0, 0])).append_column("_diff", pa.array([1, 1]))
    for column in schema.names:
        found = Arrangement(ShardSchema.from_arrow(schema), (column,), 0)
        found.append(stamped, Frontier(1))
        index = schema.get_field_index(column)
        assert found.lookup((value[index],), 0).num_rows == (1 if column == "n" else 2)


def test_two_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash only says where to look."""
    from shardline.app.compute.index import runs

    def alike(key: pa.Array) -> Any:
        import numpy as np

        return np.zeros(len(key), np.uint64)

    monkeypatch.setattr(runs, "_hashed", alike)
    rows = [((i, "a", 1.0), 0, 1) for i in range(5)]
    found = arranged(rows, ("k",), [], since=0)
    assert contents(found.lookup((3,), 5)) == Counter({(3, "a", 1.0): 1})


def test_wrong_keys_are_refused() -> None:
    """A key of another length, or a value of another type, is told and not looked for."""
    found = arranged([], ("k", "t"), [], since=0)
    with pytest.raises(InvalidUsage, match=r"\[INVALID_KEY\] a key of 2 columns \(k, t\) got 1"):
        found.lookup((1,), 0)
    with pytest.raises(InvalidUsage, match="INVALID_KEY"):
        found.lookup(("x", "y"), 0)
    with pytest.raises(InvalidUsage, match="UNKNOWN_COLUMN"):
        Arrangement(ShardSchema.from_arrow(SCHEMA), ("nope",), 0)


def test_a_result_is_never_larger_than_asked_for() -> None:
    """A row with a billion copies is refused before they are spelled out."""
    rows = [((1, "a", 1.0), 0, 10**9)]
    found = arranged(rows, ("k",), [], since=0)
    with pytest.raises(InvalidUsage, match=r"\[RESULT_TOO_LARGE\].*10,000 bytes"):
        found.lookup((1,), 5, bytes_max=10_000)
    with pytest.raises(InvalidUsage, match="RESULT_TOO_LARGE"):
        found.scan(5, bytes_max=10_000)


def test_what_changed_is_told_for_times_that_are_known() -> None:
    """Changes between two times have their diffs; before since they cannot be told."""
    rows = [((1, "a", 1.0), 1, 1), ((2, "b", 1.0), 4, 2), ((1, "a", 1.0), 6, -1)]
    found = arranged(rows, ("k",), [], since=1)
    changed = found.view.changed(1, 6)
    assert changed is not None
    assert sorted(changed.column("_diff").to_pylist()) == [-1, 2]
    assert found.view.changed(4, 5).num_rows == 0  # type: ignore[union-attr]
    assert found.view.changed(0, 5) is None


def test_rows_are_found_in_less_than_a_scan() -> None:
    """A look-up gives exactly what a scan filtered by the key gives, in a large arrangement."""
    schema = ShardSchema.from_arrow(pa.schema([("id", pa.int64()), ("g", pa.int64())]))
    ids = pa.array(range(100_000), pa.int64())
    table = pa.table({"id": ids, "g": pa.array([i % 97 for i in range(100_000)], pa.int64())})
    ones = pa.array([1] * 100_000, pa.int64())
    zeros = pa.array([0] * 100_000, pa.int64())
    found = Arrangement(schema, ("g",), 0)
    found.append(table.append_column("_ts", zeros).append_column("_diff", ones), Frontier(1))
    assert found.lookup((13,), 0).num_rows == sum(1 for i in range(100_000) if i % 97 == 13)
    assert set(found.lookup((13,), 0).column("g").to_pylist()) == {13}
    assert model_at([], 0) == Counter()


@examples()
@given(
    rows=histories(),
    key=st.sampled_from([("k",), ("t",), ("t", "k"), ("v",)]),
    cuts=st.lists(st.integers(1, LAST), max_size=4),
    wanted=st.lists(st.integers(0, 40), max_size=5),
    data=st.data(),
)
def test_rows_of_many_keys_are_gathered(
    rows: list[tuple[Row, int, int]],
    key: tuple[str, ...],
    cuts: list[int],
    wanted: list[int],
    data: st.DataObject,
) -> None:
    """Each row of a wanted key is there as often as in the contents, and nothing that is not."""
    found = arranged(rows, key, cuts, since=2)
    as_of = data.draw(st.integers(2, LAST - 1))
    places = [SCHEMA.names.index(name) for name in key]
    keys = [rows[place % len(rows)][0] for place in wanted] if rows else []
    given_keys = pa.table(
        [pa.array([row[place] for row in keys], SCHEMA.field(place).type) for place in places],
        names=list(key),
    )
    rows_found = found.gather(given_keys, as_of)
    assert rows_found is not None
    gathered = shown(rows_found)
    # A bound is about updates, of which there are at least as many as rows of different values.
    assert (found.gather(given_keys, as_of, 0) is None) or not gathered
    everything = model(rows, as_of)
    assert gathered <= everything
    # By their text: a shard tells -0.0 from 0.0.
    chosen = {tuple(repr(row[place]) for place in places) for row in keys}
    of_keys = {
        repr(row) for row, _, _ in rows if tuple(repr(row[place]) for place in places) in chosen
    }
    for text, count in everything.items():
        if text in of_keys:
            assert gathered[text] == count


def test_runs_are_put_where_the_caller_keeps_them() -> None:
    """What is read comes from there, and look-ups are the same."""
    kept: list[pa.Table] = []

    def keep(run: pa.Table) -> pa.Table:
        kept.append(run)
        return run

    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0, keep)
    row = (1, "a", 1.5)
    found.append(updates_of([(row, 0, 1)], SCHEMA), Frontier(1))
    for time in (1, 2):
        found.append(updates_of([((2, "b", 2.5), time, 1)], SCHEMA), Frontier(time + 1))
    assert [run.num_rows for run in kept] == [1, 1, 1, 3]  # the last is of all
    assert contents(found.lookup((1,), 2)) == Counter({row: 1})


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([5, 5], 0),
        ([5, 3, 3], 3),  # those behind the first are more than it
        ([100, 1, 1, 1], 0),
        ([100, 1, 1, 1, 1], 4),
        ([100, 3, 1, 1, 1], 4),
        ([100, 4, 1, 1, 1], 0),
        ([100, 70, 25, 4, 2], 5),
    ],
)
def test_runs_are_merged_by_their_sizes(sizes: list[int], merged: int) -> None:
    assert arrangement._mergeable(sizes) == merged


@pytest.mark.parametrize("by", ["k", "t"])
@pytest.mark.parametrize(
    ("rows", "end"), [(10_000, 300), pytest.param(30, 30, marks=pytest.mark.slow)]
)
def test_what_is_taken_away_is_given_back(
    monkeypatch: pytest.MonkeyPatch, by: str, rows: int, end: int
) -> None:
    """However often all are replaced, by appends of any size, in one piece or in pieces.

    All have one `t`: of this key a hash has more rows than a piece.
    """
    monkeypatch.setattr(runs, "PIECE_BYTES", 40 * rows)
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), (by,), 0)
    draw, time, most = random.Random(5), 1, 0
    found.append(updates_of([((n, "a", 0.0), 0, 1) for n in range(100)], SCHEMA), Frontier(1))
    versions = dict.fromkeys(range(100), 0.0)
    while time < end:
        changes = []
        for key in draw.sample(range(100), draw.choice([2, 25, 100])):
            changes.append(((key, "a", versions[key]), time, -1))
            versions[key] = float(time)
            changes.append(((key, "a", versions[key]), time, 1))
        found.append(updates_of(changes, SCHEMA), Frontier(time + 1))
        found.compact(time)
        most = max(most, found.view.records)
        time += 1
    assert most <= 600
    assert contents(found.scan(time - 1)) == Counter((k, "a", v) for k, v in versions.items())


def test_many_equal_rows_are_added_up() -> None:
    """Though none is taken away; a few among many are not worth sorting all for, and are found."""
    schema = ShardSchema.from_arrow(SCHEMA)
    equal, few = Arrangement(schema, ("k",), 0), Arrangement(schema, ("k",), 0)
    row = (1, "a", 1.5)
    equal.append(updates_of([(row, 0, 1)] * 3_000, SCHEMA), Frontier(1))
    assert equal.view.records == 1
    others = [((n, "a", 1.5), 0, 1) for n in range(3_000)]
    few.append(updates_of([*others, (row, 0, 1)], SCHEMA), Frontier(1))
    assert few.view.records == 3_001
    for one, times in ((equal, 3_000), (few, 2)):
        assert contents(one.lookup((1,), 0)) == Counter({row: times})


def test_equal_rows_are_found_to_be_many_wherever_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a part, which is sorted, they are neighbours: single rows far apart would all differ."""
    monkeypatch.setattr(runs, "_SAMPLE", 20)
    monkeypatch.setattr(runs, "_STRETCH", 10)
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
    rows = [((n // 20, "a", 1.5), 0, 1) for n in range(1_000)]
    found.append(updates_of(rows, SCHEMA), Frontier(1))
    assert found.view.records == 50


@pytest.mark.parametrize("key", ["k", "t"])
def test_memory_is_taken_for_one_piece_at_a_time(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Whether a table is given at once or in chunks, and when runs are merged."""
    stored: list[pa.Table] = []

    def keep(table: pa.Table) -> pa.Table:
        stored.append(table)
        return table

    monkeypatch.setattr(runs, "PIECE_BYTES", 4_000)  # about 100 rows
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), (key,), 0, keep)
    rows = [((n, "a", 1.5), n % 2, 1) for n in range(3_000)]
    found.append(updates_of(rows[:1_000], SCHEMA), Frontier(2))
    later = [
        updates_of([(row, 2, 1) for row, _, _ in rows[n : n + 90]], SCHEMA)
        for n in range(1_000, 3_000, 90)
    ]
    found.append_chunks(iter(later), Frontier(3))
    (run,) = found.view.runs
    assert sum(piece.updates.num_rows for piece in run.pieces) == run.records == 3_000
    assert len(run.pieces) > 25
    # Values are distributed by chance where all have one hash.
    assert max(table.num_rows for table in stored) <= (120 if key == "k" else 180)
    assert contents(found.lookup((7,) if key == "k" else ("a",), 2)) == Counter(
        row for row, _, _ in rows if key == "t" or row[0] == 7
    )


def test_a_chunk_that_fails_leaves_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones before it are not there, either."""
    monkeypatch.setattr(runs, "PIECE_BYTES", 100)
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
    found.append(updates_of([((1, "a", 1.5), 0, 1)], SCHEMA), Frontier(1))

    def chunks() -> Iterator[pa.Table]:
        yield updates_of([((1, "b", 1.5), 1, 1)], SCHEMA)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        found.append_chunks(chunks(), Frontier(2))
    assert (found.view.upper, found.view.records) == (Frontier(1), 1)
    assert contents(found.lookup((1,), 0)) == Counter({(1, "a", 1.5): 1})


def test_of_many_rows_few_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that may be equal to one that is taken away: to sort all by all columns is dear."""
    added_up = []

    def counted(updates: pa.Table) -> pa.Table:
        added_up.append(updates.num_rows)
        return consolidate(updates)

    found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
    rows = [((n, "a", 1.5), 0, 1) for n in range(20_000)]
    gone = [((n, "a", 1.5), 0, -1) for n in range(0, 20_000, 1_000)]
    monkeypatch.setattr(runs, "consolidate", counted)
    found.append(updates_of([*rows, *gone], SCHEMA), Frontier(1))
    assert found.view.records == len(rows) - len(gone)
    assert sum(added_up) < 3_000
    assert contents(found.scan(0)) == Counter(
        row for row, _, _ in rows if row not in {one for one, _, _ in gone}
    )
