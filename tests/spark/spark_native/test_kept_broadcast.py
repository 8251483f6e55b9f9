"""Keys and hashes that merged reads look rows up in are broadcast once, for later queries too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from typing_extensions import override

from shardline import datasource
from shardline.datasource.java_names import java_class
from shardline.datasource.lease import Lease
from shardline.datasource.rows.updates import stamp
from shardline.datasource.spark_native import frames, touched_rows
from shardline.datasource.spark_native.kept_broadcast import KeptBroadcasts
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from support.spark import stored
from support.spark.native import client_at, is_leased, plan_of, put, upsert
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = pa.schema([("id", pa.int64()), ("v", pa.string())])
KEPT = "KeptBroadcast"


@pytest.fixture
def broadcasts(monkeypatch: pytest.MonkeyPatch) -> KeptBroadcasts:
    made = KeptBroadcasts()
    monkeypatch.setattr(frames, "BROADCASTS", made)
    return made


def rows(*numbers: int) -> pa.Table:
    return pa.table([list(numbers), [str(n) for n in numbers]], schema=ROWS)


def delete(path: str, *numbers: int) -> None:
    """Delete these keys by an upsert."""
    gone = pa.table([list(numbers), [None] * len(numbers)], schema=ROWS)
    upsert(path, gone)


@pytest.fixture
def shard(location: str) -> str:
    """The numbers below 20, of which an upsert has deleted the first five."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, rows(*range(20)), ("id",))
    delete(f"{location}/in", *range(5))
    return f"{location}/in"


