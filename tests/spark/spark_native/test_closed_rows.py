"""Merged reads that know the closed rows by number, against a model and against plain Spark."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from shardline import datasource
from shardline.datasource.frontier import Frontier
from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native import closed_rows, frames, touched_rows
from shardline.datasource.spark_native.closed_rows import ClosedRows
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.kept_broadcast import KeptBroadcasts
from shardline.datasource.spark_native.types import ROW_INDEX
from shardline.datasource.types.schema import ShardSchema
from support.profiles import one_of, some_of
from support.spark import stored
from support.spark.native import client_at, is_leased, plan_of, put, upsert
from support.waiting import wait_until

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.client import ShardClient

pytestmark = [pytest.mark.spark, pytest.mark.s3a]

# The last name is one that native plans would use for a column of their own.
ROWS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("_Shardline_First", pa.int32())])
KEY = ("a", "b")
BITS = "bit_get("
Row = tuple[int | None, str | None, int | None]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> ClosedRows:
    """Of groups of any size, and with nothing from other tests."""
    made = ClosedRows(rows_least=1)
    monkeypatch.setattr(frames, "CLOSED_ROWS", made)
    monkeypatch.setattr(frames, "BROADCASTS", KeptBroadcasts())
    return made


def table(rows: list[Row], diffs: list[int] | None = None) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    made = pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], ROWS)
    return made if diffs is None else made.append_column("_diff", pa.array(diffs, pa.int64()))


def counted(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, frame.collect()))


def numbers(*some: int) -> pa.Table:
    return pa.table({"a": list(some), "v": [str(n) for n in some]})


@pytest.fixture
def shard(location: str) -> str:
    """The numbers below 20, of which an upsert has deleted the first five."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, numbers(*range(20)), ("a",))
    gone = numbers(*range(5)).set_column(1, "v", pa.nulls(5, pa.string()))
    upsert(f"{location}/in", gone)
    return f"{location}/in"


class History:
    """A shard of which a model knows the contents at each of its times."""

    def __init__(self, client: ShardClient, path: str, seed: int) -> None:
        self.client, self.path, self.chosen = client, path, random.Random(seed)
        self.there: Counter[Row] = Counter({(n, "x", 0): 1 for n in range(12)})
        self.seen: dict[int, Counter[Row]] = {}
        put(client, "in", 0, table(list(self.there)), KEY)
        self.note()

    def note(self) -> None:
        upper = self.client.state("in").upper.time
        assert upper is not None
        self.seen[upper - 1] = +self.there

    def key(self) -> tuple[Any, ...]:
        return self.chosen.choice([None, *range(6)]), self.chosen.choice(["x", None])

    def append(self) -> None:
        """Not by key, and at two times: copies, and several rows of a key."""
        upper = self.client.state("in").upper
        assert upper.time is not None
        some: list[Row] = [(*self.key(), self.chosen.choice([0, 1])) for _ in range(4)]
        diffs = [self.chosen.choice([1, 2]) for _ in some]
        times = [upper.time, upper.time, upper.time + 1, upper.time + 1]
        rows = table(some, diffs).append_column("_ts", pa.array(times, pa.int64()))
        self.client.writer("in").compare_and_append(rows, upper, Frontier(upper.time + 2))
        for at in (upper.time, upper.time + 1):
            for row, diff, time in zip(some, diffs, times, strict=True):
                self.there[row] += diff if time == at else 0
            self.seen[at] = +self.there

    def upsert(self) -> None:
        # No value of before: of a key whose row stays as it is nothing is closed.
        value = 10 + len(self.seen)
        new = {self.key(): self.chosen.choice([value, value, None]) for _ in range(3)}
        rows: list[Row] = [(*k, v) for k, v in new.items()]
        upsert(self.path, table(rows))
        self.there = Counter({row: n for row, n in self.there.items() if row[:2] not in new})
        self.there.update(row for row in rows if row[2] is not None)
        self.note()


