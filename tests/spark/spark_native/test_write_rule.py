"""Plain appends to `format("shard")`: the same by the rule's native write and by Python workers."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline import datasource
from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, ShardError
from shardline.datasource.spark_native import save as save_module
from shardline.datasource.spark_native import write_rule
from shardline.datasource.spark_native.jvm import make_active
from shardline.datasource.spark_native.save import NativeWrite
from shardline.datasource.write import WriteHandle
from support.spark.native import TYPES, arrow_of, client_at, few, fresh_rule, put
from support.spark.s3a import new_location
from support.spark.stored import makers, parquet_files
from support.strategies.rows import Case, cases, plain_rows, row_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

MANY = 2_000
"""Rows that are too many to be staged again by the driver."""


@pytest.fixture(autouse=True)
def _times_of_day(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture
def location(tmp_path: Path) -> str:
    return new_location(tmp_path)


def append(frame: DataFrame, path: str, *, native: bool = True, **options: str | int) -> None:
    writer = frame.write.format("shard").options(**options)
    if not native:
        writer = writer.option("NATIVEwrites", "False")
    writer.mode("append").save(path)


def contents(location: str, name: str) -> Counter[tuple[Any, ...]]:
    with ShardClient.open(location).reader(name) as reader:
        table = reader.snapshot()
    return Counter(tuple(map(str, row.values())) for row in table.to_pylist())


def refusal(act: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(PySparkException) as raised:
        act()
    return type(raised.value), str(raised.value).partition("\n\nJVM stacktrace")[0]


def refusals(frame: DataFrame, path: str, **options: str | int) -> list[tuple[type, str]]:
    """How the native append and that of the Python workers are refused."""
    return [
        refusal(partial(append, frame, path, native=native, **options)) for native in (True, False)
    ]


@few
@given(cases(TYPES, most=8))
def test_rows_of_any_type_come_back(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    """Whichever way they were written: the rows that Python had before Spark ever saw them."""
    location = str(tmp_path_factory.mktemp("written"))
    put(client_at(location, inline_part_bytes=0), "in", 1, case.table)
    frame = datasource.snapshot(spark, f"{location}/in")
    expected = Counter(row_identity(row, case.schema) for row in case.rows)
    for name, native in (("native", True), ("workers", False)):
        append(frame, f"{location}/{name}", native=native)
        with ShardClient.open(location).reader(name) as reader:
            back = reader.snapshot()
        assert Counter(row_identity(row, case.schema) for row in plain_rows(back)) == expected
        assert arrow_of(datasource.snapshot(spark, f"{location}/{name}"), case) == expected


def test_an_append_is_native_and_happens_once(spark: SparkSession, location: str) -> None:
    """One job over the rows, one append; a session without a read of a shard has the rule, too."""
    counted = spark.sparkContext.accumulator(0)

    def count(number: int) -> int:
        counted.add(1)
        return number + 1

    spark.udf.register("counted_by_test", count, "int")
    frame = spark.range(0, MANY, 1, 2).selectExpr("id", "counted_by_test(int(id)) AS n")
    append(frame, f"{location}/out", key="id")
    assert counted.value == MANY
    assert set(makers(location, "out")) == {"native"}
    state = client_at(location).state("out")
    assert len(state.trace.batches) == 1
    assert state.key == ("id",)
    append(frame, f"{location}/workers", native=False, key="id")
    assert set(makers(location, "workers")) == {"workers"}
    assert contents(location, "out") == contents(location, "workers")


def test_few_rows_need_no_file(spark: SparkSession, location: str) -> None:
    """As the tasks of Python workers leave them: a record has them, or one file in order."""
    for name, native in (("native", True), ("workers", False)):
        frame = spark.sql("SELECT id, string(id) AS s FROM range(3)").repartition(3)
        append(frame, f"{location}/{name}", native=native)
        assert set(makers(location, name)) == {"state"}
        assert not parquet_files(location)
    append(spark.range(0, 500, 1, 4), f"{location}/more")
    (batch,) = client_at(location).state("more").trace.batches
    assert [run.order for run in batch.runs] == ["sorted"]
    assert len(parquet_files(location)) == 1
    assert contents(location, "native") == contents(location, "workers")
    assert contents(location, "more") == Counter((str(n),) for n in range(500))


@pytest.mark.parametrize("native", [True, False], ids=["native", "workers"])
def test_rows_carry_their_times_and_diffs(spark: SparkSession, location: str, native: bool) -> None:
    """Few of them and many; a diff of 0 is no row."""
    for name, many in (("few", 4), ("many", MANY)):
        rows = spark.range(many).selectExpr("id", "100 + id % 3 AS _ts", "id % 3 - 1 AS _diff")
        append(rows, f"{location}/{name}", native=native, envelope="diff")
        feed = spark.read.format("shard").options(readChangeFeed="true", startingTimestamp="0")
        found = feed.load(f"{location}/{name}").collect()
        expected = [(n, 100 + n % 3, n % 3 - 1) for n in range(many) if n % 3 != 1]
        assert sorted((r["id"], r["_ts"], r["_diff"]) for r in found) == expected


def test_a_number_is_committed_once(spark: SparkSession, location: str) -> None:
    """By either way, and by one after the other."""
    frame = spark.range(MANY)
    for native in (True, False, True):
        append(frame, f"{location}/out", native=native, txnAppId="me", txnVersion=7, txnRange="a")
        assert sum(contents(location, "out").values()) == MANY
    numbered: dict[str, str | int] = {"txnAppId": "me", "txnVersion": 7, "txnRange": "another"}
    refused = refusals(frame, f"{location}/out", **numbered)
    assert refused[0] == refused[1]
    assert "[OTHER_RANGE]" in refused[0][1]


@pytest.mark.disk
@pytest.mark.parametrize(
    ("query", "options", "word"),
    [
        ("SELECT 1L AS id, 2 AS other", {}, "EXTRA_COLUMN"),
        ("SELECT 'x' AS id", {}, "WRONG_TYPE"),
        ("SELECT 1L AS id", {"kye": "id"}, "kye"),
        ("SELECT 1L AS id", {"key": "id"}, "KEY_MISMATCH"),
        ("SELECT 1L AS id, 1L AS _ts, 1L AS _diff", {}, "TIME_OUT_OF_RANGE"),
        ("SELECT 1L AS id", {"envelope": "diff"}, "_diff"),
    ],
)
def test_refusals_are_the_same(
    spark: SparkSession, location: str, query: str, options: dict[str, str], word: str
) -> None:
    """Their class and their words; nothing was written, and nothing is left over."""
    append(spark.range(3), f"{location}/out", native=False)
    before = client_at(location).state("out")
    found = refusals(spark.sql(query), f"{location}/out", **options)
    assert found[0] == found[1]
    assert word in found[0][1]
    assert client_at(location).state("out").trace == before.trace
    assert not parquet_files(location)


@pytest.mark.disk
def test_a_wrong_value_of_native_writes_is_refused(spark: SparkSession, location: str) -> None:
    """It is taken out before the workers see it."""
    wrong = spark.range(3).write.format("shard").option("nativeWrites", "maybe").mode("append")
    with pytest.raises(Exception, match=r"\[INVALID_OPTION\] option 'nativeWrites' cannot be"):
        wrong.save(f"{location}/out")


@pytest.mark.disk
def test_an_error_of_the_query_is_sparks_own(spark: SparkSession, location: str) -> None:
    """Its class and condition, and the part that was written before it is deleted."""
    rows = spark.range(0, MANY, 1, 1).selectExpr("id", f"1 / (id - {MANY - 1}) AS x")
    for kind, words in refusals(rows, f"{location}/out"):
        assert "DIVIDE_BY_ZERO" in words
        assert kind.__name__ in {"ArithmeticException", "SparkRuntimeException"}, kind
    assert not parquet_files(location)


def test_an_unknown_outcome_is_told_as_it_is(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that took effect and then failed is not made again by Python workers."""
    run = NativeWrite.run

    def take_effect_and_fail(write: NativeWrite, call: Any) -> None:
        run(write, call)
        raise OSError("the answer is lost")

    monkeypatch.setattr(NativeWrite, "run", take_effect_and_fail)
    _, words = refusal(lambda: append(spark.range(MANY), f"{location}/out"))
    assert "the answer is lost" in words
    assert sum(contents(location, "out").values()) == MANY


