"""Spark's error about a file gets the words of that part's fetch, and no other part is read."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.spark_native.part_errors import cause_of, remember_plan
from support.models.shards import schema_of, updates


@dataclass
class JavaMap:
    """A map of Java, as Py4J shows it."""

    entries: dict[str, str]

    def keySet(self) -> JavaMap:  # noqa: N802 - Java's name
        return self

    def toArray(self) -> list[str]:  # noqa: N802 - Java's name
        return list(self.entries)

    def get(self, name: str) -> str:
        return self.entries[name]


@dataclass
class FileError:
    """Spark's error about one file, as a throttled store raises it as well."""

    path: str
    cause: FileError | None = field(default=None)

    def getMessage(self) -> str:  # noqa: N802 - Java's name
        return f"Encountered error while reading file {self.path}."

    def getCondition(self) -> str:  # noqa: N802 - Java's name
        return "FAILED_READ_FILE.NO_HINT"

    def getMessageParameters(self) -> JavaMap:  # noqa: N802 - Java's name
        return JavaMap({"path": self.path})

    def getCause(self) -> FileError | None:  # noqa: N802 - Java's name
        return self.cause


class NotSent:
    """Spark's error about a task that was not sent, as the driver found another file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def getCondition(self) -> None:  # noqa: N802 - Java's name
        return None

    def getMessageParameters(self) -> JavaMap:  # noqa: N802 - Java's name
        return JavaMap({})

    def getCause(self) -> None:  # noqa: N802 - Java's name
        return None

    def getMessage(self) -> str:  # noqa: N802 - Java's name
        return f"… IllegalStateException: the file '{self.path}' is not that of the part: it has …"


class Reader:
    def is_alive(self) -> bool:
        return True


def plan(location: Path) -> list[Any]:
    """The partitions of shard `in`."""
    client = ShardClient.open(str(location))
    given = parse_source({"path": f"{location}/in", "timestampAsOf": "2", "timeZone": "UTC"})
    shape = RowShape.now(given, [current_schema(client.state("in"))])
    partitions = list(ShardBatchReader(given, shape).partitions())
    assert all(isinstance(one, ShardPartition) for one in partitions)
    return partitions


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_copied_directory_has_parts_of_the_same_names(tmp_path: Path, scheme: str) -> None:
    """Both are read, and the error is about that of the path, whichever was planned last."""
    settings = ShardSettings(inline_part_bytes=0)
    places = [tmp_path / "here", tmp_path / "with ä"]
    client = ShardClient.open(str(places[0]), settings=settings, create=True)
    client.create("in", schema_of())
    client.writer("in").compare_and_append(updates((1, "a", 1, 1)), Frontier(0), Frontier(3))
    shutil.copytree(places[0], places[1])
    for place in places:
        remember_plan(plan(place), [Reader()])
    [[part]] = [one.parts for one in plan(places[0])]
    for lost, whole in (places, places[::-1]):
        file, kept = lost / part.part.key, tmp_path / "kept"
        file.rename(kept)
        assert cause_of(FileError(f"{scheme}{quote(str(whole))}/{part.part.key}")) is None
        met = cause_of(FileError(f"{scheme}{quote(str(lost))}/{part.part.key}"))
        assert isinstance(met, MissingBlob)
        assert isinstance(cause_of(FileError(f"{scheme}{lost}/{part.part.key}")), MissingBlob)
        kept.rename(file)


@pytest.mark.parametrize("retracted", [True, False])
def test_only_the_part_that_spark_names_is_read(tmp_path: Path, retracted: bool) -> None:
    """Of a group, too: its merge may take minutes in the driver, and tell nothing of the error."""
    client = ShardClient.open(
        str(tmp_path), settings=ShardSettings(inline_part_bytes=0), create=True
    )
    client.create("in", schema_of())
    writer = client.writer("in")
    writer.compare_and_append(updates((1, "a", 1, 1), (2, "b", 1, 1)), Frontier(0), Frontier(2))
    diff = -1 if retracted else 1
    writer.compare_and_append(updates((1, "a", 2, diff)), Frontier(2), Frontier(3))
    partitions = plan(tmp_path)
    assert {one.kind for one in partitions} == {"group" if retracted else "plain"}
    first, second = (planned.part.key for one in partitions for planned in one.parts)
    remember_plan(partitions, [Reader()])

    assert cause_of(FileError(f"file:{tmp_path}/{first}")) is None
    (tmp_path / second).unlink()
    assert cause_of(FileError(f"file:{tmp_path}/{first}")) is None
    met = cause_of(FileError(f"file:{tmp_path}/{second}"))
    assert isinstance(met, MissingBlob)
    assert met.code == "BLOB_DELETED"
    assert second in str(met)
    assert "shard 'in', times 1 to 2" in str(met)


def test_another_file_in_the_place_of_a_part_is_read_as_that_part(tmp_path: Path) -> None:
    """What the file's name is has any character but the end of a line."""
    location = tmp_path / "it's here: 100%"
    client = ShardClient.open(
        str(location), settings=ShardSettings(inline_part_bytes=0), create=True
    )
    client.create("in", schema_of())
    client.writer("in").compare_and_append(updates((1, "a", 1, 1)), Frontier(0), Frontier(3))
    partitions = plan(location)
    remember_plan(partitions, [Reader()])
    [[planned]] = [one.parts for one in partitions]
    file = location / planned.part.key
    assert cause_of(NotSent(f"file:{file}")) is None
    file.write_bytes(file.read_bytes() + b"more")
    met = cause_of(NotSent(f"file:{file}"))
    assert isinstance(met, Corrupt)
    assert planned.part.key in str(met)
