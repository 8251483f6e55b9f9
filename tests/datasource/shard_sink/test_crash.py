"""The sink's protocol, broken at each of its store operations: every micro-batch lands once.

Spark's part is played by hand, step by step: make a writer, stage in two tasks, commit; after a
failed commit abort with the same messages; after a crash do all of it again as another attempt.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest

from shardline.datasource.errors import ShardError
from support.fakes.sink import SHARD, engine
from support.models.shards import TINY, Crash, Mortal, World, dangling, rows, table
from support.profiles import one_of

if TYPE_CHECKING:
    from support.fakes.sink import Engine
    from support.models.shards import Effect

Rows = list[tuple[int | None, str | None]]

ROWS = table((0, "")).schema
EVENTS = pa.schema([pa.field("before", pa.struct(ROWS)), pa.field("after", pa.struct(ROWS))])

FIRST: list[Rows] = [[(n, "first") for n in range(20)], [(n, "first") for n in range(20, 25)]]
SECOND: list[Rows] = [[(n, "second") for n in range(15, 30)], [(3, "first"), (4, None)]]


class Way(NamedTuple):
    """One way to write: options, output mode, the frame's columns, and what is there in the end."""

    options: dict[str, str]
    overwrite: bool
    kind: pa.Schema
    expected: Counter[tuple[int | None, str | None]]

    def task(self, some: Rows) -> pa.Table:
        if self.kind == ROWS:
            return table(*some)
        events = [{"before": None, "after": {"id": n, "v": v}} for n, v in some]
        return pa.Table.from_pylist(events, self.kind)


def chained(*parts: Rows) -> Counter[tuple[int | None, str | None]]:
    return Counter(itertools.chain(*parts))


UPSERTED: Counter[tuple[int | None, str | None]] = Counter(
    [(n, "first") for n in range(15) if n != 4] + [(n, "second") for n in range(15, 30)]
)
WAYS = {
    "append": Way({}, False, ROWS, chained(*FIRST, *SECOND)),
    "complete": Way({}, True, ROWS, chained(*SECOND)),
    "upsert": Way({"envelope": "upsert", "key": "id"}, False, ROWS, UPSERTED),
    "debezium": Way(
        {"envelope": "debezium", "key": "id"},
        False,
        EVENTS,
        UPSERTED + Counter([(4, None)]),
    ),
}


MICRO_BATCHES: dict[str, dict[int, list[pa.Table]]] = {
    name: {
        number: [way.task(some) for some in tasks] for number, tasks in ((0, FIRST), (1, SECOND))
    }
    for name, way in WAYS.items()
}
"""The tables for the tasks of each micro-batch, made once for the many attempts at it."""


