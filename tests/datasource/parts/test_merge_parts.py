"""Merging parts: however large they are, what is in memory at once is not."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from shardline.datasource.maintenance.compact import compact
from shardline.datasource.parts import contents, merge_parts, stage
from shardline.datasource.rows.merge_runs import Run, merge, merge_loaded
from shardline.datasource.rows.updates import sort_rows
from support.models.merging import SHARD, append_unordered
from support.models.shards import SETTINGS, World, schema_of, table

MEMORY = 3 << 20
WIDE = replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0, compact_memory_bytes=MEMORY)


def texts(count: int, width: int, *, same: bool) -> pa.Array:
    """So many strings of `width` digits, of which few bytes are left in a file if they are one."""
    digits = np.random.default_rng(1).integers(48, 58, (1 if same else count, width), np.uint8)
    return pa.array(np.broadcast_to(digits.view(f"S{width}").ravel(), count)).cast(pa.string())


@pytest.mark.parametrize(
    ("shape", "same", "alone"),
    [
        pytest.param((70_000, 60), False, False, marks=pytest.mark.slow),
        pytest.param((70_000, 60), True, False, marks=pytest.mark.slow),
        ((8_000, 600), False, False),
        ((8_000, 600), False, True),
        ((8_000, 600), True, False),
        ((8_000, 600), True, True),
    ],
    ids=["many", "alike", "long", "alone", "long_alike", "alone_alike"],
)
def test_an_unsorted_part_is_never_in_memory_as_a_whole(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int],
    *,
    same: bool,
    alone: bool,
) -> None:
    """Of many rows, of such as hardly take room in a file, and of few long ones; also alone."""
    count, width = shape
    client = world.client(WIDE)
    client.create(SHARD, schema_of(), key=("id",))
    if not alone:
        client.writer(SHARD).append_now(table((-1, "first")))
    body = texts(count, width, same=same)
    whole = pa.Table.from_pydict({"id": np.arange(count), "v": body}, schema_of().arrow)
    append_unordered(world, client, whole, row_group_rows=count // 20)
    held: list[int] = []
    beside: list[int] = []

    def sort(updates: pa.Table, key: tuple[str, ...]) -> pa.Table:
        held.append(updates.nbytes)
        return sort_rows(updates, key)

    def sum_up(updates: pa.Table, key: tuple[str, ...], since: int | None) -> pa.Table:
        held.append(updates.nbytes)
        return merge_loaded(updates, key, since)

    def merge_side_by_side(
        runs: Sequence[Run], columns: Sequence[str], since: int | None
    ) -> Iterator[pa.Table]:
        beside.append(len(runs))
        return merge(runs, columns, since)

    monkeypatch.setattr(merge_parts, "merge", merge_side_by_side)
    for module in (contents, merge_parts, stage):
        monkeypatch.setattr(module, "sort_rows", sort)
    monkeypatch.setattr(merge_parts, "merge_loaded", sum_up)
    assert client.compact(SHARD, force=alone) == 1

    assert whole.nbytes > 1.5 * MEMORY
    assert max(held) < MEMORY
    assert set(beside) == {2}, "more of its pieces do not fit into memory"
    [batch] = client.state(SHARD).trace.batches
    [run] = batch.runs
    assert run.order == "sorted"
    with world.client().reader(SHARD) as reader:
        found = reader.snapshot()
    first = [] if alone else ["first"]
    assert found.column("id").to_pylist() == list(range(-len(first), count))
    assert found.column("v").to_pylist() == [*first, *body.to_pylist()]
    stored = {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}
    named = {p.key for b in client.state(SHARD).trace.batches for p in b.parts}
    assert len(stored - named) == 2 - alone, "the inputs, and nothing of a pass on the way"


def test_what_is_sorted_counts_beside_what_is_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is too large may come after others that fit."""
    monkeypatch.setattr(merge_parts, "BATCH_ROWS", 100)
    client = world.client(WIDE)
    client.create(SHARD, schema_of(), key=("id",))
    rows = [1_500, 1_500, 1_500, 4_000]
    for number, count in enumerate(rows):
        ids = np.arange(count) * len(rows) + number
        one = {"id": ids, "v": texts(count, 600, same=False)}
        whole = pa.Table.from_pydict(one, schema_of().arrow)
        append_unordered(world, client, whole, row_group_rows=100)
    held: list[int] = []

    def sort(updates: pa.Table, key: tuple[str, ...]) -> pa.Table:
        loaded = (one for one in gc.get_objects() if isinstance(one, merge_parts._Loaded))
        held.append(updates.nbytes + sum(one.memory_bytes for one in loaded if one.tables))
        return sort_rows(updates, key)

    for module in (contents, merge_parts, stage):
        monkeypatch.setattr(module, "sort_rows", sort)
    assert client.compact(SHARD, force=True) == 1

    assert max(held) < MEMORY
    with world.client().reader(SHARD) as reader:
        assert reader.snapshot().num_rows == sum(rows)


def test_runs_in_order_count_by_what_their_rows_take_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text that repeats there is next to nothing in a file. To open each is progress, too."""
    monkeypatch.setattr(merge_parts, "BATCH_ROWS", 1_000)
    client = world.client(WIDE)
    client.create(SHARD, schema_of(), key=("id",))
    count, many = 4_000, 8
    for number in range(many):
        body = {"id": np.arange(count) * many + number, "v": texts(count, 600, same=True)}
        client.writer(SHARD).append_now(pa.Table.from_pydict(body, schema_of().arrow))
    beside, looks, looks_before = list[int](), [0], list[int]()

    def merge_side_by_side(
        runs: Sequence[Run], columns: Sequence[str], since: int | None
    ) -> Iterator[pa.Table]:
        beside.append(len(runs))
        looks_before.append(looks[0])
        return merge(runs, columns, since)

    def stopping() -> bool:
        looks[0] += 1
        return False

    monkeypatch.setattr(merge_parts, "merge", merge_side_by_side)
    assert compact(client.machine(SHARD), force=True, stopping=stopping) == 1

    assert set(beside) == {2}, "two of them are as much as fits"
    assert looks_before[0] > 2, "before the first row is merged"
    with world.client().reader(SHARD) as reader:
        assert reader.snapshot().column("id").to_pylist() == list(range(count * many))
