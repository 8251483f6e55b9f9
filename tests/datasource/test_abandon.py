"""Attempts that are given up: parts are deleted only if no commit has named them or ever will."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.maintenance.compact import compact
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.state import STAGE_LIFE_MS
from shardline.datasource.shard_sink.append import append_staged, give_attempt_up
from shardline.datasource.write import WriteHandle
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.parts.stage import Staged

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0)
LEASE_MS = BLOBS.writer_lease_ms
SOME = table((1, "a"), (2, "b"))


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client that keeps nothing inline, with an empty shard."""
    made = world.client(BLOBS)
    made.create(SHARD, schema_of())
    return made


def job(client: ShardClient) -> WriteHandle:
    """A handle of a batch write, which commits once, as number 0."""
    made = client.writer(SHARD)
    return replace(made, writer="job:t-job", redirect=client.redirect(SHARD))


def commit(client: ShardClient) -> Staged:
    """Commit an attempt of a batch write whose answer is lost."""
    handle = job(client)
    staged = handle.stager().stage([SOME])
    assert isinstance(handle.commit(staged, sequence=0, attempt="t-job"), Appended)
    return staged


def append_by_others(client: ShardClient) -> None:
    client.writer(SHARD).append_now(table((3, "c")))


# --- what was committed stays --------------------------------------------------------------------


def test_a_commit_that_a_clock_ahead_has_forgotten_is_not_given_up(
    world: World, client: ShardClient
) -> None:
    """Another process expires the entry at once; the shard's own parts say that it happened."""
    staged = commit(client)
    world.clock.advance(LEASE_MS + 1)
    append_by_others(world.client(BLOBS))
    world.clock.advance(-LEASE_MS)
    assert "job:t-job" not in client.state(SHARD).writers

    assert not job(world.client(BLOBS)).abandon(staged, sequence=0, attempt="t-job")


def test_a_commit_by_a_clock_behind_is_not_given_up(world: World, client: ShardClient) -> None:
    """Its entry counts as old from the start, and the next commit of anybody expires it."""
    handle = job(client)
    staged = handle.stager().stage([SOME])
    world.clock.advance(-2 * LEASE_MS)
    handle.commit(staged, sequence=0, attempt="t-job")
    world.clock.advance(2 * LEASE_MS)
    append_by_others(world.client(BLOBS))
    assert "job:t-job" not in client.state(SHARD).writers

    assert not job(world.client(BLOBS)).abandon(staged, sequence=0, attempt="t-job")


def test_parts_that_a_merge_has_replaced_are_not_given_up(
    world: World, client: ShardClient
) -> None:
    """Who reads an older state needs them still: they are the collector's to delete."""
    staged = commit(client)
    with client.reader(SHARD):
        world.clock.advance(LEASE_MS + 1)
        append_by_others(world.client(BLOBS))
        compact(client.machine(SHARD), force=True)
        world.clock.advance(-LEASE_MS)
        state = client.state(SHARD)
        kept = {part.key for batch in state.trace.batches for part in batch.parts}
        assert not kept & {part.key for run in staged.runs for part in run.parts}

        assert not job(world.client(BLOBS)).abandon(staged, sequence=0, attempt="t-job")


@pytest.mark.parametrize("merged", [False, True])
def test_a_commit_through_a_transaction_is_known_after_forgetting(
    world: World, client: ShardClient, *, merged: bool
) -> None:
    """The writer's entry comes into the data shard with the rows, as after a direct commit."""
    client.transactions().register(SHARD)
    staged = commit(client)
    client.transactions().forget(SHARD)
    if merged:
        append_by_others(client)
        compact(client.machine(SHARD), force=True)
    entry = client.state(SHARD).writers["job:t-job"]
    assert (entry.attempt, entry.lease_ms) == ("t-job", LEASE_MS)

    assert not job(world.client(BLOBS)).abandon(staged, sequence=0, attempt="t-job")
    world.clock.advance(LEASE_MS * 2)
    append_by_others(client)
    assert "job:t-job" not in client.state(SHARD).writers