def run(engine: Engine, name: str, number: int) -> None:
    engine.micro_batch(number, *MICRO_BATCHES[name][number], overwrite=WAYS[name].overwrite)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "effect", "lasts"),
    one_of(7, itertools.product(WAYS, ["none", "done", "late"], [None, 1, 3])),
)
def test_a_micro_batch_broken_anywhere_lands_once(
    effect: Effect, lasts: int | None, name: str
) -> None:
    """Whatever operation fails, and however, the replay leaves the contents as if nothing had."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        run(spark, name, 0)
        break_everywhere(spark.world, name, effect, lasts)


def break_everywhere(begun: World, name: str, effect: Effect, lasts: int | None) -> None:
    """Break the second micro-batch at each of its operations in turn."""
    way = WAYS[name]
    for at in itertools.count():
        world = begun.copy()
        with engine(way.kind, way.options, world) as spark:
            store = Mortal(world.objects(), at, effect, lasts=lasts)
            attempt_broken(spark, store, name)
            store.deliver()
            for _ in range(2):
                spark.process()
                run(spark, name, 1)

            client = world.client(TINY)
            assert dangling(client.machine(SHARD)) == [], store.failed
            with client.reader(SHARD) as reader:
                assert rows(reader.snapshot()) == way.expected, store.failed
        if not store.failed:
            return
        assert at < 300, store.failed


def attempt_broken(spark: Engine, store: Mortal, name: str) -> None:
    try:
        spark.process(store)
        run(spark, name, 1)
    except (Crash, ShardError):
        assert store.failed, "refused without a fault"


def test_an_aborted_batch_write_deletes_only_what_was_not_committed() -> None:
    """Its commit is forgotten already, by a clock ahead: the parts that are read must stay."""
    with engine(ROWS) as spark:
        spark.save(table(*FIRST[0]))
        writer = spark.batch_writer()
        messages = spark.stage(writer, table(*FIRST[1]), table(*SECOND[1]))
        writer.commit(messages)
        spark.world.clock.advance(TINY.writer_lease_ms + 1)
        spark.save(table((9, "by others")))
        spark.world.clock.advance(-TINY.writer_lease_ms)
        writer.abort(messages)
        assert spark.blobs() == spark.parts()

        failed = spark.batch_writer()
        messages = [*spark.stage(failed, table(*SECOND[0])), None]
        assert spark.blobs() > spark.parts()
        spark.world.clock.advance(3 * TINY.writer_lease_ms)
        spark.save(table((10, "by others")))
        failed.abort(messages)
        assert spark.blobs() == spark.parts()


@pytest.mark.parametrize("name", WAYS)
def test_a_replay_reads_and_leaves_nothing(name: str) -> None:
    """What has been committed is known before any work is done; the replay's parts are deleted."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        run(spark, name, 0)
        run(spark, name, 1)
        before = spark.client.state(SHARD)
        tasks = MICRO_BATCHES[name][1]
        messages = spark.stage(spark.writer(overwrite=way.overwrite), *tasks)
        spark.process()
        spark.writer(overwrite=way.overwrite).commit(messages, 1)

        assert spark.client.state(SHARD) == before
        assert spark.blobs() == spark.parts()


@pytest.mark.parametrize("name", WAYS)
def test_two_drivers_interleaved(name: str) -> None:
    """Two drivers of one query stage the same micro-batch; whoever commits second adds nothing."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        run(spark, name, 0)
        writers = [spark.writer(overwrite=way.overwrite) for _ in range(2)]
        tasks = MICRO_BATCHES[name][1]
        messages = [spark.stage(writer, *tasks) for writer in writers]
        for writer, staged in zip(writers, messages, strict=True):
            writer.commit(staged, 1)

        with spark.client.reader(SHARD) as reader:
            assert rows(reader.snapshot()) == way.expected
        assert spark.blobs() == spark.parts()


@pytest.mark.parametrize("name", WAYS)
def test_a_task_that_ran_twice_counts_once(name: str) -> None:
    """Of several attempts of a task, retried or speculative, only what its message says is used."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        run(spark, name, 0)
        writer = spark.writer(overwrite=way.overwrite)
        tasks = MICRO_BATCHES[name][1]
        spark.stage(writer, *tasks)
        writer.commit(spark.stage(writer, *tasks), 1)

        with spark.client.reader(SHARD) as reader:
            assert rows(reader.snapshot()) == way.expected


@pytest.mark.parametrize("name", WAYS)
def test_an_aborted_attempt_can_never_be_committed(name: str) -> None:
    """A commit that wakes up after its abort is refused: its parts are gone."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        writer = spark.writer(overwrite=way.overwrite)
        messages = spark.stage(writer, *MICRO_BATCHES[name][0])
        spark.writer(overwrite=way.overwrite).abort([messages[0], None], 0)

        with pytest.raises(ShardError, match=r"ABANDONED|MISSING_BLOB"):
            writer.commit(messages, 0)
        assert dangling(spark.client.machine(SHARD)) == []
        assert not spark.client.state(SHARD).trace.batches


@pytest.mark.parametrize("name", WAYS)
def test_an_abort_after_a_commit_deletes_nothing(name: str) -> None:
    """Spark aborts when `commit` raised, even if it had taken effect: what is in use stays."""
    way = WAYS[name]
    with engine(way.kind, way.options) as spark:
        writer = spark.writer(overwrite=way.overwrite)
        messages = spark.stage(writer, *MICRO_BATCHES[name][0])
        writer.commit(messages, 0)
        writer.abort(messages, 0)

        assert dangling(spark.client.machine(SHARD)) == []
        with spark.client.reader(SHARD) as reader:
            assert rows(reader.snapshot()) == chained(*FIRST)
