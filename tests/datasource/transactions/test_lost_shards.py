"""A transactions shard, or a shard that is registered with it, was lost or restored by itself.

Nothing that was acknowledged is lost on the way without a word, and fsck says what it is.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.shard.commands.txns import refuse_direct_writes
from shardline.datasource.shard.state import Registration
from shardline.datasource.stores.metered import Metered
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.transactions.commit_loop import Committer
from shardline.datasource.transactions.ledger import Ledger, LedgerReader
from shardline.datasource.transactions.protocol import Transactions
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardline.datasource.client import ShardClient
    from shardline.datasource.stores.location import BlobEntry

BLOBS = replace(SETTINGS, inline_part_bytes=0)
HOUR_MS = 3_600_000


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of shards `a` and `b`, of which `a` is registered."""
    made = world.client(BLOBS)
    for name in "ab":
        made.create(name, schema_of(), key=["id"])
    made.transactions().register("a")
    return made


def commit(client: ShardClient, number: int, *names: str) -> int:
    with client.transaction() as transaction:
        for name in names or ("a",):
            transaction.append(name, table((number, "x")))
    assert transaction.committed_at is not None
    return transaction.committed_at


def numbers(client: ShardClient, name: str = "a") -> list[int]:
    with client.reader(name) as reader:
        return sorted(key[0] for key in rows(reader.snapshot()).elements())


def copy_of(world: World, name: str) -> dict[str, bytes]:
    """The objects of a shard."""
    store = world.objects()
    found = {}
    for entry in store.entries(f"{shard_directory(name)}/"):
        value = store.get(entry.key)
        assert value is not None
        found[entry.key] = value
    return found


def restore(world: World, name: str, copy: dict[str, bytes]) -> None:
    """Move a shard's directory away and put a copy in its place; nothing if that is empty."""
    store = world.objects()
    for key in copy_of(world, name):
        store.delete(key)
    for key, value in copy.items():
        store.put(key, value)


def findings(world: World) -> set[tuple[str, str, str]]:
    """Shard, code and subject of all findings."""
    report = check_location(world.objects(), world.clock)
    assert not report.findings
    return {(one.shard, f.code, f.subject) for one in report.shards for f in one.findings}


# --- an older transactions shard -----------------------------------------------------------------


def test_nothing_is_committed_before_what_a_shard_has_already(
    world: World, client: ShardClient
) -> None:
    """It would be taken for applied, and be lost; whoever goes on without the rest says so."""
    commit(client, 1)
    copy = copy_of(world, TRANSACTIONS)
    world.clock.advance(HOUR_MS)
    commit(client, 2, "a", "b")
    upper = client.state("a").upper.time
    world.clock.advance(-HOUR_MS)
    restore(world, TRANSACTIONS, copy)

    assert findings(world) == {("a", "TXNS_BEHIND", TRANSACTIONS)}
    other = world.client(BLOBS)
    with pytest.raises(Corrupt, match=rf"TXNS_BEHIND.*'a'.*advance\({upper}\)"):
        commit(other, 3)
    assert numbers(other) == [1, 2]
    assert upper is not None
    other.transactions().advance(upper)
    assert findings(world) == set()
    commit(other, 3, "a", "b")
    assert numbers(other) == [1, 2, 3]
    assert numbers(other, "b") == [2, 3]


