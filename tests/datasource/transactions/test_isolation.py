"""Transactions that run at the same time see of each other what a serial model allows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import Determinate, InvalidUsage
from support.models.shards import SETTINGS, World, rows, schema_of, table
from support.profiles import examples

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.transactions.transaction import Isolation, Transaction

NAMES = ("x", "y", "z")

_step = st.one_of(
    st.tuples(st.just("read"), st.sampled_from(NAMES)),
    st.tuples(st.just("append"), st.sampled_from(NAMES)),
    st.tuples(st.just("overwrite"), st.sampled_from(NAMES)),
    st.tuples(st.just("upsert"), st.sampled_from(NAMES)),
    st.tuples(st.just("commit"), st.just("x")),
    # Commits in a millisecond are at times right after each other; a tidy takes back their rows.
    st.tuples(st.sampled_from(["tick", "tidy"]), st.just("x")),
)


def made(world: World) -> ShardClient:
    client = world.client(SETTINGS)
    for name in NAMES:
        client.create(name, schema_of(), key=["id"])
    client.transactions().register(*NAMES)
    with client.transaction() as t:
        for name in NAMES:
            t.append(name, table((0, "first")))
    return client


class Run:
    """One transaction, and what it did as the model can repeat it."""

    def __init__(self, client: ShardClient, isolation: Isolation, number: int) -> None:
        self.transaction: Transaction = client.transaction(isolation=isolation)
        self.number = number
        self.count = self.since = 0
        self.begun: dict[str, Counter[Any]] = {}
        self.reads: list[tuple[str, Counter[Any]]] = []
        self.does: list[tuple[str, str, tuple[int, str]]] = []

    def step(self, kind: str, name: str) -> None:
        self.count += 1
        row = (self.count % 2, f"{self.number}.{self.count}")
        if kind == "read":
            self.reads.append((name, rows(self.transaction.read(name))))
            return
        if kind == "upsert" and any(name == other for _, other, _ in self.does):
            return
        getattr(self.transaction, kind)(name, table(row))
        self.does.append((kind, name, row))

    def apply(self, model: dict[str, Counter[Any]]) -> None:
        """What it does to contents, one transaction after the other."""
        for kind, name, row in self.does:
            if kind == "overwrite":
                model[name] = Counter()
            if kind == "upsert":
                kept = {r: n for r, n in model[name].items() if r[0] != row[0]}
                model[name] = Counter(kept)
            model[name][row] += 1


class Bank:
    """Three processes, each with one transaction after the other, and the serial model."""

    def __init__(self, isolation: Isolation) -> None:
        self.world = World()
        self.client = made(self.world)
        self.isolation = isolation
        self.model = {name: Counter({(0, "first"): 1}) for name in NAMES}
        self.changed: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.commits = self.made = 0
        self.processes = [self.world.client(SETTINGS) for _ in range(3)]
        self.runs: list[Run | None] = [None] * 3

    def step(self, process: int, kind: str, name: str) -> None:
        if kind == "tick":
            self.world.clock.advance(1)
            return
        if kind == "tidy":
            self.client.transactions().tidy()
            return
        run = self.runs[process]
        if run is None:
            self.made += 1
            run = Run(self.processes[process], self.isolation, self.made)
            run.begun = {shard: Counter(found) for shard, found in self.model.items()}
            run.since = self.commits
            self.runs[process] = run
        if kind == "commit":
            self.runs[process] = None
            self.commit(run)
        else:
            run.step(kind, name)

    def commit(self, run: Run) -> None:
        """It commits exactly if its isolation lets it, having read what it should have."""
        touched = {name for kind, name, _ in run.does if kind != "append"}
        if self.isolation == "serializable" and run.does:
            touched |= {name for name, _ in run.reads}
        stale = any(self.changed[name] > run.since for name in touched)
        if stale:
            with pytest.raises(Determinate, match="TRANSACTION_CONFLICT"):
                run.transaction.commit()
            return
        run.transaction.commit()
        serial = self.isolation == "serializable" and bool(run.does)
        for name, found in run.reads:
            assert found == (self.model if serial else run.begun)[name], (name, run.number)
        run.apply(self.model)
        self.commits += 1
        self.changed |= {name: self.commits for _, name, _ in run.does}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 2), _step), max_size=25),
    st.sampled_from(["snapshot", "serializable"]),
)
@examples()
def test_histories_are_what_their_isolation_says(
    steps: list[tuple[int, tuple[str, str]]], isolation: Isolation
) -> None:
    """Committed ones, one by one in the order of commit times, make the contents that are there.

    Those that write and are serializable have also read what they would have read so; all others
    have read the contents as they were when they began. Who commits, and who does not, is what the
    isolation says: not one more and not one less.
    """
    bank = Bank(isolation)
    for process, (kind, name) in steps:
        bank.step(process, kind, name)
    for process in range(3):
        bank.step(process, "commit", "x")
    for name in NAMES:
        with bank.client.reader(name) as reader:
            assert rows(reader.snapshot()) == bank.model[name], name
    bank.world.close()


def test_a_conflict_names_the_shard_and_nothing_is_lost(world: World) -> None:
    """The function runs again, with what is there now."""
    client = made(world)
    seen = []

    def work(t: Transaction) -> int:
        found: int = t.read("x").num_rows
        seen.append(found)
        if len(seen) == 1:
            with client.transaction() as other:
                other.append("x", table((5, "other")))
        t.overwrite("y", table((found, "counted")))
        return found

    assert client.run_transaction(work) == 2
    assert seen == [1, 2]
    with client.reader("y") as reader:
        assert rows(reader.snapshot()) == Counter([(2, "counted")])

    t = client.transaction()
    t.overwrite("x", table((1, "mine")))
    with client.transaction() as other:
        other.append("x", table((6, "other")))
    with pytest.raises(Determinate, match=r"TRANSACTION_CONFLICT.*'x'"):
        t.commit()
    with pytest.raises(InvalidUsage, match="TRANSACTION_ENDED"):
        t.append("x", table((1, "late")))


def test_a_change_at_the_very_next_time_is_a_conflict(world: World) -> None:
    """Also once nothing speaks of it any more but the shard's upper, which it moved by one."""
    client, other = made(world), world.client(SETTINGS)
    t = client.transaction()
    counted = t.read("x").num_rows
    with other.transaction() as first:
        first.append("x", table((5, "other")))
    assert first.committed_at == t.read_time() + 1
    other.transactions().tidy()
    t.overwrite("x", table((counted, "counted")))
    with pytest.raises(Determinate, match=r"TRANSACTION_CONFLICT.*'x'"):
        t.commit()
    with client.reader("x") as reader:
        assert rows(reader.snapshot()) == Counter([(0, "first"), (5, "other")])


