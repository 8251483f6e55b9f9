"""Spark is given a list of files, and what is one in all rows of each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline import datasource
from support.spark import stored
from support.spark.native import client_at, collected, ids, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.shard.batch import Part

pytestmark = [pytest.mark.spark, pytest.mark.s3a]


def test_parts_of_other_times_are_not_opened(spark: SparkSession, location: str) -> None:
    """A condition on the time of a commit leaves out files, whichever way it is asked."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    for time in (5, 6, 7):
        put(client, "in", time, ids(time))
    frame = datasource.changes(spark, f"{location}/in")
    [lost] = [p for batch in client.state("in").trace.batches for p in batch.parts if p.ts == 6]
    stored.delete(location, lost.key)
    cases = {"_ts > 6": [7], "_ts IN (5, 7)": [5, 7], "_ts % 2 = 1": [5, 7]}
    for condition, expected in cases.items():
        rows = frame.where(condition).select("id", "_ts")
        assert collected(rows) == [(time, time) for time in expected]
    with pytest.raises(Exception, match=lost.key):
        frame.where("id > 5").collect()


def test_spark_takes_reads_of_the_same_files_for_one(spark: SparkSession, location: str) -> None:
    """It reads them once in a query, and finds what was cached; others it tells apart."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, ids(1, 2))
    first, again = (datasource.changes(spark, f"{location}/in") for _ in range(2))
    put(client, "in", 2, ids(1, 2))
    later = datasource.changes(spark, f"{location}/in")
    without_times = datasource.snapshot(spark, f"{location}/in", as_of=1)
    assert first.sameSemantics(again)
    assert first.semanticHash() == again.semanticHash()
    assert not first.sameSemantics(later)
    assert not first.select("id").sameSemantics(without_times)


@pytest.fixture
def rows_of_files() -> dict[str, tuple[int, ...]]:
    """Rows of a part that is read, and of others: of fewer rows, of more, and of its size."""
    return {"own": (1, 2, 3), "fewer": (7,), "more": tuple(range(10, 900)), "like": (4, 5, 6)}


@pytest.mark.disk
@pytest.mark.parametrize("other", ["fewer", "more", "like"])
def test_another_file_in_the_place_of_a_part(
    spark: SparkSession, location: str, rows_of_files: dict[str, tuple[int, ...]], other: str
) -> None:
    """Exchanged at any time in a frame's life it is an error, and once it is back all is well.

    Spark's reader would take it, and of a greater one perhaps no row.
    """
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    for name in ("own", other):
        put(client, name, 1, ids(*rows_of_files[name]))
    data, wrong = (part_of(location, name)[1] for name in ("own", other))
    assert (len(data) == len(wrong)) == (other == "like")
    part, _ = part_of(location, "own")
    changed = datasource.changes(spark, f"{location}/own").select("id")
    plain = spark.read.format("shard").load(f"{location}/own")
    cached = plain.where("id > 0").cache()  # planned now, and run later
    expected = [(number,) for number in rows_of_files["own"]]
    for frame in (changed, plain):
        assert collected(frame) == expected
    stored.replace(location, part.key, wrong)
    for frame in (changed, plain, cached):
        # Plans that were run before, and a new one of the same frame.
        for again in (frame, frame.where("id > -1")):
            with pytest.raises(Exception, match=rf"\[CORRUPT_PART\] part '{part.key}'"):
                again.collect()
    stored.replace(location, part.key, data)
    for frame in (changed, plain, cached):
        assert collected(frame) == expected
    cached.unpersist()


@pytest.mark.disk
def test_a_part_that_is_only_touched_is_read(spark: SparkSession, location: str) -> None:
    """A file of another time or number, with the part's contents, is the part's."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, ids(1))
    part, data = part_of(location, "in")
    frame = datasource.changes(spark, f"{location}/in").select("id")
    assert collected(frame) == [(1,)]
    os.utime(Path(location, part.key), (1, 1))
    assert collected(frame) == [(1,)]
    stored.replace(location, part.key, data)
    assert collected(frame) == [(1,)]


def part_of(location: str, name: str) -> tuple[Part, bytes]:
    """The only part of a shard, and its bytes."""
    [part] = [p for b in client_at(location).state(name).trace.batches for p in b.parts]
    return part, stored.read(location, part.key)
