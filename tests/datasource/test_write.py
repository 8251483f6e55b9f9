"""Write handles: numbers, attempts, threads, and what becomes of parts that are not appended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.commands.append import (
    AlreadyCommitted,
    Append,
    Appended,
    UpperMismatch,
)
from shardline.datasource.shard.commands.append import compare_and_append as transition
from shardline.datasource.shard.state import STAGE_LIFE_MS
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.objects import CreateOutcome
from support.fakes.clock import SeededIds
from support.models.shards import SETTINGS, TINY, World, dangling, rows, schema_of, table, updates
from support.strategies.commands import first_state, part

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0)
SOME = table((1, "a"), (2, "b"))


def blobs(client: ShardClient) -> list[str]:
    return [entry.key for entry in client.location.blob.list(f"{SHARD}/part/")]


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client that keeps nothing inline, with an empty shard."""
    made = world.client(BLOBS)
    made.create(SHARD, schema_of())
    return made


# --- numbers -------------------------------------------------------------------------------------


class Overtaking(SeededIds):
    """Lets another thread append between the first one's staging and its commit."""

    def __init__(self) -> None:
        super().__init__(99)
        self.between: list[Callable[[], None]] = []

    @override
    def token(self) -> bytes:
        act, self.between = self.between, []
        for one in act:
            one()
        return super().token()


def test_an_append_that_is_overtaken_by_another_of_its_handle_is_not_lost(
    world: World, client: ShardClient
) -> None:
    """Threads may share a handle: numbers are given in the order of commits."""
    ids = Overtaking()
    client.machine(SHARD).ids = ids
    writer = client.writer(SHARD)
    staged = writer.stager().stage([SOME])

    def other() -> None:
        writer.append_now(table((9, "z")))

    ids.between = [other]
    assert isinstance(writer.commit(staged), Appended)
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(SOME) + rows(table((9, "z")))


def test_threads_that_share_a_handle_lose_nothing(world: World, client: ShardClient) -> None:
    """Eight threads, one handle: every row is there once, in intervals of its own."""
    writer = client.writer(SHARD)

    def work(number: int) -> list[Appended | AlreadyCommitted]:
        return [writer.append_now(table((number, str(i)))) for i in range(10)]

    with ThreadPoolExecutor(8) as pool:
        outcomes = [one for some in pool.map(work, range(8)) for one in some]
    assert all(isinstance(one, Appended) for one in outcomes)
    assert len({one.upper for one in outcomes}) == 80
    with world.client().reader(SHARD) as reader:
        expected = Counter((number, str(i)) for number in range(8) for i in range(10))
        assert rows(reader.snapshot()) == expected


def test_a_durable_writer_counts_on_after_a_restart(world: World, client: ShardClient) -> None:
    """An append without a number is a new one, whatever earlier processes have appended."""
    for _ in range(3):
        done = world.client(BLOBS).writer(SHARD, "etl").append_now(SOME)
        assert isinstance(done, Appended)
    assert client.state(SHARD).writers["etl"].last == 3


def test_the_newest_attempt_is_known_and_older_ones_are_not() -> None:
    """Whose parts an older append used is forgotten: nobody may delete any on that account."""
    append = Append(
        shard=first_state().shard,
        runs=(),
        writer="w",
        sequence=1,
        durable=True,
        lease_ms=1,
        attempt="t1",
    )
    state = transition(first_state(), 1000, append=append).state
    assert state is not None
    again = transition(state, 1001, append=replace(append, attempt="t2")).result
    assert again == AlreadyCommitted(state.upper, "t1")
    later = transition(state, 1002, append=replace(append, sequence=2, attempt="t3")).state
    assert later is not None
    again = transition(later, 1003, append=append).result
    assert again == AlreadyCommitted(later.upper, "")


def test_parts_of_an_append_that_was_followed_by_another_are_kept(
    world: World, client: ShardClient
) -> None:
    """A zombie whose commit took effect unnoticed does not delete the parts that are in use."""
    zombie = client.writer(SHARD, "query")
    staged = zombie.stager().stage([SOME])
    zombie.commit(staged, sequence=1, attempt="t-zombie")
    world.client(BLOBS).writer(SHARD, "query").append_now(table((3, "c")), sequence=2)
    again = zombie.commit(staged, sequence=1, attempt="t-zombie")
    assert isinstance(again, AlreadyCommitted)
    assert dangling(client.machine(SHARD)) == []


