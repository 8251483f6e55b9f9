"""A transactions shard, or a shard that is registered with it, was lost or restored by itself.

Nothing that was acknowledged is lost on the way without a word, and fsck says what it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Corrupt
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.transactions.ledger import Ledger, LedgerReader
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

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
