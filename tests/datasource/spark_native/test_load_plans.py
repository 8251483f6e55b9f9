"""Loads of one query are planned at one time, and only where their parts can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.spark_native import blob_paths, load_plans
from shardline.datasource.spark_native.load_plans import NotNativeError
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_SPARK: Final[Any] = None


class Times(dict[str, int]):
    """A map as the JVM has it: no key is an error."""

    def __missing__(self, key: str) -> None:
        return None


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    return ShardClient.open(str(tmp_path / "here"), settings=ShardSettings(inline_part_bytes=0))


def put(client: ShardClient, name: str, upper: Frontier) -> None:
    table = pa.table({"id": pa.array([1], pa.int64())})
    client.create(name, ShardSchema.from_arrow(table.schema))
    writer = client.writer(name)
    writer.compare_and_append(table, writer.upper(), upper)


def plan(client: ShardClient, times: dict[str, int], **options: str) -> Sequence[ShardPartition]:
    parsed = parse_source({"location": client.location.url, **options})
    schemas = [ShardSchema.parse(_schema(client, name)) for name in parsed.inputs]
    shape = RowShape.now(parsed, schemas)
    return load_plans._partitions(client, parsed, shape, times)


def _schema(client: ShardClient, name: str) -> str:
    state = client.state(name)
    return state.schemas[state.schema_id]


def place(client: ShardClient, name: str) -> str:
    parsed = parse_source({"location": client.location.url, "shard": name})
    return load_plans._place(client, parsed, name)


def rows(partitions: Sequence[ShardPartition]) -> int:
    return sum(planned.part.rows for one in partitions for planned in one.parts)


def test_the_first_load_chooses_the_time_of_the_others(client: ShardClient) -> None:
    """Contents and changes alike, though the shard has grown in the meantime."""
    put(client, "a", Frontier(5))
    times = Times()
    assert rows(plan(client, times, shard="a")) == 1
    assert times == {place(client, "a"): 4}
    put(client, "a", Frontier(9))
    assert rows(plan(client, times, shard="a")) == 1
    assert rows(plan(client, times, shard="a", readChangeFeed="true")) == 1
    assert rows(plan(client, Times(), shard="a")) == 2
    assert times == {place(client, "a"): 4}


def test_changes_choose_the_time_of_contents(client: ShardClient) -> None:
    put(client, "a", Frontier(5))
    times = Times()
    assert rows(plan(client, times, shard="a", readChangeFeed="true")) == 1
    put(client, "a", Frontier(9))
    assert rows(plan(client, times, shard="a")) == 1
    assert times == {place(client, "a"): 4}


def test_times_that_are_given_are_kept_and_choose_for_nobody(client: ShardClient) -> None:
    put(client, "a", Frontier(5))
    put(client, "a", Frontier(9))
    times = Times()
    assert rows(plan(client, times, shard="a", timestampAsOf="4")) == 1
    feed = {"readChangeFeed": "true", "endingTimestamp": "5"}
    assert rows(plan(client, times, shard="a", **feed)) == 1
    assert not times
    times[place(client, "a")] = 4
    assert rows(plan(client, times, shard="a", timestampAsOf="8")) == 2


def test_several_shards_take_a_time_that_suits_them_all(client: ShardClient) -> None:
    """Else one of their own; and what another load has chosen stays."""
    put(client, "a", Frontier(5))
    put(client, "b", Frontier(3))
    times = Times()
    assert rows(plan(client, times, shard="a")) == 1
    assert rows(plan(client, times, shards="a,b")) == 1  # at 2: a's row is of 4
    assert times == {place(client, "a"): 4, place(client, "b"): 2}
    put(client, "b", Frontier(8))
    times = Times({place(client, "a"): 4})
    assert rows(plan(client, times, shards="a,b")) == 2
    assert times == {place(client, "a"): 4, place(client, "b"): 4}


def test_changes_of_finished_shards_have_no_time(client: ShardClient) -> None:
    put(client, "a", EMPTY)
    times = Times()
    assert rows(plan(client, times, shard="a", readChangeFeed="true")) == 1
    assert not times


def test_a_feed_without_updates_chooses_no_time(client: ShardClient) -> None:
    """Contents of the shard are refused then, and must not be read at a time before all times."""
    client.create("a", ShardSchema.from_arrow(pa.schema([("id", pa.int64())])))
    times = Times()
    assert not plan(client, times, shard="a", readChangeFeed="true")
    assert not times
    with pytest.raises(InvalidUsage, match="NOTHING_APPENDED"):
        plan(client, times, shard="a")


def test_parts_on_disk_are_looked_at(client: ShardClient) -> None:
    """Size and footer; and again once a file has changed."""
    put(client, "a", Frontier(5))
    partitions = plan(client, Times(), shard="a")
    root = client.location.url.replace("file://", "file:")
    load_plans._check_parts(NO_SPARK, root, partitions)
    file = Path(root.removeprefix("file:"), partitions[0].parts[0].part.key)
    data = file.read_bytes()
    for damaged in (data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], data[1:], None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(NotNativeError):
            load_plans._check_parts(NO_SPARK, root, partitions)
        if damaged is None:
            file.touch()
    file.write_bytes(data)
    load_plans._check_parts(NO_SPARK, root, partitions)


def test_a_store_is_asked_for_one_part_until_it_answers(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's credentials are its own: where it cannot read, the Python workers do."""
    put(client, "a", Frontier(5))
    put(client, "a", Frontier(9))
    partitions = plan(client, Times(), shard="a")
    asked: list[str] = []
    answer: list[int | None] = [None]

    def size(_spark: object, url: str) -> int | None:
        asked.append(url)
        return answer[0]

    monkeypatch.setattr(blob_paths, "file_size", size)
    monkeypatch.setattr(blob_paths, "_reached", set())
    with pytest.raises(NotNativeError, match="does not read the location"):
        load_plans._check_parts(NO_SPARK, "s3a://bucket", partitions)
    part = partitions[0].parts[0].part
    answer[0] = part.size_bytes
    for _ in range(2):
        load_plans._check_parts(NO_SPARK, "s3a://bucket", partitions)
    assert asked == [f"s3a://bucket/{part.key}"] * 2


def test_two_stores_may_have_buckets_of_one_name(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads one of them, and no time in the one is a time in the other."""
    put(client, "a", Frontier(5))
    partitions = plan(client, Times(), shard="a")
    [sizes] = [{part.part.size_bytes} for part in partitions[0].parts]
    monkeypatch.setattr(blob_paths, "file_size", lambda *_: sizes.pop() if sizes else None)
    monkeypatch.setattr(blob_paths, "_reached", set())
    load_plans._check_parts(NO_SPARK, "s3a://bucket", partitions)
    options = replace(partitions[0].options, storage={"s3.endpoint": "http://other"})
    elsewhere = [replace(one, options=options) for one in partitions]
    with pytest.raises(NotNativeError, match="does not read the location"):
        load_plans._check_parts(NO_SPARK, "s3a://bucket", elsewhere)
    places = {load_plans._place(client, one, "a") for one in (options, partitions[0].options)}
    assert len(places) == 2


def test_one_store_that_is_read_in_two_ways_is_one(client: ShardClient) -> None:
    """Two loads of a shard in one query show one time, whoever reads it and however."""
    put(client, "a", Frontier(5))
    [one, *_] = plan(client, Times(), shard="a")
    other = replace(one.options, storage={"s3.access-key-id": "me", "s3.pool-size": "4"})

    assert load_plans._place(client, one.options, "a") == load_plans._place(client, other, "a")
