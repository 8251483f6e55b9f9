"""Spark is given a list of files, and what is one in all rows of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline import datasource
from support.spark import stored
from support.spark.native import client_at, collected, ids, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        frame.where("id > 6").collect()


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