@pytest.mark.parametrize("seed", some_of(range(12), (0,)))
def test_any_history_of_a_key(
    spark: SparkSession, location: str, kept: ClosedRows, seed: int
) -> None:
    """Upserts, deletes, plain appends, copies: at each time by key, by number, and once more."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    history = History(client, f"{location}/in", seed)
    for _ in range(4):
        history.chosen.choice([history.append, history.upsert, history.upsert])()
    by_number = 0
    for as_of, expected in history.seen.items():
        found = [datasource.snapshot(spark, history.path, as_of=as_of) for _ in range(3)]
        for frame in found:
            assert counted(frame) == expected, as_of
        by_number += BITS in plan_of(found[-1])
    assert by_number >= len(kept) > 0


@pytest.mark.disk
@pytest.mark.parametrize(
    ("seed", "by_hash"), some_of(product(range(12), [True, False]), [(2, False), (7, True)])
)
def test_any_history_of_rows(
    spark: SparkSession,
    location: str,
    kept: ClosedRows,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    *,
    by_hash: bool,
) -> None:
    """Retractions of single rows, some of several equal ones: consolidated, then by number."""
    if by_hash:
        monkeypatch.setattr(touched_rows, "_LEAST_ROWS", 1)
    chosen = random.Random(seed)
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    kinds = pa.schema([("a", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    values = [None, 0.0, -0.0, float("nan"), 1.5]
    there: Counter[str] = Counter()
    rows_of: dict[str, tuple[Any, ...]] = {}
    seen: dict[int, Counter[str]] = {}
    for time in range(1, 5):
        # Copies of one update come rarely: then numbers cannot tell.
        added = [
            ((chosen.choice([1, 2]), chosen.choice(values), chosen.choice(["x", None])), 1)
            for _ in range(6 if time > 1 else 40)
        ]
        added += [((3, 1.5, "x"), 2)] if chosen.random() < 0.2 else []
        gone = chosen.sample(sorted(there.elements()), min(4, there.total()))
        updates = [*added, *((rows_of[name], -1) for name in gone)]
        chosen.shuffle(updates)
        for row, diff in updates:
            rows_of[repr(row)] = row
            there[repr(row)] += diff
        columns = zip(*(row for row, _ in updates), strict=True)
        table = pa.table([list(column) for column in columns], schema=kinds)
        diffs = pa.array([diff for _, diff in updates], pa.int64())
        put(client, "in", time, table.append_column("_diff", diffs))
        seen[time] = +there
    by_number = 0
    for as_of, expected in seen.items():
        found = [datasource.snapshot(spark, f"{location}/in", as_of=as_of) for _ in range(3)]
        for frame in found:
            assert Counter(repr(tuple(row)) for row in frame.collect()) == expected, as_of
        by_number += BITS in plan_of(found[-1])
    assert by_number > 0
    assert len(kept) >= by_number


@pytest.mark.disk
def test_copies_that_are_taken_back_in_part(
    spark: SparkSession, location: str, kept: ClosedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers cannot tell; that is found once, and not by a job of each read."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    copies = numbers(1, 2, 3).append_column("_diff", pa.array([3, 2, 1]))
    put(client, "in", 1, copies)
    put(client, "in", 2, numbers(1, 3).append_column("_diff", pa.array([-1, -1])))
    jobs = []
    find_as_it_is: Any = kept.find

    def find(*given: Any) -> object:
        made: list[bool] = []
        *others, make = given

        def observed() -> DataFrame:
            made.append(True)
            frame: DataFrame = make()
            return frame

        found: object = find_as_it_is(*others, observed)
        jobs.append(len(made))
        assert found is None
        return found

    monkeypatch.setattr(kept, "find", find)
    for _ in range(4):
        frame = datasource.snapshot(spark, f"{location}/in")
        assert sorted(row.a for row in frame.collect()) == [1, 1, 2, 2]
    assert jobs == [0, 1, 0, 0]


@pytest.mark.disk
def test_a_row_that_was_taken_back_too_often(spark: SparkSession, location: str) -> None:
    """By each read, and not only by the first."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, numbers(*range(5)))
    put(client, "in", 2, numbers(7, 1).append_column("_diff", pa.array([-1, -1])))
    for _ in range(3):
        with pytest.raises(Exception, match="NEGATIVE_MULTIPLICITY"):
            datasource.snapshot(spark, f"{location}/in").collect()


