"""The lease of a native frame lasts as long as what can read its files, and ends then."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError

from shardline import datasource
from shardline.datasource.clock import SystemClock
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, take_lease
from shardline.datasource.read import current_schema
from shardline.datasource.shard.commands.readers import expire_leased
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.fetch_task import ShardPartition
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.partition_planner import take_batch_lease
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.spark_native.jvm import LivenessToken
from shardline.datasource.spark_native.leases import LEASE_KEEPER, LeaseKeeper
from support.processes.job import BRIEF
from support.profiles import some_of
from support.spark.native import client_at, ids, put
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("grouped", "adaptive"),
    some_of(itertools.product([True, False], repeat=2), [(True, True)]),
)
def test_a_lease_lives_as_long_as_frames_made_of_it(
    spark: SparkSession,
    location: str,
    grouped: bool,
    adaptive: bool,
) -> None:
    """What a frame needs is kept while it, or a frame or RDD made of it, can be run."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1, 2, 3))
    jvm: Any = spark._jvm

    def collect_garbage() -> None:
        gc.collect()
        jvm.java.lang.System.gc()

    def held() -> bool:
        collect_garbage()
        LEASE_KEEPER.beat()
        return bool(client.state("in").leased)

    def is_collected(reference: Any) -> bool:
        collect_garbage()
        return bool(reference.refersTo(None))

    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", str(adaptive).lower())
    frame = datasource.snapshot(session, f"{location}/in")
    derived = frame.where("id > 1")
    derived = derived.groupBy().sum("id") if grouped else derived
    del frame
    assert held()
    expected = derived.collect()
    rdd = derived.rdd
    rdd.getNumPartitions()
    # Not just the name: what is left of a job holds plans for a moment, and with them the lease.
    plan = jvm.java.lang.ref.WeakReference(derived._jdf.queryExecution())
    del derived
    wait_until("the plan is collected", lambda: is_collected(plan), 60)
    assert held()
    assert rdd.collect() == expected
    del rdd
    wait_until("the lease is given up", lambda: not held(), 60)


class _Life:
    def __init__(self) -> None:
        self.here = True

    def is_alive(self) -> bool:
        return self.here


def test_a_lease_that_is_being_given_up_is_not_shared(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that is planned before the store has heard of it has a lease of its own."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    release, between = Lease.release, []

    def release_late(lease: Lease) -> None:
        between.append(take_batch_lease(client, "in", 1))
        release(lease)

    first = take_batch_lease(client, "in", 1)
    assert take_batch_lease(client, "in", 1).reader == first.reader
    keeper = LeaseKeeper(SystemClock())
    keeper.renew_while_read(
        Lease(client.machine("in"), first.reader, first.lease_ms, Frontier(0), 0)
    )
    monkeypatch.setattr(Lease, "release", release_late)
    keeper.beat()
    assert [one.reader for one in between] == list(client.state("in").leased)


def test_a_plan_that_has_waited_is_protected(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease may be over by then: nobody renews it during the wait."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    given = parse_source({"path": f"{location}/in", "timestampAsOf": "1", "timeZone": "UTC"})
    wait = Machine.wait_for_upper_past
    ended: list[str] = []

    def wait_long(machine: Machine, *args: Any) -> Any:
        if not ended:
            ended.extend(machine.state().leased)
            machine.apply(partial(expire_leased, reader=ended[0]))
        return wait(machine, *args)

    monkeypatch.setattr(Machine, "wait_for_upper_past", wait_long)
    shape = RowShape.now(given, [current_schema(client.state("in"))])
    partitions = ShardBatchReader(given, shape).partitions()
    assert ended
    guards = {one.guard.reader for one in partitions if isinstance(one, ShardPartition)}
    assert guards == set(client.state("in").leased)
    assert guards


def test_no_answer_does_not_end_a_lease(spark: SparkSession) -> None:
    """Unless there is none for longer than a lease: then the JVM is gone."""
    jvm: Any = spark._jvm
    kept = jvm.java.util.ArrayList()
    token = LivenessToken(spark, kept)
    refersTo = mock.Mock(side_effect=Py4JError("no answer"))  # noqa: N806 - Java's name
    for reference in (mock.Mock(refersTo=refersTo), token._reference) * 2:
        with mock.patch.object(token, "_reference", reference):
            assert [token.is_alive() for _ in range(3)] == [True] * 3
    with mock.patch.object(token, "_reference", mock.Mock(refersTo=refersTo)):
        assert [token.is_alive() for _ in range(4)] == [True] * 3 + [False]


DRIVER = """
    import sys
    from pyspark.sql import SparkSession
    from shardline.datasource.client import ShardClient
    from shardline.datasource.spark_native.leases import LEASE_KEEPER

    location, brief = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", brief).getOrCreate()
    frame = spark.read.format("shard").load(location + "/in")
    assert frame.count() == 3
    client = ShardClient.open(location)
    assert client.state("in").leased
    spark.stop()
    LEASE_KEEPER.beat()
    assert not client.state("in").leased
"""


@pytest.mark.night
@pytest.mark.process
def test_no_lease_is_kept_for_a_spark_that_was_stopped(location: str) -> None:
    """Though the process lives on, and so does its JVM, in which a frame is kept."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2, 3))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), location, BRIEF],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_no_lease_is_kept_for_a_spark_that_has_stopped_itself(spark: SparkSession) -> None:
    """After an error in the JVM, of which Python is not told."""
    jvm: Any = spark._jvm
    kept = jvm.java.util.ArrayList()
    token = LivenessToken(spark, kept)
    assert token.is_alive()
    stopped = mock.Mock()
    stopped.sc.return_value.isStopped.return_value = True
    with mock.patch.object(spark.sparkContext, "_jsc", stopped):
        assert not token.is_alive()


def test_a_keeper_renews_and_releases(location: str) -> None:
    """A lease is renewed while one of its lives lasts, and released after the last one's end."""
    client = client_at(location)
    put(client, "in", 1, ids(1))
    # By a clock that stands still for the keeper's own thread, so that no beat is made but these.
    keeper = LeaseKeeper(SystemClock())
    lease = take_lease(client.machine("in"), since=None, lease_ms=900_000, purpose="test")
    assert isinstance(lease, Lease)
    one, other = _Life(), _Life()
    keeper.renew_while_read(lease, one)
    keeper.renew_while_read(lease, other)
    one.here = False
    keeper.beat()
    assert lease.reader in client.state("in").leased
    other.here = False
    with keeper.planning():
        keeper.beat()
        assert lease.reader in client.state("in").leased
    keeper.beat()
    assert lease.reader not in client.state("in").leased

    for users, end in (((), keeper.beat), ((_Life(),), keeper.release_all)):
        again = take_lease(client.machine("in"), since=None, lease_ms=900_000, purpose="test")
        assert isinstance(again, Lease)
        keeper.renew_while_read(again, *users)
        end()
        assert again.reader not in client.state("in").leased