def numbers_in(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def stages_of(spark: SparkSession, frame: DataFrame) -> int:
    """How many stages of tasks a run of `frame` takes."""
    context: Any = spark._jsc
    group = f"stages of {id(frame)}"
    spark.sparkContext.setJobGroup(group, group)
    frame.collect()
    context.sc().clearJobGroup()
    # The tracker knows what listeners have been told, which comes after the result.
    context.sc().listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    return sum(len(job.stageIds) for job in jobs if job is not None)


@pytest.mark.usefixtures("broadcasts")
@pytest.mark.parametrize(
    "without", [None, "spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"]
)
def test_a_second_read_collects_no_keys(
    spark: SparkSession, shard: str, without: str | None
) -> None:
    """Whether Spark plans adaptively or not, and generates code or sends tasks the plan."""
    session = spark.newSession()
    if without is not None:
        session.conf.set(without, "false")
    first = datasource.snapshot(session, shard)
    assert numbers_in(first) == list(range(5, 20))
    again = datasource.snapshot(session, shard, where="id > 7")
    assert KEPT in plan_of(again)
    assert numbers_in(again) == list(range(8, 20))
    # Keys that are broadcast anew are a stage of their own.
    assert stages_of(spark, datasource.snapshot(session, shard)) == 1


@pytest.mark.parametrize("of_first", [False, True])
def test_a_thread_without_an_active_session(
    spark: SparkSession, shard: str, broadcasts: KeptBroadcasts, *, of_first: bool
) -> None:
    """As any thread that a user starts is in the JVM until it has run something."""
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    if not of_first:
        datasource.snapshot(spark, shard)
    sessions.clearActiveSession()
    try:
        frame = datasource.snapshot(spark, shard)
        sessions.clearActiveSession()
        assert len(broadcasts) == 1
        assert KEPT in plan_of(frame)
        assert numbers_in(frame) == list(range(5, 20))
    finally:
        sessions.setActiveSession(spark._jsparkSession)


@pytest.mark.usefixtures("broadcasts")
def test_touched_rows_are_looked_up_in_it(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where retractions take back single rows, too."""
    monkeypatch.setattr(touched_rows, "_LEAST_ROWS", 1)
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, rows(*range(20)))
    put(client, "in", 2, stamp(rows(3, 4), 2, -1))
    expected = [n for n in range(20) if n not in (3, 4)]
    for _ in range(2):
        frame = datasource.snapshot(spark, f"{location}/in")
        assert plan_of(frame).count(KEPT) == 2  # untouched rows, and touched ones
        assert numbers_in(frame) == expected


@pytest.mark.usefixtures("broadcasts")
def test_other_keys_are_another_broadcast(spark: SparkSession, shard: str) -> None:
    """At another time other keys are closed; a query of both times has each one's rows."""
    delete(shard, 7, 8)
    client = client_at(shard.rpartition("/")[0])
    last = client.state("in").upper.time
    assert last is not None
    before = datasource.snapshot(spark, shard, as_of=last - 2)
    after = datasource.snapshot(spark, shard)
    assert numbers_in(before) == list(range(5, 20))
    assert numbers_in(after) == [5, 6, *range(9, 20)]
    counted = [frame.groupBy(F.col("id") % 2).count() for frame in (before, after, before)]
    both = counted[0].union(counted[1]).union(counted[2])
    assert sum(row["count"] for row in both.collect()) == 15 + 13 + 15
    joined = before.join(after, before.id == after.id, "left_anti")
    assert numbers_in(joined.select(before.id)) == [7, 8]


def test_spark_does_not_take_one_for_another(
    spark: SparkSession, broadcasts: KeptBroadcasts
) -> None:
    """Plans that differ in nothing but what is kept are computed apart."""
    source = spark.range(10)

    def left(gone: int) -> DataFrame:
        def keys_of_gone() -> DataFrame:
            return spark.range(gone).toDF("k")

        keys = broadcasts.broadcast_once(spark, gone, gone, keys_of_gone)
        assert keys is not None
        rest = source.join(keys, source.id == F.col("k"), "left_anti")
        return rest.repartition(2).groupBy().count()

    both = left(1).union(left(2)).union(left(1))
    assert [row["count"] for row in both.collect()] == [9, 8, 9]


def test_what_is_kept_keeps_no_lease(
    spark: SparkSession, shard: str, broadcasts: KeptBroadcasts
) -> None:
    """When nothing can read the parts any more, they may go; the keys stay."""
    client = client_at(shard.rpartition("/")[0])
    frame = datasource.snapshot(spark, shard)
    assert numbers_in(frame) == list(range(5, 20))
    assert client.state("in").leased
    del frame

    wait_until("the lease is given up", lambda: not is_leased(spark, client), 60)
    assert len(broadcasts) == 1


def test_the_lease_is_renewed_while_keys_are_collected(
    spark: SparkSession, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes, the parts of the read that is being planned are protected."""
    client = client_at(shard.rpartition("/")[0])
    renewed: set[str] = set()
    collected: list[set[str]] = []
    monkeypatch.setattr(Lease, "renew", lambda lease: renewed.add(lease.reader))

    class Slow(KeptBroadcasts):
        @override
        def broadcast_once(self, *given: Any) -> DataFrame | None:
            LEASE_KEEPER.beat()
            collected.append(set(client.state("in").leased))
            return super().broadcast_once(*given)

    monkeypatch.setattr(frames, "BROADCASTS", Slow())
    assert numbers_in(datasource.snapshot(spark, shard)) == list(range(5, 20))
    [leases] = collected
    assert leases
    assert leases <= renewed


def test_a_failure_is_not_kept(spark: SparkSession, broadcasts: KeptBroadcasts) -> None:
    """The next read tries again."""

    def broken() -> DataFrame:
        return spark.range(1).select(F.raise_error(F.lit("broken")).cast("long").alias("k"))

    def refused() -> DataFrame:
        raise PySparkException("refused")

    assert broadcasts.broadcast_once(spark, "keys", 1, broken) is None
    assert broadcasts.broadcast_once(spark, "keys", 1, refused) is None
    assert broadcasts.broadcast_once(spark, "keys", 1, lambda: spark.range(1)) is not None


def test_a_lost_part_is_the_query_s_error(
    spark: SparkSession, shard: str, broadcasts: KeptBroadcasts
) -> None:
    """The frame is made all the same, and its error names the part."""
    client = client_at(shard.rpartition("/")[0])
    parts = [part for batch in client.state("in").trace.batches for part in batch.parts]
    [retracting] = [part for part in parts if part.retracts]
    stored.delete(shard.rpartition("/")[0], retracting.key)
    frame = datasource.snapshot(spark, shard)
    assert len(broadcasts) == 0
    with pytest.raises(Exception, match=retracting.key):
        frame.collect()


def test_only_so_many_rows_are_kept(spark: SparkSession) -> None:
    """Those that were used last; more than all together may be are not kept at all."""
    broadcasts = KeptBroadcasts(rows_max=10)
    made: list[str] = []

    def keep(name: str, rows: int) -> bool:
        def make() -> DataFrame:
            made.append(name)
            return spark.range(rows)

        return broadcasts.broadcast_once(spark, name, rows, make) is not None

    assert keep("a", 4)
    assert keep("b", 4)
    assert keep("a", 4)
    assert keep("c", 4)  # and "b" goes
    assert keep("a", 4)
    assert made == ["a", "b", "c"]
    assert keep("b", 4)
    assert made == ["a", "b", "c", "b"]
    assert not keep("d", 11)
    assert made == ["a", "b", "c", "b"]