@pytest.mark.disk
def test_retractions_whose_sum_is_no_int64(spark: SparkSession, location: str) -> None:
    """The sum wraps around to nothing; no read takes it for that."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, numbers(*range(5)))
    for time in range(2, 6):
        diffs = pa.array([-(1 << 62)], pa.int64())
        put(client, "in", time, numbers(3).append_column("_diff", diffs))
    for _ in range(3):
        with pytest.raises(Exception, match="OVERFLOW"):
            datasource.snapshot(spark, f"{location}/in").collect()


def test_parts_of_an_older_schema(spark: SparkSession, location: str) -> None:
    """They are scanned apart, and numbered together."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, numbers(*range(20)), ("a",))
    wider = numbers(7, 50).append_column("w", pa.array([7.5, 50.5]))
    client.evolve("in", ShardSchema.from_arrow(wider.schema))
    put(client, "in", 2, numbers(30).append_column("w", pa.array([30.5])), ("a",))
    upsert(f"{location}/in", wider)
    expected: Counter[tuple[object, ...]] = Counter()
    expected.update((n, str(n), None) for n in range(20) if n != 7)
    expected.update([(7, "7", 7.5), (50, "50", 50.5), (30, "30", 30.5)])
    found = [datasource.snapshot(spark, f"{location}/in") for _ in range(3)]
    for frame in found:
        assert counted(frame) == expected
    assert [plan_of(frame).count(BITS) for frame in found] == [0, 2, 2]