def test_a_ledger_that_is_merely_late_is_not_behind(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has committed and applied since it was read: it is read again."""
    commit(client, 1)
    other, txns = world.client(BLOBS), client.transactions()
    read, late = LedgerReader.read, [True]

    def slow(reader: LedgerReader) -> Ledger | None:
        found = read(reader)
        if reader is txns.reader and late and client.machine("a").cached is not None:
            late.clear()
            commit(other, 2)
            client.state("a")
        return found

    transaction = client.transaction()
    transaction.append("a", table((3, "x")))
    monkeypatch.setattr(LedgerReader, "read", slow)
    transaction.commit()
    assert not late
    assert numbers(world.client()) == [1, 2, 3]


# --- an older data shard -------------------------------------------------------------------------


def test_a_shard_that_lacks_what_was_applied_to_it_is_found(
    world: World, client: ShardClient
) -> None:
    """Not one to which it will yet be applied, nor one that was given up and made again."""
    commit(client, 1)
    copy = copy_of(world, "a")
    commit(client, 2)
    commit(client, 3)
    newest = copy_of(world, "a")
    restore(world, "a", copy)
    assert ("a", "SHARD_BEHIND_TXNS", TRANSACTIONS) in findings(world), "of 2, not of 3"
    restore(world, "a", newest)
    world.client(BLOBS).transactions().tidy()
    assert findings(world) == set()
    restore(world, "a", copy)
    assert findings(world) == {("a", "SHARD_BEHIND_TXNS", TRANSACTIONS)}
    restore(world, "a", {})
    client = world.client(BLOBS)
    client.transactions().forget("a", despite_loss=True)
    client.create("a", schema_of(), key=["id"])
    assert findings(world) == set()


def test_a_shard_of_before_its_registration_is_found(world: World, client: ShardClient) -> None:
    """It takes direct writes, at times that readers were told to be complete."""
    copy = copy_of(world, "b")
    client.transactions().register("b")
    restore(world, "b", copy)
    assert findings(world) == {(TRANSACTIONS, "SHARD_BEHIND_TXNS", "b")}


# --- no transactions shard any more --------------------------------------------------------------


def not_applied(
    client: ShardClient, number: int, monkeypatch: pytest.MonkeyPatch, name: str = "a"
) -> None:
    """Commit to a shard as a process that dies before it applies that."""
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_follow_up", lambda *_: None)
        commit(client, number, name)


def test_a_row_is_not_taken_for_applied_by_what_is_remembered_of_a_shard_that_is_gone(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted, and made again: a commit of who knows the one before leaves its rows."""
    remembers = world.client(BLOBS)
    for number in range(5):
        remembers.writer("b").append_now(table((number, "x")))
    restore(world, "b", {})
    client = world.client(BLOBS)
    client.create("b", schema_of(), key=["id"])
    client.transactions().register("b")
    not_applied(client, 7, monkeypatch, "b")
    commit(remembers, 8, "a")
    assert numbers(world.client(BLOBS), "b") == [7]


USES: dict[str, Callable[[ShardClient], object]] = {
    "read": numbers,
    "write": lambda client: commit(client, 3),
    "write another one": lambda client: commit(client, 3, "b"),
    "read another one": lambda client: client.transaction().read("b"),
    "register": lambda client: client.transactions().register("a"),
    "forget": lambda client: client.transactions().forget("a"),
    "sweep": lambda client: client.sweep("a"),
}


@pytest.mark.parametrize("use", USES)
def test_nobody_goes_on_without_the_transactions_shard(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """What it had not applied is there once it is back; nothing was made in its place."""
    commit(client, 1)
    not_applied(client, 2, monkeypatch)
    copy = copy_of(world, TRANSACTIONS)
    restore(world, TRANSACTIONS, {})
    world.clock.advance(30 * HOUR_MS)
    with pytest.raises(MissingBlob, match=r"TXNS_MISSING.*'a'.*forget\('a', despite_loss=True\)"):
        USES[use](world.client(BLOBS))
    assert not copy_of(world, TRANSACTIONS)
    restore(world, TRANSACTIONS, copy)
    assert numbers(world.client(BLOBS)) == [1, 2]


@pytest.mark.parametrize("use", ["read", "write", "register", "forget", "sweep"])
def test_another_transactions_shard_does_not_take_its_place(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """As older code has made it, or as it is in a location that the shard was copied to."""
    commit(client, 1)
    not_applied(client, 2, monkeypatch)
    copy = copy_of(world, TRANSACTIONS)
    restore(world, TRANSACTIONS, {})
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "_check_is_first", lambda _: None)
        world.client(BLOBS).transactions().register("b")
    world.clock.advance(30 * HOUR_MS)
    with pytest.raises(Corrupt, match=r"TXNS_OTHER.*'a'.*despite_loss"):
        USES[use](world.client(BLOBS))
    assert findings(world) == {("a", "TXNS_OTHER", TRANSACTIONS)}
    restore(world, TRANSACTIONS, copy)
    assert numbers(world.client(BLOBS)) == [1, 2]


@pytest.mark.parametrize("made_again", [False, True])
def test_what_it_had_not_applied_is_given_up_on_demand(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch, *, made_again: bool
) -> None:
    """Where nobody has a copy the shard can be used again, without what was not applied."""
    commit(client, 1)
    not_applied(client, 2, monkeypatch)
    restore(world, TRANSACTIONS, {})
    other = world.client(BLOBS)
    if made_again:
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "_check_is_first", lambda _: None)
            other.transactions().register("b")
    other.transactions().forget("a", despite_loss=True)
    assert other.state("a").registered is None
    assert findings(world) == set()
    other.writer("a").append_now(table((3, "x")))
    commit(other, 4, "a", "b")
    assert numbers(other) == [1, 3, 4]


class Meeting(Metered):
    """A slow store: a look at the log of `a` or `b` waits until there is one at the other."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects(), world.clock)
        self._both = threading.Barrier(2)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        if prefix in {"a/log/", "b/log/"}:
            self._both.wait(20)
        return super().entries(prefix, start_after, limit)


def test_the_first_transaction_looks_at_several_shards_at_once(world: World) -> None:
    """Where each look takes a while; with thousands of them it would take minutes."""
    for name in "ab":
        world.client().create(name, schema_of())
    assert world.client(objects=Meeting(world)).transactions().register() == 0


def test_a_shard_that_nobody_can_open_is_in_nobodys_way(world: World, client: ShardClient) -> None:
    """Of the first transaction of a location, which looks at all shards."""
    restore(world, TRANSACTIONS, {})
    client = world.client(BLOBS)
    client.transactions().forget("a", despite_loss=True)
    store = world.objects()
    for key in copy_of(world, "a"):
        store.put(key, b"x")
    commit(client, 1, "b")
    assert numbers(client, "b") == [1]


@pytest.mark.parametrize("made_again", [False, True])
def test_an_interrupted_registration_is_no_loss(
    world: World, client: ShardClient, *, made_again: bool
) -> None:
    """Also once its transactions shard was dropped: the next transaction takes it from there."""
    ledger = client.transactions().reader.read()
    assert ledger is not None
    half = Registration(TRANSACTIONS, ledger.shard, ledger.upper)
    client.machine("b").apply(partial(refuse_direct_writes, registration=half))
    assert findings(world) == set()
    client.transactions().forget("a")
    client.drop(TRANSACTIONS)
    if made_again:
        client.transactions().register("a")
    assert findings(world) == set()
    other = world.client(BLOBS)
    assert other.readable("b")[0].upper == Frontier(0)
    other.sweep("b")
    commit(other, 1, "b")
    assert numbers(other, "b") == [1]
    assert findings(world) == set()


# --- no data shard any more ----------------------------------------------------------------------


@pytest.mark.parametrize("made_again", [False, True])
def test_a_registered_shard_that_is_gone_is_found(
    world: World, client: ShardClient, *, made_again: bool
) -> None:
    """Also where another one has its name; until it is given up, which takes saying so."""
    commit(client, 1)
    client.transactions().tidy()
    restore(world, "a", {})
    other = world.client(BLOBS)
    if made_again:
        other.create("a", schema_of(), key=["id"])
    assert findings(world) == {(TRANSACTIONS, "REGISTERED_SHARD_MISSING", "a")}
    if not made_again:
        with pytest.raises(MissingBlob, match=r"REGISTERED_SHARD_MISSING.*despite_loss"):
            other.transactions().forget("a")
    other.transactions().forget("a", despite_loss=True)
    assert other.transactions().registered() == []
    assert findings(world) == set()
    if not made_again:
        with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
            other.transactions().forget("a", despite_loss=True)
        other.create("a", schema_of(), key=["id"])
    commit(other, 2, "a", "b")
    assert numbers(world.client(BLOBS)) == [2]


def test_rows_for_a_shard_that_is_gone_are_kept_until_they_are_given_up(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they keep from others is said by name; with the shard they come back."""
    commit(client, 1)
    not_applied(client, 2, monkeypatch)
    copy = copy_of(world, "a")
    restore(world, "a", {})
    other = world.client(BLOBS)
    txns = other.transactions()
    for use in (txns.tidy, partial(txns.register, "b"), partial(commit, other, 3, "b")):
        with pytest.raises(MissingBlob, match=r"REGISTERED_SHARD_MISSING.*'a'"):
            use()
    assert findings(world) == {(TRANSACTIONS, "REGISTERED_SHARD_MISSING", "a")}
    restore(world, "a", copy)
    commit(other, 3, "b")
    assert numbers(world.client(BLOBS)) == [1, 2]
    not_applied(world.client(BLOBS), 4, monkeypatch)
    restore(world, "a", {})
    last = world.client(BLOBS)
    last.transactions().forget("a", despite_loss=True)
    assert last.transactions().tidy() == 0
    commit(last, 5, "b")
    assert numbers(last, "b") == [3, 5]
    assert findings(world) == set()


def test_a_shard_that_is_forgotten_and_made_again_is_not_missing(
    world: World, client: ShardClient
) -> None:
    """Its tombstone is there, or the shard that was made after it."""
    commit(client, 1)
    client.transactions().forget("a")
    client.drop("a")
    assert findings(world) == set()
    client.create("a", schema_of(), key=["id"])
    commit(client, 2)
    assert findings(world) == set()
