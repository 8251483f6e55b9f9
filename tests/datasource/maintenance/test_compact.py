"""Compaction: the same meaning in fewer batches, for every kind of input, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, Indeterminate, MissingBlob
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.maintenance.compact import all_mergeable_batches, compact, merge_batches
from shardline.datasource.parts.merge_parts import sources
from shardline.datasource.rows.merge_runs import merge, merge_loaded
from shardline.datasource.shard.batch import Batch, Run
from shardline.datasource.shard.commands.merge import apply_merge
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.trace import Trace
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.objects import CreateOutcome
from support.models.merging import append_unordered
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table, updates
from support.strategies.commands import part

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0, row_group_rows=4, compact_inline_bytes=0)


# --- meaning -------------------------------------------------------------------------------------


def made(world: World, *, key: tuple[str, ...] = ("id",), **settings: int) -> ShardClient:
    client = world.client(replace(BLOBS, **settings))  # type: ignore[arg-type]
    client.create(SHARD, schema_of(), key=key)
    return client


def test_empty_neighbours_alone_are_no_merge(world: World) -> None:
    """Which fsck finds; a merge of all leaves the last one out, as it may grow."""
    empty = [Batch(Description(time, time + 1)) for time in range(3)]
    state = made(world).state(SHARD)
    for number in (1, 2, 3):
        state = msgspec.structs.replace(state, trace=Trace(batches=tuple(empty[:number])))
        assert all_mergeable_batches(state) == ()


def append(client: ShardClient, upper: int, *some: tuple[int | None, str | None, int, int]) -> None:
    """Updates `(id, v, time, diff)` as the contents from the upper to `upper`."""
    writer = client.writer(SHARD)
    writer.compare_and_append(updates(*some) if some else None, writer.upper(), Frontier(upper))


def meaning(client: ShardClient, since: int) -> list[object]:
    """Contents at every time, and the changes after it, of somebody who has seen nothing."""
    said: list[object] = []
    with client.reader(SHARD) as reader:
        upper = client.state(SHARD).upper.time or 0
        for as_of in range(since, upper):
            said.append(rows(reader.snapshot(as_of)))
            changes: Counter[object] = Counter()
            for step in reader.listen(as_of, until=Frontier(upper), timeout_ms=1):
                for *row, time, diff in zip(*(c.to_pylist() for c in step.updates), strict=True):
                    changes[(*row, time)] += diff
            said.append({update: diff for update, diff in changes.items() if diff})
            reader.lease.since = Frontier(0)
    return said


def history(client: ShardClient) -> None:
    """Adds, copies, retractions, empty intervals, nulls, and the same row again."""
    client.hold(SHARD, "all")
    append(client, 4, (1, "a", 0, 1), (2, "b", 1, 2), (None, None, 3, 1))
    append(client, 6)
    append(client, 9, (1, "a", 6, -1), (2, "b", 8, -1))
    append(client, 12, (1, "a", 10, 1), (3, None, 11, 1))
    append(client, 15)
    append(client, 16, (3, None, 15, -1))
    append(client, 18)


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("inline", [0, 4096])
@pytest.mark.parametrize("buffer", [1, 1 << 20])
@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_contents_and_changes_stay_as_they_were(
    world: World, key: tuple[str, ...], inline: int, buffer: int, memory: int
) -> None:
    """At every time, whether merged by size or by force, in one pass or in many."""
    settings = {
        "inline_part_bytes": inline,
        "part_buffer_bytes": buffer,
        "compact_memory_bytes": memory,
        "compact_factor": 2,
    }
    client = made(world, key=key, **settings)
    history(client)
    before = meaning(world.client(), 0)
    assert client.compact(SHARD) >= 1
    assert meaning(world.client(), 0) == before
    client.compact(SHARD, force=True)
    assert meaning(world.client(), 0) == before
    batches = client.state(SHARD).trace.batches
    assert [(b.desc.lower, b.desc.upper, b.rows) for b in batches] == [(0, 16, 8), (16, 18, 0)]
    assert client.compact(SHARD, force=True) == 0


def test_history_before_the_since_is_gone(world: World) -> None:
    """Updates of one row are summed, what cancels is nowhere, and the rest is as it was."""
    client = made(world)
    history(client)
    before = meaning(world.client(), 9)
    hold = client.hold(SHARD, "all")
    hold.downgrade(Frontier(9))
    assert client.compact(SHARD, force=True) == 1
    assert meaning(world.client(), 9) == before
    [batch, _] = client.state(SHARD).trace.batches
    [one] = batch.parts
    assert batch.desc == Description(0, 16, 9)
    # (2, "b"), (null, null) at 9, (1, "a") at 10, (3, null) at 11 and 15.
    assert (one.rows, one.ts_min, one.ts_max) == (5, 9, 15)


def test_what_cancels_leaves_an_empty_batch(world: World) -> None:
    """It joins its empty neighbours."""
    client = made(world)
    append(client, 5, (1, "a", 0, 1), (1, "a", 4, -1))
    append(client, 9)
    client.hold(SHARD, "all").downgrade(Frontier(8))
    assert client.compact(SHARD, force=True) == 1
    assert client.state(SHARD).trace.batches == (Batch(Description(0, 9, 8)),)
    assert meaning(world.client(), 8) == [Counter(), {}]


def test_times_never_leave_the_merged_interval(world: World) -> None:
    """The since may be far beyond: readers leave out what is not inside of its batch."""
    client = made(world)
    append(client, 3, (1, "a", 0, 1))
    append(client, 5, (2, "b", 4, 1))
    append(client, 100, (3, "c", 50, 1))
    client.hold(SHARD, "all").downgrade(Frontier(70))
    state = client.state(SHARD)
    state = msgspec.structs.replace(state, trace=trace_without_last(state.trace))
    assert merge_batches(client.machine(SHARD), state, state.trace.batches, may_inline=False)
    first, _ = client.state(SHARD).trace.batches
    assert [p.time_bounds for p in first.parts] == [(4, 4)]
    assert meaning(world.client(), 70)[0] == rows(table((1, "a"), (2, "b"), (3, "c")))


def trace_without_last(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, batches=trace.batches[:-1])


def test_rows_outside_of_a_trimmed_batch_stay_out(world: World) -> None:
    """A second writer's part has rows that the shard got from the first one."""
    client = made(world)
    client.hold(SHARD, "all")
    append(client, 4, (1, "a", 0, 1), (2, "b", 3, 1))
    mine = updates((1, "a", 0, 1), (2, "b", 3, 1), (3, "c", 5, 1))
    client.writer(SHARD).append(mine, Frontier(0), Frontier(6))
    before = meaning(world.client(), 0)
    assert client.state(SHARD).trace.batches[-1].is_trimmed
    assert client.compact(SHARD, force=True) == 1
    assert meaning(world.client(), 0) == before
    [batch] = client.state(SHARD).trace.batches
    assert (batch.rows, batch.is_trimmed) == (3, False)


