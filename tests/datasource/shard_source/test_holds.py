"""A query survives by the history that it holds back; snapshots in pieces."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import partial

import pytest

from shardline.datasource.errors import Fenced, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.readers import expire_critical
from support.fakes.engine import Checkpoint, Query, consolidated, options_of
from support.models.shards import World, table, updates
from support.spark.streams import BLOBS, Row, churn, fill, lose_leases

# --- pieces of a snapshot ------------------------------------------------------------------------


def test_a_snapshot_is_read_in_pieces(world: World) -> None:
    """Under a limit the snapshot takes several micro-batches, at one frontier until the last."""
    client = world.client(BLOBS)
    contents = fill(client)
    checkpoint = Checkpoint()

    count = Query(client, checkpoint, options_of(maxFilesPerTrigger=2)).drain()
    frontiers = [json.loads(text)["frontier"] for text in checkpoint.offsets]

    assert count == len(frontiers) > 3
    assert frontiers == [59] * (count - 1) + [60]
    assert consolidated(checkpoint.rows()) == contents
    assert {row[-2] for row in checkpoint.rows()} == {59}


@pytest.mark.slow
def test_pieces_continue_after_any_restart(world: World) -> None:
    """Each piece by a new process, while maintenance replaces every part in between."""
    client = world.client(BLOBS)
    contents = fill(client, each=60)
    checkpoint, options = Checkpoint(), options_of(maxFilesPerTrigger=2)

    pieces = 0
    while not checkpoint.offsets or "snapshot" in checkpoint.offsets[-1]:
        fresh = world.client(BLOBS)
        assert Query(fresh, checkpoint, options).step()
        pieces += 1
        lose_leases(fresh)
        fresh.writer("in").append_now(table((1000, "later")))
        churn(fresh)

    assert pieces > 3
    assert consolidated(snapshot_of(checkpoint)) == contents


def snapshot_of(checkpoint: Checkpoint) -> Counter[Row]:
    """What the pieces of the snapshot wrote."""
    first = json.loads(checkpoint.offsets[0])["as_of"]
    return Counter(row for rows in checkpoint.sink.values() for row in rows if row[-2] <= first)


def test_a_pin_is_let_go_when_the_snapshot_is_read(world: World) -> None:
    """The pinned parts can be collected as soon as the last piece has been committed."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint, options = Checkpoint(), options_of(maxFilesPerTrigger=4, hold="copy")
    query = Query(client, checkpoint, options)

    assert query.step()
    assert client.state("in").critical["copy"].seqno is not None
    query.drain()
    client.writer("in").append_now(table((1000, "later")))
    query.drain()
    client.writer("in").append_now(table((1001, "later")))
    query.drain()

    assert client.state("in").critical["copy"].seqno is None


def test_a_snapshot_within_the_limits_needs_no_pin(world: World) -> None:
    """What fits into one micro-batch is read in one."""
    client = world.client(BLOBS)
    contents = fill(client)
    checkpoint = Checkpoint()

    count = Query(client, checkpoint, options_of(maxFilesPerTrigger=1000, hold="copy")).drain()

    assert count == 1
    assert json.loads(checkpoint.offsets[0])["v"] == 1
    assert client.state("in").critical["copy"].seqno is None
    assert consolidated(checkpoint.rows()) == contents


# --- holds ----------------------------------------------------------------------------------------


def test_a_long_stop_loses_nothing(world: World) -> None:
    """Stopped for longer than any lease, with maintenance hammering: each change arrives once."""
    client = world.client(BLOBS)
    contents = fill(client, batches=2)
    checkpoint = Checkpoint()
    Query(world.client(BLOBS), checkpoint).drain()
    for n in range(2, 12):
        at = 10 * n
        client.writer("in").compare_and_append(
            updates((n, "new", at, 1), (n - 1, "new", at + 1, -1 if n > 2 else 1)),
            Frontier(at),
            Frontier(at + 10),
        )
        world.clock.advance(BLOBS.lease_ms * 2)
        churn(world.client(BLOBS))
    contents.update([(11, "new"), (1, "new")])

    Query(world.client(BLOBS), checkpoint).drain()

    assert consolidated(checkpoint.rows()) == contents
    times = {row[-2] for row in checkpoint.rows()}
    assert {10 * n for n in range(2, 12)} <= times, "times have been merged under a hold"


