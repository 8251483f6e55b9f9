"""One query over a shard, micro-batch by micro-batch: replays, limits, ends, refusals."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts import stage
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.types.schema import ShardSchema
from support.fakes.engine import STEPS, Checkpoint, Killed, Query, consolidated, options_of
from support.models.shards import SETTINGS, World, schema_of, table, updates
from support.profiles import one_of
from support.spark.streams import BLOBS, churn, fill, lose_leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.settings import ShardSettings
    from shardline.datasource.shard_source.fetch_task import ShardPartition


# --- replay ---------------------------------------------------------------------------------------


def _nothing(_world: World) -> None:
    """No change between the crash and the restart."""


def _maintained(world: World) -> None:
    client = world.client(BLOBS)
    lose_leases(client)
    churn(client)


def _evolved(world: World) -> None:
    client = world.client(BLOBS)
    now = ShardSchema.from_arrow(schema_of().arrow)
    client.evolve("in", ShardSchema.from_arrow(now.arrow.append(pa.field("w", pa.int64()))))
    churn(client)


@pytest.mark.parametrize("between", [_nothing, _maintained, _evolved])
@pytest.mark.parametrize("step", one_of(2, STEPS))
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 40}])
def test_a_replay_equals_the_first_run(
    world: World, between: Callable[[World], None], step: str, limit: dict[str, object]
) -> None:
    """Killed at this step of every micro-batch in turn, the query still reads everything once."""
    client = world.client(BLOBS)
    contents = fill(client, batches=3)
    checkpoint, options = Checkpoint(), options_of(**limit, columns="id,v")
    killed: set[tuple[str, int]] = set()

    def kill(at: str, batch: int) -> bool:
        if at != step or (at, batch) in killed:
            return False
        killed.add((at, batch))
        return True

    for n in range(200):
        if n == 8:
            more = updates(*((i, "more", 100 + i, 1) for i in range(60)))
            client = world.client(BLOBS)
            if len(client.state("in").schemas) > 1:
                more = more.append_column("w", pa.nulls(60, pa.int64()))
            client.writer("in").compare_and_append(more, Frontier(30), Frontier(200))
            contents.update((i, "more") for i in range(60))
        try:
            if not Query(world.client(BLOBS), checkpoint, options, kill=kill).step() and n > 8:
                break
        except Killed:
            between(world)

    assert killed
    assert consolidated(checkpoint.rows()) == contents
    assert checkpoint.frontier() == 200


@pytest.mark.parametrize("added", [{"snapshot": "exclude"}, {"startingTimestamp": 0}])
@pytest.mark.parametrize("step", ["offset log", "commit log"])
@pytest.mark.parametrize("limit", [{}, {"maxFilesPerTrigger": 1}])
def test_a_start_option_that_is_added_later_leaves_nothing_out(
    world: World, limit: dict[str, object], step: str, added: dict[str, object]
) -> None:
    """The first micro-batch is planned with the snapshot: the option comes too late for it."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    for n in range(4):
        client.writer("in").compare_and_append(
            updates((n, "x", n, 1)), Frontier(n), Frontier(n + 1)
        )
    checkpoint = Checkpoint()

    with pytest.raises(Killed):
        Query(client, checkpoint, options_of(**limit), kill=lambda at, _: at == step).step()
    Query(world.client(BLOBS), checkpoint, options_of(**limit, **added)).drain()

    assert consolidated(checkpoint.rows()) == Counter((n, "x") for n in range(4))