def test_old_parts_are_rewritten_under_the_current_schema(world: World) -> None:
    """With a column that they had not, and a wider one."""
    arrow = pa.schema([("id", pa.int32()), ("v", pa.string())])
    client = world.client(BLOBS)
    client.create(SHARD, schema_of(arrow), key=("id",))
    old = pa.table({"id": pa.array([7, 1], pa.int32()), "v": ["x", None]})
    client.writer(SHARD).append_now(old)
    wide = pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.float64())])
    client.evolve(SHARD, schema_of(wide))
    new = pa.table({"id": pa.array([1, 2**40]), "v": ["a", "b"], "w": [0.5, None]})
    client.writer(SHARD).append_now(new)
    before = snapshot(world.client())
    assert client.compact(SHARD, force=True) == 1
    assert {p.schema for b in client.state(SHARD).trace.batches for p in b.parts} == {1}
    assert snapshot(world.client()) == before
    assert before == Counter([(7, "x", None), (1, None, None), (1, "a", 0.5), (2**40, "b", None)])


def snapshot(client: ShardClient) -> Counter[tuple[object, ...]]:
    with client.reader(SHARD) as reader:
        return rows(reader.snapshot())


def test_runs_without_an_order_are_sorted(world: World) -> None:
    """As other software may write them; small ones and large ones."""
    client = made(world, compact_memory_bytes=1, row_group_rows=1 << 17)
    shuffled = [(number * 7919 % 70_001, "x") for number in range(70_001)]
    for some in (shuffled[:5], shuffled[5:]):
        append_unordered(world, client, table(*some))
    assert not any(run.order == "sorted" for b in batches_of(client) for run in b.runs)
    assert client.compact(SHARD, force=True) == 1
    [batch] = batches_of(client)
    [run] = batch.runs
    assert (run.order, batch.rows) == ("sorted", 70_001)
    with world.client().reader(SHARD) as reader:
        ids = reader.snapshot().column("id").to_pylist()
    assert ids == list(range(70_001))


def batches_of(client: ShardClient) -> tuple[Batch, ...]:
    return client.state(SHARD).trace.batches


