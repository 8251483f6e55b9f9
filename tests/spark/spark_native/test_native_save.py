"""`shardline.save`: rows of any type, exactly once, by Spark's own writer; nothing left over."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from shardline import datasource
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.part_file import footer_bytes, footer_of
from shardline.datasource.spark_native import save as save_module
from shardline.datasource.spark_native.save import NativeWrite
from shardline.datasource.spark_native.task_files import WrittenFiles
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import bounds
from support.profiles import some_of
from support.spark import stored
from support.spark.native import TYPES, arrow_of, client_at, collected, few, put
from support.spark.stored import parquet_files
from support.strategies.rows import Case, cases, plain_rows, row_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3a]


@pytest.fixture(autouse=True)
def _times_of_day(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture(autouse=True)
def _files_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay as Spark wrote them: what the driver stages again is in `test_write_rule`."""
    monkeypatch.setattr(save_module, "_FEW_ROWS", 0)


def parts_known(client: ShardClient, name: str) -> set[str]:
    return {p.key for b in client.state(name).trace.batches for p in b.parts}


@few
@given(cases(TYPES, most=8))
def test_saved_rows_of_any_type_come_back(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    """What Spark's writer wrote, both fetches read, and no statistics lie about it."""
    location = str(tmp_path_factory.mktemp("saved"))
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, case.table)
    datasource.save(datasource.snapshot(spark, f"{location}/in"), f"{location}/out")

    expected = Counter(row_identity(row, case.schema) for row in case.rows)
    with ShardClient.open(location).reader("out") as reader:
        back = reader.snapshot()
    assert Counter(row_identity(row, case.schema) for row in plain_rows(back)) == expected
    assert arrow_of(datasource.snapshot(spark, f"{location}/out"), case) == expected
    for batch in client.state("out").trace.batches:
        for part in batch.parts:
            assert part.stats is not None
            assert part.stats.rows == part.rows


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("native", [True, False])
def test_a_thread_without_a_session_saves(
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: save_module.Mode,
    native: bool,
) -> None:
    """Also what Python workers write, whose format Spark finds by the thread's active session."""
    if not native:
        monkeypatch.setattr(save_module, "plan_native_write", lambda *_: None)
    frame = spark.range(3)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(datasource.save, frame, f"{location}/in", mode=mode).result()
    saved = datasource.snapshot(spark, f"{location}/in").collect()
    assert sorted(row.id for row in saved) == [0, 1, 2]


def test_statistics_of_saved_parts(spark: SparkSession, location: str) -> None:
    """Bounds come from the files' footers: of plain columns, not of numbers with a point."""
    frame = spark.range(0, 1000, 1, 1).selectExpr(
        "id",
        "cast(id as decimal(38, 3)) as d",
        "concat('k', id) as s",
        "id * 0.5D as f",
        "date_add(date'2000-01-01', cast(id as int)) as day",
        "if(id < 10, null, id) as n",
        "struct(id) as st",
    )
    datasource.save(frame, f"{location}/in", options={"rowGroupRows": 100, "statsBytes": 4096})
    (part,) = [p for b in client_at(location).state("in").trace.batches for p in b.parts]
    assert part.stats is not None
    found = {name: bounds(part.stats, name) for name in part.stats.columns}

    assert (part.rows, part.diff_sum, part.diff_min, part.diff_max) == (1000, 1000, 1, 1)
    assert {name: tuple(map(str, pair)) for name, pair in found.items()} == {
        "id": ("0", "999"),
        "d": ("0.000", "999.000"),
        "s": ("k0", "k999"),
        "day": ("10957", "11956"),
        "n": ("10", "999"),
    }
    assert part.stats.columns["n"].nulls == 10


