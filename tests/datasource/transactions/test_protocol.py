"""Registering, committing, applying, tidying and forgetting, one behaviour at a time."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.orphan_sweep import sweep
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.read import contents_of
from shardline.datasource.shard.commands.append import Appended, UpperMismatch
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.txns import refuse_direct_writes
from shardline.datasource.shard.plan import plan_changes
from shardline.datasource.shard.state import STAGE_LIFE_MS, Registration
from shardline.datasource.transactions import protocol
from shardline.datasource.transactions.commit_loop import Committer, Identity, Rows
from shardline.datasource.transactions.ledger import Ledger, LedgerReader
from shardline.datasource.transactions.protocol import Committed, Write
from shardline.datasource.transactions.rows import TRANSACTIONS, Row
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.parts.stage import Staged

BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0)
HOUR_MS = 3_600_000


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of shards `a` and `b`, of which `a` is registered."""
    made = world.client(BLOBS)
    for name in "ab":
        made.create(name, schema_of(), key=["id"])
    made.transactions().register("a")
    return made


@pytest.fixture
def nobody_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every committer dies right after its commit."""
    monkeypatch.setattr(Committer, "_follow_up", lambda *_: None)


def staged(client: ShardClient, name: str, *some: tuple[int, str]) -> tuple[Write, Staged]:
    handle = client.writer(name)
    found = handle.stager().stage([table(*some)])
    return Write(name, handle.shard, found.runs), found


def contents(client: ShardClient, name: str, as_of: int | None = None) -> dict[object, int]:
    with client.reader(name) as reader:
        return dict(rows(reader.snapshot(as_of)))


def code(error: pytest.ExceptionInfo[InvalidUsage]) -> str:
    return error.value.code


# --- registering ---------------------------------------------------------------------------------


def test_registering_twice_is_registering_once(client: ShardClient, world: World) -> None:
    """Also by another process; a time is closed all the same if one was asked for."""
    txns = client.transactions()
    upper = txns.upper()
    assert world.client().transactions().register("a") == upper
    at = upper + 10
    assert txns.register("a", "a", at=at) == at + 1
    assert txns.register("b", at=at) == UpperMismatch(Frontier(at), Frontier(at + 1))
    assert txns.registered() == ["a"]
    ledger = txns.reader.read()
    assert ledger is not None
    assert len(ledger.rows) == 1


def test_what_cannot_be_registered(client: ShardClient) -> None:
    """A finished shard, one that is not there, a transactions shard, one of another one's."""
    txns = client.transactions()
    client.writer("b").compare_and_append(None, Frontier(0), Frontier(None))
    wanted = {"b": "SHARD_FINISHED", "nowhere": "SHARD_NOT_FOUND", TRANSACTIONS: "NOT_A_DATA_SHARD"}
    for name, expected in wanted.items():
        with pytest.raises(InvalidUsage) as error:
            txns.register(name)
        assert code(error) == expected
    with pytest.raises(InvalidUsage) as error:
        client.transactions("other").register("a")
    assert code(error) == "REGISTERED_ELSEWHERE"
    with pytest.raises(InvalidUsage) as error:
        client.transactions("b").register("a")
    assert code(error) == "NOT_A_TRANSACTIONS_SHARD"


def test_direct_writes_are_refused_until_the_shard_is_forgotten(client: ShardClient) -> None:
    """Then they land after every time that a reader was shown."""
    txns = client.transactions()
    writer = client.writer("a")
    with pytest.raises(InvalidUsage) as error:
        writer.append_now(table((1, "x")))
    assert code(error) == "SHARD_REGISTERED"
    with pytest.raises(InvalidUsage) as error:
        client.writer(TRANSACTIONS).compare_and_append(None, Frontier(0), Frontier(1))
    assert code(error) == "SHARD_REGISTERED"
    shown = txns.advance(txns.upper() + 1000)
    assert client.readable("a")[0].upper == Frontier(shown)  # type: ignore[arg-type]
    assert client.state("a").upper == Frontier(0)
    txns.forget("a")
    done = writer.append_now(table((1, "x")))
    assert isinstance(done, Appended)
    assert isinstance(shown, int)
    assert done.lower >= shown
    assert txns.forget("a") == txns.upper()