@pytest.mark.parametrize("first", [{"snapshot": "exclude"}, {"startingTimestamp": 30}])
def test_a_start_option_that_is_taken_away_later_adds_nothing(
    world: World, first: dict[str, object]
) -> None:
    """A query that was planned to begin with changes has no snapshot after a restart, either."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()

    with pytest.raises(Killed):
        Query(client, checkpoint, options_of(**first), kill=lambda at, _: at == "plan").step()
    query = Query(world.client(BLOBS), checkpoint, options_of())
    query.step()

    assert checkpoint.sink == {0: []}


def test_the_first_range_of_an_older_checkpoint_follows_the_options(world: World) -> None:
    """Its offset does not say what it begins with: only the option, which is as it was, does."""
    client = world.client(BLOBS)
    contents = fill(client)
    without, with_snapshot = Checkpoint(), Checkpoint()
    for checkpoint, options in ((without, {"snapshot": "exclude"}), (with_snapshot, {})):
        with pytest.raises(Killed):
            Query(client, checkpoint, options_of(), kill=lambda at, _: at == "plan").step()
        older = json.loads(checkpoint.offsets[0])
        del older["begins"]
        checkpoint.offsets[0] = json.dumps(older)
        Query(world.client(BLOBS), checkpoint, options_of(**options)).drain()

    assert without.rows() == Counter()
    assert consolidated(with_snapshot.rows()) == contents


# --- limits and ends ------------------------------------------------------------------------------


def test_a_merged_backlog_is_still_cut_by_time(world: World) -> None:
    """A backlog that compaction merged into one batch does not come at once."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    checkpoint, options = Checkpoint(), options_of(maxRowsPerTrigger=50, hold="copy")
    writer = client.writer("in")
    writer.compare_and_append(updates((0, "first", 0, 1)), Frontier(0), Frontier(1))
    Query(world.client(BLOBS), checkpoint, options).drain()
    for n in range(1, 201):
        writer.compare_and_append(updates((n, "next", n, 1)), Frontier(n), Frontier(n + 1))
    client.compact("in", force=True)
    assert len([b for b in client.state("in").trace.batches if b.runs]) <= 2

    count = Query(world.client(BLOBS), checkpoint, options).drain()

    assert 4 <= count <= 8
    assert max(len(rows) for rows in checkpoint.sink.values()) <= 60
    assert checkpoint.rows() == Counter(
        [(0, "first", 0, 1), *((n, "next", n, 1) for n in range(1, 201))]
    )


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 7}, {"maxFilesPerTrigger": 1}])
def test_until_is_exact_at_row_level(world: World, limit: dict[str, object]) -> None:
    """A stream with an end gives the rows before it, out of a batch that has later ones too."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    rows = [(n, "x", n, 1) for n in range(100)]
    client.writer("in").compare_and_append(updates(*rows), Frontier(0), Frontier(100))
    checkpoint = Checkpoint()
    options = options_of(startingTimestamp=20, endingTimestamp=63, **limit)

    Query(client, checkpoint, options).drain()
    client.writer("in").compare_and_append(updates((1, "y", 100, 1)), Frontier(100), Frontier(200))
    Query(client, checkpoint, options).drain()

    assert checkpoint.rows() == Counter(row for row in rows if 20 <= row[2] < 63)
    assert checkpoint.frontier() == 63


def test_an_end_before_all_history_is_refused(world: World) -> None:
    """What was there before `endingTimestamp` cannot be told any more; no later contents come."""
    client = world.client(BLOBS)
    fill(client)
    client.hold("in", "other").downgrade(Frontier(50))

    told = r"HISTORY_GONE.* read before 50: its since is \[50\] .* end at 51 or later"
    with pytest.raises(InvalidUsage, match=told):
        Query(client, Checkpoint(), options_of(endingTimestamp=50)).step()
    Query(client, Checkpoint(), options_of(endingTimestamp=51)).step()


def test_changes_before_all_that_is_known_are_refused(world: World) -> None:
    """As by a stream: an empty answer would say that nothing has changed until then."""
    client = world.client(BLOBS)
    fill(client)
    client.hold("in", "other").downgrade(Frontier(50))

    def ask(**times: int) -> list[ShardPartition]:
        options = options_of(**times)
        return ShardBatchReader(options, RowShape.now(options, [schema_of()]))._planned(client)

    told = r"HISTORY_GONE.* read before 50: its since is \[50\] .* end at 51 or later"
    with pytest.raises(InvalidUsage, match=told):
        ask(endingTimestamp=50)
    assert ask(endingTimestamp=51) == []
    assert ask(endingTimestamp=60)


def test_changes_that_are_gone_are_told_by_the_times_to_ask_for(world: World) -> None:
    """At the since contents can be read, and changes only after it: the hint is no dead end."""
    client = world.client(BLOBS)
    fill(client)
    client.hold("in", "other").downgrade(Frontier(50))

    def ask(start: int) -> None:
        options = options_of(startingTimestamp=start)
        ShardBatchReader(options, RowShape.now(options, [schema_of()]))._planned(client)
        Query(client, Checkpoint(), options).step()

    told = r"changes of shard 'in' from 50 on .* its since is \[50\] .* start at 51 or later"
    with pytest.raises(InvalidUsage, match=told):
        ask(50)
    with pytest.raises(InvalidUsage, match=told):
        Query(client, Checkpoint(), options_of(startingTimestamp=50)).step()
    ask(51)


def test_changes_from_the_first_time_on(world: World) -> None:
    """`startingTimestamp=0` leaves nothing out."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    client.writer("in").compare_and_append(
        updates((1, "a", 0, 1), (1, "a", 1, -1)), Frontier(0), Frontier(2)
    )
    checkpoint = Checkpoint()

    Query(client, checkpoint, options_of(startingTimestamp=0)).drain()

    assert checkpoint.rows() == Counter([(1, "a", 0, 1), (1, "a", 1, -1)])


