"""Files without a row for a scan's filters are left out of it, and no row is lost by that."""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from hypothesis import Phase, given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline import datasource
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native import skipped_files
from shardline.datasource.spark_native.skipped_files import ScannedParts, file_statistics
from shardline.datasource.types.schema import ShardSchema
from support.profiles import wide_examples
from support.spark import stored
from support.spark.native import client_at, collected, fresh_rule, ids, plan_of, put
from support.strategies.conditions import conditions, rows_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def native(spark: SparkSession) -> Iterator[None]:
    """Plain reads are native, by a rule that has planned nothing before."""
    with fresh_rule(spark):
        yield


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> pa.Table:
    """Rows with the edges of every type."""
    return spark.sql(rows_sql()).toArrow()


@pytest.fixture(scope="module")
def place(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shard with a part for each row: the bounds of a part are its row."""
    location = str(tmp_path_factory.mktemp("rows"))
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    for row in range(rows.num_rows):
        put(client, "in", row, rows.slice(row, 1))
    return f"{location}/in"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digits of each scan that files may be left out of."""
    found: list[str] = []
    passing = ScannedParts.passing

    def watched(self: ScannedParts, filters: Any) -> str:
        found.append(passing(self, filters))
        return found[-1]

    monkeypatch.setattr(ScannedParts, "passing", watched)
    return found


def matching(frame: DataFrame, texts: list[str]) -> dict[str, list[int]]:
    """The ids of the rows of each condition, by a scan for each, in one job."""
    scans = [frame.where(text).select(F.lit(text).alias("text"), "id") for text in texts]
    found: dict[str, list[int]] = defaultdict(list)
    for text, number in reduce(DataFrame.unionAll, scans).collect():
        found[text].append(number)
    return {text: sorted(numbers) for text, numbers in found.items()}


@wide_examples(0.1, phases=[Phase.generate])
@given(conditions())
def test_any_condition_keeps_its_rows(
    spark: SparkSession, place: str, rows: pa.Table, texts: list[str]
) -> None:
    """Those that plain Spark keeps of the same rows, over every type and spelling."""
    frame = spark.read.format("shard").load(place)
    assert matching(frame, texts) == matching(spark.createDataFrame(rows), texts)


KEPT: Final = {
    "id < 3": 3,
    "3 > id": 3,
    "id >= 38": 2,
    "38 <= id": 2,
    "id = 7": 1,
    "id <=> 7": 1,
    "id <> 7": 39,
    "not id >= 2": 2,
    "id in (1, 5, 99)": 2,
    "id not in (1, 5)": 38,
    f"id in ({', '.join(map(str, range(0, 40, 2)))})": 20,
    "id between 10 and 19 and (id % 2 = 0 or length(s) > 0)": 10,
    "id = 3 or id = 5 and id % 2 = 1": 2,
    "id = 3 or length(s) >= 0 or s is null": 40,
    "not (id = 3 and length(s) > 0)": 40,
    "id % 2 = 0": 40,
}
"""Conditions, and how many of 40 files with a row each may have a row for them."""


def test_files_are_left_out(spark: SparkSession, place: str, answers: list[str]) -> None:
    """As many are read as may have a row; what is not understood leaves out none."""
    frame = spark.read.format("shard").load(place)
    found = {}
    for condition in KEPT:
        answers.clear()
        frame.where(condition).collect()
        found[condition] = max((answer.count("1") for answer in answers), default=40)
    assert found == KEPT


def test_a_file_that_is_left_out_is_not_opened(spark: SparkSession, location: str) -> None:
    """Each query of a frame has its own filters; without them all files are read."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    for number in (1, 2, 3):
        put(client, "in", number, ids(number, number + 10))
    frame = spark.read.format("shard").load(f"{location}/in")
    assert frame.count() == 6
    [first] = [
        part for batch in client.state("in").trace.batches for part in batch.parts if part.ts == 1
    ]
    stored.delete(location, first.key)
    assert collected(frame.where("id > 11")) == [(12,), (13,)]
    assert frame.where("id > 100").count() == 0
    for needs_it in (frame, frame.where("id < 5")):
        with pytest.raises(Exception, match=first.key):
            needs_it.collect()


def test_fields_of_structs_and_columns_of_later_schemas(
    spark: SparkSession, location: str, answers: list[str]
) -> None:
    """Parts from before a column was added have null there, and no more than that is known."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    inner = pa.struct([("n", pa.int32())])
    for number in (1, 2):
        put(client, "in", number, pa.table({"s": pa.array([{"n": number}], inner)}))
    later = pa.schema([("s", inner), ("later", pa.int64())])
    client.evolve("in", ShardSchema.from_arrow(later))
    rows = pa.table({"s": pa.array([{"n": 3}, {"n": 2}], inner), "later": [7, None]})
    client.writer("in").compare_and_append(rows, Frontier(3), Frontier(4))
    frame = spark.read.format("shard").load(f"{location}/in")
    assert collected(frame.where("s.n = 1").select("s.n")) == [(1,)]
    assert collected(frame.where("s.n = 2").select("s.n", "later")) == [(2, None)] * 2
    assert collected(frame.where("later is null").select("s.n")) == [(1,), (2,), (2,)]
    assert collected(frame.where("later = 7").select("s.n")) == [(3,)]
    # Of the first two parts; that of the later schema is the one file of a scan of its own.
    assert sorted(answers) == ["00", "01", "10", "11"]


def test_retractions_of_rows_that_a_filter_keeps(spark: SparkSession, location: str) -> None:
    """Equal rows pass together, so what takes a row back is read wherever the row is."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    updates = {1: ((0, 1), (7, 1)), 2: ((0, -1), (5, 1)), 3: ((7, -1), (0, 1)), 4: ((9, 2),)}
    for time, some in updates.items():
        numbers, diffs = zip(*some, strict=True)
        put(client, "in", time, ids(*numbers).append_column("_diff", pa.array(diffs)))
    frame = spark.read.format("shard").load(f"{location}/in")
    arrow = spark.read.format("shard").option("nativeReads", "false").load(f"{location}/in")
    for condition in ("id = 7", "id = 0", "id < 1", "id > 0", "id > 5"):
        assert collected(frame.where(condition)) == collected(arrow.where(condition))


def test_without_an_answer_all_files_are_read(
    spark: SparkSession, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in Python costs time and no query."""

    def fail(_: ScannedParts, __: Any) -> str:
        raise RuntimeError("no answer")

    frame = spark.read.format("shard").load(place)
    monkeypatch.setattr(ScannedParts, "passing", fail)
    assert frame.where("id < 2").count() == 2


def test_threads_of_spark_have_no_connection_each(
    spark: SparkSession, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They list files, and come and go; py4j would keep a thread of this process for each."""
    asked: list[threading.Thread] = []
    passing = ScannedParts.passing

    def watched(self: ScannedParts, filters: Any) -> str:
        asked.append(threading.current_thread())
        return passing(self, filters)

    monkeypatch.setattr(ScannedParts, "passing", watched)
    frame = spark.read.format("shard").load(place)
    # By threads of the JVM that have called nobody before: of shuffles, and of a broadcast.
    small = frame.where("id in (4, 5)").select(F.col("id").alias("n"))
    frame.where("id < 1").count()
    frame.where("id < 3").groupBy("id").count().collect()
    spark.range(100).join(F.broadcast(small), F.col("id") == F.col("n")).collect()
    assert len(asked) == 3
    assert len(set(asked)) == 1


def test_parts_are_kept_as_long_as_they_can_be_listed(spark: SparkSession, place: str) -> None:
    """The numbers of frames that are gone are given up when the next frame is made."""
    kept = file_statistics()

    def read() -> str:
        return plan_of(spark.read.format("shard").load(place).where("id < 2"))

    jvm: Any = spark._jvm
    read()
    before = len(kept)
    for _ in range(10):
        gc.collect()
        jvm.java.lang.System.gc()
        read()
    assert len(kept) < before + 10
    assert skipped_files.file_statistics() is kept


def test_snapshots_and_changes_leave_out_files(
    spark: SparkSession, place: str, answers: list[str]
) -> None:
    """As plain reads do."""
    assert datasource.snapshot(spark, place).where("id = 5").count() == 1
    assert datasource.changes(spark, place).where("id = 5").count() == 1
    assert [answer.count("1") for answer in answers] == [1, 1]