# --- age ----------------------------------------------------------------------------------------


def test_parts_older_than_a_sweep_are_refused(world: World, client: ShardClient) -> None:
    """A commit cannot race with the sweeper that takes its parts for garbage."""
    writer = client.writer(SHARD)
    staged = writer.stager().stage([SOME])
    world.clock.advance(STAGE_LIFE_MS)
    assert isinstance(writer.commit(staged), Appended)
    staged = writer.stager().stage([SOME])
    world.clock.advance(STAGE_LIFE_MS + 1)
    with pytest.raises(Determinate, match=r"STAGED_TOO_LONG.*write them again"):
        writer.commit(staged)
    assert len(blobs(client)) == 1


# --- refusals leave nothing behind ---------------------------------------------------------------


def test_refused_parts_are_deleted(client: ShardClient) -> None:
    """A mismatch, a repetition and a mistake leave no blob that nobody refers to."""
    writer = client.writer(SHARD, "etl")
    assert isinstance(writer.append_now(SOME, sequence=1), Appended)
    kept = blobs(client)
    mismatch = writer.compare_and_append(SOME, Frontier(1), Frontier(5), sequence=2)
    assert isinstance(mismatch, UpperMismatch)
    assert isinstance(client.writer(SHARD, "etl").append_now(SOME, sequence=1), AlreadyCommitted)
    with pytest.raises(InvalidUsage, match="TIME_OUT_OF_RANGE"):
        writer.append_now(updates((1, "a", 0, 1)))
    with pytest.raises(InvalidUsage, match=r"MISSING_COLUMN.*'v'"):
        writer.append_now([SOME, SOME.drop_columns("v")])
    assert isinstance(writer.append(SOME, Frontier(0), Frontier(9)), AlreadyCommitted)
    assert blobs(client) == kept


def test_rows_with_and_without_times_do_not_mix(client: ShardClient) -> None:
    """Half of the rows cannot be stamped by the commit: that is refused, not guessed."""
    timed = updates((1, "a", 5, 1))
    with pytest.raises(InvalidUsage, match="MIXED_TIMES"):
        client.writer(SHARD).append_now([SOME, timed])
    with pytest.raises(InvalidUsage, match="MIXED_TIMES"):
        client.writer(SHARD).append_now([timed, SOME])
    assert blobs(client) == []


def test_a_store_that_refuses_to_delete_does_not_hide_the_outcome(world: World) -> None:
    """What cannot be tidied up is left to the sweeper; the caller hears of his own append."""
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    client = world.client(BLOBS, store)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    store.fail("delete", *[Fault.BEFORE] * 20)
    assert isinstance(writer.compare_and_append(SOME, Frontier(7), Frontier(9)), UpperMismatch)
    store.fail("delete", *[Fault.BEFORE] * 20)
    with pytest.raises(InvalidUsage, match="TIME_OUT_OF_RANGE"):
        writer.compare_and_append(updates((1, "a", 9, 1)), Frontier(0), Frontier(5))
    store.fail("delete", *[Fault.BEFORE] * 20)
    client.drop(SHARD)
    assert not client.exists(SHARD)


def test_an_unknown_outcome_keeps_the_parts(world: World) -> None:
    """While the store does not answer, nobody deletes what may have been committed."""
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    client = world.client(BLOBS, store)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD, "etl")
    store.fail("create", Fault.AFTER)
    store.fail("get", *[Fault.BEFORE] * 500)
    with pytest.raises(Indeterminate, match="OUTCOME_UNKNOWN"):
        writer.append_now(SOME, sequence=1)
    other = world.client(BLOBS)
    assert dangling(other.machine(SHARD)) == []
    assert isinstance(other.writer(SHARD, "etl").append_now(SOME, sequence=1), AlreadyCommitted)


