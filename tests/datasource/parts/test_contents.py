"""Rows of every Spark type through the whole core, against counters of plain Python values."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.parts import stage
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Field, Record, parse_record, record_json
from support.models.shards import SETTINGS, TINY, World, schema_of
from support.strategies.rows import (
    Case,
    Row,
    ample,
    bounded,
    cases,
    plain_rows,
    row_identity,
    rows,
    to_table,
    values,
)

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0)
PIECES = replace(TINY, inline_part_bytes=0, part_buffer_bytes=64, row_group_rows=2)
SHAPES = st.sampled_from([SETTINGS, BLOBS, PIECES])


def counted(table: pa.Table, schema: ShardSchema) -> Counter[Any]:
    return Counter(row_identity(row, schema) for row in plain_rows(table, schema.names))


def identities(some: list[Row], schema: ShardSchema) -> Counter[Any]:
    return Counter(row_identity(row, schema) for row in some)


def shard(case: Case, settings: ShardSettings) -> tuple[World, ShardClient]:
    world = World()
    client = world.client(settings)
    client.create(SHARD, case.schema)
    return world, client


def read(world: World, as_of: int | None = None) -> pa.Table:
    """What a process that has seen nothing reads."""
    with world.client().reader(SHARD) as reader:
        return reader.snapshot(as_of)


def with_diffs(table: pa.Table, diffs: list[int]) -> pa.Table:
    return table.append_column("_diff", pa.array(diffs, pa.int64()))


@given(cases(), SHAPES)
@bounded
def test_what_is_written_is_read(case: Case, settings: ShardSettings) -> None:
    """Every type: inline, in a blob and in many; each row as often as it was added."""
    world, client = shard(case, settings)
    client.writer(SHARD).append_now(case.table)
    found = read(world)
    assert found.schema.equals(case.schema.arrow, check_metadata=True)
    assert counted(found, case.schema) == identities(case.rows, case.schema)
    world.close()


@pytest.mark.slow
@given(cases(), SHAPES, st.randoms(use_true_random=False))
@ample
def test_taking_back_exactly_what_was_added_leaves_nothing(
    case: Case, settings: ShardSettings, chance: Any
) -> None:
    """NaN, -0.0, nulls and nested values are found again, in any order and in other parts."""
    world, client = shard(case, settings)
    writer = client.writer(SHARD)
    writer.compare_and_append(case.table, Frontier(0), Frontier(1))
    shuffled = list(case.rows)
    chance.shuffle(shuffled)
    back = with_diffs(to_table(shuffled, case.schema), [-1] * len(shuffled))
    writer.compare_and_append(back, Frontier(1), Frontier(2))
    assert read(world).num_rows == 0
    assert counted(read(world, 0), case.schema) == identities(case.rows, case.schema)
    world.close()


@pytest.mark.slow
@given(cases(), SHAPES, st.data())
@ample
def test_diffs_add_up_at_every_time(
    case: Case, settings: ShardSettings, data: st.DataObject
) -> None:
    """Rows added several times and taken back one by one, over several appends."""
    world, client = shard(case, settings)
    writer = client.writer(SHARD)
    total: Counter[Any] = Counter()
    history = []
    for time in range(3):
        picked = data.draw(st.lists(st.sampled_from(case.rows), max_size=5)) if case.rows else []
        diffs = []
        for row in picked:
            one = row_identity(row, case.schema)
            diffs.append(data.draw(st.integers(-total[one], 3).filter(bool)))
            total[one] += diffs[-1]
        updates = with_diffs(to_table(picked, case.schema), diffs)
        writer.compare_and_append(updates, Frontier(time), Frontier(time + 1))
        history.append(+total)
    for time, expected in enumerate(history):
        assert counted(read(world, time), case.schema) == expected
    world.close()


@given(diffs=st.lists(st.integers(0, 2), max_size=9), settings=SHAPES, older=st.booleans())
@example(diffs=[1, 0, 1], settings=BLOBS, older=True)
@example(diffs=[1, 0, 1], settings=SETTINGS, older=False)
@bounded
def test_an_update_that_changes_nothing_is_no_row(
    diffs: list[int], settings: ShardSettings, *, older: bool
) -> None:
    """Nor is it written; but a writer of before may have, and a merge drops it."""
    world = World()
    client = world.client(settings)
    client.create(SHARD, schema_of())
    numbers = list(range(len(diffs)))
    added = pa.Table.from_pydict({"id": numbers, "v": ["a"] * len(diffs)}, schema_of().arrow)
    with pytest.MonkeyPatch.context() as patched:
        if older:
            patched.setattr(stage, "_without_zeros", lambda updates: updates)
        client.writer(SHARD).append_now(with_diffs(added, diffs))
    parts = [part for batch in client.state(SHARD).trace.batches for part in batch.parts]
    assert sum(part.rows for part in parts) == (len(diffs) if older else sum(map(bool, diffs)))

    expected = [number for number, diff in zip(numbers, diffs, strict=True) for _ in range(diff)]
    assert sorted(read(world)["id"].to_pylist()) == expected
    client.compact(SHARD, force=True)
    assert sorted(read(world)["id"].to_pylist()) == expected
    world.close()


@pytest.mark.slow
@given(cases(most=8), SHAPES, st.data())
@ample
def test_an_overwrite_leaves_exactly_the_new_rows(
    case: Case, settings: ShardSettings, data: st.DataObject
) -> None:
    """Whatever was there and whatever comes, and only the difference is written."""
    world, client = shard(case, settings)
    writer = client.writer(SHARD)
    writer.append_now(case.table)
    wanted = data.draw(rows(case.schema, 8) | st.just(case.rows[:3] + case.rows[5:]))
    staged = writer.stager().stage([to_table(wanted, case.schema)])
    overwrite(writer, staged, sequence=2, attempt="t")
    assert counted(read(world), case.schema) == identities(wanted, case.schema)
    old, new = identities(case.rows, case.schema), identities(wanted, case.schema)
    written = sum(part.rows for part in list(client.state(SHARD).trace.batches)[-1].parts)
    changed = [row for row in old | new if old[row] != new[row]]
    assert written == len(changed) or client.state(SHARD).trace.batches[-1].desc.lower == 0
    world.close()


def relaxed(schema: ShardSchema, extra: str) -> ShardSchema:
    """All columns nullable, and one more."""
    column = {"name": "more", "type": extra, "nullable": True, "metadata": {}}
    more = parse_record(json.dumps({"type": "struct", "fields": [column]}))
    fields = [Field(f.name, f.type, True, f.metadata) for f in schema.record.fields]
    return ShardSchema.parse(record_json(Record((*fields, *more.fields))))


@pytest.mark.slow
@given(cases(), SHAPES, st.data(), st.sampled_from(["long", "string", "double"]))
@ample
def test_old_rows_are_found_again_under_a_new_schema(
    case: Case, settings: ShardSettings, data: st.DataObject, extra: str
) -> None:
    """Rows written before an evolution are read, and taken back, with nulls in what is new."""
    world, client = shard(case, settings)
    client.writer(SHARD).compare_and_append(case.table, Frontier(0), Frontier(1))
    wider = relaxed(case.schema, extra)
    client.evolve(SHARD, wider)
    kind = wider.field("more").type
    value = data.draw(values(kind, nullable=True))
    padded = [(*row, None) for row in case.rows]
    fresh = [(*row, value) for row in case.rows[:2]]
    writer = client.writer(SHARD)
    writer.compare_and_append(to_table(fresh, wider), Frontier(1), Frontier(2))
    assert counted(read(world), wider) == identities(padded + fresh, wider)
    back = with_diffs(to_table(padded, wider), [-1] * len(padded))
    writer.compare_and_append(back, Frontier(2), Frontier(3))
    assert counted(read(world), wider) == identities(fresh, wider)
    world.close()


@pytest.mark.slow
@given(cases(), SHAPES)
@ample
def test_a_projection_is_the_columns_of_the_whole(case: Case, settings: ShardSettings) -> None:
    """Each column by itself, and all in reverse: with and without retractions."""
    world, client = shard(case, settings)
    writer = client.writer(SHARD)
    writer.compare_and_append(case.table, Frontier(0), Frontier(1))
    if case.rows:
        gone = with_diffs(to_table(case.rows[:1], case.schema), [-1])
        writer.compare_and_append(gone, Frontier(1), Frontier(2))
    with world.client().reader(SHARD) as reader:
        whole = plain_rows(reader.snapshot(), case.schema.names)
        for columns in ([name] for name in case.schema.names):
            narrow = case.schema.select(columns)
            position = case.schema.names.index(columns[0])
            expected = identities([(row[position],) for row in whole], narrow)
            assert counted(reader.snapshot(columns=columns), narrow) == expected
        back = case.schema.select(case.schema.names[::-1])
        expected = identities([row[::-1] for row in whole], back)
        assert counted(reader.snapshot(columns=back.names), back) == expected
    world.close()


def test_column_names_with_dots_are_not_paths() -> None:
    """A column `x.y` is another one than the field `y` of a struct `x`, in every projection."""
    inner = pa.struct([pa.field("y", pa.int64()), pa.field("z", pa.int64())])
    arrow = pa.schema(
        [pa.field("x", inner), pa.field("x.y", pa.int64()), pa.field("`", pa.string())]
    )
    world = World()
    client = world.client(BLOBS)
    client.create(SHARD, schema_of(arrow))
    columns = [pa.array([{"y": 1, "z": 2}], inner), pa.array([3]), pa.array(["q"])]
    client.writer(SHARD).append_now(pa.Table.from_arrays(columns, schema=arrow))
    with client.reader(SHARD) as reader:
        assert reader.snapshot(columns=["x.y"]).to_pylist() == [{"x.y": 3}]
        assert reader.snapshot(columns=["x"]).to_pylist() == [{"x": {"y": 1, "z": 2}}]
        assert reader.snapshot(columns=["`"]).to_pylist() == [{"`": "q"}]
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_COLUMN.*'x.z'"):
            reader.snapshot(columns=["x.z"])
    world.close()


def test_large_diffs_are_counted_and_not_copied() -> None:
    """A row with 10**15 copies is one update; taking all but two away leaves two."""
    world = World()
    client = world.client()
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    row = pa.Table.from_pydict({"id": [1], "v": ["a"]}, schema_of().arrow)
    writer.append_now(with_diffs(row, [10**15]))
    writer.append_now(with_diffs(row, [2 - 10**15]))
    assert read(world).to_pylist() == [{"id": 1, "v": "a"}] * 2
    world.close()


def test_a_null_under_a_null_parent_is_none() -> None:
    """Arrow lets a child that is not nullable be null where its parent is; so may a writer."""
    inner = [pa.field("a", pa.decimal128(9, 2), nullable=False), pa.field("b", pa.string())]
    child = pa.array([Decimal("1.50"), None, Decimal("2.50")], pa.decimal128(9, 2))
    absent = pa.array([False, True, False])
    column = pa.StructArray.from_arrays(
        [child, pa.array(["x", "y", None])], fields=inner, mask=absent
    )
    lists = pa.ListArray.from_arrays([0, 2, 3, 3], column)
    arrow = pa.schema([pa.field("s", column.type), pa.field("l", lists.type)])
    rows = pa.Table.from_arrays([column, lists], schema=arrow)
    world = World()
    client = world.client(BLOBS)
    client.create(SHARD, schema_of(arrow))
    client.writer(SHARD).append_now(rows.slice(1))
    assert Counter(map(str, read(world).to_pylist())) == Counter(map(str, rows.to_pylist()[1:]))
    world.close()
