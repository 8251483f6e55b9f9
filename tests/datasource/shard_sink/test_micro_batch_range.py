"""A checkpoint gives a micro-batch's range, also to a sink that is given its number again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.covered_range import may_cover_same, of_query
from shardline.datasource.shard_sink.micro_batch_range import (
    checkpoint_files,
    covered_by_micro_batch,
    covered_by_running_batch,
)
from shardline.datasource.shard_source.options import parse_sink
from shardline.datasource.stores.open import open_objects
from support.fakes.sink import SHARD, engine
from support.models.shards import TINY, dangling, rows, table
from support.processes.s3_server import s3_server

if TYPE_CHECKING:
    from support.fakes.sink import Engine

QUERY = "query-1"
ENDS: list[list[str]] = [
    ['{"logOffset":0}', '{"orders":{"0":5,"1":7}}'],
    ['{"logOffset":1}', '{"orders":{"0":8,"1":7}}'],
]
FILES = {0: ["a.json"], 1: ["b.json", "c.json"]}


def offset_log(*ends: str, version: str = "v1", **metadata: Any) -> str:
    return "\n".join([version, json.dumps({"batchTimestampMs": 17, **metadata}), *ends])


def file_log(*numbers: int) -> str:
    entries = (
        json.dumps({"path": path, "timestamp": 1, "batchId": number})
        for number in numbers
        for path in FILES[number]
    )
    return "\n".join(["v1", *entries])


def checkpoint(folder: Path, query: str = QUERY) -> Path:
    """Two micro-batches over a file source and another one."""
    files = {
        "metadata": json.dumps({"id": query}),
        **{f"offsets/{number}": offset_log(*ends) for number, ends in enumerate(ENDS)},
        **{f"sources/0/{number}": file_log(number) for number in FILES},
    }
    for name, text in files.items():
        put(folder, name, text)
    return folder


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def covers(folder: Path, number: int = 1, query: str = QUERY) -> str:
    options = parse_sink({"location": str(folder), "shard": SHARD})
    return covered_by_micro_batch(query, number, checkpoint_files(str(folder), options))


SAME = {
    "another clock": ("offsets/1", offset_log(*ENDS[1], batchTimestampMs=18, batchWatermarkMs=3)),
    "other settings": ("offsets/1", offset_log(*ENDS[1], conf={"spark.sql.shuffle.partitions": 9})),
    "another order": ("offsets/1", offset_log(ENDS[1][0], '{"orders": {"1":7, "0":8}}')),
    "an older end": ("offsets/2", offset_log('{"logOffset":2}', '{"orders":{"0":9,"1":9}}')),
    "a later commit": ("commits/1", "v1\n{}"),
}
OTHER = {
    "news": ("offsets/1", offset_log(ENDS[1][0], '{"orders":{"0":9,"1":7}}')),
    "another start": ("offsets/0", offset_log(ENDS[0][0], '{"orders":{"0":4,"1":7}}')),
    "one source less": ("offsets/1", offset_log(ENDS[1][0])),
    "a source has nothing": ("offsets/1", offset_log(ENDS[1][0], "-")),
    "other files": ("sources/0/1", file_log(1).replace("c.json", "d.json")),
    "fewer files": ("sources/0/1", file_log(1).rpartition("\n")[0]),
}
UNKNOWN = {
    "no end": ("offsets/1", None),
    "no start": ("offsets/0", None),
    "no file log": ("sources/0/1", None),
    "an empty log": ("offsets/1", ""),
    "no log": ("offsets/1", "PAR1"),
    "no text": ("offsets/1", "v1\n{}\n\udcff"),
    "no JSON in the file log": ("sources/0/1", "v1\nPAR1"),
    "JSON of another kind": ("sources/0/1", "v1\n[]"),
    "another query's": ("metadata", '{"id":"query-2"}'),
    "no query's": ("metadata", "[]"),
    "no metadata": ("metadata", None),
}


@pytest.mark.parametrize("change", SAME)
def test_the_same_range_planned_again(tmp_path: Path, change: str) -> None:
    """What is written anew with every plan, and what others write, does not count."""
    folder = checkpoint(tmp_path)
    before = covers(folder)
    put(folder, *SAME[change])
    assert covers(folder) == before != of_query(QUERY, None)


@pytest.mark.parametrize("change", OTHER)
def test_another_range(tmp_path: Path, change: str) -> None:
    """Each source's start and end count, and the files that a file source's number stands for."""
    folder = checkpoint(tmp_path)
    before = covers(folder)
    put(folder, *OTHER[change])
    assert not may_cover_same(covers(folder), before)


@pytest.mark.parametrize("change", UNKNOWN)
def test_a_checkpoint_that_does_not_say(tmp_path: Path, change: str) -> None:
    """Then the query is known, and nothing else; it is no error."""
    folder = checkpoint(tmp_path)
    name, text = UNKNOWN[change]
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    assert covers(folder) == of_query(QUERY, None)


def test_a_checkpoint_alone_says_what_runs(tmp_path: Path) -> None:
    """As over Connect. Of another number than the last one that was planned it says nothing."""
    folder = checkpoint(tmp_path)
    files = checkpoint_files(str(folder), parse_sink({"location": str(folder), "shard": SHARD}))
    assert files is not None
    assert covered_by_running_batch(1, files) == covers(folder) != of_query(QUERY, None)
    assert [covered_by_running_batch(number, files) for number in (0, 2, 17)] == ["", "", ""]
    put(folder, "metadata", "[1]")
    assert covered_by_running_batch(1, files) == ""


def test_a_checkpoint_is_where_hadoop_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a path with dots and empty segments; only a location's may have none."""
    folder = checkpoint(tmp_path / "jobs" / "c")
    options = parse_sink({"location": str(tmp_path), "shard": SHARD})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for place in (
        "../jobs/c",
        "./../jobs//c/",
        f"{tmp_path}/away/../jobs/./c",
        f"file:{tmp_path}/jobs/x/../c",
        f"file://{tmp_path}/jobs//c",
    ):
        found = covered_by_micro_batch(QUERY, 1, checkpoint_files(place, options))
        assert found == covers(folder) != of_query(QUERY, None), place


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    """A store of another kind than the shard's, one that nobody knows, a folder that is not."""
    options = parse_sink({"location": str(tmp_path), "shard": SHARD})
    for place in ("s3://bucket/c", "hdfs://host/c", "memory://c", "", "file:c", "a\nb"):
        assert checkpoint_files(place, options) is None, place
    assert covers(tmp_path / "nowhere") == of_query(QUERY, None)
    assert covered_by_micro_batch("", 1, None) == ""