@pytest.mark.disk
def test_columns_whose_paths_are_one_have_no_statistics(spark: SparkSession, location: str) -> None:
    """The path of a column with a point may be that of a field: bounds of the other leave rows out.

    In either order of the two.
    """
    point, field = "id + 1000 as `a.b`", "struct(id as b) as a"
    for name, columns in {"one": (point, field), "other": (field, point)}.items():
        datasource.save(spark.range(0, 1000, 1, 1).selectExpr(*columns, "id"), f"{location}/{name}")
        options = {"where": "`a.b` = 1500"}
        found = datasource.snapshot(spark, f"{location}/{name}", options=options)
        assert [row["id"] for row in found.collect()] == [500]


def test_a_damaged_footer_of_a_saved_part_is_an_error(spark: SparkSession, location: str) -> None:
    """Its checksum is in the state: to Arrow it is damage, to Spark's reader no end of the JVM."""
    frame = spark.range(0, 1000, 1, 1).selectExpr("id", "double(id) AS f")
    datasource.save(frame, f"{location}/in")
    client = client_at(location)
    (part,) = [p for b in client.state("in").trace.batches for p in b.parts]
    whole = stored.read(location, part.key)
    assert part.footer == footer_of(whole)
    assert part.nan_safe
    at = len(whole) - footer_bytes(whole) + 2
    stored.replace(location, part.key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])

    with client.reader("in") as reader, pytest.raises(Corrupt, match=part.key):
        reader.snapshot()
    with pytest.raises(Exception, match=Path(part.key).name):
        datasource.snapshot(spark, f"{location}/in").collect()
    stored.replace(location, part.key, whole)
    assert datasource.snapshot(spark, f"{location}/in").where("f >= 990").count() == 10


def test_values_are_protected_whatever_the_session_writes_elsewhere(
    spark: SparkSession, location: str, request: pytest.FixtureRequest
) -> None:
    """Of a saved part only its pages have checksums of their values."""
    setting = "parquet.page.write-checksum.enabled"
    spark.conf.set(setting, "false")
    request.addfinalizer(lambda: spark.conf.unset(setting))
    # Hashes cannot be compressed: a flipped bit of theirs is no error of a decompressor.
    datasource.save(spark.range(0, 1000, 1, 1).selectExpr("xxhash64(id) AS h"), f"{location}/in")
    client = client_at(location)
    (part,) = [p for b in client.state("in").trace.batches for p in b.parts]
    whole = stored.read(location, part.key)
    at = len(whole) // 3
    stored.replace(location, part.key, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])

    with client.reader("in") as reader, pytest.raises(Corrupt, match=part.key):
        reader.snapshot()


def test_dictionaries_end_early_and_pages_are_large(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """At their defaults, the writer's dictionary would hold this column, and a page 20,000 rows."""
    rows, times = 400_000, 4
    frame = spark.range(0, rows, 1, 1).selectExpr(f"id div {times} as id", "id % 7 as few")
    assert rows // times * 8 < 1 << 20, "all of its values fit"
    datasource.save(frame, f"{location}/in")
    (key,) = parquet_files(location)
    file = tmp_path / "part.parquet"
    file.write_bytes(stored.read(location, key))
    group = pq.ParquetFile(file).metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(2)}
    assert ["PLAIN" in encodings[name] for name in ("id", "few")] == [True, False]
    assert most_rows_of_a_page(spark, file) == 1 << 16


def most_rows_of_a_page(spark: SparkSession, file: Path) -> int:
    """By the index of the pages of the file's first column."""
    with stored.opened_by_spark(spark, file) as reader:
        block = reader.getFooter().getBlocks().get(0)
        index = reader.readOffsetIndex(block.getColumns().get(0))
        firsts: list[int] = [index.getFirstRowIndex(i) for i in range(index.getPageCount())]
        return max(b - a for a, b in itertools.pairwise([*firsts, int(block.getRowCount())]))


def test_a_numbered_save_happens_once(spark: SparkSession, location: str) -> None:
    """The same number again does nothing, and leaves nothing behind."""
    client = client_at(location)
    for version in (1, 1, 2, 1):
        datasource.save(spark.range(version), f"{location}/in", txn=("etl", version))

    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(0,), (0,), (1,)]
    assert parquet_files(location) == parts_known(client, "in")