def test_inline_parts_stay_inline_while_they_are_small(world: World) -> None:
    """Merging a few tiny appends costs no blob; a forced merge leaves none in the state."""
    client = made(world, inline_part_bytes=4096, compact_factor=4)
    for number in range(4):
        append(client, number + 1, (number, "x", number, 1))
    assert client.compact(SHARD) == 1
    [batch] = batches_of(client)
    assert batch.inline_bytes > 0
    append(client, 9, (9, "x", 8, 1))
    assert client.compact(SHARD, force=True) == 1
    assert client.state(SHARD).trace.inline_bytes == 0
    assert snapshot(world.client()) == rows(table(*((n, "x") for n in (0, 1, 2, 3, 9))))


def test_a_large_merge_is_one_run_of_several_parts(world: World) -> None:
    """In order across parts, so that the next merge reads it as one stream."""
    client = made(world, part_buffer_bytes=1000)
    for start in (0, 1):
        client.writer(SHARD).append_now(table(*((n, "x" * 9) for n in range(start, 200, 2))))
    client.compact(SHARD, force=True)
    [batch] = batches_of(client)
    [run] = batch.runs
    assert len(run.parts) > 3
    with world.client().reader(SHARD) as reader:
        assert reader.snapshot().column("id").to_pylist() == list(range(200))


def test_a_finished_shard_can_be_merged(world: World) -> None:
    """Its upper is empty: nothing more comes, and there is no last time to stay within."""
    client = made(world)
    append(client, 3, (1, "a", 0, 1))
    writer = client.writer(SHARD)
    writer.compare_and_append(updates((2, "b", 7, 1)), writer.upper(), EMPTY)
    assert client.compact(SHARD, force=True) == 1
    assert [b.desc.upper for b in batches_of(client)] == [None]
    assert snapshot(world.client()) == rows(table((1, "a"), (2, "b")))


# --- others, and trouble -------------------------------------------------------------------------


class Rival(Faulty):
    """A store on which something else happens right before the next create."""

    def __init__(self, world: World, act: Callable[[], object]) -> None:
        super().__init__(world.objects(), clock=world.clock, ids=world.ids)
        self._act: Callable[[], object] | None = act

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        act, self._act = self._act, None
        if act is not None:
            act()
        return super().create(key, value)


def parts_stored(world: World) -> set[str]:
    return {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}


def parts_named(client: ShardClient) -> set[str]:
    return {p.key for b in batches_of(client) for p in b.parts if p.inline is None}


def test_a_merge_that_comes_too_late_takes_its_blobs_back(world: World) -> None:
    """Two merge the same batches; what is left is one result, and nothing leaks but its inputs."""
    client = made(world)
    for number in range(3):
        append(client, number + 1, (number, "x", number, 1))
    before = snapshot(client)
    inputs = parts_named(client)
    store = Rival(world, lambda: world.client(BLOBS).compact(SHARD, force=True))
    assert world.client(BLOBS, store).compact(SHARD, force=True) == 0
    assert parts_stored(world) == inputs | parts_named(world.client())
    assert snapshot(world.client()) == before


def test_an_append_during_a_merge_is_kept(world: World) -> None:
    """The merge is applied to the trace as it is by then."""
    client = made(world)
    for number in range(3):
        append(client, number + 1, (number, "x", number, 1))
    store = Rival(world, lambda: append(world.client(BLOBS), 9, (9, "late", 8, 1)))
    merger = world.client(BLOBS, store)
    assert compact(merger.machine(SHARD), force=True) == 1
    assert len(world.client().state(SHARD).trace.batches) == 2, "and it does not chase writers"
    assert snapshot(world.client())[(9, "late")] == 1


def test_inputs_that_were_collected_meanwhile_are_no_damage(world: World) -> None:
    """Another one merged them and a collector took them: there is nothing to be merged here."""
    client = made(world)
    for number in range(3):
        append(client, number + 1, (number, "x", number, 1))
    late = world.client(BLOBS).machine(SHARD)
    stale = late.state()
    client.compact(SHARD, force=True)
    client.collect_garbage(SHARD)
    assert not merge_batches(late, stale, stale.trace.batches, may_inline=False)
    assert parts_stored(world) == parts_named(client)


def test_a_lost_part_stops_a_merge(world: World) -> None:
    """Nothing is skipped, and what was written so far is taken back."""
    client = made(world, part_buffer_bytes=1)
    for number in range(3):
        append(client, number + 1, (number, "x", number, 1), (number + 5, "y", number, 1))
    lost = sorted(parts_named(client))[2]
    world.objects().delete(lost)
    with pytest.raises(MissingBlob, match=lost):
        client.compact(SHARD, force=True)
    assert parts_stored(world) == parts_named(client) - {lost}