def test_write_skew_is_what_serializable_refuses(world: World) -> None:
    """Two doctors go off call, each because the other one is on."""
    client = made(world)
    outcomes = {}
    levels: tuple[Isolation, ...] = ("snapshot", "serializable")
    for isolation in levels:
        one = client.transaction(isolation=isolation)
        other = client.transaction(isolation=isolation)
        for t, reads, writes in ((one, "x", "y"), (other, "y", "x")):
            t.read(reads)
            t.overwrite(writes, table((1, f"off {isolation}")))
        one.commit()
        try:
            other.commit()
            outcomes[isolation] = "both"
        except Determinate:
            outcomes[isolation] = "one"
    assert outcomes == {"snapshot": "both", "serializable": "one"}


def test_an_error_in_the_block_leaves_nothing(world: World) -> None:
    """Neither rows nor blobs nor leases; the transaction has ended."""
    client = world.client()
    client.create("x", schema_of())
    big = table(*((n, "v" * 100) for n in range(200)))

    def half() -> None:
        with client.transaction() as t:
            t.read("x")
            t.append("x", big)
            t.overwrite("x", big)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        half()
    assert not list(client.location.blob.list("x/part/"))
    assert not client.state("x").leased
    with client.reader("x") as reader:
        assert reader.snapshot().num_rows == 0


@pytest.mark.parametrize("reads", [False, True])
def test_nothing_is_staged_again_of_what_was_committed(world: World, reads: bool) -> None:
    """Also by one that reads before it writes, which is how it decides what to write."""
    client = made(world)
    large = table(*((number, "x" * 100) for number in range(20_000)))
    for repeated in (False, True):
        with client.transaction(writer="etl", sequence=1) as t:
            if reads:
                t.read("y")
            before = len(list(world.objects().entries("")))
            t.append("x", large)
            staged = len(list(world.objects().entries(""))) - before
            assert (t.was_committed_before, staged > 0) == (repeated, not repeated)
    with client.reader("x") as reader:
        assert reader.snapshot().num_rows == 20_001


def test_keys_are_upserted_and_deleted(world: World) -> None:
    """In the contents at the read time; twice in one transaction is refused."""
    client = made(world)
    with client.transaction() as t:
        t.upsert("x", table((0, "zero"), (1, "one"), (2, "two")))
    with client.transaction() as t:
        with pytest.raises(InvalidUsage, match=r"MISSING_COLUMN.*no column 'id'"):
            t.delete("x", table((1, "whatever")).select(["v"]))
        t.delete("x", table((1, "whatever")).select(["id"]))
        with pytest.raises(InvalidUsage, match="WRITTEN_BEFORE"):
            t.upsert("x", table((0, "again")))
    with client.reader("x") as reader:
        assert rows(reader.snapshot()) == Counter([(0, "zero"), (2, "two")])


def test_what_is_wrong_with_a_transaction_is_said(world: World) -> None:
    """Isolation by its nearest name, and half an identity."""
    client = made(world)
    with pytest.raises(InvalidUsage, match="did you mean 'serializable'"):
        client.transaction(isolation="serialisable")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="INVALID_IDENTITY"):
        client.transaction(writer="etl")
    with pytest.raises(InvalidUsage, match="OVERWRITE_WITH_CHANGES"), client.transaction() as t:
        t.overwrite("x", table((1, "a")).append_column("_diff", [[-1]]))
