"""Appends of intervals to a registered shard, as views make them: made, or refused with a hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.transactions.commit_loop import Committer
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.write import WriteHandle

BLOBS = replace(SETTINGS, inline_part_bytes=0)


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of shard `a`, with a row, which is registered, and `b`, which can be."""
    made = world.client(BLOBS)
    made.create("b", schema_of())
    made.create("a", schema_of())
    made.writer("a").append_now(table((1, "x")))
    made.transactions().register("a")
    return made


def view(client: ShardClient) -> WriteHandle:
    return replace(client.writer("a", "view"), redirect=client.redirect("a"))


def readable(client: ShardClient) -> int:
    """The shard's upper as its readers see it."""
    [state] = client.readable("a")
    assert state.upper.time is not None
    return state.upper.time


def contents(client: ShardClient) -> dict[object, int]:
    with client.reader("a") as reader:
        return dict(rows(reader.snapshot()))


def test_an_interval_without_rows_moves_the_upper_that_readers_see(
    world: World, client: ShardClient
) -> None:
    """Again and again, as the view's inputs move on, and each once."""
    for _ in range(3):
        world.clock.advance(100)
        lower = readable(client)
        upper = Frontier(lower + 50)
        done = view(client).compare_and_append(None, Frontier(lower), upper, sequence=lower)
        assert done == Appended(lower, upper)
        assert readable(client) == upper.time
        again = view(client).compare_and_append(None, Frontier(lower), upper, sequence=lower)
        assert isinstance(again, AlreadyCommitted)
    assert contents(client) == {(1, "x"): 1}


def test_what_transactions_have_passed_is_empty_already(world: World, client: ShardClient) -> None:
    """The upper moves with every transaction of other shards: the interval is behind it then."""
    lower = readable(client)
    world.clock.advance(1000)
    with client.transaction() as t:
        t.append("b", table((9, "z")))
    done = view(client).compare_and_append(None, Frontier(lower), Frontier(lower + 10))
    assert done == Appended(lower, Frontier(lower + 10))
    half = Frontier(lower + 10)
    upper = Frontier(readable(client) + 10)
    assert view(client).compare_and_append(None, half, upper) == Appended(lower + 10, upper)
    assert readable(client) == upper.time


def test_rows_that_came_first_are_a_mismatch(world: World, client: ShardClient) -> None:
    """An interval that begins before them is not empty; nor is there a gap before one."""
    lower = readable(client)
    world.clock.advance(1000)
    with client.transaction() as t:
        t.append("a", table((2, "y")))
    upper = Frontier(readable(client))
    late = view(client).compare_and_append(None, Frontier(lower), Frontier(lower + 10))
    assert late == UpperMismatch(Frontier(lower), upper)
    assert upper.time is not None
    gap = Frontier(upper.time + 1)
    early = view(client).compare_and_append(None, gap, Frontier(upper.time + 2))
    assert early == UpperMismatch(gap, upper)


def act_meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen between a commit's look at the ledger and its record, once."""
    append, left = Committer._append, [act]

    def patched(*arguments: object) -> object:
        if left:
            left.pop()()
        return append(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "_append", patched)


def test_a_transaction_may_pass_the_interval_meanwhile(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the first try is decided then, and so is that the interval is empty."""
    lower = readable(client)
    world.clock.advance(1000)
    other = world.client(BLOBS).transactions()
    act_meanwhile(monkeypatch, other.advance)
    done = view(client).compare_and_append(None, Frontier(lower), Frontier(lower + 10))
    assert done == Appended(lower, Frontier(lower + 10))


def test_an_interval_of_a_shard_that_is_forgotten_meanwhile_is_not_appended(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upper of the transactions says nothing of it any more; the next try is a direct one."""
    lower = readable(client)
    other = world.client(BLOBS).transactions()
    act_meanwhile(monkeypatch, lambda: other.forget("a"))
    with pytest.raises(Determinate, match="REGISTRATION_CHANGED"):
        view(client).compare_and_append(None, Frontier(lower), Frontier(lower + 10))
    upper = readable(client)
    done = view(client).compare_and_append(None, Frontier(upper), Frontier(upper + 10))
    assert done == Appended(upper, Frontier(upper + 10))


def test_an_interval_that_no_transaction_can_end_is_refused(client: ShardClient) -> None:
    """An end, a time far ahead, and rows: the error says what to do, and no part is left."""
    lower = readable(client)
    handle = view(client)
    for updates, upper in (
        (None, EMPTY),
        (None, Frontier(lower + 3_600_000)),
        (table((3, "z")), Frontier(lower + 10)),
    ):
        with pytest.raises(InvalidUsage, match=r"INTERVAL_IN_TRANSACTION.*forget\('a'\)"):
            handle.compare_and_append(updates, Frontier(lower), upper)
    # Rows that were given the time of their interval have brought none that could be left out.
    with pytest.raises(InvalidUsage, match=r"INTERVAL_IN_TRANSACTION.*forget\('a'\)"):
        handle.append(table((3, "z")), Frontier(lower), Frontier(lower + 10))
    assert readable(client) == lower
    assert dangling(client.machine("a")) == []
