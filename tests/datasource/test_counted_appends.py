"""Appends without a number, by several handles of one writer: each is made, and made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.errors import Indeterminate
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.shard.machine import Machine
from shardline.datasource.write import WriteHandle
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0)


@pytest.fixture(params=["direct", "registered"])
def client(world: World, request: pytest.FixtureRequest) -> ShardClient:
    """A client of an empty shard, which is written directly or through transactions."""
    made = world.client(BLOBS)
    made.create(SHARD, schema_of())
    if request.param == "registered":
        made.transactions().register(SHARD)
    return made


def contents(client: ShardClient) -> Counter[tuple[object, ...]]:
    with client.reader(SHARD) as reader:
        return rows(reader.snapshot())


def opened(world: World) -> WriteHandle:
    """A handle of the writer `etl` in a process of its own."""
    client = world.client(BLOBS)
    return replace(client.writer(SHARD, "etl"), redirect=client.redirect(SHARD))


def test_two_handles_of_a_writer_append_both(world: World, client: ShardClient) -> None:
    """Both were opened at the same number; the second one has not appended what the first has."""
    one, other = (opened(world) for _ in range(2))
    for number in range(3):
        assert isinstance(one.append_now(table((number, "one"))), Appended)
    assert isinstance(other.append_now(table((0, "other"))), Appended)
    assert isinstance(one.append_now(table((3, "one"))), Appended)
    expected = Counter([(0, "one"), (1, "one"), (2, "one"), (3, "one"), (0, "other")])
    assert contents(client) == expected
    assert dangling(client.machine(SHARD)) == []


def test_threads_with_handles_of_one_writer_lose_nothing(world: World, client: ShardClient) -> None:
    """Each handle finds its numbers taken by the others, again and again."""

    def work(thread: int) -> None:
        handle = opened(world)
        for number in range(5):
            assert isinstance(handle.append_now(table((thread, str(number)))), Appended)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert contents(client) == Counter((t, str(n)) for t in range(4) for n in range(5))


def test_a_number_of_the_callers_own_is_still_the_same_append(
    world: World, client: ShardClient
) -> None:
    """Only who leaves the number out means a new append."""
    one, other = (opened(world) for _ in range(2))
    one.append_now(table((1, "a")), sequence=1)
    assert isinstance(other.append_now(table((1, "a")), sequence=1), AlreadyCommitted)
    assert contents(client) == Counter([(1, "a")])


@pytest.mark.parametrize("client", ["direct"], indirect=True)
def test_an_interval_is_there_only_if_it_was_appended(world: World, client: ShardClient) -> None:
    """A taken number says nothing of the interval, which the upper decides."""
    one, other = (opened(world) for _ in range(2))
    one.append(table((1, "a")), Frontier(0), Frontier(10))
    done = other.append(table((2, "b")), Frontier(10), Frontier(20))
    assert done == Appended(10, Frontier(20))
    third = opened(world)
    other.append(None, Frontier(20), Frontier(30))
    assert third.compare_and_append(table((3, "c")), Frontier(20), Frontier(40)) == UpperMismatch(
        Frontier(20), Frontier(30)
    )
    assert contents(client) == Counter([(1, "a"), (2, "b")])


def answer_is_lost(patch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Let the next record be committed, `then` something else, and its answer be lost."""
    left = [True]
    apply: Callable[..., Any] = Machine.apply

    def patched(machine: Machine, command: Any) -> Any:
        result = apply(machine, command)
        if left and isinstance(result, Appended):
            left.clear()
            then()
            raise Indeterminate("the answer is lost", hint="try again")
        return result

    patch.setattr(Machine, "apply", patched)


@pytest.mark.parametrize("passed", [False, True])
def test_an_append_whose_answer_is_lost_is_made_once(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch, *, passed: bool
) -> None:
    """If others have passed its number meanwhile, nobody knows: it takes no other number."""
    one, other = (opened(world) for _ in range(2))

    def others() -> None:
        if passed:
            other.append_now(table((2, "other")))

    answer_is_lost(monkeypatch, others)
    if passed:
        with pytest.raises(Indeterminate):
            one.append_now(table((1, "one")))
    else:
        one.append_now(table((1, "one")))
    assert contents(client) == Counter([(1, "one")] + [(2, "other")] * passed)
    assert dangling(client.machine(SHARD)) == []


@pytest.mark.parametrize("form", ["now", "no interval", "interval"])
def test_an_append_without_rows_whose_answer_is_lost_is_recorded_once(
    world: World, client: ShardClient, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As one with rows: its attempt says that it is the same, not its number."""
    one = opened(world)
    one.append_now(table((1, "a")))
    # Otherwise the transaction has rows, which take back that one.
    client.transactions().tidy()
    shown = client.readable(SHARD)[0].upper
    assert shown.time is not None
    lower = shown if form == "interval" else one.upper()
    upper = Frontier(shown.time + 10) if form == "interval" else lower
    answer_is_lost(monkeypatch, lambda: None)
    if form == "now":
        one.append_now(None)
    else:
        done = one.compare_and_append(None, lower, upper)
        assert not isinstance(done, UpperMismatch)
    state = client.state(SHARD)
    deciding = client.state(state.registered.txns) if state.registered else state
    [number] = [entry.last for name, entry in deciding.writers.items() if name.endswith("etl")]
    assert number == 2
    if form != "now":
        assert client.readable(SHARD)[0].upper == max(shown, upper)
    assert contents(client) == Counter([(1, "a")])
