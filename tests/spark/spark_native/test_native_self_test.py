"""No row of a user is read natively before a small shard was, with the rows that it should have."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.datasource.spark_native import load_plans, plan_rule
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.plan_rule import NativeReads
from shardline.datasource.spark_native.read import make_leased_frame
from shardline.datasource.spark_native.read_counts import ReadCounts
from shardline.datasource.spark_native.self_check import SelfTest
from support.fakes.clock import ManualClock
from support.spark.native import client_at, collected, ids, plan_of, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The applications that have passed: none."""
    found: set[str] = set()
    monkeypatch.setattr(SelfTest, "_passed", found)
    return found


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> ReadCounts:
    """The counts of this test's reads."""
    found = ReadCounts(ManualClock(5))
    monkeypatch.setattr(plan_rule, "READ_COUNTS", found)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def shown(counts: ReadCounts) -> list[tuple[str, str, int]]:
    return [(one.path, one.reason, one.number) for one in counts.all()]


def test_it_runs_once_and_leaves_nothing(  # noqa: PLR0917  # fixtures
    native_reads: NativeReads,
    spark: SparkSession,
    location: str,
    passed: set[str],
    counts: ReadCounts,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first native read of an application: no count, no lease and no folder is left."""
    ran: list[pa.Table] = []
    read = plan_rule._read_by_own_rule

    def note(*args: Any) -> pa.Table:
        ran.append(read(*args))
        return ran[-1]

    monkeypatch.setattr(plan_rule, "_read_by_own_rule", note)
    native_reads.remove()
    installed = plan_rule.plan_reads_natively(spark)
    assert installed is not None
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    try:
        for _ in range(2):
            frame = spark.read.format("shard").load(f"{location}/in")
            assert collected(frame) == [(1,), (2,)]
            assert "FileScan parquet" in plan_of(frame)
        assert installed.counts() == {"native": 2}
    finally:
        installed.remove()
    assert [table.num_rows for table in ran] == [4]
    assert passed == {spark.sparkContext.applicationId}
    assert shown(counts) == [("native", "", 2)]
    assert not list(folder.iterdir())
    with LEASE_KEEPER._lock:
        kept = [url for url, found in LEASE_KEEPER._locations.items() if found.kept]
    assert not [url for url in kept if str(folder) in url]


def lose_a_row(*args: Any, **named: Any) -> DataFrame:
    frame = make_leased_frame(*args, **named)
    return frame.where("n <> 2") if "n" in frame.columns else frame


def change_a_value(*args: Any, **named: Any) -> DataFrame:
    frame = make_leased_frame(*args, **named)
    if "x" not in frame.columns:
        return frame
    return frame.selectExpr(*(f"{c} + 0D as x" if c == "x" else c for c in frame.columns))


def fail(*args: Any, **named: Any) -> DataFrame:
    frame = make_leased_frame(*args, **named)
    if "x" in frame.columns:
        raise RuntimeError("no\nplan")
    return frame


FAULTS = {
    lose_a_row: "it has read other values of n, yes, tiny,",
    change_a_value: "it has read other values of x",
    fail: "NotNativeError: failed: RuntimeError",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.usefixtures("passed", "folder")
def test_a_failure_leaves_all_reads_to_python(  # noqa: PLR0917  # fixtures
    native_reads: NativeReads,
    spark: SparkSession,
    location: str,
    counts: ReadCounts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Any,
) -> None:
    """Said once, counted with the reason, shown by `explain()`; no query fails."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    monkeypatch.setattr(load_plans, "make_leased_frame", fault)
    frames = [spark.read.format("shard").load(f"{location}/in") for _ in range(2)]
    for frame in frames:
        assert collected(frame) == [(1,), (2,)]
    [reason] = {reason for _, reason, _ in shown(counts)}
    assert reason.startswith(f"the self-test failed: {FAULTS[fault]}")
    assert shown(counts) == [("not installed", reason, 1), ("python workers", reason, 2)]
    assert native_reads.counts() == {f"left: {reason}": 2}
    assert f"not native: {reason}" in plan_of(frames[1])
    said = [r.getMessage() for r in caplog.records if "Python workers" in r.getMessage()]
    assert said == [f'format("shard") is read by Python workers: {reason}']


@pytest.mark.usefixtures("native_reads", "folder")
def test_a_session_without_native_reads_needs_no_test(
    spark: SparkSession, location: str, passed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no test where Spark has no way to the location."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1))
    monkeypatch.setattr(load_plans, "hadoop_url", lambda *_: None)
    assert collected(spark.read.format("shard").load(f"{location}/in")) == [(1,)]
    assert not passed