def test_saves_and_sink_share_numbers(spark: SparkSession, location: str) -> None:
    """A replay may come through the other path, and is the same write."""
    frame = spark.range(3)
    frame.write.format("shard").mode("append").options(txnAppId="etl", txnVersion=1).save(
        f"{location}/in"
    )
    datasource.save(frame, f"{location}/in", txn=("etl", 1))

    assert datasource.snapshot(spark, f"{location}/in").count() == 3


def test_updates_are_saved(spark: SparkSession, location: str) -> None:
    """`_diff` and `_ts` of a frame are those of its updates."""
    frame = spark.createDataFrame([(1, 5, 2), (2, 6, 1)], "ID bigint, _ts bigint, _diff bigint")
    datasource.save(frame, f"{location}/in", key=["ID"])
    gone = spark.createDataFrame([(1, 8, -1)], "id bigint, _ts bigint, _diff bigint")
    datasource.save(gone, f"{location}/in")

    assert collected(datasource.changes(spark, f"{location}/in")) == [
        (1, 5, 2),
        (1, 8, -1),
        (2, 6, 1),
    ]
    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(1,), (2,)]
    late = spark.createDataFrame([(1, 3)], "id bigint, _ts bigint")
    with pytest.raises(Exception, match=r"\[TIME_OUT_OF_RANGE\]"):
        datasource.save(late, f"{location}/in")


@pytest.mark.disk
def test_a_saved_frame_must_fit(spark: SparkSession, location: str) -> None:
    """Columns are matched by name and widened; what does not fit is refused by name."""
    datasource.save(spark.createDataFrame([(1, "a")], "id bigint, s string"), f"{location}/in")
    datasource.save(spark.sql("select 2 as ID"), f"{location}/in")
    assert set(datasource.snapshot(spark, f"{location}/in").collect()) == {(1, "a"), (2, None)}
    before = parquet_files(location)
    with pytest.raises(Exception, match=r"\[EXTRA_COLUMN\].*'z'"):
        datasource.save(spark.sql("select 2L id, 3 z"), f"{location}/in")
    with pytest.raises(Exception, match=r"\[WRONG_TYPE\].*'id'"):
        datasource.save(spark.sql("select '2' id"), f"{location}/in")
    datasource.save(spark.sql("select 3L id, 3 z"), f"{location}/in", merge_schema=True)

    assert datasource.snapshot(spark, f"{location}/in").where("z = 3").count() == 1
    assert before < parquet_files(location)


