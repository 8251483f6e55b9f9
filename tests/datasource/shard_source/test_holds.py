"""A query survives by the history that it holds back; snapshots in pieces."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import partial

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.readers import expire_critical
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.holds import StreamHolds
from shardline.datasource.shard_source.stream_inputs import StreamInputs
from support.fakes.engine import Checkpoint, Killed, Query, consolidated, options_of
from support.models.shards import World, schema_of, table, updates
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


def test_a_zombie_leaves_the_lease_of_the_newer_run_alone(world: World) -> None:
    """Its next plan takes no hold over, and would end a lease that others plan under."""
    client = world.client(BLOBS)
    fill(client, batches=1)
    machine = client.machine("in")
    old = StreamHolds(machine, "e1", "old", 1000)
    old.acquire("q", 5)
    old.protect(5)
    new = StreamHolds(machine, "e2", "new", 1000)
    new.take_over("q", 5)
    new.confirm()
    new.protect(5)
    try:
        for _ in range(2):
            with pytest.raises(Fenced, match="started elsewhere"):
                old.protect(5)
            assert list(client.state("in").leased) == [new.reader]
    finally:
        old.release()
        new.release()


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


@pytest.mark.parametrize("given", [{}, {"hold": "copy"}], ids=["own", "given"])
def test_a_query_that_cannot_begin_leaves_no_hold(
    world: World, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused at its second shard, before or after the first one's hold: each try would leave one.

    A hold of a name that was given may have been there before, and is its giver's.
    """
    client = world.client(BLOBS)
    fill(client)
    client.create("late", schema_of())
    client.writer("late").compare_and_append(None, Frontier(0), Frontier(200))
    keep_from(client, "late", 150)
    options = options_of(shards="in,late", startingTimestamp=50, snapshot="exclude", **given)
    for _ in range(2):
        query = Query(world.client(BLOBS), Checkpoint(), options)
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            query.step()
    assert not client.state("in").critical

    # The look has not seen that the second one's history is gone.
    real = StreamInputs.hold_from

    def with_old_states(self: StreamInputs, as_of: int, states: list[ShardState]) -> None:
        real(self, as_of, [read_before(one) for one in states])

    monkeypatch.setattr(StreamInputs, "hold_from", with_old_states)
    query = Query(world.client(BLOBS), Checkpoint(), options)
    with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
        query.step()
    assert set(client.state("in").critical) == set(given.values())


def test_a_query_that_has_not_begun_leaves_no_hold(world: World) -> None:
    """Its snapshot stands before its first part: nothing was returned that names the hold."""
    client = world.client(BLOBS)
    fill(client, batches=1)
    for batch in client.state("in").trace.batches:
        for part in batch.parts:
            world.objects().delete(part.key)
    query = Query(world.client(BLOBS), Checkpoint(), options_of(onMissingPart="freeze"))
    assert query.drain() == 0
    assert len(client.state("in").critical) == 1
    query.run.release()
    assert not client.state("in").critical


def read_before(state: ShardState) -> ShardState:
    """A state as it was before its history was gone."""
    trace = msgspec.structs.replace(state.trace, since=0)
    return msgspec.structs.replace(state, trace=trace)


def keep_from(client: ShardClient, name: str, time: int) -> None:
    """Let a shard's history before a time be gone."""
    client.set_retention(name, None)
    hold = client.hold(name, "test")
    hold.downgrade(Frontier(time))
    hold.expire()
    assert client.state(name).since == Frontier(time)


@pytest.mark.parametrize("until", [{}, {"endingTimestamp": 30}], ids=["open", "with an end"])
def test_the_next_run_lets_go_what_the_last_one_could_not(
    world: World, until: dict[str, object]
) -> None:
    """The last end of a run is never committed, and there may be no news for ever after.

    Also of a query that has read up to its end: the end may be a later one next time.
    """
    client = world.client(BLOBS)
    fill(client, batches=4)
    checkpoint = Checkpoint()
    options = options_of(maxFilesPerTrigger=1, hold="copy", **until)
    Query(world.client(BLOBS), checkpoint, options, available_now=True).drain()
    assert len(checkpoint.offsets) > 1, "the snapshot was read in pieces"
    frontier = checkpoint.frontier()
    assert frontier is not None
    assert client.state("in").critical["copy"].seqno is not None

    run = Query(world.client(BLOBS), checkpoint, options)
    for _ in range(2):
        assert run.drain() == 0
        found = client.state("in").critical["copy"]
        assert (found.seqno, found.since) == (None, frontier - 1)
    client.writer("in").append_now(table((1000, "later")))
    churn(client)
    assert run.drain() == (0 if until else 1)
    further = options_of(maxFilesPerTrigger=1, hold="copy")
    Query(world.client(BLOBS), checkpoint, further, available_now=True).drain()
    assert consolidated(checkpoint.rows())[1000, "later"] == 1
    # This time the history: of the last micro-batch, which nobody has committed.
    assert Query(world.client(BLOBS), checkpoint, further, available_now=True).drain() == 0
    later = checkpoint.frontier()
    assert later is not None
    assert client.state("in").critical["copy"].since == later - 1 > frontier - 1


def test_a_replayed_micro_batch_lets_nothing_go_before_it_is_done(world: World) -> None:
    """A run that is to repeat one needs what it was planned from, pins included."""
    client = world.client(BLOBS)
    contents = fill(client, batches=4)
    checkpoint, options = Checkpoint(), options_of(maxFilesPerTrigger=1, hold="copy")
    with pytest.raises(Killed):
        Query(
            world.client(BLOBS), checkpoint, options, kill=lambda step, n: (step, n) == ("plan", 1)
        ).drain()
    churn(client)
    Query(world.client(BLOBS), checkpoint, options).drain()
    assert consolidated(checkpoint.rows()) == contents