def test_a_checkpoint_rolled_back_by_hand_reads_on(world: World) -> None:
    """With `holdBehind` the history behind the last micro-batches is still there."""
    client = world.client(BLOBS)
    contents = fill(client, batches=2)
    checkpoint, options = Checkpoint(), options_of(holdBehind="1000ms")
    for n in range(2, 8):
        Query(world.client(BLOBS), checkpoint, options).drain()
        change = updates((n, "new", 10 * n, 1))
        client.writer("in").compare_and_append(change, Frontier(10 * n), Frontier(10 * n + 10))
        contents[n, "new"] += 1
        churn(client)
    Query(world.client(BLOBS), checkpoint, options).drain()
    del checkpoint.offsets[3:]
    checkpoint.commits = 2
    checkpoint.sink = {n: rows for n, rows in checkpoint.sink.items() if n < 3}

    Query(world.client(BLOBS), checkpoint, options).drain()

    assert consolidated(checkpoint.rows()) == contents


def test_a_checkpoint_rolled_back_too_far_is_told(world: World) -> None:
    """History that nobody held is gone: an error says what can be read, and nothing is skipped."""
    client = world.client(BLOBS)
    fill(client, batches=2)
    checkpoint = Checkpoint()
    for n in range(2, 6):
        Query(world.client(BLOBS), checkpoint).drain()
        change = updates((n, "new", 10 * n, 1))
        client.writer("in").compare_and_append(change, Frontier(10 * n), Frontier(10 * n + 10))
    Query(world.client(BLOBS), checkpoint).drain()
    del checkpoint.offsets[2:]
    checkpoint.commits = 2

    with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
        Query(world.client(BLOBS), checkpoint).step()


def test_a_killed_run_leaves_no_lease_to_the_next(world: World) -> None:
    """However often a query is killed, it holds one lease: collection goes on."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    for n in range(5):
        client.writer("in").append_now(table((1000 + n, "new")))
        Query(world.client(BLOBS), checkpoint, options_of(hold="copy")).drain()
    (reader,) = client.state("in").leased

    assert reader.startswith("copy@")


def test_a_zombie_of_the_same_query_is_fenced(world: World) -> None:
    """Of two drivers on one checkpoint, the older one fails at its next commit."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    zombie = Query(world.client(BLOBS), checkpoint)
    zombie.drain()
    client.writer("in").append_now(table((1000, "new")))
    Query(
        world.client(BLOBS), dataclasses.replace(checkpoint, offsets=[*checkpoint.offsets])
    ).step()

    with pytest.raises(Fenced, match="started elsewhere"):
        zombie.step()


def test_an_expired_hold_says_what_can_be_read(world: World) -> None:
    """A hold that an admin expired, and history gone since: never a silent jump."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    Query(world.client(BLOBS), checkpoint, options_of(hold="copy")).drain()
    client.machine("in").apply(partial(expire_critical, reader="copy"))
    lose_leases(client)
    client.hold("in", "other").downgrade(Frontier(70))
    client.writer("in").compare_and_append(updates((1, "new", 80, 1)), Frontier(60), Frontier(90))
    client.hold("in", "other").downgrade(Frontier(85))

    with pytest.raises(LeaseExpired, match=r"HOLD_EXPIRED.*starts at \[85\]"):
        Query(world.client(BLOBS), checkpoint, options_of(hold="copy")).step()


def test_a_hold_stands_before_its_offset_is_published(world: World) -> None:
    """Whatever offset has been returned, the history that it needs is held already."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint, options = Checkpoint(), options_of(maxRowsPerTrigger=40, hold="copy")
    query = Query(client, checkpoint, options)
    while query.step():
        offset = json.loads(checkpoint.offsets[-1])
        held = client.state("in").critical["copy"].since
        start = json.loads(checkpoint.offsets[-2]) if len(checkpoint.offsets) > 1 else offset

        assert held is not None
        assert held <= max(start["frontier"] - 1, offset["as_of"])