def test_an_outcome_that_cannot_be_known_any_more_is_no_refusal(
    world: World, client: ShardClient
) -> None:
    """If somebody has committed since by a clock that forgets, the parts are left to the sweep."""
    handle = job(client)
    staged = handle.stager().stage([SOME])
    world.clock.advance(LEASE_MS // 2 + 1)
    assert handle.abandon(staged, sequence=0, attempt="t-job"), "nobody has committed since"
    append_by_others(client)
    later = replace(handle, writer="job:t-other")
    assert not later.abandon(staged, sequence=0, attempt="t-other")


def test_what_nobody_has_asked_to_commit_is_given_up_at_any_time(
    world: World, client: ShardClient
) -> None:
    """A job that fails after hours leaves nothing behind: no commit can have been forgotten."""
    handle = job(client)
    staged = handle.stager().stage([SOME])
    world.clock.advance(LEASE_MS * 3)
    append_by_others(client)
    assert handle.abandon(staged, sequence=0, attempt="t-job", was_asked=False)


# --- what was given up is never committed --------------------------------------------------------


def test_a_batch_write_is_given_up_as_long_as_its_parts_could_be_committed(
    world: World, client: ShardClient
) -> None:
    """A commit that was on its way for a day is refused, first by the mark, then by its age."""
    handle = job(client)
    staged = handle.stager().stage([SOME])
    assert handle.abandon(staged, sequence=0, attempt="t-job")
    for late_ms in (LEASE_MS + 1, STAGE_LIFE_MS - LEASE_MS - 1):
        world.clock.advance(late_ms)
        append_by_others(client)
        with pytest.raises(Determinate, match="ABANDONED"):
            job(world.client(BLOBS)).commit(staged, sequence=0, attempt="t-job")
    world.clock.advance(SWEEP_AGE_MS - STAGE_LIFE_MS + 1)
    append_by_others(client)
    assert "job:t-job" not in client.state(SHARD).writers
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        job(world.client(BLOBS)).commit(staged, sequence=0, attempt="t-job")
    assert Counter(rows(client.reader(SHARD).snapshot())) == Counter({(3, "c"): 3})


def test_a_given_up_attempt_never_lands(client: ShardClient) -> None:
    """After `abandon` said yes, its parts may be deleted; the late commit is refused."""
    writer = client.writer(SHARD, "query")
    staged = writer.stager().stage([SOME])
    assert writer.abandon(staged, sequence=5, attempt="t-old")
    assert writer.abandon(staged, sequence=5, attempt="t-old")
    with pytest.raises(Determinate, match="ABANDONED"):
        writer.commit(staged, sequence=5, attempt="t-old")
    assert isinstance(writer.commit(staged, sequence=5, attempt="t-new"), Appended)
    assert not writer.abandon(staged, sequence=5, attempt="t-new")
    assert not writer.abandon(staged, sequence=5, attempt="t-old")


def test_a_given_up_attempt_stays_given_up_when_an_earlier_number_commits(
    client: ShardClient,
) -> None:
    """Numbers may have gaps: an attempt at 5 is refused also after 4 has been committed."""
    writer = client.writer(SHARD, "query")
    staged = writer.stager().stage([SOME])
    assert writer.abandon(staged, sequence=5, attempt="t-old")
    writer.append_now(None, sequence=4)
    with pytest.raises(Determinate, match="ABANDONED"):
        writer.commit(staged, sequence=5, attempt="t-old")
    writer.append_now(None, sequence=5)
    assert client.state(SHARD).writers["query"].abandoned == {}


def test_what_a_writer_gave_up_is_bounded(client: ShardClient) -> None:
    """Beyond a number of attempts an abort is refused: its parts are left to the sweeper."""
    writer = client.writer(SHARD, "query")
    staged = writer.stager().stage([SOME])
    answers = [writer.abandon(staged, sequence=1, attempt=f"t{i}") for i in range(70)]
    assert answers == [True] * 64 + [False] * 6


# --- parts that are refused before anybody asks for their commit ----------------------------------


@pytest.mark.parametrize("timed", [True, False])
def test_parts_with_times_that_are_over_are_deleted(client: ShardClient, timed: bool) -> None:
    """Refused by the check before the append or by the append; an abort then deletes nothing."""
    append_by_others(client)
    mine = parts_of(client)
    handle = client.writer(SHARD, "w")
    late = SOME.append_column("_ts", pa.array([0, 1]))
    staged = handle.stager().stage([late])
    assert len(parts_of(client)) > len(mine)
    with pytest.raises(InvalidUsage, match="TIME_OUT_OF_RANGE"):
        append_staged(handle, staged, timed=timed, sequence=1, attempt="t1")
    assert parts_of(client) == mine
    give_attempt_up(handle, staged, sequence=1, attempt="t1")
    assert parts_of(client) == mine


def test_parts_with_times_that_are_committed_stay(client: ShardClient) -> None:
    """The check hands them over; a replay finds them there and deletes its own only."""
    handle = client.writer(SHARD, "w")
    late = SOME.append_column("_ts", pa.array([0, 1]))
    for attempt in ("t1", "t2"):
        staged = handle.stager().stage([late])
        append_staged(handle, staged, timed=True, sequence=1, attempt=attempt)
    (batch,) = client.state(SHARD).trace.batches
    assert parts_of(client) == {part.key for part in batch.parts}


def parts_of(client: ShardClient) -> set[str]:
    """Keys of all parts that there are."""
    return {entry.key for entry in client.location.blob.list(f"{SHARD}/part/")}