@pytest.mark.parametrize("without", one_of(2, [None, "spark.sql.codegen.wholeStage"]))
def test_where_spark_skips_rows_and_splits_files(
    spark: SparkSession, location: str, without: str | None
) -> None:
    """It counts the rows that it skips: groups of rows, pages, and what other tasks read."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    rows = pa.table({"a": range(150_000), "v": [f"{n % 977:08}" for n in range(150_000)]})
    put(client, "in", 1, rows, ("a",))
    gone = list(range(0, 150_000, 7))
    upsert(f"{location}/in", pa.table({"a": gone, "v": pa.nulls(len(gone), pa.string())}))
    session = spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    if without is not None:
        session.conf.set(without, "false")
    load = session.read.format("shard").load
    left = {n for n in range(150_000) if n % 7}
    for where, expected in {
        "true": left,
        "a BETWEEN 70000 AND 70100": left & set(range(70_000, 70_101)),
        "v = '00000123' AND a > 140000": {n for n in left if n % 977 == 123 and n > 140_000},
    }.items():
        found = [load(f"{location}/in").where(where).select("a") for _ in range(2)]
        for frame in found:
            assert sorted(row.a for row in frame.collect()) == sorted(expected)
        assert BITS in plan_of(found[-1])
    assert load(f"{location}/in").rdd.getNumPartitions() > 2


@pytest.mark.disk
def test_groups_of_two_times_in_one_query(
    spark: SparkSession, shard: str, kept: ClosedRows
) -> None:
    """Spark takes no bits for those of another group."""
    client = client_at(shard.rpartition("/")[0])
    early = client.state("in").upper.time
    assert early is not None
    upsert(shard, pa.table({"a": [10, 11], "v": pa.nulls(2, pa.string())}))

    def load(as_of: int | None) -> DataFrame:
        reader = spark.read.format("shard")
        return (reader if as_of is None else reader.option("timestampAsOf", as_of)).load(shard)

    bits = []
    for _ in range(3):
        then, now = load(early - 1), load(None)
        rows = then.join(now, "a", "left_anti").unionAll(now.join(then, "a", "left_semi"))
        assert sorted(row.a for row in rows.collect()) == list(range(5, 20))
        bits.append(plan_of(rows).count(BITS))
    assert len(kept) == 2
    assert [bool(count) for count in bits] == [False, True, True]


@pytest.mark.disk
def test_only_a_second_read_finds_numbers(
    spark: SparkSession, shard: str, kept: ClosedRows
) -> None:
    """And the next upsert makes another group."""
    plans = [plan_of(datasource.snapshot(spark, shard)) for _ in range(3)]
    assert [BITS in plan for plan in plans] == [False, True, True]
    assert ["LeftAnti" in plan for plan in plans] == [True, False, False]
    upsert(shard, pa.table({"a": [19], "v": ["new"]}))
    assert BITS not in plan_of(datasource.snapshot(spark, shard))
    assert len(kept) == 1


@pytest.mark.disk
def test_a_thread_without_an_active_session(spark: SparkSession, shard: str) -> None:
    datasource.snapshot(spark, shard)
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    sessions.clearActiveSession()
    try:
        frame = datasource.snapshot(spark, shard)
        sessions.clearActiveSession()
        assert BITS in plan_of(frame)
        assert sorted(row.a for row in frame.collect()) == list(range(5, 20))
    finally:
        sessions.setActiveSession(spark._jsparkSession)


def test_a_lost_part_is_the_query_s_error(
    spark: SparkSession, shard: str, kept: ClosedRows
) -> None:
    """The job for the numbers fails; the frame is made all the same, and its error names it."""
    location = shard.rpartition("/")[0]
    assert datasource.snapshot(spark, shard).count() == 15
    parts = [p for batch in client_at(location).state("in").trace.batches for p in batch.parts]
    [whole] = [part for part in parts if not part.retracts]
    stored.delete(location, whole.key)
    frame = datasource.snapshot(spark, shard)
    assert len(kept) == 0
    with pytest.raises(Exception, match=whole.key):
        frame.collect()


@pytest.mark.disk
def test_what_is_kept_keeps_no_lease(spark: SparkSession, shard: str, kept: ClosedRows) -> None:
    """When nothing can read the parts any more, they may go; the bits stay."""
    client = client_at(shard.rpartition("/")[0])
    found = [datasource.snapshot(spark, shard) for _ in range(3)]
    assert [one.count() for one in found] == [15, 15, 15]
    assert client.state("in").leased
    del found

    wait_until("the lease is given up", lambda: not is_leased(spark, client), 60)
    assert len(kept) == 1


class TestFind:
    """Numbers without parts."""

    def test_a_failure_is_not_kept(self, spark: SparkSession, kept: ClosedRows) -> None:
        def refused() -> DataFrame:
            raise PySparkException("refused")

        def beyond() -> DataFrame:
            return spark.range(11)

        def find(make: Any) -> object:
            return kept.find(spark, "parts", 10, make)

        assert find(beyond) is None  # the first read
        assert find(beyond) is None
        assert find(refused) is None
        assert len(kept) == 0
        assert find(lambda: spark.range(10)) is not None

    def test_small_and_large_groups_are_read_by_key(self, spark: SparkSession) -> None:
        kept = ClosedRows(rows_least=5)
        for rows in (4, 5, closed_rows._ROWS_MOST + 1):
            found = [kept.find(spark, rows, rows, lambda: spark.range(1)) for _ in range(2)]
            assert (found[1] is not None) == (rows == 5)

    def test_only_so_many_rows_are_kept(self, spark: SparkSession) -> None:
        """Those that were not used for longest go first."""
        kept = ClosedRows(rows_least=1, rows_max=10)

        def find(name: str, rows: int) -> object:
            return kept.find(spark, name, rows, lambda: spark.range(1))

        for name in ("a", "b"):
            assert find(name, 4) is None
            assert find(name, 4) is not None
        first = find("a", 4)
        find("c", 6)
        assert find("c", 6) is not None
        assert len(kept) == 2
        assert find("a", 4) is first

    def test_only_so_many_groups_are_remembered(
        self, spark: SparkSession, kept: ClosedRows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(closed_rows, "_SEEN_MOST", 2)
        found = [kept.find(spark, name, 1, lambda: spark.range(1)) is not None for name in "abcabb"]
        assert found == [False, False, False, False, False, True]

    def test_a_row_beyond_the_bits_stays(self, spark: SparkSession) -> None:
        """Whatever Spark does elsewhere with an element that is not there."""
        bits = java_object(spark, "RowBits", spark.range(3, 200, 3)._jdf, 200)
        session = spark.newSession()
        for ansi in ("true", "false"):
            session.conf.set("spark.sql.ansi.enabled", ansi)
            frame = session.range(-1, 300).selectExpr("100L AS f", f"id - 100 AS {ROW_INDEX}")
            java = bits.unset(frame._jdf, "f", ROW_INDEX)
            left = {row[1] + 100 for row in type(frame)(java, session).collect()}
            assert left == {n for n in range(-1, 300) if n % 3 or n < 3 or n >= 200}