def test_half_a_registration_can_be_completed_or_undone(client: ShardClient) -> None:
    """By anybody. Until then direct writes are refused, and readers see the shard as it was."""
    txns = client.transactions()
    ledger = txns.reader.read()
    assert ledger is not None
    half = Registration(TRANSACTIONS, ledger.shard, ledger.upper)
    client.writer("b").append_now(table((1, "x")))
    upper = client.state("b").upper
    client.machine("b").apply(partial(refuse_direct_writes, registration=half))

    assert client.readable("b")[0].upper == upper
    assert txns.registered() == ["a"]
    txns.forget("b")
    assert client.state("b").registered is None
    client.writer("b").append_now(table((2, "y")))
    client.machine("b").apply(partial(refuse_direct_writes, registration=half))
    txns.register("b")
    assert txns.registered() == ["a", "b"]
    assert client.readable("b")[0].upper == Frontier(txns.upper())
    assert len(contents(client, "b")) == 2


def test_a_registration_passed_by_a_forgetting_looks_again(
    client: ShardClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the mark and the row somebody undoes the mark: the row must not stand without it."""
    other = world.client(BLOBS)
    append, passed = Committer._append, list[bool]()

    def slow(self: Committer, *args: object) -> object:
        if not passed:
            passed.append(True)
            other.transactions().forget("b")
        return append(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "_append", slow)
    client.transactions().register("b")
    assert other.state("b").registered is not None
    assert other.transactions().registered() == ["a", "b"]


def test_a_mark_of_a_transactions_shard_that_is_gone_goes_too(client: ShardClient) -> None:
    """Whoever had begun to register died, and everything else was dropped."""
    txns = client.transactions()
    ledger = txns.reader.read()
    assert ledger is not None
    gone = Registration(TRANSACTIONS, ledger.shard, ledger.upper)
    client.machine("b").apply(partial(refuse_direct_writes, registration=gone))
    txns.forget("a")
    client.drop(TRANSACTIONS)
    assert client.readable("b")[0].upper == Frontier(0)
    txns.forget("b")
    assert client.state("b").registered is None
    client.machine("b").apply(partial(refuse_direct_writes, registration=gone))
    txns.register("b")
    assert txns.registered() == ["b"]


def test_what_is_registered_is_not_dropped(client: ShardClient) -> None:
    """Neither a data shard nor the transactions shard, whatever holders may be cut off."""
    for name in ("a", TRANSACTIONS):
        with pytest.raises(InvalidUsage) as error:
            client.drop(name)
        assert code(error) == "SHARD_REGISTERED"
    client.transactions().forget("a")
    client.drop("a")
    client.drop(TRANSACTIONS)
    assert not client.exists(TRANSACTIONS)
    assert client.transactions().upper() == 0


# --- committing ----------------------------------------------------------------------------------


def test_a_commit_is_for_registered_shards(client: ShardClient) -> None:
    """Also when the shard is forgotten between staging and commit."""
    txns = client.transactions()
    write, _ = staged(client, "a", (1, "x"))
    for name in "ba":
        other, _ = staged(client, name, (1, "x"))
        if name == "a":
            txns.forget("a")
        with pytest.raises(InvalidUsage) as error:
            txns.commit([other])
        assert code(error) == "NOT_REGISTERED"
    txns.register("a")
    assert isinstance(txns.commit([write]), Committed)
    assert contents(client, "a") == {(1, "x"): 1}


def test_a_time_is_decided_once(client: ShardClient) -> None:
    """Of two commits at one time the second is told, keeps its parts, and takes a later one."""
    txns = client.transactions()
    at = txns.upper() + 5
    first, _ = staged(client, "a", (1, "x"))
    second, found = staged(client, "a", (2, "y"))
    assert txns.commit([first], at=at) == Committed(at)
    assert txns.commit([second], at=at) == UpperMismatch(Frontier(at), Frontier(at + 1))
    assert all(client.location.blob.get(key) for key in found.blob_keys)
    assert txns.commit([second], at=at + 1) == Committed(at + 1)
    assert contents(client, "a", at) == {(1, "x"): 1}
    assert contents(client, "a", at + 1) == {(1, "x"): 1, (2, "y"): 1}


@pytest.mark.usefixtures("nobody_applies")
def test_a_reader_brings_everything_that_was_committed(client: ShardClient, world: World) -> None:
    """Several times by one record, in order; then every time can be read."""
    txns = client.transactions()
    times = []
    for number in range(3):
        write, _ = staged(client, "a", (number, "x"))
        done = txns.commit([write])
        assert isinstance(done, Committed)
        times.append(done.at)
    before = client.state("a")
    assert before.upper == Frontier(0)
    reader = world.client()
    assert len(contents(reader, "a")) == 3
    bringing = client.state("a").seqno - before.seqno
    assert bringing <= 3, "a lease, all three commits, and the end of the lease"
    for number, at in enumerate(times):
        assert len(contents(reader, "a", at)) == number + 1


def test_committers_race_and_all_of_them_land(client: ShardClient, world: World) -> None:
    """Threads of several processes, over shards of which each commit takes two."""
    client.transactions().register("b")
    client.create("c", schema_of())
    client.transactions().register("c")
    clients = [world.client(BLOBS) for _ in range(3)]

    def work(number: int) -> None:
        for turn in range(4):
            with clients[number].transaction() as t:
                for name in ("ab", "bc", "ac")[number]:
                    t.append(name, table((number * 10 + turn, "x")))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abc":
        assert len(contents(world.client(), name)) == 8


def test_rows_that_say_the_same_are_taken_back_one_by_one(client: ShardClient) -> None:
    """Equal commits are two commits: taking one of them back leaves the other."""
    txns = client.transactions()
    write, _ = staged(client, "a")
    at = txns.upper()
    for later in (0, 1):
        txns.commit([write], at=at + later)
    ledger = txns.reader.read()
    assert ledger is not None
    assert [row.at for row in ledger.pending()] == [at + 1], "the first went along with the second"
    assert txns.tidy() == 1
    ledger = txns.reader.read()
    assert ledger is not None
    assert not ledger.pending()
    assert txns.registered() == ["a"]


def test_an_attempt_that_lands_before_its_next_try_is_retracted_once(
    client: ShardClient, world: World
) -> None:
    """Both have the same time where the ledger is ahead of the clock."""
    ahead = client.clock.now_ms() + HOUR_MS
    client.transactions().advance(ahead)
    other = world.client(BLOBS).transactions()
    write, _ = staged(client, "a", (1, "x"))
    identity = Identity("app", 1, attempt="t1")
    landed: list[object] = []

    def land(_: Ledger) -> None:
        if not landed:
            landed.append(other.commit([write], identity=identity))

    found = client.transactions().commit([write], identity=identity, judge=land)
    assert [found] == landed
    for later in range(3):
        for txns in (client.transactions(), other):
            txns.advance(ahead + 10 * later)
    for one in (client, world.client()):
        ledger = one.transactions().reader.read()
        assert ledger is not None
        assert [row.kind for row in ledger.rows.values()] == ["register"]
    machine = client.machine(TRANSACTIONS)
    state, counts = machine.state(), Counter[str]()
    for planned in plan_changes(state, 0, state.upper.time):
        for batch in contents_of(machine, state).changes(planned):
            for update in batch.to_pylist():
                counts[update["kind"]] += update["_diff"]
    assert counts == {"register": 1, "append": 0}
    assert contents(client, "a") == {(1, "x"): 1}


def test_a_row_that_was_only_retracted_is_not_live(client: ShardClient, world: World) -> None:
    """Older code has left such rows, and each commit of each process retracted them once more."""
    txns = client.transactions()
    never = Row("never added", "append", "a", client.state("a").shard, txns.upper(), b"")
    txns._committer.commit(lambda _: Rows(lost=[never]))
    for one in (client, world.client()):
        one.transactions().advance()
        ledger = one.transactions().reader.read()
        assert ledger is not None
        assert [row.kind for row in ledger.rows.values()] == ["register"]


@pytest.mark.usefixtures("nobody_applies")
def test_two_tidy_at_once(client: ShardClient, world: World) -> None:
    """What one has taken back, the other does not take back again."""
    write, _ = staged(client, "a", (1, "x"))
    client.transactions().commit([write])
    others = [world.client().transactions() for _ in range(2)]
    for txns in others:
        txns.apply()
    for txns in others:
        txns.tidy()
    ledger = world.client().transactions().reader.read()
    assert ledger is not None
    assert [row.kind for row in ledger.rows.values()] == ["register"]
    assert contents(client, "a") == {(1, "x"): 1}


@pytest.mark.slow
def test_the_transactions_shard_stays_small(world: World) -> None:
    """Hundreds of commits leave a few rows, batches and blobs."""
    client = world.client(dataclasses.replace(BLOBS, compact_inline_bytes=0, rollup_every=16))
    client.create("a", schema_of())
    for number in range(300):
        world.clock.advance(1000)
        with client.transaction() as t:
            t.append("a", table((number, "x")))
    ledger = world.client().transactions().reader.read()
    assert ledger is not None
    assert len(ledger.rows) <= 2
    state = client.state(TRANSACTIONS)
    assert len(state.trace.batches) <= 64
    assert sum(batch.rows for batch in state.trace.batches) <= 250
    assert len(list(client.location.blob.list("%5Ftransactions/part/"))) <= 100
    assert len(contents(client, "a")) == 300


# --- parts that wait -----------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_applies")
@pytest.mark.parametrize("beyond_ms", [0, 1, HOUR_MS])
def test_a_ledger_that_since_has_passed_is_read_anew(
    client: ShardClient, world: World, beyond_ms: int
) -> None:
    """What was taken back before since is nowhere any more: reading on would keep it for ever."""
    late = world.client(BLOBS)
    client.transactions().register("b")
    assert late.transactions().registered() == ["a", "b"]
    known = late.transactions().upper()
    client.transactions().forget("b")
    client.transactions().advance(known + protocol._HISTORY_MS + beyond_ms)
    assert apply_retention(client.machine(TRANSACTIONS))
    assert client.state(TRANSACTIONS).since == Frontier(known + beyond_ms)
    client.compact(TRANSACTIONS, force=True)

    assert late.transactions().registered() == ["a"]
    upper = client.state("b").upper
    assert late.readable("b")[0].upper == upper
    with pytest.raises(InvalidUsage) as error:
        late.transactions().commit([staged(late, "b", (1, "x"))[0]])
    assert code(error) == "NOT_REGISTERED"


def test_a_sweep_leaves_what_a_transaction_waits_to_apply(
    client: ShardClient, world: World
) -> None:
    """However old; and it is applied all the same."""
    write, found = staged(client, "a", (1, "x"))
    _, lost = staged(client, "a", (2, "lost"))
    client.transactions().commit([write])
    world.clock.advance(STAGE_LIFE_MS + 3 * HOUR_MS)
    assert client.shard_views.pending_parts("a", None) == set(found.blob_keys)
    assert set(client.sweep("a").keys) == set(lost.blob_keys)
    assert contents(world.client(), "a") == {(1, "x"): 1}
    assert not client.shard_views.pending_parts("b", None)


def test_parts_that_waited_too_long_are_not_committed(client: ShardClient, world: World) -> None:
    """A sweep may have taken them."""
    transaction = client.transaction()
    transaction.append("a", table((1, "x")))
    world.clock.advance(STAGE_LIFE_MS + 1)
    with pytest.raises(Determinate) as error:
        transaction.commit()
    assert error.value.code == "STAGED_TOO_LONG"
    assert not list(client.location.blob.list("a/part/"))
    assert contents(client, "a") == {}


def test_parts_that_were_swept_are_not_committed_by_a_clock_that_stood_still(
    client: ShardClient, world: World
) -> None:
    """To a machine that was paused with its clocks no time has passed; the ledger knows better."""
    transaction = client.transaction()
    transaction.append("a", table((1, "x")))
    world.clock.advance(SWEEP_AGE_MS + 1)
    assert world.client(BLOBS).sweep("a").parts.count == 1
    world.clock.advance(-SWEEP_AGE_MS)
    with pytest.raises(Determinate) as error:
        transaction.commit()
    assert error.value.code == "STAGED_TOO_LONG"
    assert contents(client, "a") == {}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_shard_that_was_swept_before_it_is_registered_brings_its_barrier(
    client: ShardClient, world: World, when: str
) -> None:
    """Its transactions shard has not been asked by the sweep, and knows of it all the same."""
    write, late = staged(client, "b", (1, "x"))
    world.clock.advance(SWEEP_AGE_MS + 1)
    sweeper = world.client(BLOBS)
    asked: list[int | None] = []

    def needed(begun_before_ms: int | None) -> set[str]:
        asked.append(begun_before_ms)
        keys = sweeper.shard_views.pending_parts("b", begun_before_ms)
        if when == "meanwhile" and len(asked) == 1:
            world.client(BLOBS).transactions().register("b")
        return keys

    assert sweep(sweeper.machine("b"), needed=needed).parts.count == 1
    assert len(asked) == (1 if when == "before" else 2)
    sweeper.transactions().register("b")
    world.clock.advance(-SWEEP_AGE_MS)
    with pytest.raises(Determinate) as error:
        client.transactions().commit([write], staged_ms=late.staged_ms)
    assert error.value.code == "STAGED_TOO_LONG"
    assert contents(client, "b") == {}


def test_applying_makes_room_for_inline_parts(world: World) -> None:
    """A data shard whose state is full takes the rows all the same."""
    client = world.client(dataclasses.replace(SETTINGS, inline_state_bytes=600))
    client.create("a", schema_of())
    for number in range(12):
        with client.transaction() as t:
            t.append("a", table((number, "x" * 30)))
    assert client.state("a").trace.inline_bytes <= 600
    assert len(contents(client, "a")) == 12


# --- reading -------------------------------------------------------------------------------------


def test_n_idle_tables_cost_one_append_for_a_tick(world: World) -> None:
    """And readers of all of them write nothing."""
    client = world.client()
    names = [f"t{number}" for number in range(10)]
    for name in names:
        client.create(name, schema_of())
    client.transactions().register(*names)
    reader = world.client()
    reader.readable(*names)

    def created(of: ShardClient) -> int:
        (found,) = (o for o in of.location.statistics().operations if o.operation == "create")
        return found.calls

    before, read = created(client), created(reader)
    world.clock.advance(1000)
    upper = client.transactions().advance()
    assert created(client) - before == 1
    assert isinstance(upper, int)
    assert {state.upper for state in reader.readable(*names)} == {Frontier(upper)}
    assert created(reader) == read
    assert all(client.state(name).upper == Frontier(0) for name in names)


def test_a_listener_goes_through_registering_and_forgetting(client: ShardClient) -> None:
    """Its steps join, and each update comes once at its time."""
    txns = client.transactions()
    seen, frontier = [], 0
    with client.reader("b") as reader:
        for number in range(6):
            if number in (1, 4):
                txns.register("b")
            if number == 3:
                txns.forget("b")
            if client.state("b").registered is None:
                client.writer("b").append_now(table((number, "x")))
            else:
                with client.transaction() as t:
                    t.append("b", table((number, "x")))
            for step in reader.listen(max(frontier - 1, 0), timeout_ms=0):
                assert frontier in (0, step.lower)
                assert step.upper.time is not None
                seen += step.updates.column("id").to_pylist()
                frontier = step.upper.time
            client.compact("b", force=True)
    assert seen == list(range(6))


def test_history_of_a_registered_shard_can_be_read_after_compaction(client: ShardClient) -> None:
    """Of the data shard and of the transactions shard; a hold is at a logical frontier."""
    txns = client.transactions()
    hold = client.hold("a", "report", since=0)
    times = []
    for number in range(4):
        with client.transaction() as t:
            t.append("a", table((number, "x")))
        times.append(t.committed_at)
        txns.advance(txns.upper() + 10)
    hold.downgrade(Frontier(txns.upper() - 1))
    for name in ("a", TRANSACTIONS):
        client.compact(name, force=True)
        client.collect_garbage(name)
    assert len(contents(client, "a", txns.upper() - 1)) == 4
    assert client.state("a").since > client.state("a").upper
    with client.transaction() as t:
        t.append("a", table((9, "x")))
    client.compact("a", force=True)
    assert len(contents(client, "a")) == 5


def test_a_state_older_than_the_ledger_is_not_extended(
    client: ShardClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a reader's two looks others commit, apply and tidy: it must not miss their rows."""
    other = world.client(BLOBS)
    read, passed = LedgerReader.read, list[bool]()

    def late(self: LedgerReader) -> Ledger | None:
        if not passed:
            passed.append(True)
            with other.transaction() as t:
                t.append("a", table((1, "x")))
            other.transactions().tidy()
        return read(self)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerReader, "read", late)
        (state,) = world.client().readable("a")
    assert passed
    assert sum(batch.rows for batch in state.trace.batches) == 1
    assert state.upper == Frontier(client.transactions().upper())


@pytest.mark.parametrize("half", [True, False])
def test_a_shard_ahead_of_the_clock_takes_the_others_along(
    client: ShardClient, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is registered, written and forgotten at its upper or later, never before."""
    txns = client.transactions()
    ahead = client.clock.now_ms() + HOUR_MS
    client.writer("b").compare_and_append(None, Frontier(0), Frontier(ahead))
    if half:

        def die(*_: object) -> None:
            raise Determinate("no route")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "_append", die)
            with pytest.raises(Determinate):
                txns.register("b")
    else:
        txns.register("b")
        assert txns.upper() > ahead
    txns.forget("b")
    assert client.state("b").registered is None
    assert client.state("b").upper == Frontier(txns.upper())
    client.writer("b").append_now(table((1, "x")))
    assert contents(client, "b") == {(1, "x"): 1}
