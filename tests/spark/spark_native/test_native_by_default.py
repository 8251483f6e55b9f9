"""Every session reads natively from its first read on; without a read it has only a small class."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread

from shardline import datasource
from shardline.datasource import java_names
from shardline.datasource.spark_native import (
    compiled_java,
    load_plans,
    plan_rule,
    rule_loader,
)
from shardline.datasource.spark_native.jvm import make_active
from shardline.datasource.spark_native.rule_loader import (
    SETTING,
    install_loader,
    loader_of,
    offer_native_reads,
)
from support.spark.native import client_at, collected, fresh_rule, ids, plan_of, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = pytest.mark.spark

NEVER = [rule_loader._RuleMaker(lambda: None, act) for act in ("read", "written")]
"""Makers of rules that make none, for a loader of its own."""


@pytest.fixture
def native(spark: SparkSession) -> Iterator[NativeReads]:
    with fresh_rule(spark) as installed:
        yield installed


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SparkSession]:
    """The sessions whose rule was made."""
    found: list[SparkSession] = []
    make = plan_rule.make_rule

    def note(spark: SparkSession) -> Any:
        found.append(spark)
        return make(spark)

    monkeypatch.setattr(plan_rule, "make_rule", note)
    return found


def read(spark: SparkSession, location: str) -> Any:
    return spark.read.format("shard").load(f"{location}/in")


# --- sessions ----------------------------------------------------------------------------------


def test_the_rule_is_made_at_the_first_read(
    spark: SparkSession, location: str, made: list[SparkSession]
) -> None:
    """A session that nobody asked has a loader; queries without a shard make no rule."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    other = spark.newSession()
    assert loader_of(other) is not None
    assert not loader_of(other).equals(loader_of(spark))
    assert other.range(3).where("id in (select max(id) from range(2))").count() == 1
    assert not made
    for _ in range(2):
        frame = read(other, location)
        assert collected(frame) == [(1,), (2,)]
        assert "FileScan parquet" in plan_of(frame)
    assert made == [other]


def test_a_scan_in_a_subquery_makes_the_rule(
    spark: SparkSession, location: str, made: list[SparkSession]
) -> None:
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    other = spark.newSession()
    read(other, location).createOrReplaceTempView("those")
    asked = other.sql("select id from range(5) where id = (select max(id) from those)")
    assert collected(asked) == [(2,)]
    assert made == [other]
    assert "FileScan parquet" in plan_of(asked)


def test_a_load_has_one_plan_in_all_sessions(spark: SparkSession, location: str) -> None:
    """By a global temporary view, and by a frame that is used in the other session."""
    client = client_at(location, inline_part_bytes=0)
    put(client, "in", 1, ids(1))
    other = spark.newSession()
    frame = read(spark, location)
    frame.createGlobalTempView("everywhere")
    there = other.table("global_temp.everywhere")
    try:
        assert collected(frame) == [(1,)]
        put(client, "in", 2, ids(2))
        assert collected(there.select("id")) == [(1,)]
        assert "FileScan parquet" in plan_of(there)
        assert collected(other.range(9).join(frame, "id")) == [(1,)]
        assert collected(read(other, location)) == [(1,), (2,)]
    finally:
        spark.catalog.dropGlobalTempView("everywhere")