def test_a_writer_does_not_outlive_its_shard(world: World, client: ShardClient) -> None:
    """A shard made again may have other columns under the same numbers: old writers are refused."""
    writer = client.writer(SHARD)
    other = world.client(BLOBS)
    other.drop(SHARD)
    other.create(SHARD, schema_of(pa.schema([pa.field("other", pa.int32())])))
    with pytest.raises(InvalidUsage, match=r"SHARD_CHANGED.*open the writer again"):
        writer.append_now(SOME)
    assert blobs(client) == []
    assert isinstance(other.writer(SHARD).append_now(None), Appended)


def test_an_upper_may_be_the_end(client: ShardClient) -> None:
    """After the empty frontier nothing can come, and everybody is told so."""
    writer = client.writer(SHARD)
    done = writer.compare_and_append(SOME, Frontier(0), EMPTY)
    assert done == Appended(0, EMPTY)
    assert writer.upper() == EMPTY
    refused = writer.compare_and_append(SOME, Frontier(0), Frontier(9))
    assert refused == UpperMismatch(Frontier(0), EMPTY)
    with pytest.raises(InvalidUsage, match="SHARD_FINISHED"):
        writer.append_now(SOME)
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == rows(SOME)
        assert rows(reader.snapshot(10**15)) == rows(SOME)


def test_a_schema_that_the_shard_does_not_know_is_refused() -> None:
    """A part refers to its schema by number: one without a schema could never be read."""
    from shardline.datasource.shard.batch import Run

    state = first_state()
    append = Append(
        shard=state.shard,
        runs=(Run((part(schema=3),)),),
        writer="w",
        sequence=1,
        durable=False,
        lease_ms=1,
        attempt="t",
    )
    with pytest.raises(InvalidUsage, match="UNKNOWN_SCHEMA"):
        transition(state, 1, append=append)


# --- group commit --------------------------------------------------------------------------------


class Gated(Faulty):
    """A store whose first create waits until it is let through."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects(), clock=world.clock, ids=world.ids)
        self.entered, self.gate = threading.Event(), threading.Event()
        self.armed = False

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if self.armed:
            self.armed = False
            self.entered.set()
            assert self.gate.wait(30)
        return super().create(key, value)


def test_appends_that_arrive_during_a_commit_share_the_next_one(world: World) -> None:
    """Eight threads, two records: whoever waits for the store is committed with the others."""
    store = Gated(world)
    client = world.client(TINY, store)
    client.create(SHARD, schema_of())
    machine = client.machine(SHARD)
    before = machine.state().seqno
    writers = [client.writer(SHARD) for _ in range(8)]
    store.armed = True
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(writers[0].append_now, table((0, "x")))
        assert store.entered.wait(30)
        others = [pool.submit(partial(writers[i].append_now, table((i, "x")))) for i in range(1, 8)]
        while len(machine._queue) < 8:  # with the first, which is being committed
            assert not any(other.done() for other in others)
        store.gate.set()
        outcomes = [future.result() for future in (first, *others)]
    appended = [one for one in outcomes if isinstance(one, Appended)]
    assert len(appended) == 8
    intervals = sorted((one.lower, one.upper.time or 0) for one in appended)
    assert all(a[1] == b[0] for a, b in pairwise(intervals))
    assert machine.state().seqno - before <= 3  # two commits, and a rollup
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()) == Counter((i, "x") for i in range(8))


def test_one_bad_command_does_not_fail_its_group(world: World) -> None:
    """Of commands committed together each has its own outcome."""
    store = Gated(world)
    client = world.client(SETTINGS, store)
    client.create(SHARD, schema_of())
    machine = client.machine(SHARD)
    writers = [client.writer(SHARD) for _ in range(3)]
    store.armed = True
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(writers[0].append_now, SOME)
        assert store.entered.wait(30)
        good = pool.submit(writers[1].append_now, SOME)
        bad = pool.submit(
            writers[2].compare_and_append, updates((1, "a", 3, 1)), Frontier(0), Frontier(2)
        )
        while len(machine._queue) < 3:
            assert not good.done()
            assert not bad.done()
        store.gate.set()
        assert isinstance(first.result(), Appended)
        assert isinstance(good.result(), Appended)
        assert isinstance(bad.result(), UpperMismatch)