@pytest.mark.s3
def test_a_checkpoint_in_the_shards_bucket(tmp_path: Path) -> None:
    """Where the store's options open it, it says the same; a store that is gone says nothing."""
    folder = checkpoint(tmp_path)
    with s3_server() as server:
        bucket = server.new_bucket()
        place = f"s3://{bucket}/checkpoint"
        objects = open_objects(place, server.options, clock=SystemClock(), ids=SystemIds())
        for path in folder.rglob("*"):
            if path.is_file():
                objects.put(str(path.relative_to(folder)), path.read_bytes())
        given = {"location": f"s3://{bucket}/lake", "shard": SHARD, **server.options}
        options = parse_sink(given)
        dotted = f"s3a://{bucket}/lake/../checkpoint"
        for url in (place, f"s3a://{bucket}/checkpoint/", dotted):
            found = covered_by_micro_batch(QUERY, 1, checkpoint_files(url, options))
            assert found == covers(folder)
        missing = checkpoint_files(f"s3://{bucket}/elsewhere", options)
        assert covered_by_micro_batch(QUERY, 1, missing) == of_query(QUERY, None)
        denied = checkpoint_files(f"s3://{bucket}-not-there/checkpoint", options)
        assert covered_by_micro_batch(QUERY, 1, denied) == of_query(QUERY, None)


def test_a_compacted_log_of_files(tmp_path: Path) -> None:
    """Every tenth file of the log has the entries of those before it."""
    folder = checkpoint(tmp_path)
    before = covers(folder)
    (folder / "sources/0/1").unlink()
    put(folder, "sources/0/1.compact", file_log(0, 1))
    assert covers(folder) == before