@pytest.mark.parametrize("where", ["id > 100", "id > 1"])
def test_planning_leaves_the_active_session(spark: SparkSession, location: str, where: str) -> None:
    """PySpark has one for all threads; a cached frame is planned in a copy of its session."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    other = spark.newSession()
    # No rows without a file; in another zone than the option's, tasks fetch and filter.
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    expected = {"id > 100": 0, "id > 1": 1}[where]
    spark.createDataFrame([(1,)], "id INT")
    for session in (spark, other):
        reader = session.read.format("shard").option("timeZone", "UTC").option("where", where)
        frame = reader.load(f"{location}/in").cache()
        assert frame.count() == expected
        frame.unpersist()
        assert type(spark).getActiveSession() is spark


def test_a_session_has_one_loader(native: NativeReads, spark: SparkSession) -> None:
    """Whoever asks, and however often; copies of the session share it."""
    own = native._loader
    offer_native_reads(spark)
    assert install_loader(spark, lambda: None).equals(own)
    clone = spark._jsparkSession.cloneSession()
    assert own.loaderOf(clone).equals(own)
    rules = spark._jsparkSession.experimental().extraOptimizations()
    assert [rules.apply(n).getClass().getSimpleName() for n in range(rules.size())] == [
        "ShardRuleLoader"
    ]


def test_a_session_that_starts_with_false_is_left_alone(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1))
    with monkeypatch.context() as patch:
        patch.setattr(rule_loader, "java_object", None)
        other = spark.newSession()  # with its exception logged, if it had asked
    other.conf.set(SETTING, "false")
    offer_native_reads(other)
    assert loader_of(other) is None
    assert "not native" not in plan_of(read(other, location))
    other.conf.unset(SETTING)
    offer_native_reads(other)
    assert "FileScan parquet" in plan_of(read(other, location))


def test_another_spark_is_left_alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_loader, "_CHECKED", "4.2.9")
    assert loader_of(spark.newSession()) is None


def test_a_session_of_spark_connect_is_left_alone() -> None:
    offer_native_reads(object())  # type: ignore[arg-type] # it has no JVM


@pytest.mark.parametrize("fault", [None, RuntimeError("no rule")], ids=["none", "error"])
def test_a_rule_that_cannot_be_made_fails_no_query(
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception | None,
) -> None:
    """The Python workers read, and nobody tries again."""
    asked: list[SparkSession] = []

    def fail(spark: SparkSession) -> None:
        asked.append(spark)
        if fault is not None:
            raise fault

    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1))
    monkeypatch.setattr(plan_rule, "make_rule", fail)
    other = spark.newSession()
    for _ in range(2):
        assert collected(read(other, location)) == [(1,)]
    assert asked == [other]


@pytest.mark.usefixtures("native")
def test_a_query_that_is_stopped_decides_for_no_other(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is stopped while it plans its join with a frame, which the next one reads."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    frame = read(spark, location)
    planned: list[str] = []

    def interrupted(*_: object) -> None:
        raise RuntimeError("java.lang.InterruptedException")

    def plan() -> None:
        planned.append(str(frame.where("id > 1")._jdf.queryExecution().optimizedPlan()))

    with monkeypatch.context() as patch:
        patch.setattr(load_plans, "_check_parts", interrupted)
        thread = InheritableThread(plan)  # and with it a thread of the JVM, which is interrupted
        thread.start()
        thread.join()
    assert ["parquet" in one for one in planned] == [False]
    assert collected(frame) == [(1,), (2,)]
    assert "FileScan parquet" in plan_of(frame)


# --- compiled classes --------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder that compiled classes are kept in."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load = compiled_java._loaded
    monkeypatch.setattr(compiled_java, "_loaded", load.__wrapped__)
    return tmp_path / "kept"


def truncate(data: bytes) -> bytes:
    return data[:-9]


def change_the_code(data: bytes) -> bytes:
    """Bytes that are no class, under a digest that fits."""
    _digest, _, text = data.partition(b"\n")
    wrong = json.dumps(dict.fromkeys(json.loads(text), "AAAA")).encode()
    return hashlib.sha256(wrong).hexdigest().encode() + b"\n" + wrong


@pytest.mark.parametrize("fault", [None, truncate, change_the_code])
def test_what_was_compiled_is_kept(
    spark: SparkSession,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[bytes], bytes] | None,
) -> None:
    """It is compiled anew only if what was kept is not whole, or is no class."""
    compiled: list[str] = []
    find = java_names.class_in

    def note(jvm: Any, name: str) -> Any:
        compiled.extend([name] * (name == compiled_java._JANINO))
        return find(jvm, name)

    monkeypatch.setattr(compiled_java, "class_in", note)
    for _ in range(2):
        made = compiled_java.java_object(spark, "ShardRuleLoader", *NEVER)
        assert made.getClass().getName() == "shardline_jvm.ShardRuleLoader"
        [file] = kept.rglob("*.classes")
        if fault is not None:
            file.write_bytes(fault(file.read_bytes()))
    assert len(compiled) == (1 if fault is None else 2)
    assert [one.suffix for one in kept.rglob("*") if one.is_file()] == [".classes"]


def test_nothing_is_kept_where_python_keeps_nothing(
    spark: SparkSession, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    compiled_java.java_object(spark, "ShardRuleLoader", *NEVER)
    assert not kept.exists()


# --- Ctrl-C ------------------------------------------------------------------------------------


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_in_a_call(spark: SparkSession) -> None:
    """The JVM sends the signal while this thread waits for its answer."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    command = gateway.new_array(jvm.java.lang.String, 3)
    command[0], command[1], command[2] = "kill", "-INT", str(os.getpid())
    assert jvm.java.lang.Runtime.getRuntime().exec(command).waitFor() == 0


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("during", ["python", "call", "making"])
def test_ctrl_c_while_a_read_is_planned_ends_the_query(
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    during: str,
) -> None:
    """The next query works, and its answers are those of its own calls.

    Whether a job begins is PySpark's matter: once its callback server has been started anew, the
    planner is called in another thread than the one that waits and is interrupted.
    """
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    handler = signal.getsignal(signal.SIGINT)
    session = spark.newSession() if during == "making" else spark
    place = (plan_rule, "make_rule") if during == "making" else (load_plans, "_check_parts")
    work = getattr(*place)

    def interrupted(*args: Any) -> Any:
        found = work(*args)
        if during == "call":
            press_in_a_call(spark)
        else:
            press()
        return found

    frame = read(session, location)
    monkeypatch.setattr(*place, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            frame.collect()
    finally:
        make_active(spark)  # PySpark calls from another thread of the JVM now, which has none
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.undo()
    assert session.range(7).count() == 7
    assert collected(frame) == [(1,), (2,)]
    assert "FileScan parquet" in plan_of(frame)


def test_a_filter_may_name_columns_in_any_case(spark: SparkSession, location: str) -> None:
    """Also in a session to which another case is another column: tasks filter there."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    put(client_at(location, inline_part_bytes=0), "in", 1, pa.table({"Id": [1, 2, 3, 4]}))
    for where in ("id > 2", "Id > 2"):
        found = datasource.snapshot(session, f"{location}/in", options={"where": where})
        assert collected(found) == [(3,), (4,)]