@pytest.mark.disk
def test_arguments_of_another_kind_are_taken_or_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A path of pathlib is one; a name for a list of names, or half a number, is told by name."""
    path = tmp_path / "lake" / "in"
    frame = spark.createDataFrame([(1, "a")], "id bigint, s string")
    save = partial(datasource.save, frame, path)
    append = partial(datasource.compare_and_append, frame, path, lower=0)
    wrong: list[tuple[Callable[[], object], str]] = [
        (partial(save, key="id"), r"key=\['id'\]"),
        (partial(save, txn="daily"), "'txn' cannot be 'daily'"),
        (partial(save, txn=("daily", None)), "'txn' cannot be"),
        (partial(append, upper=None, writer="daily"), "'writer' cannot be"),
        (partial(append, upper="5", writer=("daily", 1)), "'upper' cannot be '5'"),
        (partial(datasource.snapshot, spark, path, columns="id"), r"columns=\['id'\]"),
        (partial(datasource.changes, spark, path, start=1.5), "'start' cannot be 1.5"),  # type: ignore[arg-type]
        (partial(datasource.transaction, spark, tmp_path, txn="x"), "'txn' cannot be"),  # type: ignore[arg-type]
    ]
    save(key=["id"])
    for call, told in wrong:
        with pytest.raises(InvalidUsage, match=told):
            call()
    assert datasource.snapshot(spark, path).collect() == [(1, "a")]


@pytest.mark.disk
def test_nulls_where_none_may_be(spark: SparkSession, location: str) -> None:
    """A null in a column that has none fails the write, and leaves no file."""
    client = client_at(location)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    client.create("in", ShardSchema.from_arrow(schema))
    with pytest.raises(Exception, match=r"\[NULL_VALUE\] column 'id'"):
        datasource.save(spark.sql("select if(id = 3, null, id) id from range(5)"), f"{location}/in")

    assert parquet_files(location) == set()
    datasource.save(spark.sql("select if(id = 3, 0, id) id from range(5)"), f"{location}/in")
    assert datasource.snapshot(spark, f"{location}/in").count() == 5
    assert not datasource.snapshot(spark, f"{location}/in").schema["id"].nullable


def test_a_retried_task_leaves_one_file(spark: SparkSession, location: str) -> None:
    """A task that failed after it had written leaves nothing; its second attempt counts once."""
    client = client_at(location)

    def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("first attempt")

    frame = spark.range(0, 1000, 1, 2)
    datasource.save(frame.mapInArrow(flaky, frame.schema), f"{location}/in")

    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(n,) for n in range(1000)]
    assert parquet_files(location) == parts_known(client, "in")


@pytest.mark.disk
def test_files_of_tasks_that_were_given_up_are_no_rows(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may still write when the job has ended: a twin that lost, or one of a lost executor."""
    client = client_at(location)
    write = NativeWrite._write

    def write_and_leave(self: NativeWrite, url: str) -> WrittenFiles:
        written = write(self, url)
        folder = Path(url.removeprefix("file:"))
        for file in written.files:
            shutil.copy(folder / file.name, folder / f"twin-{file.name}")
        return written

    monkeypatch.setattr(NativeWrite, "_write", write_and_leave)
    datasource.save(spark.range(0, 10, 1, 2), f"{location}/in")
    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(n,) for n in range(10)]
    assert parts_known(client, "in") == {p for p in parquet_files(location) if "twin-" not in p}


def write_elsewhere(folder: Path) -> None:
    """As where each machine has a disk of its own, or Hadoop's endpoint is another one."""
    shutil.rmtree(folder)


def write_partly_elsewhere(folder: Path) -> None:
    """As where one executor shares the driver's disk, and another one does not."""
    max(folder.glob("*.parquet")).unlink()


def by_save(spark: SparkSession, frame: DataFrame, location: str) -> None:
    del spark
    datasource.save(frame, f"{location}/in", txn=("etl", 7))


def by_transaction(spark: SparkSession, frame: DataFrame, location: str) -> None:
    with datasource.transaction(spark, location, txn=("etl", 7)) as t:
        t.append("in", frame)


def by_interval(spark: SparkSession, frame: DataFrame, location: str) -> None:
    del spark
    upper = client_at(location).writer("in").upper().time
    assert upper is not None
    datasource.compare_and_append(
        frame, location=location, shard="in", lower=upper, upper=upper + 1, writer=("w", 7)
    )


