"""Plans: what is read for a question, what needs merging, and how parts are spread."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.batch import Batch, Part, Run, Volume
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.plan import (
    PlannedPart,
    TimeFilter,
    pack_parts,
    plan_changes,
    plan_snapshot,
    volume_of,
)
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.trace import Trace
from shardline.datasource.types.stats import ColumnStats, PartStats, encode_stats
from support.models.shards import SETTINGS, World, schema_of, updates
from support.strategies.commands import first_state, part
from support.strategies.rows import bounded

SHARD = "orders"
PIECES = replace(SETTINGS, inline_part_bytes=0, part_buffer_bytes=1)


def keys(planned: list[PlannedPart] | tuple[PlannedPart, ...]) -> list[str]:
    return [one.part.key for one in planned]


def ranged(name: str, lo: int | None, hi: int | None, **changes: object) -> Part:
    """A part whose column `a` lies between two bounds, nulls where a bound is unknown."""
    nulls = int(lo is None)
    stats = PartStats(1, {"a": ColumnStats(nulls, "int", lo, hi)})
    return part(name, ts=1, encoded_stats=encode_stats(stats), **changes)


def state_of(*parts: Part) -> ShardState:
    batches = (Batch(Description(0, 10), tuple(Run((one,)) for one in parts)),)
    return msgspec.structs.replace(first_state(), trace=Trace(0, batches))


def test_append_only_parts_need_no_merging() -> None:
    """Without a retraction nothing is grouped, however much overlaps."""
    plan = plan_snapshot(state_of(*(ranged(f"p{i}", 0, 9) for i in range(5))), 5, "a")
    assert len(plan.plain) == 5
    assert plan.groups == ()


def test_only_what_a_retraction_can_meet_is_merged() -> None:
    """Parts whose ranges a retracting part does not reach stay plain; chains form one group."""
    state = state_of(
        ranged("far", 100, 200),
        ranged("near", 5, 12),
        ranged("touching", 20, 30),
        ranged("taker", 10, 20, diff_min=-1),
        ranged("beside", 31, 40),
        ranged("lone taker", 50, 60, diff_min=-1),
    )
    plan = plan_snapshot(state, 5, "a")
    assert sorted(keys(plan.plain)) == ["beside", "far"]
    groups = sorted(sorted(keys(group)) for group in plan.groups)
    assert groups == [["lone taker"], ["near", "taker", "touching"]]
    assert sorted(keys(plan.planned)) == sorted([*keys(plan.plain), *chain.from_iterable(groups)])
    assert volume_of(plan.planned) == Volume.of(state.trace.batches[0].parts)


def test_a_part_without_statistics_may_hold_anything() -> None:
    """Nothing known means that every retraction may meet it."""
    unknown = part("unknown", ts=1)
    plan = plan_snapshot(state_of(unknown, ranged("taker", 0, 1, diff_min=-1)), 5, "a")
    assert [sorted(keys(group)) for group in plan.groups] == [["taker", "unknown"]]


def test_times_of_other_batches_are_not_counted_twice() -> None:
    """A trimmed part counts from its batch's lower; what lies after the question is left out."""
    early = Batch(Description(0, 10), (Run((part("early", ts_min=1, ts_max=9),)),))
    trimmed = Batch(Description(10, 20), (Run((part("trimmed", ts_min=5, ts_max=15),)),))
    late = Batch(Description(20, 30), (Run((part("late", ts=25),)),))
    state = msgspec.structs.replace(first_state(), trace=Trace(0, (early, trimmed, late)))
    snapshot = plan_snapshot(state, 15, "a").plain
    assert [(one.part.key, one.times.lower, one.times.upper) for one in snapshot] == [
        ("early", None, 10),
        ("trimmed", 10, 16),
    ]
    assert not snapshot[0].needs_time
    assert snapshot[1].needs_time
    changes = plan_changes(state, 12, None)
    assert [(one.part.key, one.times) for one in changes] == [
        ("trimmed", TimeFilter(12, 20)),
        ("late", TimeFilter(20, 30)),
    ]
    assert plan_changes(state, 16, 20) == []


