"""The loop that makes the merges that are due: some are impossible, or others make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import shardline.datasource.maintenance.compact
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    ShardError,
)
from shardline.datasource.maintainer import Maintainer, maintain
from shardline.datasource.maintenance.compact import make_due_merges, merge_batches
from shardline.datasource.parts.merge_parts import merge_work_bytes
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState
from support.models.merging import SHARD, contents, expected, filled, next_merge, sizes
from support.models.shards import SETTINGS, World, schema_of, table

BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_factor=4, compact_inline_bytes=0)


def of_sizes(world: World, *sizes: int) -> ShardClient:
    """A shard of batches of so many rows each."""
    client = world.client(BLOBS)
    client.create(SHARD, schema_of(), key=("id",))
    for size in sizes:
        client.writer(SHARD).append_now(table(*((n, "x") for n in range(size))))
    return client


def lose(world: World, client: ShardClient, index: int) -> bytes:
    """Delete the blob of a batch of one part; returns what it held."""
    [part] = client.state(SHARD).trace.batches[index].parts
    held = world.objects().get(part.key)
    assert held is not None
    world.objects().delete(part.key)
    return held


# --- merges that cannot be made ------------------------------------------------------------------


def test_a_lost_part_keeps_only_its_own_merge_from_being_made(world: World) -> None:
    """The most urgent one, each time: a small batch before a larger one."""
    client = of_sizes(world, 1, 1000, *[1] * 40)
    before = contents(client)
    [part] = client.state(SHARD).trace.batches[0].parts
    held = lose(world, client, 0)
    with pytest.raises(MissingBlob, match=part.key):
        client.compact(SHARD)
    assert sizes(client) == [1, 1000, 40]
    world.objects().put(part.key, held)
    client.compact(SHARD)
    assert next_merge(client.state(SHARD).trace, BLOBS.compact_factor) is None
    assert contents(world.client()) == before


@pytest.mark.parametrize("lost", [0, 17, 39])
def test_a_lost_part_among_many_of_its_size_keeps_few_from_being_merged(
    world: World, lost: int
) -> None:
    """Appends go on behind it, round after round, and do not pile up."""
    client = filled(world.client(BLOBS), 40)
    [part] = client.state(SHARD).trace.batches[lost].parts
    held = lose(world, client, lost)
    writer = client.writer(SHARD)
    for number in range(40, 80):
        with pytest.raises(MissingBlob, match=part.key):
            client.compact(SHARD)
        writer.append_now(table((number, "x"), (number, "y")))
    # Seven at most around the lost one, and a trace in shape: three in each of few tiers.
    assert len(sizes(client)) < 20
    world.objects().put(part.key, held)
    client.compact(SHARD)
    assert contents(world.client()) == expected(80)
    assert next_merge(client.state(SHARD).trace, BLOBS.compact_factor) is None


Merge = Callable[[ShardState, tuple[Batch, ...]], bool]


def merger(client: ShardClient, refuse: Callable[[tuple[Batch, ...]], object]) -> Merge:
    """Merges what `refuse` lets pass."""

    def merge(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        refuse(inputs)
        return merge_batches(client.machine(SHARD), state, inputs, may_inline=False)

    return merge


@pytest.mark.parametrize("code", ["LOSSY_VALUE", "DIFF_OVERFLOW", "RECORD_TOO_LARGE"])
def test_inputs_that_are_impossible_together_are_told_after_all_else(
    world: World, code: str
) -> None:
    """Neither batch is at fault alone, so no message names one; by force it is told at once."""
    error = InvalidUsage("both", code=code)
    client = filled(world.client(BLOBS), 32)
    first, second = (client.state(SHARD).trace.batches[at].desc.lower for at in (1, 2))
    tried: list[int] = []

    def refuse(inputs: tuple[Batch, ...]) -> None:
        tried.append(len(inputs))
        lowers = [batch.desc.lower for batch in inputs]
        if lowers[0] <= first and second in lowers:
            raise error

    machine = client.machine(SHARD)
    with pytest.raises(InvalidUsage) as raised:
        make_due_merges(machine, merger(client, refuse), force=True)
    assert (raised.value, tried) == (error, [32])
    with pytest.raises(InvalidUsage) as raised:
        make_due_merges(machine, merger(client, refuse), force=False)
    assert raised.value is error
    assert tried[1:5] == [32, 16, 8, 4], "each of them fails"
    # The other halves are merged, and then the one of 4 with the one of 8, which is larger.
    assert sizes(client) == [2, 2, 2, 2, 24, 32]
    assert contents(world.client()) == expected(32)


@pytest.mark.parametrize(
    "error",
    [
        Determinate("no answer"),
        Indeterminate("no answer"),
        InvalidUsage("no", code="ACCESS_DENIED"),
        ShardError("no executor", code="MERGE_JOB_FAILED"),
    ],
)
def test_a_store_that_does_not_answer_ends_it_at_once(world: World, error: ShardError) -> None:
    """The other merges would meet the same."""
    client = filled(world.client(BLOBS), 32)
    tried: list[int] = []

    def refuse(inputs: tuple[Batch, ...]) -> None:
        tried.append(len(inputs))
        raise error

    with pytest.raises(type(error)):
        make_due_merges(client.machine(SHARD), merger(client, refuse), force=False)
    assert tried == [32]


def test_an_impossible_merge_leaves_the_budget_to_the_others(world: World) -> None:
    """Or each round would spend it on the first one, and make no other."""
    client = of_sizes(world, 1, 1000, *[1] * 4)
    heavy = client.state(SHARD).trace.batches[:2]
    weight = merge_work_bytes(part for batch in heavy for part in batch.parts)
    lose(world, client, 0)
    with pytest.raises(MissingBlob):
        client.compact(SHARD, most_bytes=weight)
    assert sizes(client) == [1, 1000, 4]


# --- merges that others make ---------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_merges_that_are_lost_again_and_again_are_told(world: World, *, force: bool) -> None:
    """Whoever asked for them must not hear that nothing is due any more."""
    machine = filled(world.client(BLOBS), 8).machine(SHARD)
    tried: list[int] = []

    def lose_to_others(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        tried.append(len(inputs))
        assert state.trace.batches == inputs
        return False

    with pytest.raises(Determinate, match="MERGED_ELSEWHERE"):
        make_due_merges(machine, lose_to_others, force=force)
    assert tried == [8] * 8


def test_a_merge_in_between_is_a_new_chance(world: World) -> None:
    """Seven losses, one merge, seven losses, and what is left: nobody gives up."""
    client = filled(world.client(BLOBS), 16)
    turns = iter([*["lost"] * 7, "some", *["lost"] * 7, "all", "all"])

    def merge(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        turn = next(turns)
        mine = inputs[:4] if turn == "some" else inputs
        return turn != "lost" and merge_batches(machine, state, mine, may_inline=False)

    machine = client.machine(SHARD)
    assert make_due_merges(machine, merge, force=False) == 3
    assert next(turns, None) is None


def test_maintenance_leaves_such_a_shard_to_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no failure of the round; a store without an answer is."""
    client = filled(world.client(BLOBS), 8)
    monkeypatch.setattr(shardline.datasource.maintenance.compact, "merge_batches", never)
    assert maintain(client.machine(SHARD)).failed == ()
    assert caplog.records == []

    def no_answer(*_: object, **__: object) -> bool:
        raise Determinate("no answer")

    monkeypatch.setattr(shardline.datasource.maintenance.compact, "merge_batches", no_answer)
    assert maintain(client.machine(SHARD)).failed == ("compaction",)


def test_a_round_tells_the_merges_made_beside_an_impossible_one(world: World) -> None:
    """It has failed and done its work; a status shows both."""
    client = of_sizes(world, 1, 1000, *[1] * 40)
    lose(world, client, 0)
    before = len(sizes(client))
    done = Maintainer(client).round()[SHARD]
    assert (sizes(client), before) == ([1, 1000, 40], 42)
    assert (done.merges, done.failed) == (1, ("compaction",))


def test_a_round_tells_the_merges_made_before_others_made_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost merges are no failure, and no reason to forget the one that was not lost."""
    client = filled(world.client(BLOBS), 16)
    turns = iter([True, *[False] * 8])

    def merge(
        machine: Machine, state: ShardState, inputs: tuple[Batch, ...], **options: Any
    ) -> bool:
        return next(turns) and merge_batches(machine, state, inputs[:4], **options)

    monkeypatch.setattr(shardline.datasource.maintenance.compact, "merge_batches", merge)
    done = Maintainer(client).round()[SHARD]
    assert (done.merges, done.failed) == (1, ())
    assert next(turns, None) is None
    assert len(sizes(client)) == 13


def never(*_: object, **__: object) -> bool:
    return False
