"""A source of Kafka: where it begins, what deletes, and which of several messages counts."""

from __future__ import annotations

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
