"""Bounds that a part's file has of its own columns: of none that holds NaN, and who trusts them."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from shardline.datasource.client import ShardClient
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.parts.nan_bounds import bounded_columns, float_paths, trusts_bounds
from shardline.datasource.parts.part_file import encode_parquet
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.batch import Part
from shardline.datasource.stores.open import open_objects
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import NO_STATS, encode_stats
from support.fakes.clock import ManualClock, SeededIds
from support.models.shards import SETTINGS, World
from support.strategies.rows import Case, bounded, cases, json_types
from support.tree import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = GOLDEN / "v1.3" / "floats.zip"
"""A location as state version 1.3 wrote it: the bounds in its parts leave NaN out."""

FILES = ShardSettings(inline_part_bytes=0, compact_inline_bytes=0)


def holds_nan(value: Any) -> bool:
    """Whether NaN is somewhere in a plain value."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, dict):
        return any(map(holds_nan, value.values()))
    return isinstance(value, (list, tuple)) and any(map(holds_nan, value))


def chunks(data: memoryview) -> Iterator[pq.ColumnChunkMetaData]:
    footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            yield footer.row_group(group).column(column)


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "leaf"),
    [
        (pa.float64(), math.nan, "x"),
        (pa.float32(), math.nan, "x"),
        (pa.struct([("a", pa.float64())]), {"a": math.nan}, "x.a"),
        (pa.struct([("a", pa.struct([("b", pa.float32())]))]), {"a": {"b": math.nan}}, "x.a.b"),
        (pa.list_(pa.float64()), [1.0, math.nan], "x.list.element"),
        (pa.map_(pa.string(), pa.float64()), [("k", math.nan)], "x.key_value.value"),
        (pa.map_(pa.float64(), pa.string()), [(math.nan, "v")], "x.key_value.key"),
        (
            pa.list_(pa.struct([("a", pa.list_(pa.float32()))])),
            [{"a": [math.nan]}],
            "x.list.element.a.list.element",
        ),
    ],
)
def test_a_leaf_with_nan_has_no_bounds(kind: pa.DataType, value: Any, leaf: str) -> None:
    """At any depth, in footer and page index, in any row group; all other leaves have bounds."""
    table = pa.table(
        {"id": [1, 2, 3], "y": [1.5, -0.0, 0.0], "x": pa.array([None, None, value], kind)}
    )
    found = list(chunks(encode_parquet(table, row_group_rows=2)))
    assert leaf in {chunk.path_in_schema for chunk in found}
    for chunk in found:
        if chunk.path_in_schema == leaf:
            assert chunk.statistics is None
            assert not chunk.has_column_index
        elif not chunk.path_in_schema.startswith("x"):
            assert chunk.statistics.has_min_max
            assert chunk.has_column_index


@given(cases(json_types(), most=6))
@bounded
def test_no_bounds_where_nan_is(case: Case) -> None:
    """Whatever the types: a column with NaN has a leaf without; without NaN all are as ever."""
    if case.table.num_rows == 0:
        return
    names = case.table.column_names
    table = case.table.rename_columns([f"c{place}" for place in range(len(names))])
    data = encode_parquet(table, row_group_rows=2)
    for place, column in enumerate(table.column_names):
        mine = [c for c in chunks(data) if c.path_in_schema.split(".")[0] == column]
        if any(holds_nan(row[place]) for row in case.rows):
            assert any(chunk.statistics is None for chunk in mine)
    nan = any(holds_nan(value) for row in case.rows for value in row)
    assert (bounded_columns(table) is True) == (not nan)


def test_names_with_dots_do_not_hide_nan() -> None:
    """Parquet names leaves by text: a struct's field, and a column that is called the same."""
    table = pa.table({"s.a": [math.nan], "s": [{"a": 1.0}], "id": [1]})
    found = {
        c.path_in_schema: c.statistics for c in chunks(encode_parquet(table, row_group_rows=2))
    }
    assert found["s.a"] is None
    assert found["id"].has_min_max


@pytest.mark.parametrize("inline", [False, True])
def test_parts_say_what_their_files_are(world: World, inline: bool) -> None:
    """A part in a file is trusted, one in the state has no file yet, and one that left it has."""
    client = world.client(replace(SETTINGS, inline_part_bytes=1 << 16 if inline else 0))
    table = pa.table({"f": [1.0, math.nan]})
    client.create("s", ShardSchema.from_arrow(table.schema))
    handle = client.writer("s")
    handle.append_now(table)
    [part] = client.state("s").trace.batches[-1].parts
    assert (part.nan_safe, part.footer is not None) == (not inline, not inline)
    if inline:
        flushed = handle.stager(may_inline=False).flush(part)
        assert flushed.nan_safe
        assert flushed.footer is not None
        data = client.location.blob.get(flushed.key)
        assert data is not None
        assert all(
            c.statistics is None for c in chunks(memoryview(data)) if c.path_in_schema == "f"
        )


# --- what is trusted -----------------------------------------------------------------------------


def test_a_part_of_an_older_version_is_trusted_by_its_statistics() -> None:
    """Only where they count no NaN: neither when they count some, nor when they say nothing."""
    table = pa.table({"a": [1.0], "b": [math.nan], "s": [{"x": 1.0, "y": math.nan}], "l": [[1.0]]})
    schema = ShardSchema.from_arrow(table.schema)
    part = Part("p", 1, 1, 0, encoded_stats=encode_stats(collect_part_stats(table, schema)))
    paths = list(float_paths(schema.record.fields))
    assert paths == ["a", "b", "s.x", "s.y"], "what is in lists no filter is asked of a file about"
    assert [trusts_bounds(part, [path]) for path in paths] == [True, False, True, False]
    assert not trusts_bounds(part, paths)
    assert trusts_bounds(part, [])
    bare = msgspec.structs.replace(part, encoded_stats=NO_STATS)
    assert not trusts_bounds(bare, ["a"])
    assert trusts_bounds(msgspec.structs.replace(bare, nan_safe=True), paths)


@pytest.mark.parametrize("shard", ["known", "unknown"])
def test_a_check_names_parts_of_older_versions_until_they_are_rewritten(
    tmp_path: Path, shard: str
) -> None:
    """With what to do; and that does it, also where there is one sorted batch already."""
    place = tmp_path / "old"
    shutil.unpack_archive(OLD, place)
    clock = ManualClock()
    objects = open_objects(str(place), {}, clock=clock, ids=SeededIds())
    client = ShardClient.open(str(place), settings=FILES)
    before = client.state(shard)
    with client.reader(shard) as reader:
        rows = reader.snapshot()

    def findings() -> set[tuple[str, str, str]]:
        [check] = check_location(objects, clock, shard=shard, deep=True).shards
        return {(f.code, f.severity, f.subject) for f in check.findings}

    keys = {part.key for batch in before.trace.batches for part in batch.parts}
    assert findings() == {("PART_NAN_BOUNDS", "warning", key) for key in keys}
    assert client.compact(shard, force=True) == 1
    assert client.compact(shard, force=True) == 0
    assert findings() == set()
    with client.reader(shard) as reader:
        assert repr(reader.snapshot().to_pylist()) == repr(rows.to_pylist())
    assert all(p.nan_safe and p.footer for b in client.state(shard).trace.batches for p in b.parts)
