"""Writers merge after their appends: in shape, within a budget, and never at their cost."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.datasource.errors import Corrupt, Indeterminate, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintainer import maintain
from shardline.datasource.maintenance.compact import compact_inline, flush_inline
from shardline.datasource.maintenance.compaction_claim import CLAIM_LEASE_MS, MergeClaim
from shardline.datasource.parts.merge_parts import merge_work_bytes
from shardline.datasource.shard.commands.append import AlreadyCommitted
from shardline.datasource.shard.commands.merge import find_batches
from shardline.datasource.shard.merge_budget import MergeBudget
from shardline.datasource.stores.metered import Metered
from support.models.merging import SHARD, contents, expected, filled, next_merge, sizes
from support.models.shards import (
    SETTINGS,
    Crash,
    Mortal,
    World,
    dangling,
    schema_of,
    table,
    updates,
)
from support.profiles import some_of

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.settings import ShardSettings
    from shardline.datasource.stores.objects import CreateOutcome
    from support.models.shards import Effect

BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_factor=4)
QUIET = replace(BLOBS, compact_inline_bytes=0)
HOUR_MS = 3600 * 1000


# --- by a writer, after its commit ---------------------------------------------------------------


def test_a_writer_keeps_its_shard_in_shape(world: World) -> None:
    """Nothing else runs, and nothing is due."""
    client = filled(world.client(BLOBS), 100)
    assert next_merge(client.state(SHARD).trace, BLOBS.compact_factor) is None
    assert len(sizes(client)) <= 3 * 5
    assert contents(world.client()) == expected(100)


def test_it_can_be_turned_off(world: World) -> None:
    """With 0, no append is followed by a merge."""
    assert sizes(filled(world.client(QUIET), 40)) == [2] * 40


def weight_of(client: ShardClient, start: int, end: int) -> int:
    batches = client.state(SHARD).trace.batches[start:end]
    return merge_work_bytes(part for batch in batches for part in batch.parts)


def test_a_merge_beyond_the_budget_is_left_to_maintenance(world: World) -> None:
    """Small ones after it are made all the same."""
    quiet = world.client(QUIET)
    quiet.create(SHARD, schema_of(), key=("id",))
    for _ in range(4):
        quiet.writer(SHARD).append_now(table(*((n, "x") for n in range(2000))))
    tight = replace(BLOBS, compact_inline_bytes=weight_of(quiet, 0, 4) - 1)
    client = world.client(tight)
    for number in range(4):
        client.writer(SHARD).append_now(table((number, "x")))
    assert sizes(client) == [2000] * 4 + [4]
    assert maintain(world.client(BLOBS).machine(SHARD)).merges == 1
    assert sizes(client) == [8000, 4]


def test_fuel_is_earned_by_appending_and_saved_up_to_the_budget() -> None:
    """A process starts with a full budget."""
    budget = MergeBudget()
    budget.add(5, 100)
    assert budget.left == 100
    budget.use(70)
    budget.add(5, 100)
    assert budget.left == 35
    budget.penalise(100)
    budget.add(50, 100)
    assert budget.left == -50
    budget.add(500, 100)
    assert budget.left == 100


@pytest.mark.slow
def test_what_others_left_undone_is_done_bit_by_bit(world: World) -> None:
    """A writer of one row does not merge a backlog at once: each append pays for a few batches."""
    filled(world.client(QUIET), 200)
    client = world.client(BLOBS)
    machine = client.machine(SHARD)
    machine.merge_budget.add(0, 100)
    machine.merge_budget.use(100)
    left = []
    for number in range(100):
        client.writer(SHARD).append_now(table((number, "z")))
        left.append(len(sizes(client)))
    assert all(before - after < 12 for before, after in itertools.pairwise([200, *left]))
    assert left[9] > 150
    assert left[-1] < 15
    assert contents(client) == expected(200) + Counter((n, "z") for n in range(100))


def test_an_append_without_rows_merges_nothing(world: World) -> None:
    """It has made nothing due; a shard at rest has one each second. The next one with rows does."""
    filled(world.client(QUIET), 40)
    client = world.client(BLOBS)
    upper = client.state(SHARD).upper.time
    assert upper is not None
    client.writer(SHARD).compare_and_append(None, Frontier(upper), Frontier(upper + 1))
    assert sizes(client) == [*[2] * 40, 0]
    client.writer(SHARD).append_now(table((1, "z")))
    assert len(sizes(client)) < 40


def test_threads_merge_one_at_a_time(world: World) -> None:
    """One that finds another at it goes on with its own work."""
    client = filled(world.client(QUIET), 4)
    machine = filled(world.client(BLOBS), 0).machine(SHARD)
    machine.state()
    seen: list[int] = []
    with machine.merge_budget.turn() as mine:
        assert mine
        other = threading.Thread(target=lambda: seen.append(compact_inline(machine)))
        other.start()
        other.join()
    assert seen == [0]
    assert compact_inline(machine) == 1
    assert sizes(client) == [8]


def test_a_failing_merge_does_not_fail_the_append(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and not tried again at every append."""
    client = filled(world.client(QUIET), 3)
    lost = next(p.key for b in client.state(SHARD).trace.batches for p in b.parts)
    world.objects().delete(lost)
    writer = world.client(BLOBS).writer(SHARD)
    for number in range(3, 13):
        assert writer.append_now(table((number, "x"), (number, "y"))).upper > Frontier(0)
    messages = [
        r.message for r in caplog.records if r.name == "shardline.datasource.maintenance.compact"
    ]
    assert messages == ["merge after an append failed"]
    assert sizes(client) == [2] * 13