def test_a_merge_of_unknown_outcome_keeps_its_blobs(world: World) -> None:
    """It may be applied yet: its blobs are the sweeper's."""
    client = made(world)
    for number in range(3):
        append(client, number + 1, (number, "x", number, 1))

    def cut_off() -> None:
        store.fail("create", Fault.LATE, *[Fault.BEFORE] * 2000)
        store.fail("get", *[Fault.BEFORE] * 2000)

    store = Rival(world, cut_off)
    with pytest.raises(Indeterminate):
        world.client(BLOBS, store).compact(SHARD, force=True)
    assert len(batches_of(world.client())) == 3
    store.deliver()
    assert len(batches_of(world.client())) == 1
    assert dangling(world.client().machine(SHARD)) == []


def test_the_state_refuses_another_sum_of_diffs() -> None:
    """Whatever has lost or invented updates, it is not applied."""
    batches = tuple(
        Batch(Description(n, n + 1), (Run((part(f"p{n}", rows=3, ts=n, diff_sum=n),)),), 2)
        for n in range(2)
    )
    one = Batch(Description(0, 2), (Run((part("m", rows=6, ts=0, diff_sum=2),)),), 3)
    state = ShardState("s", "n", 2, 1, (1, 1), 1, schemas={0: "{}"}, trace=Trace(batches=batches))
    with pytest.raises(Corrupt, match="SUM_OF_DIFFS"):
        apply_merge(state, 1, inputs=batches, output=one)
    same = Batch(Description(0, 2), (Run((part("m", rows=6, ts=0, diff_sum=1),)),), 3)
    assert apply_merge(state, 1, inputs=batches, output=same).result


# --- conservation --------------------------------------------------------------------------------


def assert_refused(world: World, client: ShardClient) -> None:
    """A forced merge ends with the error, and leaves state and blobs as they were."""
    before, stored = client.state(SHARD), parts_stored(world)
    with pytest.raises(Corrupt, match="SUM_OF_DIFFS"):
        client.compact(SHARD, force=True)
    assert client.state(SHARD) == before
    assert parts_stored(world) == stored


@pytest.mark.parametrize("wrong", [{"diff_sum": 5}, {"rows": 2}])
def test_parts_that_hold_something_else_than_they_say_are_not_merged(
    world: World, wrong: dict[str, int]
) -> None:
    """What is read is compared with what the state tells of it."""
    client = made(world)
    append(client, 1, (1, "a", 0, 1))
    handle = client.writer(SHARD)
    staged = handle.stager().stage([table((2, "b"), (3, "c"), (4, "d"))])
    [run] = staged.runs
    told = msgspec.structs.replace(run.parts[0], **wrong)
    handle.commit(replace(staged, runs=(Run((told,)),)))
    if "rows" in wrong:
        with pytest.raises(Corrupt, match="CORRUPT_PART"):
            client.compact(SHARD, force=True)
    else:
        assert_refused(world, client)


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_a_merge_that_loses_an_update_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, trimmed: bool, memory: int
) -> None:
    """Also where an input is trimmed, of which the state cannot tell how much there should be."""
    client = made(world, compact_memory_bytes=memory)
    append(client, 4, (1, "a", 0, 1), (2, "b", 3, 1))
    append(client, 5, (7, "z", 4, 1))
    if trimmed:
        mine = updates((1, "a", 0, 1), (7, "z", 4, 1), (3, "c", 5, 1))
        client.writer(SHARD).append(mine, Frontier(0), Frontier(6))

    def lossy(*given: object) -> Iterator[pa.Table]:
        for merged in merge(*given):  # type: ignore[arg-type]
            yield merged.slice(1)

    def lossy_at_once(*given: object) -> pa.Table:
        return merge_loaded(*given).slice(1)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("shardline.datasource.parts.merge_parts.merge", lossy)
        patch.setattr("shardline.datasource.parts.merge_parts.merge_loaded", lossy_at_once)
        assert_refused(world, client)
    assert client.compact(SHARD, force=True) == 1


def test_a_part_that_is_not_read_is_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read and written agree, but are not all there was; not even the diffs tell."""
    client = made(world)
    append(client, 4, (1, "a", 0, 1), (2, "b", 3, -1))
    append(client, 5, (7, "z", 4, 1))
    monkeypatch.setattr(
        "shardline.datasource.maintenance.compact.sources", lambda inputs: sources(inputs[1:])
    )
    assert_refused(world, client)


def test_sums_of_diffs_may_wrap_around(world: World) -> None:
    """Each part's is an int64, and so is that of what they become."""
    client = made(world)
    most = 2**63 - 1
    append(client, 1, (1, "a", 0, most))
    append(client, 2, (2, "b", 1, most))
    append(client, 3, (3, "c", 2, -most), (4, "d", 2, most))
    assert client.compact(SHARD, force=True) == 1
    [batch] = client.state(SHARD).trace.batches
    assert batch.rows == 4
