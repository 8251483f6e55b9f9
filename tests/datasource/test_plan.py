"""Plans: what is read for a question, what needs merging, and how parts are spread."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from datasource.batch import Batch, Part, Run
from datasource.client import ShardClient
from datasource.description import Description
from datasource.frontier import Frontier
from datasource.plan import PlannedPart, TimeFilter, pack, plan_changes, plan_snapshot
from datasource.state import ShardState
from datasource.stats import ColumnStats, PartStats
from datasource.trace import Trace
from support.commands import first_state, part
from support.shards import SETTINGS, World, schema_of, updates
from support.strategies import bounded

SHARD = "orders"
PIECES = replace(SETTINGS, inline_part_bytes=0, part_buffer_bytes=1)


def keys(planned: list[PlannedPart] | tuple[PlannedPart, ...]) -> list[str]:
    return [one.part.key for one in planned]


def ranged(name: str, lo: int | None, hi: int | None, **changes: object) -> Part:
    """A part whose column `a` lies between two bounds, nulls where a bound is unknown."""
    nulls = int(lo is None)
    stats = PartStats(1, {"a": ColumnStats(nulls, "int", lo, hi)})
    return part(name, ts=1, stats=stats, **changes)


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


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1 << 24)), max_size=30),
    st.integers(0, 8),
)
@bounded
def test_packing_keeps_every_part_once(sizes: list[tuple[int, int]], partitions: int) -> None:
    """All parts, in at most as many lists as asked for, none empty, and no list overloaded."""
    every = TimeFilter(None, None)
    parts = [
        PlannedPart(part(f"p{i}-{name}", size_bytes=size), every, ordered=True)
        for i, (name, size) in enumerate(sizes)
    ]
    packed = pack(parts, partitions)
    assert Counter(keys([one for some in packed for one in some])) == Counter(keys(parts))
    assert len(packed) <= max(partitions, 1)
    assert all(packed)
    assert pack(parts[::-1], partitions) == packed
    if len(packed) > 1:
        weights = [sum(one.part.size_bytes + (1 << 20) for one in some) for some in packed]
        heaviest = max(one.part.size_bytes + (1 << 20) for one in parts)
        assert max(weights) <= min(weights) + heaviest


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