@pytest.mark.parametrize("lasts", some_of([1, 3, 1000], {1}))
@pytest.mark.parametrize("effect", ["none", "done", "late"])
def test_an_append_is_once_whatever_becomes_of_its_merge(effect: Effect, lasts: int) -> None:
    """Each store operation of append and merge fails in turn; the append is then repeated."""
    outcomes = Counter[str]()
    for at in itertools.count():
        world = World()
        filled(world.client(QUIET), 3)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        more = table((3, "x"), (3, "y"))
        try:
            world.client(BLOBS, store).writer(SHARD, "etl").append_now(more, sequence=1)
            outcomes["committed"] += 1
        except ShardError as error:
            outcomes["unknown" if isinstance(error, Indeterminate) else "refused"] += 1
        store.deliver()
        client = world.client(BLOBS)
        again = client.writer(SHARD, "etl").append_now(more, sequence=1)
        assert isinstance(again, AlreadyCommitted) or outcomes["unknown"] or outcomes["refused"]
        assert contents(client) == expected(4)
        assert dangling(client.machine(SHARD)) == []
        world.close()
        if not store.failed:
            break
    assert outcomes["committed"] > 4  # faults in the merge do not show


def test_a_killed_merge_leaves_a_committed_append() -> None:
    """The process died after the commit: its repetition is told that it has happened."""
    for at in itertools.count():
        world = World()
        filled(world.client(QUIET), 3)
        store = Mortal(world.objects(), at)
        more = table((3, "x"), (3, "y"))
        try:
            world.client(BLOBS, store).writer(SHARD, "etl").append_now(more, sequence=1)
        except Crash:
            assert store.failed
        client = world.client(BLOBS)
        client.writer(SHARD, "etl").append_now(more, sequence=1)
        assert contents(client) == expected(4)
        world.close()
        if not store.failed:
            return


# --- few batches, few rewrites -------------------------------------------------------------------