def test_available_now_fixes_its_target_once(world: World) -> None:
    """What comes after the start of the run is left to the next one, over several micro-batches."""
    client = world.client(BLOBS)
    fill(client, batches=4)
    checkpoint, options = Checkpoint(), options_of(maxRowsPerTrigger=20)
    query = Query(client, checkpoint, options, available_now=True)
    query.step()
    client.writer("in").append_now(table((1000, "later")))
    query.drain()
    middle = checkpoint.frontier()

    Query(world.client(BLOBS), checkpoint, options, available_now=True).drain()

    assert middle == 40
    assert (1000, "later") not in consolidated(
        Counter(row for row in checkpoint.rows() if row[-2] < 40)
    )
    assert consolidated(checkpoint.rows())[1000, "later"] == 1


def test_an_idle_query_makes_no_micro_batch(world: World) -> None:
    """A minute of looking: none without news, one per `progressInterval` if the upper moves."""
    client = world.client(BLOBS)
    fill(client)
    query = Query(client, Checkpoint(), options_of(progressInterval="10s"))
    query.drain()
    still, moving = [], []
    for _ in range(600):
        world.clock.advance(100)
        still.append(query.step())
    for n in range(600):
        world.clock.advance(100)
        client.writer("in").compare_and_append(None, Frontier(60 + n), Frontier(61 + n))
        moving.append(query.step())

    assert not any(still)
    assert sum(moving) == 6


def test_an_upper_that_has_leapt_is_followed_at_once(world: World) -> None:
    """The writer was away, and is back without news: nobody waits for `progressInterval`.

    A leap is of more than the interval, by the times of the shard.
    """
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    query = Query(client, checkpoint, options_of(progressInterval="10s"))
    query.drain()
    begun = checkpoint.frontier()

    def leap(ms: int) -> int:
        upper = client.state("in").upper.time
        assert upper is not None
        client.writer("in").compare_and_append(None, Frontier(upper), Frontier(upper + ms))
        return upper + ms

    leap(9_000)
    world.clock.advance(1_100)
    assert not query.step(), "an idle writer: once in an interval is enough"
    upper = leap(9_000)
    assert query.step()
    assert checkpoint.frontier() == upper != begun
    leap(20_000)
    assert not query.step(), "uppers that always leap do not make a micro-batch each"


# --- refusals -------------------------------------------------------------------------------------


def test_a_shard_that_went_back_is_told(world: World) -> None:
    """A checkpoint that has read further than the shard goes is not taken for an idle one."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    Query(client, checkpoint).drain()
    checkpoint.offsets.append(checkpoint.offsets[-1].replace('"frontier": 60', '"frontier": 90'))

    with pytest.raises(Determinate, match="SHARD_WENT_BACK"):
        Query(client, checkpoint).step()


def test_a_shard_that_went_back_behind_what_was_committed_is_told(world: World) -> None:
    """Nothing is left to plan again, and what comes next would be taken for what was read."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    query = Query(client, checkpoint)
    query.drain()
    assert not query.step(), "it rests at the upper"
    checkpoint.offsets[-1] = checkpoint.offsets[-1].replace('"frontier": 60', '"frontier": 90')

    with pytest.raises(Determinate, match="SHARD_WENT_BACK"):
        Query(client, checkpoint).step()


def test_a_shard_made_again_is_refused(world: World) -> None:
    """The same name is not the same shard."""
    client = world.client(BLOBS)
    fill(client)
    checkpoint = Checkpoint()
    Query(client, checkpoint, options_of(hold="copy")).drain()
    lose_leases(client)
    client.drop("in", despite_holders=["copy"])
    fill(client)

    refused = r"stream of 'in' .*hold 'copy'.*dropped and made again"
    with pytest.raises(InvalidUsage, match=refused):
        Query(world.client(BLOBS), checkpoint, options_of(hold="copy")).step()
    # Killed within its last micro-batch, it begins with that one's plan.
    checkpoint.commits -= 1
    with pytest.raises(InvalidUsage, match=refused):
        Query(world.client(BLOBS), checkpoint, options_of(hold="copy")).step()
    assert not client.state("in").critical
    assert not client.state("in").leased