@pytest.mark.disk
@pytest.mark.parametrize(
    "options",
    [
        {"envelope": "upsert", "key": "id"},
        {"saveMode": "errorifexists"},
        {"path": "memory://lake/out"},
    ],
    ids=["upsert", "first", "memory"],
)
def test_what_must_have_python_workers_has_them(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The rows are there, and Spark's writer was not asked."""
    monkeypatch.setattr(NativeWrite, "run", None)
    given = {"path": f"{location}/out", **options}
    writer = spark.range(MANY).write.format("shard").options(**given)
    if given["path"].startswith("memory"):
        # A location of one process, and tasks are others: a clear refusal of theirs.
        assert "memory" in refusal(writer.mode("append").save)[1]
        return
    writer.mode("append").save()
    assert sum(contents(location, "out").values()) == MANY
    assert set(makers(location, "out")) == {"workers"}


@pytest.mark.disk
def test_settings_leave_appends_to_python_workers(spark: SparkSession, location: str) -> None:
    """`spark.shardline.nativeWrites`, at any time; other modes of Spark are left, too."""
    spark.conf.set("spark.shardline.nativeWrites", "false")
    try:
        append(spark.range(MANY), f"{location}/a")
    finally:
        spark.conf.unset("spark.shardline.nativeWrites")
    assert set(makers(location, "a")) == {"workers"}
    spark.range(MANY).write.format("shard").mode("overwrite").save(f"{location}/b")
    assert set(makers(location, "b")) == {"workers"}
    datasource.save(spark.range(MANY), f"{location}/c", options={"nativeWrites": False})
    assert set(makers(location, "c")) == {"workers"}


@pytest.mark.disk
def test_a_rule_that_cannot_be_made_leaves_appends(
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said once, and the rows are written."""

    def fail(_: SparkSession) -> None:
        raise OSError("no such class")

    monkeypatch.setattr(write_rule, "make_write_rule", fail)
    with fresh_rule(spark):
        for _ in range(2):
            append(spark.range(MANY), f"{location}/out")
    assert set(makers(location, "out")) == {"workers"}
    said = [r.getMessage() for r in caplog.records if "written by Python workers" in r.message]
    assert len(said) == 1


@pytest.mark.disk
def test_a_plan_that_fails_leaves_the_append(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written when it failed."""
    monkeypatch.setattr(write_rule, "plan_native_write", None)
    append(spark.range(MANY), f"{location}/out")
    assert set(makers(location, "out")) == {"workers"}
    assert sum(contents(location, "out").values()) == MANY


MOVES = """
import os, shardline
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
spark.range(1)  # the JVM runs
top = os.getcwd()
os.mkdir("elsewhere")
os.chdir("elsewhere")
for native in ("true", "false"):
    writer = spark.range(2_000).write.format("shard").option("nativeWrites", native)
    writer.mode("append").save("lake/out")
frame = spark.read.format("shard").load("lake/out")
assert "FileScan parquet" in frame._jdf.queryExecution().toString()
assert frame.count() == 4_000
for native in ("true", "false"):
    writer = spark.readStream.format("shard").load("lake/out").writeStream.format("shard")
    writer = writer.option("nativeWrites", native).option("checkpointLocation", f"{top}/{native}")
    writer.trigger(availableNow=True).start("lake/streamed").awaitTermination()
assert not os.listdir()
"""


@pytest.mark.disk
def test_relative_paths_count_from_the_folder_of_the_jvm(tmp_path: Path) -> None:
    """As in Spark's Python processes: one program has one shard by one name, whichever way."""
    words = [sys.executable, "-c", MOVES]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(makers(str(tmp_path / "lake"), "out")) == {"native", "workers"}
    assert set(makers(str(tmp_path / "lake"), "streamed")) == {"native", "workers"}


def test_few_rows_that_are_large_stay_files(spark: SparkSession, location: str) -> None:
    """Their one value is small on disk, and 256 times as large in the driver."""
    append(spark.sql("SELECT id, repeat('x', 1 << 20) AS s FROM range(0, 256, 1, 1)"), location)
    assert set(makers(*location.rsplit("/", 1))) == {"native"}


def test_an_unknown_outcome_is_settled(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that may still land is given up before its caller hears of it."""
    late: list[Callable[[], object]] = []
    commit = WriteHandle.commit

    def be_late(handle: WriteHandle, *given: Any, **named: Any) -> None:
        late.append(lambda: commit(handle, *given, **named))
        raise Indeterminate("no answer", code="TIMEOUT", hint="…")

    append(spark.range(1), f"{location}/out")
    with monkeypatch.context() as patched:
        patched.setattr(WriteHandle, "commit", be_late)
        _, words = refusal(lambda: append(spark.range(MANY), f"{location}/out"))
    assert "no answer" in words
    assert not parquet_files(location)
    with pytest.raises(ShardError):
        late[0]()
    assert sum(contents(location, "out").values()) == 1


def test_a_store_that_spark_does_not_reach_has_python_workers(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system for the scheme is not enough: another store may have a bucket of that name."""
    monkeypatch.setattr(save_module, "was_reached", lambda *_: False)
    monkeypatch.setattr(save_module, "reaches_object", lambda *_: False)
    append(spark.range(MANY), f"{location}/out")
    assert set(makers(location, "out")) == {"workers"}
    monkeypatch.undo()
    monkeypatch.setattr(save_module, "was_reached", lambda *_: False)
    append(spark.range(MANY), f"{location}/other")
    assert set(makers(location, "other")) == {"native"}
    files = {key for key in parquet_files(location) if key.startswith("other/")}
    assert len(files) == 2, "the look is deleted"


def test_a_repeated_micro_batch_runs_its_tasks(spark: SparkSession, location: str) -> None:
    """A query that keeps state counts on them: after a crash it would fail without them."""
    counted = spark.sparkContext.accumulator(0)
    append(spark.range(MANY), f"{location}/in")

    def count(row: Any) -> Any:
        counted.add(1)
        return row

    def each(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            rows = batch.select("id").rdd.map(count)
            made = batch.sparkSession.createDataFrame(rows, "id long")
            append(made, f"{location}/out", txnAppId="each", txnVersion=number)

    reading = spark.readStream.format("shard").load(f"{location}/in")
    writing = reading.writeStream.foreachBatch(each).trigger(availableNow=True)
    writing.option("checkpointLocation", f"{location}/checkpoint").start().awaitTermination()
    assert counted.value == 2 * MANY
    assert sum(contents(location, "out").values()) == MANY


def test_a_shard_is_appended_to_itself(spark: SparkSession, location: str) -> None:
    """The rows are those of one moment before: what is being written is not read."""
    append(spark.range(MANY), f"{location}/out")
    own = spark.read.format("shard").load(f"{location}/out")
    append(own.union(own.where("id < 10")), f"{location}/out")
    expected = Counter({(str(n),): 3 if n < 10 else 2 for n in range(MANY)})
    assert contents(location, "out") == expected
    assert set(makers(location, "out")) == {"native"}


@pytest.mark.disk
def test_cached_frames_and_views_are_written_as_they_are(
    spark: SparkSession, location: str
) -> None:
    """With a column that Spark would compute anew from a clock or by chance."""
    cached = spark.range(MANY).selectExpr("id", "uuid() AS u").cache()
    expected = Counter((str(r["id"]), r["u"]) for r in cached.collect())
    append(cached, f"{location}/out")
    assert contents(location, "out") == expected
    cached.unpersist()


@pytest.mark.disk
@pytest.mark.parametrize("how", ["write", "save"])
def test_an_observed_frame_tells_what_it_saw(spark: SparkSession, location: str, how: str) -> None:
    """In the session that it was made in: a copy would leave its caller waiting for ever."""
    seen = Observation()
    frame = spark.range(MANY).observe(seen, F.sum("id").alias("total"))
    if how == "write":
        append(frame, f"{location}/out")
    else:
        datasource.save(frame, f"{location}/out")
    found: list[Any] = []
    asking = BackgroundThread("asking", lambda: found.append(seen.get))
    asking.start()
    assert asking.join(60_000)
    assert found == [{"total": MANY * (MANY - 1) // 2}]
    assert sum(contents(location, "out").values()) == MANY


def test_appends_side_by_side_are_all_made(spark: SparkSession, location: str) -> None:
    """Each thread is called back for its own frame."""
    append(spark.range(0), f"{location}/out")

    def write(number: int) -> None:
        make_active(spark)  # by which Spark finds sources in a thread
        append(spark.range(number * MANY, (number + 1) * MANY), f"{location}/out")

    threads = [InheritableThread(target=write, args=(n,), session=spark) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(location, "out") == Counter((str(n),) for n in range(6 * MANY))


def test_foreach_batch_writes_each_micro_batch_once(spark: SparkSession, location: str) -> None:
    """With `txnAppId`: one that is repeated adds nothing, and one for another range is refused."""
    source = f"{location}/in"
    append(spark.range(MANY), source)
    refused: list[str] = []

    def each(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            append(batch.select("id"), f"{location}/out", txnAppId="each", txnVersion=number)

    def run(checkpoint: str) -> None:
        reading = spark.readStream.format("shard").load(source).writeStream.foreachBatch(each)
        query = reading.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            refused.append(str(error))

    run(f"{location}/checkpoint")
    assert sum(contents(location, "out").values()) == MANY
    run(f"{location}/another")
    assert len(refused) == 1
    assert "OTHER_RANGE" in refused[0]
    assert sum(contents(location, "out").values()) == MANY
    assert set(makers(location, "out")) == {"native"}


def test_types_are_widened_and_columns_added(spark: SparkSession, location: str) -> None:
    """As by Python workers: `mergeSchema`, an int into a long, a name in another case."""
    day = dt.date(2026, 1, 1)
    for native in (True, False):
        path = f"{location}/{native}"
        append(spark.range(MANY), path, native=native)
        append(spark.sql("SELECT 7 AS ID"), path, native=native)
        later = spark.createDataFrame([(8, day)], "id long, day date")
        append(later, path, native=native, mergeSchema="true")
    assert contents(location, "True") == contents(location, "False")
    assert contents(location, "True")[("8", str(day))] == 1


@pytest.mark.parametrize("native", [True, False])
def test_fields_are_added_inside_of_columns(
    spark: SparkSession, location: str, native: bool
) -> None:
    """Of literals they are never null, where those of earlier rows are."""
    before = "named_struct('a', if(id > 0, id, null))"
    after = "named_struct('a', 1L, 'b', 'x')"
    path = f"{location}/in"
    some = [f"{before} AS s", f"array({before}, null) AS l", f"map('k', {before}) AS m"]
    more = [f"{after} AS s", f"array({after}) AS l", f"map('k', {after}) AS m"]
    append(spark.range(2).selectExpr(*some), path, native=native)
    append(spark.range(1).selectExpr(*more), path, native=native, mergeSchema="true")
    read = spark.read.format("shard").load(path)
    found = Counter(map(tuple, read.selectExpr("s.b", "l[0].b", "m['k'].b").collect()))
    assert found == {(None,) * 3: 2, ("x",) * 3: 1}