class Ledger(Metered):
    """Bytes written, by what they are."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects(), world.clock)
        self.written = Counter[str]()

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        self.written[key.split("/")[1]] += len(value)
        super().put(key, value)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        self.written["log"] += len(value)
        return super().create(key, value)


def run_of_appends(settings: ShardSettings, appends: int) -> tuple[ShardClient, int]:
    """Appends of a hundred rows; the bytes of parts and records that were written."""
    world = World()
    ledger = Ledger(world)
    client = world.client(replace(settings, validate=False), ledger)
    client.create(SHARD, schema_of(), key=("id",))
    writer = client.writer(SHARD)
    for number in range(appends):
        base = number * 7919
        writer.append_now(table(*(((base + i * 104729) % 1_000_003, f"v{i}") for i in range(100))))
    return client, ledger.written["part"] + ledger.written["log"]


@pytest.mark.slow
def test_many_appends_leave_few_batches_and_are_rewritten_seldom() -> None:
    """2,000 appends of 100 rows with default settings. The benchmark `maintain` makes 10,000.

    Records count as written, rollups do not: without merges they would be the most of all.
    """
    appends = 2_000
    quiet, appended = run_of_appends(replace(SETTINGS, compact_inline_bytes=0), 200)
    merging, all_written = run_of_appends(SETTINGS, appends)
    appended *= appends // 200
    assert len(sizes(quiet)) == 200
    assert all_written - appended <= 4 * appended
    # Fewer than 16 in each of the tiers of 100, 1,600 and 25,600 rows, one of 200,000.
    assert len(sizes(merging)) <= 15 * 3 + 1
    assert sum(sizes(merging)) == 100 * appends


@pytest.mark.slow
def test_rows_that_are_updated_again_and_again_stay_small(world: World) -> None:
    """What is stored stays near the contents, and what is written near what was appended."""
    client = world.client(replace(BLOBS, compact_factor=16))
    client.create(SHARD, schema_of(), key=("id",))
    live = [(number, "0") for number in range(1024)]
    writer = client.writer(SHARD)
    writer.compare_and_append(table(*live), Frontier(0), Frontier(1))
    hold = client.hold(SHARD, "query")
    stored, written = [], 0
    for time in range(1, 500):
        picked = [(time * 37 + i) % 1024 for i in range(16)]
        old = [(*live[n], time, -1) for n in picked]
        for n in picked:
            live[n] = (n, str(time))
        new = [(*live[n], time, 1) for n in picked]
        before = {p.key for b in client.state(SHARD).trace.batches for p in b.parts}
        writer.compare_and_append(updates(*old, *new), Frontier(time), Frontier(time + 1))
        hold.downgrade(Frontier(time))
        batches = client.state(SHARD).trace.batches
        stored.append(sum(batch.rows for batch in batches))
        written += sum(p.rows for b in batches for p in b.parts if p.key not in before)
    assert contents(client) == Counter(live)
    assert max(stored) < 3 * 1024
    assert written < 4 * (1024 + 499 * 32)


# --- making room for inline parts ----------------------------------------------------------------


def test_room_in_the_state_is_made_beside_what_others_merge(world: World) -> None:
    """A long merge has claimed batches with inline parts: a writer without room leaves them be."""
    little = replace(SETTINGS, inline_state_bytes=2500, compact_inline_bytes=0)
    client = filled(world.client(little), 3)
    claimed = client.state(SHARD).trace.batches
    assert all(part.inline is not None for batch in claimed for part in batch.parts)
    machine = world.client(little).machine(SHARD)
    writer = client.writer(SHARD)
    with MergeClaim.on(machine, claimed, "a long merge") as held:
        for number in range(3, 23):
            writer.append_now(table((number, "x"), (number, "y")))
        state = client.state(SHARD)
        assert find_batches(state, claimed) is not None
        assert sum(batch.inline_bytes for batch in claimed) <= state.trace.inline_bytes <= 2500
        assert list(world.objects().entries(f"{SHARD}/part/")), "there was no room for all"
        world.clock.advance(CLAIM_LEASE_MS / 2)
        held.keep()
        assert held.held
    assert contents(world.client()) == expected(23)
    for number in range(23, 43):
        writer.append_now(table((number, "x"), (number, "y")))
    assert contents(world.client()) == expected(43)


def test_a_writer_without_room_looks_before_what_others_merge(world: World) -> None:
    """What is newest is claimed; where all is, nothing can be moved, and its own parts are."""
    client = filled(world.client(replace(SETTINGS, compact_inline_bytes=0)), 3)
    batches = client.state(SHARD).trace.batches
    machine = client.machine(SHARD)
    with MergeClaim.on(world.client().machine(SHARD), batches[1:], "a long merge"):
        machine.refresh()  # as after an append that had no room
        assert flush_inline(machine)
        assert not flush_inline(machine)
    after = client.state(SHARD).trace.batches
    assert [batch.inline_bytes > 0 for batch in after] == [False, True, True]
    assert after[1:] == batches[1:]
    assert flush_inline(machine), "the claim is given up"
    assert client.state(SHARD).trace.inline_bytes == 0
    assert contents(world.client()) == expected(3)


@pytest.mark.parametrize("in_transactions", [False, True])
def test_rows_that_no_merge_can_add_up_keep_no_others_out(
    world: World, *, in_transactions: bool
) -> None:
    """A row that is there 2^63 times stays inline for ever, and the state has no room left."""
    settings = replace(SETTINGS, inline_state_bytes=6000, compact_inline_bytes=0)
    client = world.client(settings)
    client.create(SHARD, schema_of())
    often = table((0, "x"), (0, "x")).append_column("_diff", pa.array([2**62, 2**62]))
    for rows in (often, *(table((number, "y")) for number in range(1, 31))):
        if in_transactions:
            with client.transaction() as transaction:
                transaction.append(SHARD, rows)
        else:
            client.writer(SHARD).append_now(rows)
    trace = client.shard_views.state(SHARD).trace
    assert sum(part.rows for batch in trace.batches for part in batch.parts) == 32
    assert list(world.objects().entries(f"{SHARD}/part/")), "there was no room for all"


@pytest.mark.parametrize("error", [Indeterminate("who knows"), Corrupt("damaged")])
def test_an_append_is_not_to_blame_for_what_keeps_others_inline(
    world: World, monkeypatch: pytest.MonkeyPatch, error: ShardError
) -> None:
    """Nor is an attempt to make room, of whatever outcome, an attempt to append."""
    client = filled(world.client(replace(SETTINGS, inline_state_bytes=0)), 0)

    def flush(_machine: object) -> bool:
        raise error

    monkeypatch.setattr("shardline.datasource.maintenance.make_room.flush_inline", flush)
    before = client.state(SHARD).seqno
    client.writer(SHARD).append_now(table((0, "x"), (0, "y")))
    assert client.state(SHARD).seqno == before + 1, "it was asked for once"
    assert contents(client) == expected(1)
