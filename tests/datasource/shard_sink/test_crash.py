"""The sink's protocol, broken at each of its store operations: every micro-batch lands once.

Spark's part is played by hand, step by step: make a writer, stage in two tasks, commit; after a
failed commit abort with the same messages; after a crash do all of it again as another attempt.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from datasource.errors import ShardError
from datasource.shard_sink import sink
from support.shards import TINY, Crash, Mortal, World, dangling, rows, table

if TYPE_CHECKING:
    from datasource.client import ShardClient
    from support.shards import Effect

OPTIONS = {"location": "memory://unused", "shard": "out"}
SHARD = "out"


class FakeContext:
    """What a task sees of its query."""

    def getLocalProperty(self, key: str) -> str:  # noqa: N802 - Spark's name
        assert key == "sql.streaming.queryId"
        return "query-1"


class Engine:
    """Plays Spark: processes share nothing but pickled writers and messages."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._patch = monkeypatch
        monkeypatch.setattr(TaskContext, "get", FakeContext)

    def process(self, objects: Mortal | None = None) -> ShardClient:
        """A new process: whatever the sink opens from here on is this client."""
        client = self.world.client(TINY, objects)
        self._patch.setattr(sink, "open_client", lambda *_, **__: client)
        return client

    def writer(self, *, overwrite: bool) -> Any:
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        struct = StructType([StructField("id", LongType()), StructField("v", StringType())])
        return sink.stream_writer(OPTIONS, struct, overwrite=overwrite)

    def micro_batch(self, number: int, *tasks: list[tuple[int, str]], overwrite: bool) -> None:
        """One attempt at one micro-batch, as Spark runs it in one process of ours."""
        writer = self.writer(overwrite=overwrite)
        messages = [
            pickle.loads(pickle.dumps(writer)).write(iter(table(*rows_).to_batches()))  # noqa: S301
            for rows_ in tasks
        ]
        committer = self.writer(overwrite=overwrite)
        try:
            committer.commit(messages, number)
        except ShardError:
            self.writer(overwrite=overwrite).abort(messages, number)
            raise


FIRST = [[(n, "first") for n in range(20)], [(n, "first") for n in range(20, 25)]]
SECOND = [[(n, "second") for n in range(30)], [(3, "first"), (4, "first")]]


@pytest.mark.parametrize("lasts", [None, 1, 3], ids=["killed", "failed", "outage"])
@pytest.mark.parametrize("effect", ["none", "done", "late"])
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "complete"])
def test_a_micro_batch_broken_anywhere_lands_once(
    monkeypatch: pytest.MonkeyPatch, effect: Effect, lasts: int | None, overwrite: bool
) -> None:
    """Whatever operation fails, and however, the replay leaves the contents as if nothing had."""
    first = Counter(itertools.chain(*FIRST))
    second = Counter(itertools.chain(*SECOND))
    expected = second if overwrite else first + second
    for at in itertools.count():
        world = World()
        engine = Engine(world, monkeypatch)
        engine.process()
        engine.micro_batch(0, *FIRST, overwrite=overwrite)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        attempt_broken(engine, store, overwrite)
        store.deliver()
        engine.process()
        engine.micro_batch(1, *SECOND, overwrite=overwrite)
        engine.process()
        engine.micro_batch(1, *SECOND, overwrite=overwrite)

        client = world.client(TINY)
        assert dangling(client.machine(SHARD)) == [], store.failed
        with client.reader(SHARD) as reader:
            assert rows(reader.snapshot()) == expected, store.failed
        world.close()
        if not store.failed:
            return
        assert at < 300, store.failed


def attempt_broken(engine: Engine, store: Mortal, overwrite: bool) -> None:
    try:
        engine.process(store)
        engine.micro_batch(1, *SECOND, overwrite=overwrite)
    except (Crash, ShardError):
        assert store.failed, "refused without a fault"


def test_two_drivers_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers of one query stage the same micro-batch; whoever commits second adds nothing."""
    world = World()
    engine = Engine(world, monkeypatch)
    client = engine.process()
    writers = [engine.writer(overwrite=False) for _ in range(2)]
    messages = [
        [writer.write(iter(table(*part).to_batches())) for part in FIRST] for writer in writers
    ]
    for writer, staged in zip(writers, messages, strict=True):
        writer.commit(staged, 0)

    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == Counter(itertools.chain(*FIRST))
    kept = {
        part.key
        for batch in client.state(SHARD).trace.batches
        for part in batch.parts
        if part.inline is None
    }
    assert {entry.key for entry in world.objects().entries("out/part/")} == kept


def test_an_aborted_attempt_can_never_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that wakes up after its abort is refused: its parts are gone."""
    world = World()
    engine = Engine(world, monkeypatch)
    client = engine.process()
    writer = engine.writer(overwrite=False)
    messages = [writer.write(iter(table(*part).to_batches())) for part in FIRST]
    engine.writer(overwrite=False).abort([messages[0], None], 0)

    with pytest.raises(ShardError, match="ABANDONED"):
        writer.commit(messages, 0)
    assert dangling(client.machine(SHARD)) == []
    assert not client.state(SHARD).trace.batches


def test_an_abort_after_a_commit_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark aborts when `commit` raised, even if it had taken effect: what is in use stays."""
    world = World()
    engine = Engine(world, monkeypatch)
    client = engine.process()
    writer = engine.writer(overwrite=False)
    messages = [writer.write(iter(table(*part).to_batches())) for part in FIRST]
    writer.commit(messages, 0)
    writer.abort(messages, 0)

    assert dangling(client.machine(SHARD)) == []
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == Counter(itertools.chain(*FIRST))
