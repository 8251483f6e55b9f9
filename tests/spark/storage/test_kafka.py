"""A source of Kafka: where it begins, what deletes, and which of several messages counts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage import reading
from support.spark.ingestions import Runtime, Source, contents, running
from support.spark.topics import TOPICS, Topics, register_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def runtime(
    spark: SparkSession, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runtime:
    """Sources of `kafka` read what stands in for it."""
    register_topics(spark)
    monkeypatch.setattr(reading, "spark_format", lambda _: TOPICS)
    return Runtime(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path / "brokers")


def source_of(topics: Topics, subscribe: str = "t", **chosen: Any) -> SourceDescription:
    options = {"kafka.bootstrap.servers": str(topics.folder), "subscribe": subscribe}
    options |= chosen.pop("options", {})
    return SourceDescription(name="in", format="kafka", options=options, **chosen)


def upserts(topics: Topics, subscribe: str = "t", **options: str) -> SourceDescription:
    return source_of(topics, subscribe, envelope="upsert", key=("key",), options=options)


def values(source: Source) -> Counter[tuple[str | None, str | None]]:
    """Keys and values in the source's shard."""
    found: Counter[tuple[str | None, str | None]] = Counter()
    for (key, value, *_), count in contents(source.runtime.client, "in").items():
        found[_text(key), _text(value)] += count
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def wait_for(source: Source, *rows: tuple[str | None, str | None]) -> None:
    wanted = Counter(rows)
    source.wait_for(f"{wanted}", lambda: values(source) == wanted)


def test_the_snapshot_is_the_whole_topic_without_what_was_aborted(
    runtime: Runtime, topics: Topics
) -> None:
    """What is there when the source is created is its contents, and only what was committed."""
    topics.send("t", 0, 1, "a", "1")
    topics.send("t", 0, 2, "a", "never", aborted=True)
    topics.send("t", 1, 3, "b", "2")
    with running(runtime, source_of(topics)) as source:
        wait_for(source, ("a", "1"), ("b", "2"))
        topics.send("t", 0, 4, "c", "3")
        wait_for(source, ("a", "1"), ("b", "2"), ("c", "3"))


def test_a_source_may_begin_at_the_end(runtime: Runtime, topics: Topics) -> None:
    """If it says so: the topic is then an empty snapshot."""
    topics.send("t", 0, 1, "a", "1")
    with running(runtime, source_of(topics, options={"startingOffsets": "latest"})) as source:
        source.wait_for("the snapshot", lambda: bool(source.bindings()))
        topics.send("t", 0, 2, "b", "2")
        wait_for(source, ("b", "2"))


@pytest.mark.parametrize("options", [{}, {"orderingColumn": "timestamp"}])
def test_a_message_without_a_value_deletes_its_key(
    runtime: Runtime, topics: Topics, options: dict[str, str]
) -> None:
    """A tombstone, in the snapshot and later; with an ordering column as well as without one."""
    for key, value in (("a", "1"), ("b", "2"), ("a", None), ("c", None), ("d", "4")):
        topics.send("t", 0, 5, key, value)
    with running(runtime, upserts(topics, **options)) as source:
        wait_for(source, ("b", "2"), ("d", "4"))
        topics.send("t", 0, 5, "b", None)
        topics.send("t", 0, 5, "d", None)
        topics.send("t", 0, 5, "d", "")
        wait_for(source, ("d", ""))


def test_the_newest_message_of_a_key_counts(runtime: Runtime, topics: Topics) -> None:
    """Within a partition the offset says which, whatever a producer's clock; else the time."""
    for n in range(20):
        topics.send("t", 0, n, f"filler {n}", "x")
    topics.send("t", 0, 1000, "moved", "old")
    topics.send("t", 0, 1000, "gone", "old")
    topics.send("t", 0, 5000, "back", "first")
    topics.send("t", 0, 3000, "back", "second")
    topics.send("t", 7, 2000, "moved", "new")
    topics.send("t", 7, 2000, "gone", None)
    topics.send("t", 7, 4000, "back", "elsewhere")
    topics.send("u", 0, 6000, "moved", "in the other topic")
    fillers = [(f"filler {n}", "x") for n in range(20)]
    moved = ("moved", "in the other topic")
    with running(runtime, upserts(topics, "t,u")) as source:
        wait_for(source, *fillers, moved, ("back", "elsewhere"))
        topics.send("t", 7, 1, "back", "later in its partition")
        topics.send("t", 0, 2, "gone", "later in a partition")
        wait_for(
            source,
            *fillers,
            moved,
            ("back", "later in its partition"),
            ("gone", "later in a partition"),
        )


def test_which_message_counts_is_that_of_a_model(runtime: Runtime, topics: Topics) -> None:
    """Random messages of few keys in some partitions; ties between partitions have no winner."""
    chance = random.Random(5)
    last: dict[tuple[str, str, int], tuple[int, str | None]] = {}
    for n in range(300):
        topic, partition, key = chance.choice("tu"), chance.randrange(3), chance.choice("abcdefgh")
        at_ms, value = 1000 * chance.randrange(1000) + n, chance.choice([None, f"{n}", f"{n}"])
        topics.send(topic, partition, at_ms, key, value)
        last[key, topic, partition] = (at_ms, value)
    newest: dict[str, tuple[int, str | None]] = {}
    for (key, *_), message in last.items():
        newest[key] = max(newest.get(key, (-1, None)), message)
    wanted = [(key, value) for key, (_, value) in newest.items() if value is not None]
    with running(runtime, upserts(topics, "t,u")) as source:
        wait_for(source, *wanted)


def test_an_ordering_column_comes_first(runtime: Runtime, topics: Topics) -> None:
    """Then the order is the user's, across partitions and within one; the offset decides ties."""
    topics.send("t", 0, 5000, "a", "late")
    topics.send("t", 0, 3000, "a", "early")
    topics.send("t", 1, 7, "b", "zzz")
    topics.send("t", 1, 7, "b", "a")
    with running(runtime, upserts(topics, orderingColumn="timestamp")) as source:
        wait_for(source, ("a", "late"), ("b", "a"))