def test_the_name_of_a_hold_is_no_range(tmp_path: Path) -> None:
    """A stream of a shard that is planned from its start again makes up another name."""
    folder = checkpoint(tmp_path)
    offset = {"v": 1, "shard": "s1", "hold": "stream-1", "as_of": 17, "frontier": 42}
    found = []
    for changed in ({}, {"hold": "stream-2"}, {"frontier": 43}, {"shard": "s2"}):
        put(folder, "offsets/0", offset_log(json.dumps(offset | changed)))
        found.append(covers(folder, 0))
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_sources_with_names(tmp_path: Path) -> None:
    """A line may begin with the source's name; that of an offset without one is its place."""
    folder = checkpoint(tmp_path)
    found = []
    for line in ('a:{"x":1,"y":2}', 'a:{"y":2,"x":1}', 'b:{"x":1,"y":2}', 'a:{"x":1,"y":3}'):
        put(folder, "offsets/0", offset_log(line, version="v2"))
        found.append(covers(folder, 0))
    assert found[0] == found[1]
    assert len(set(found)) == 3


# --- the sink ------------------------------------------------------------------------------------

FIRST, SECOND, MORE = table((1, "a"), (2, "b")), table((3, "c")), table((3, "c"), (4, "d"))
MODES = {
    "append": ({}, False),
    "complete": ({}, True),
    "upsert": ({"envelope": "upsert", "key": "id"}, False),
}


@pytest.mark.parametrize("name", MODES)
def test_a_micro_batch_with_news_under_its_number(tmp_path: Path, name: str) -> None:
    """It is refused without a trace; with the old range again, the same number is the same."""
    options, overwrite = MODES[name]
    folder = checkpoint(tmp_path)
    given = {**options, "checkpointLocation": str(folder)}
    with engine(FIRST.schema, given) as spark:
        spark.micro_batch(0, FIRST, overwrite=overwrite)
        spark.micro_batch(1, SECOND, overwrite=overwrite)
        before = contents(spark)
        stored = spark.blobs()
        kept = (folder / "offsets" / "1").read_text()
        put(folder, *OTHER["news"])
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\] number 1 of .*'query:query-1'"):
            spark.micro_batch(1, MORE, overwrite=overwrite)
        put(folder, *OTHER["another start"])
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\] number 0 .*last .* number 1"):
            spark.micro_batch(0, MORE, overwrite=overwrite)
        assert contents(spark) == before
        assert stored <= spark.blobs()
        (folder / "offsets" / "0").write_text(offset_log(*ENDS[0]))
        (folder / "offsets" / "1").write_text(kept)
        spark.micro_batch(1, SECOND, overwrite=overwrite)
        assert contents(spark) == before
        assert dangling(spark.client.machine(SHARD)) == []


def test_a_checkpoint_that_cannot_be_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, as nothing tells that it is rolled back. Nobody does that to a temporary one."""
    for given in ({}, {"checkpointLocation": str(checkpoint(tmp_path))}):
        with engine(FIRST.schema, given) as spark:
            spark.micro_batch(1, FIRST)
    assert caplog.records == []
    with engine(FIRST.schema, {"checkpointLocation": "hdfs://host/c"}) as spark:
        spark.micro_batch(1, FIRST)
        spark.micro_batch(2, FIRST)
    (record,) = caplog.records
    assert "the checkpoint of a query cannot be read" in record.getMessage()


def contents(spark: Engine) -> Any:
    with spark.world.client(TINY).reader(SHARD) as reader:
        return rows(reader.snapshot())


def test_batch_writes_say_what_their_numbers_stand_for(tmp_path: Path) -> None:
    """By `txnRange`, by the checkpoint of the query that they run in, or not at all."""
    folder = checkpoint(tmp_path)
    with engine(FIRST.schema) as spark:

        def save(app: str, version: int, **options: str) -> None:
            given = {"txnAppId": app, "txnVersion": str(version), **options}
            spark.save(FIRST, overwrite=False, **given)

        save("words", 1, txnRange="monday")
        save("words", 1, txnRange="monday")
        save("words", 1, txnRange="")
        save("query", 1, checkpointLocation=str(folder))
        save("query", 1, checkpointLocation=str(folder))
        assert {n: c * 2 for n, c in rows(FIRST).items()} == contents(spark)
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\]"):
            save("words", 1, txnRange="tuesday")
        put(folder, "offsets/0", offset_log('{"logOffset":0}', '{"orders":{"0":6,"1":7}}'))
        with pytest.raises(InvalidUsage, match=r"\[OTHER_RANGE\]"):
            save("query", 1, checkpointLocation=str(folder))
        save("query", 1, checkpointLocation=str(folder / "nowhere"))
        with pytest.raises(InvalidUsage, match=r"\[INVALID_OPTION\] option 'txnRange'"):
            spark.save(FIRST, txnRange="monday")
        assert {n: c * 2 for n, c in rows(FIRST).items()} == contents(spark)
