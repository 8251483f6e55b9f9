"""Shards whose writer chooses the times of rows: transactions read them, and leave them alone."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended, UpperMismatch
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table, updates

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient
    from shardline.datasource.transactions.transaction import Isolation, Transaction
    from shardline.datasource.write import WriteHandle

LAG_MS = 500
"""The view of these tests is so far behind the clock."""


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of the shard `plain`, and of `view`, whose writer has computed it up to a time."""
    made = world.client(SETTINGS)
    made.create("plain", schema_of(), key=["id"])
    made.create("view", schema_of(), key=["id"])
    step(made, world.clock.now_ms() - LAG_MS, (1, "x"))
    return made


def view_writer(client: ShardClient) -> WriteHandle:
    return client.writer("view", "view:0123")


def step(client: ShardClient, upper: int, *values: tuple[int, str]) -> None:
    """Let the view's writer compute the view up to `upper`."""
    lower = client.state("view").upper
    data = table(*values) if values else None
    done = view_writer(client).compare_and_append(data, lower, Frontier(upper), sequence=upper)
    assert done == Appended(lower.time or 0, Frontier(upper))


def readable(client: ShardClient, name: str) -> Frontier:
    [state] = client.readable(name)
    return state.upper


def when_it_waits(
    world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> list[float]:
    """Let `act` happen at each pause of the clock; returns the pauses."""
    pauses: list[float] = []
    wait = world.clock.wait

    def patched(cancelled: object, timeout_ms: float) -> bool:
        # Those of threads in the background are none of the reader's.
        if not threading.current_thread().daemon:
            pauses.append(timeout_ms)
            act()
        return wait(cancelled, timeout_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(world.clock, "wait", patched)
    return pauses


def test_reading_waits_for_the_shards_own_writer(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at the read time once its writer has passed that, and stays its writer's."""
    now = world.clock.now_ms()
    before = readable(client, "view")
    seen: list[Frontier] = []

    def act() -> None:
        seen.append(readable(world.client(SETTINGS), "view"))
        if len(seen) == 1:
            step(client, now + 5, (2, "y"))

    when_it_waits(world, monkeypatch, act)
    with client.transaction() as t:
        assert t.read_time() >= now
        assert rows(t.read("view")) == Counter([(1, "x"), (2, "y")])
    # Nobody was shown more than the view's writer had computed.
    assert seen[0] == before
    assert readable(client, "view") == Frontier(now + 5)
    assert client.transactions().registered() == []
    assert client.state("view").registered is None
    step(client, now + 10, (3, "z"))


def test_what_its_writer_does_not_reach_is_an_error(client: ShardClient) -> None:
    """A writer that has stopped: the read says so, and the shard is as it was."""
    before = client.state("view")
    with pytest.raises(Determinate, match="NOT_YET_READABLE"), client.transaction() as t:
        t.read("view")
    after = client.state("view")
    assert (after.upper, after.registered, after.leased) == (before.upper, None, {})


@pytest.mark.parametrize("own", ["interval", "times", "made for"])
def test_writing_is_refused_and_says_what_to_do(
    world: World, client: ShardClient, own: str
) -> None:
    """However the state shows that another writer chooses the times; nothing is left behind."""
    client = world.client(SETTINGS)
    name = "view"
    if own == "times":
        name = "timed"
        client.create(name, schema_of(), key=["id"])
        client.writer(name, "etl").append_now(updates((1, "x", 7, 1)))
    elif own == "made for":
        name = "new"
        client.create(name, schema_of(), key=["id"], times_by="view new")
    before = client.state(name)
    big = table(*((n, "v" * 5000) for n in range(20)))
    acts: tuple[Callable[[Transaction], None], ...] = (
        lambda t: t.append(name, big),
        lambda t: t.overwrite(name, big),
        lambda t: t.upsert(name, big),
        lambda t: t.delete(name, big.select(["id"])),
        lambda t: t.add(name, client.writer(name).stager().stage([big])),
        lambda t: t.replace(name, client.writer(name).stager().stage([big])),
    )

    def both(act: Callable[[Transaction], None]) -> None:
        with client.transaction() as t:
            t.append("plain", table((1, "with it")))
            act(t)

    for act in acts:
        with pytest.raises(InvalidUsage, match=rf"TIMES_OF_WRITER.*{name}.*register"):
            both(act)
    assert client.state(name) == before
    assert dangling(client.machine(name)) == []
    with client.reader("plain") as reader:
        assert reader.snapshot().num_rows == 0


def test_who_registers_the_shard_takes_it_over(world: World, client: ShardClient) -> None:
    """By name, and not by the way: from then on transactions decide its times."""
    client.transactions().register("view")
    with client.transaction() as t:
        t.append("view", table((2, "y")))
        assert rows(t.read("view")) == Counter([(1, "x")])
    client.transactions().forget("view")
    world.clock.advance(10)
    with client.transaction() as t:
        t.append("view", table((3, "z")))
    with client.reader("view") as reader:
        assert rows(reader.snapshot()) == Counter([(1, "x"), (2, "y"), (3, "z")])


def test_reading_registers_nothing(world: World, client: ShardClient) -> None:
    """A shard whose rows take effect when they are committed is read as of now, and written on."""
    direct = client.writer("plain", "etl")
    direct.append_now(table((1, "x")))
    world.clock.advance(1000)
    with client.transaction() as t:
        assert rows(t.read("plain")) == Counter([(1, "x")])
        at = t.reads("plain")
    assert at >= world.clock.now_ms()
    assert client.transactions().registered() == []
    # Settled at that time for everybody, and for ever.
    assert readable(client, "plain").is_beyond(at)
    direct.append_now(table((2, "y")))
    with client.reader("plain") as reader:
        assert rows(reader.snapshot(at)) == Counter([(1, "x")])
        assert rows(reader.snapshot()) == Counter([(1, "x"), (2, "y")])


def test_a_finished_shard_can_be_read(client: ShardClient) -> None:
    """As one can for ever, at any time; nothing in it can change before a commit."""
    client.create("out", schema_of())
    client.writer("plain").compare_and_append(
        table((1, "x")), Frontier(0), Frontier(None), sequence=1
    )
    with client.transaction(isolation="serializable") as t:
        t.append("out", t.read("plain"))
    with client.reader("out") as reader:
        assert rows(reader.snapshot()) == Counter([(1, "x")])


@pytest.mark.parametrize("after", ["dropped", "made again", "finished later"])
def test_what_ends_after_it_was_read_is_a_conflict(client: ShardClient, after: str) -> None:
    """It is repeated, and reads what is there then; a dropped shard is finished in its own way."""
    client.create("out", schema_of())
    client.writer("plain").append_now(table((1, "x")))
    t = client.transaction(isolation="serializable")
    t.append("out", t.read("plain"))
    if after == "finished later":
        upper = client.state("plain").upper
        client.writer("plain").compare_and_append(table((2, "y")), upper, Frontier(None))
    else:
        client.drop("plain", despite_holders=[*client.state("plain").leased])
        if after == "made again":
            client.create("plain", schema_of())
    with pytest.raises(Determinate, match="TRANSACTION_CONFLICT"):
        t.commit()


def test_what_is_read_and_then_written_is_registered(client: ShardClient) -> None:
    """As of its first write."""
    client.writer("plain").append_now(table((1, "x")))
    with client.transaction() as t:
        left = t.read("plain").num_rows
        t.upsert("plain", table((2, f"after {left}")))
    assert client.transactions().registered() == ["plain"]
    with client.reader("plain") as reader:
        assert rows(reader.snapshot()) == Counter([(1, "x"), (2, "after 1")])


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_direct_changes_of_what_was_read_are_a_conflict_if_serializable(
    client: ShardClient, isolation: Isolation
) -> None:
    """Also where the shard that was read is not registered, until the commit depends on it."""
    client.create("out", schema_of())
    client.writer("plain").append_now(table((1, "x")))
    t = client.transaction(isolation=isolation)
    counted = t.read("plain").num_rows
    client.writer("plain").append_now(table((2, "y")))
    t.append("out", table((counted, "counted")))
    if isolation == "snapshot":
        t.commit()
        return
    with pytest.raises(Determinate, match=r"TRANSACTION_CONFLICT.*'plain'"):
        t.commit()

    def count(t: Transaction) -> None:
        t.append("out", table((t.read("plain").num_rows, "counted")))

    client.run_transaction(count)
    with client.reader("out") as reader:
        assert rows(reader.snapshot()) == Counter([(2, "counted")])


def test_nobody_can_promise_that_a_shard_of_chosen_times_does_not_change(
    world: World, client: ShardClient
) -> None:
    """Its writer may add rows at times before the commit: only the weaker isolation is possible."""
    step(client, world.clock.now_ms() + 50)

    def begun(isolation: Isolation) -> Transaction:
        t = client.transaction(isolation=isolation)
        t.append("plain", pa.table({"id": [t.read("view").num_rows], "v": [isolation]}))
        return t

    t = begun("serializable")
    with pytest.raises(InvalidUsage, match=r"TIMES_OF_WRITER.*isolation 'snapshot'"):
        t.commit()
    assert begun("snapshot").commit() is not None
    with client.reader("plain") as reader:
        assert rows(reader.snapshot()) == Counter([(1, "snapshot")])
    # One that writes nothing has nothing that could be out of date.
    with client.transaction(isolation="serializable") as t:
        t.read("view")


def test_a_run_again_reads_later_than_what_is_gone(world: World, client: ShardClient) -> None:
    """The last time that transactions decided may be long ago, longer than the view keeps."""
    with client.transaction() as t:
        t.append("plain", table((1, "x")))
    world.clock.advance(3_600_000)
    client.set_retention("view", 1000)
    now = world.clock.now_ms()
    step(client, now, (2, "y"))
    client.hold("view", "h").downgrade(Frontier(now - 1))
    step(client, now + 10_000)

    def work(t: Transaction) -> int:
        t.read("plain")
        found: int = t.read("view").num_rows
        return found

    assert client.run_transaction(work) == 2


def test_a_shard_of_older_code_is_noted_by_who_writes_it(client: ShardClient) -> None:
    """Whoever makes sure that it is there at its start; not where transactions write to it."""
    for _ in range(2):
        client.create("plain", schema_of(), key=["id"], times_by="view plain")
        assert client.state("plain").times_by == "view plain"
    seqno = client.state("plain").seqno
    client.note_times_by("plain", "view other")
    assert (client.state("plain").times_by, client.state("plain").seqno) == ("view plain", seqno)
    client.transactions().register("plain")
    client.note_times_by("plain", "view plain")
    assert client.state("plain").times_by == ""


def test_what_nobody_can_write_any_more_is_registered_to_its_end(client: ShardClient) -> None:
    """Who began to register it has died between the mark and the row; a reader completes it."""
    txns = client.transactions()
    txns.register("view")
    txns.forget("view")
    ledger = txns.reader.read()
    assert ledger is not None
    txns._mark("plain", ledger, takes_over=True)
    assert txns.registered() == []
    with client.transaction() as t:
        assert t.read("plain").num_rows == 0
    assert txns.registered() == ["plain"]


def test_a_mismatch_marks_nothing(client: ShardClient) -> None:
    """Only rows that are in the shard say who chooses its times."""
    done = client.writer("plain").compare_and_append(table((1, "x")), Frontier(7), Frontier(8))
    assert isinstance(done, UpperMismatch)
    assert client.state("plain").times_by == ""
    client.writer("plain").append_now(table((1, "x")))
    assert client.state("plain").times_by == ""
