"""No row of a user is read natively before a small shard was, with the rows that it should have."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.datasource.spark_native import (
    compiled_java,
    load_plans,
    passed_tests,
    plan_rule,
    rule_loader,
)
from shardline.datasource.spark_native.jvm import settings_of
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.plan_rule import NativeReads
from shardline.datasource.spark_native.read import make_leased_frame
from shardline.datasource.spark_native.read_counts import ReadCounts
from shardline.datasource.spark_native.rule_loader import loader_of
from shardline.datasource.spark_native.self_check import SelfTest
from support.fakes.clock import ManualClock
from support.spark.native import client_at, collected, ids, plan_of, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The applications that have passed: none; nor has any other process of the installation."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found: set[str] = set()
    monkeypatch.setattr(SelfTest, "_passed", found)
    return found


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only file of this package's code."""
    found = tmp_path / "frames.py"
    found.write_text("reads", "utf-8")
    monkeypatch.setattr(passed_tests, "_own_files", lambda: [str(found)])
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


# --- passed once -------------------------------------------------------------------------------


def times_tested(spark: SparkSession) -> int:
    """How often a small shard is read by one more application of the installation."""
    ran: list[str] = []

    def read(path: str) -> pa.Table:
        ran.append(path)
        return plan_rule._read_by_own_rule(spark, path)

    SelfTest._passed.clear()
    test = SelfTest(spark, read)
    assert test.failure() is None
    assert test.failure() is None
    assert SelfTest._passed == {spark.sparkContext.applicationId}
    return len(ran)


@pytest.mark.usefixtures("passed", "own_file")
def test_what_has_passed_is_tested_once(spark: SparkSession, own_file: Path) -> None:
    """With one combination of settings and programs, however often another one came between."""
    one, other = spark.newSession(), spark.newSession()  # the session of all may be set otherwise
    other.conf.set("spark.sql.streaming.checkpointLocation", "/x")  # rows do not depend on it
    assert [times_tested(one), times_tested(one), times_tested(other)] == [1, 0, 0]
    other.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    assert [times_tested(other), times_tested(other), times_tested(one)] == [1, 0, 0]
    then = own_file.stat()
    own_file.write_text("wrong", "utf-8")  # as many bytes
    os.utime(own_file, ns=(then.st_atime_ns, then.st_mtime_ns + 1))
    assert [times_tested(one), times_tested(one)] == [1, 0]


@pytest.mark.usefixtures("own_file")
def test_jars_and_rules_are_of_the_combination(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jar by its contents' size and time; a rule by its class, whichever object of it."""
    jar = tmp_path / "rules.jar"
    jar.write_bytes(b"1")
    other = spark.newSession()
    known = [passed_tests.combination_of(other)]
    assert passed_tests.combination_of(spark.newSession()) == known[0]
    with_jar = {**settings_of(other), "spark.jars": f"file:{jar}"}
    monkeypatch.setattr(passed_tests, "settings_of", lambda _: with_jar)
    known.append(passed_tests.combination_of(other))
    jar.write_bytes(b"12")
    known.append(passed_tests.combination_of(other))
    never = [rule_loader._RuleMaker(lambda: None, act) for act in ("read", "written")]
    rule = compiled_java.java_object(spark, "ShardRuleLoader", *never)
    loader_of(other).remove(other._jsparkSession)
    known.append(passed_tests.combination_of(other))
    rule.install(other._jsparkSession)
    assert passed_tests.combination_of(other) == known[2]
    assert len(set(known)) == len(known)


def test_the_code_that_reads_is_of_the_combination(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's and ours: each file of them by its size and time."""
    looked: list[str] = []
    look = passed_tests._look

    def note(path: str) -> tuple[str, int, int]:
        found = look(path)
        looked.extend([path] * (found[1] > 0))
        return found

    monkeypatch.setattr(passed_tests, "_look", note)
    assert passed_tests.combination_of(spark) is not None
    names = {Path(path).name for path in looked}
    assert {"ShardScanRule.java", "frames.py", "fetch.py"} <= names
    assert any(name.startswith("spark-sql_") for name in names)
    assert any(name.startswith("parquet-column-") for name in names)


@pytest.mark.usefixtures("passed", "own_file")
def test_a_failure_is_tested_again(spark: SparkSession) -> None:
    """By each application; nothing is kept of it."""
    for _ in range(2):
        failing = SelfTest(spark, lambda _: pa.table({"n": [1]}))
        assert str(failing.failure()).startswith("the self-test failed: it has read other values")
    assert times_tested(spark) == 1


@pytest.mark.usefixtures("passed", "own_file")
def test_the_latest_combinations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_tests, "_KEPT_MAX", 3)
    for one in ("a", "b", "a", "c", "d"):
        passed_tests.note_passed(one)
    assert [passed_tests.has_passed(one) for one in "abcd"] == [True, False, True, True]
    passed_tests.note_passed(None)
    assert not passed_tests.has_passed(None)


# --- sessions without it -----------------------------------------------------------------------


@pytest.mark.usefixtures("native_reads", "folder")
def test_a_session_without_native_reads_needs_no_test(
    spark: SparkSession, location: str, passed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no test where Spark has no way to the location."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1))
    monkeypatch.setattr(load_plans, "hadoop_url", lambda *_: None)
    assert collected(spark.read.format("shard").load(f"{location}/in")) == [(1,)]
    assert not passed