@pytest.mark.disk
@pytest.mark.parametrize(
    ("write", "gone"),
    some_of(
        itertools.product(
            [by_save, by_transaction, by_interval], [write_elsewhere, write_partly_elsewhere]
        ),
        [
            (by_save, write_partly_elsewhere),
            (by_transaction, write_elsewhere),
            (by_interval, write_partly_elsewhere),
        ],
    ),
)
def test_rows_that_went_to_another_place_are_not_appended(
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[SparkSession, DataFrame, str], None],
    gone: Callable[[Path], None],
) -> None:
    """An append of what the driver finds would lose the rest for ever: the number counts as done.

    Nothing of it is left, and the same number works where the files are.
    """
    client = client_at(location, inline_part_bytes=0)
    datasource.save(spark.range(1), f"{location}/in")
    before = client.state("in").trace
    written = NativeWrite._write

    def lose(self: NativeWrite, url: str) -> WrittenFiles:
        files = written(self, url)
        gone(Path(url.removeprefix("file:")))
        return files

    # Both with and without a shuffle, whose plan is adaptive.
    for frame in (spark.range(1, 9, 1, 2), spark.range(1, 9).repartition(2, "id")):
        with monkeypatch.context() as patched:
            patched.setattr(NativeWrite, "_write", lose)
            with pytest.raises(InvalidUsage, match=r"\[ROWS_ELSEWHERE\] Spark wrote 8 rows"):
                write(spark, frame, location)
        assert client.state("in").trace == before
        assert parquet_files(location) == parts_known(client, "in")

    write(spark, spark.range(1, 9, 1, 2), location)
    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(n,) for n in range(9)]


@pytest.mark.disk
def test_no_rows_that_went_to_another_place(
    spark: SparkSession, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes a file for no rows, too: without one even nothing is in another place."""
    client_at(location)
    monkeypatch.setattr(save_module, "hadoop_url", lambda *_: f"file:{tmp_path}/other")
    for nothing in (spark.range(0), spark.range(9).where("id < 0").repartition(3, "id")):
        with pytest.raises(InvalidUsage, match=r"\[ROWS_ELSEWHERE\].* is not there"):
            datasource.save(nothing, f"{location}/in", txn=("etl", 7))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("by", ["save", "append", "transaction"])
def test_a_place_where_no_file_can_be_made_is_said_by_the_store(
    spark: SparkSession, tmp_path: Path, by: str
) -> None:
    """And not by a trace of the JVM. Root may write anywhere, so a file is in the way here."""
    location = str(tmp_path)
    ShardClient.open(location).create("in", ShardSchema.from_arrow(pa.schema([("id", pa.int64())])))
    (tmp_path / "in" / "part").write_bytes(b"")

    def write() -> None:
        if by == "append":
            spark.range(100_000).write.format("shard").mode("append").save(f"{location}/in")
        elif by == "save":
            datasource.save(spark.range(100_000), f"{location}/in")
        else:
            by_transaction(spark, spark.range(100_000), location)

    with pytest.raises(Exception, match=r"\[INVALID_LOCATION\] cannot write 'in/part/.*stands"):
        write()
    assert ShardClient.open(location).state("in").upper == Frontier(0)


def test_nothing_and_overwriting(spark: SparkSession, location: str) -> None:
    """An empty frame fixes the contents at a time; overwriting is one difference."""
    client = client_at(location)
    datasource.save(spark.range(3).where("id > 5"), f"{location}/in")
    datasource.save(spark.range(3).where("id > 5").repartition(2, "id"), f"{location}/in")
    assert datasource.snapshot(spark, f"{location}/in").count() == 0
    datasource.save(spark.range(10), f"{location}/in")
    datasource.save(spark.range(1, 11), f"{location}/in", mode="overwrite")

    assert collected(datasource.snapshot(spark, f"{location}/in")) == [(n,) for n in range(1, 11)]
    assert client.state("in").trace.batches[-1].rows == 2


def test_parts_of_both_writers_are_merged(spark: SparkSession, location: str) -> None:
    """Whoever wrote a part, a retraction by the other takes its rows away, by either fetch."""
    datasource.save(spark.range(100), f"{location}/in", key=["id"])
    gone = spark.range(0, 100, 2).selectExpr("id", "-1L as _diff")
    gone.write.format("shard").mode("append").option("inlinePartBytes", 0).save(f"{location}/in")
    datasource.save(spark.range(1, 10, 2).selectExpr("id", "-1L as _diff"), f"{location}/in")
    expected = [(n,) for n in range(11, 100, 2)]

    assert collected(spark.read.format("shard").load(f"{location}/in")) == expected
    assert collected(datasource.snapshot(spark, f"{location}/in")) == expected
