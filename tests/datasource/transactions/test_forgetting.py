"""Writes that race with the forgetting of their shard: nothing has happened, and it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Determinate
from shardline.datasource.shard.commands.append import Append, Appended
from shardline.datasource.transactions.commit_loop import Committer
from shardline.datasource.transactions.redirected_append import commit_append
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.state import Registration
    from shardline.datasource.transactions.transaction import Transaction
    from shardline.datasource.write import Decided

BLOBS = replace(SETTINGS, inline_part_bytes=0)


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of shards `a` and `b`, of which `a` is registered."""
    made = world.client(BLOBS)
    for name in "ab":
        made.create(name, schema_of(), key=["id"])
    made.transactions().register("a")
    return made


def contents(client: ShardClient) -> dict[object, int]:
    with client.reader("a") as reader:
        return dict(rows(reader.snapshot()))


def forget_all(client: ShardClient) -> None:
    txns = client.transactions()
    txns.forget(*txns.registered())


def drop_txns(client: ShardClient) -> None:
    forget_all(client)
    client.drop(TRANSACTIONS)


def make_txns_again(client: ShardClient) -> None:
    drop_txns(client)
    client.transactions().register("b")


FORGETTINGS = {
    "forgotten": forget_all,
    "the transactions shard is gone, too": drop_txns,
    "and made again": make_txns_again,
}


@pytest.mark.parametrize("what", FORGETTINGS)
@pytest.mark.parametrize("late", [False, True])
def test_a_transaction_that_races_with_a_forgetting_can_be_run_again(
    client: ShardClient, world: World, monkeypatch: pytest.MonkeyPatch, what: str, *, late: bool
) -> None:
    """Before it is judged, or between that and its record: nothing has happened, and it says so."""
    other = world.client(BLOBS)
    runs = 0

    def forget() -> None:
        FORGETTINGS[what](other)

    def work(transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        transaction.append("a", table((runs, "x")))
        if runs == 1:
            if late:
                when_appending(monkeypatch, forget)
            else:
                forget()

    transaction = client.transaction()
    work(transaction)
    with pytest.raises(Determinate, match=r"REGISTRATION_CHANGED.*'a'.*again"):
        transaction.commit()
    assert contents(world.client()) == {}
    assert not list(client.location.blob.list("a/part/"))
    runs = 0
    client.run_transaction(work)
    assert runs == 2
    assert contents(world.client()) == {(2, "x"): 1}


@pytest.mark.parametrize("what", FORGETTINGS)
@pytest.mark.parametrize("late", [False, True])
def test_an_append_that_races_with_a_forgetting_can_be_made_again(
    client: ShardClient, world: World, monkeypatch: pytest.MonkeyPatch, what: str, *, late: bool
) -> None:
    """One that met the registration and was redirected."""
    other = world.client(BLOBS)
    txns = client.transactions()
    writer = client.writer("a", writer="w")
    todo = [lambda: FORGETTINGS[what](other)]

    def redirect(request: Append, registration: Registration) -> Decided:
        del registration
        if todo and late:
            when_appending(monkeypatch, todo.pop())
        elif todo:
            registered = txns.registered

            def forgotten_since() -> list[str]:
                monkeypatch.undo()
                found = registered()
                todo.pop()()
                return found

            monkeypatch.setattr(txns, "registered", forgotten_since)
        return commit_append(txns, "a", request)

    writer.redirect = redirect
    with pytest.raises(Determinate, match=r"REGISTRATION_CHANGED.*'a'.*again"):
        writer.append_now(table((1, "x")), sequence=1)
    assert contents(world.client()) == {}
    assert isinstance(writer.append_now(table((1, "x")), sequence=1), Appended)
    assert contents(world.client()) == {(1, "x"): 1}


def when_appending(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something once, right before the next append to a transactions shard."""
    append = Committer._append

    def before(committer: Committer, *arguments: object) -> object:
        monkeypatch.undo()
        do()
        return append(committer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "_append", before)


@pytest.mark.parametrize("act", ["tidies", "commits"])
def test_rows_of_a_shard_made_anew_are_not_taken_for_applied(
    client: ShardClient, world: World, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """By a process that knows the dropped shard only: who committed them has died right after."""
    behind = world.client(BLOBS)
    behind.state("a")
    txns = client.transactions()
    txns.forget("a")
    client.drop("a")
    client.create("a", schema_of(), key=["id"])
    txns.register("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_follow_up", lambda *_: None)
        with client.transaction() as transaction:
            transaction.append("a", table((7, "kept")))
    if act == "tidies":
        behind.transactions().tidy()
    else:
        with behind.transaction() as transaction:
            transaction.append("b", table((8, "other")))
    assert contents(world.client(BLOBS)) == {(7, "kept"): 1}