def test_a_type_that_was_widened_asks_for_a_restart(world: World) -> None:
    """Spark keeps the schema that it was told: rows of another one are not forced into it."""
    client = world.client(BLOBS)
    narrow = pa.schema([pa.field("id", pa.int32())])
    client.create("in", ShardSchema.from_arrow(narrow))
    writer = client.writer("in")
    writer.compare_and_append(
        pa.table({"id": pa.array([1], pa.int32()), "_ts": [1]}), Frontier(0), Frontier(2)
    )
    checkpoint = Checkpoint()
    query = Query(client, checkpoint)
    query.drain()
    client.evolve("in", ShardSchema.from_arrow(pa.schema([pa.field("id", pa.int64())])))
    client.writer("in").compare_and_append(
        pa.table({"id": [2**40], "_ts": [2]}), Frontier(2), Frontier(3)
    )

    with pytest.raises(InvalidUsage, match="SCHEMA_CHANGED"):
        query.step()
    Query(world.client(BLOBS), checkpoint).drain()

    assert checkpoint.rows() == Counter([(1, 1, 1), (2**40, 2, 1)])


# --- other forms of a change ----------------------------------------------------------------------


def test_changes_in_deltas_words(world: World) -> None:
    """`changeFormat=cdf`: a row per copy, with the type, the time and the version of the change."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    client.writer("in").compare_and_append(
        updates((1, "a", 1000, 2), (1, "a", 2000, -1), (2, "b", 2**60, 1)),
        Frontier(0),
        Frontier(2**60 + 1),
    )
    checkpoint = Checkpoint()
    options = options_of(changeFormat="cdf", startingTimestamp=0)

    Query(client, checkpoint, options).drain()
    found = Counter(
        (*row[:3], row[3] and int(row[3].timestamp() * 1000), row[4])
        for row in checkpoint.rows().elements()
    )

    assert found == Counter(
        {
            (1, "a", "insert", 1000, 1000): 2,
            (1, "a", "delete", 2000, 2000): 1,
            (2, "b", "insert", None, 2**60): 1,
        }
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"changeFormat": "cdf"}, {"insert": [1, 3]}),
        ({"readChangeFeed": "unset", "appendOnly": "true"}, {None: [1, 3]}),
        ({"readChangeFeed": "unset", "snapshot": "include"}, {None: [1, 3]}),
    ],
)
@pytest.mark.parametrize("settings", [BLOBS, SETTINGS])
def test_updates_of_an_older_writer_that_change_nothing(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, object],
    expected: dict[str | None, list[int]],
    settings: ShardSettings,
) -> None:
    """No row, and no change, comes of them."""
    client = world.client(settings)
    client.create("in", schema_of())
    monkeypatch.setattr(stage, "_without_zeros", lambda updates: updates)
    old = updates((1, "a", 1, 1), (2, "b", 1, 0), (3, "c", 1, 1))
    client.writer("in").compare_and_append(old, Frontier(0), Frontier(2))
    checkpoint = Checkpoint()
    Query(client, checkpoint, options_of(**given)).drain()

    found: dict[str | None, list[int]] = {}
    for row in sorted(checkpoint.rows().elements()):
        found.setdefault(str(row[2]) if "changeFormat" in given else None, []).append(row[0])
    assert found == expected


def test_an_append_only_stream_fails_at_the_first_retraction(world: World) -> None:
    """Rows without times and diffs: additions only, and never a silent loss of a retraction."""
    client = world.client(BLOBS)
    client.create("in", schema_of())
    writer = client.writer("in")
    writer.compare_and_append(updates((1, "a", 1, 2)), Frontier(0), Frontier(2))
    checkpoint = Checkpoint()
    query = Query(client, checkpoint, options_of(readChangeFeed="unset", appendOnly="true"))
    query.drain()
    writer.compare_and_append(updates((1, "a", 2, -1)), Frontier(2), Frontier(3))

    with pytest.raises(InvalidUsage, match="RETRACTION_IN_APPEND_ONLY_STREAM"):
        query.step()

    assert checkpoint.rows() == Counter({(1, "a"): 2})