MIB = 1 << 20
ALWAYS = TimeFilter(None, None)


def sized(*sizes: int) -> list[PlannedPart]:
    parts = [part(f"p{i}", size_bytes=size, rows=1 + size // 2) for i, size in enumerate(sizes)]
    return [PlannedPart(one, ALWAYS, ordered=True) for one in parts]


@given(st.lists(st.integers(0, 1 << 24), max_size=30), st.integers(1 << 16, 1 << 23))
@bounded
def test_packing_keeps_every_share_once(sizes: list[int], target_bytes: int) -> None:
    """All parts whole, in no empty list, none overloaded, whatever order they come in."""
    parts = sized(*sizes)
    packed = pack_parts(parts, target_bytes)
    shares: dict[str, list[tuple[int, int]]] = {}
    for one in (one for some in packed for one in some):
        shares.setdefault(one.part.key, []).append(one.share)
    assert {key: sorted(found) for key, found in shares.items()} == {
        one.part.key: [(i, n) for i in range(n)]
        for one in parts
        for n in [max(1, -(-one.part.size_bytes // target_bytes))]
    }
    assert all(packed)
    assert pack_parts(parts[::-1], target_bytes) == packed
    weights = [sum(one.weight_bytes for one in some) for some in packed]
    heaviest = max((one.weight_bytes for some in packed for one in some), default=0)
    assert max(weights, default=0) <= min(weights, default=0) + heaviest


def test_a_part_is_not_cut_finer_than_row_groups_are() -> None:
    """A few wide rows are one task, however small a partition may be."""
    wide = PlannedPart(part("p", size_bytes=MIB, rows=10), ALWAYS, ordered=True)

    assert [one.share for some in pack_parts([wide], 1) for one in some] == [(0, 1)]


def test_a_large_part_is_many_tasks_and_tiny_parts_are_few() -> None:
    """A gigabyte makes 32 tasks of the default size; 10,000 parts of some kilobytes about 80."""
    assert [len(some) for some in pack_parts(sized(1024 * MIB), 32 * MIB)] == [1] * 32
    tiny = pack_parts(sized(*[4096] * 10_000), 32 * MIB)
    assert 50 <= len(tiny) <= 100
    assert {len(some) for some in tiny} <= {len(tiny[0]), len(tiny[0]) - 1}
    assert len(pack_parts(sized(*[MIB] * 4), 32 * MIB)) == 1
    assert pack_parts([], 32 * MIB) == []


def test_a_plan_has_no_more_lists_than_a_driver_can_bear() -> None:
    """Of 20,000 large parts; they grow instead."""
    packed = pack_parts(sized(*[64 * MIB] * 20_000), 32 * MIB)
    assert len(packed) == 10_000
    assert {one.share for some in packed for one in some} == {(0, 1)}


def test_inline_parts_are_never_cut() -> None:
    """They have no row groups."""
    [one] = sized(100 * MIB)
    inline = msgspec.structs.replace(one, part=msgspec.structs.replace(one.part, inline=b"rows"))
    assert pack_parts([inline], MIB) == [[inline]]


def test_a_key_range_bounds_what_a_retraction_costs(world: World) -> None:
    """Of many parts written in the order of the key, one retraction merges one."""
    client: ShardClient = world.client(PIECES)
    client.create(SHARD, schema_of(), key=["id"])
    writer = client.writer(SHARD)
    writer.compare_and_append(
        updates(*((i, "x", 0, 1) for i in range(20))), Frontier(0), Frontier(1)
    )
    writer.compare_and_append(updates((7, "x", 1, -1)), Frontier(1), Frontier(2))
    plan = plan_snapshot(client.state(SHARD), 1, "id")
    assert len(plan.plain) == 19
    assert [len(group) for group in plan.groups] == [2]
    with client.reader(SHARD) as reader:
        ids = sorted(reader.snapshot().column("id").to_pylist())
    assert ids == [i for i in range(20) if i != 7]
