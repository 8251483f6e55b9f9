"""One Spark session for all tests of a process, configured as `conf/` configures the real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.profiles import some_of
from support.spark.s3a import CHOSEN, new_location, s3a_session
from support.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.parts.stage import Staged
    from shardline.datasource.spark_native.plan_rule import NativeReads
    from shardline.datasource.spark_native.save import NativeWrite
    from support.spark.kept_plans import Compared
    from support.spark.native import Reads

CONF = ROOT / "conf" / "spark-defaults.conf"

_BEGAN: dict[SparkSession, dict[str, str | bool | None]] = {}
"""The session of this process, and its state at its start, which no test may leave changed."""


def defaults() -> dict[str, str]:
    """The settings in `conf/spark-defaults.conf`."""
    lines = (line.split(None, 1) for line in CONF.read_text().splitlines())
    return {
        parts[0]: parts[1].strip()
        for parts in lines
        if len(parts) == 2 and not parts[0].startswith("#")
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # The script sets them where the path of the interpreter itself would not do.
        os.environ.setdefault(name, sys.executable)
    os.environ["SPARK_CONF_DIR"] = str(CONF.parent)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("shardline tests")
    for name, value in defaults().items():
        builder = builder.config(name, value)
    if chosen := os.environ.get("SHARDLINE_NATIVE_READS"):
        # With `false` all plain reads are the Python workers': the same rows and errors.
        builder = builder.config("spark.shardline.nativeReads", chosen)
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
    with s3a_session(builder) if CHOSEN else nullcontext(builder.getOrCreate()) as session:
        _BEGAN[session] = _state(session)
        yield session
        _BEGAN.clear()
        session.stop()


def _state(session: SparkSession) -> dict[str, str | bool | None]:
    from shardline.datasource.spark_native.rule_loader import loader_of

    names = (name for name in defaults() if name.startswith("spark.sql."))
    settings = {name: session.conf.get(name, None) for name in names}
    return {**settings, "native reads": loader_of(session) is not None}


@pytest.fixture(scope="module", autouse=True)
def _session_stays() -> Iterator[None]:
    """A setting of ours that a test has unset is Spark's from then on, and no longer ours.

    So 200 partitions of each shuffle, in all tests that come after in this process. And without
    native reads, which a session has from its start, Python workers read in them.
    """
    yield
    for session, before in _BEGAN.items():
        assert _state(session) == before, "a test has left a session changed"


@pytest.fixture
def kept_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands run in this process: they find its session, and stop it at their end.

    It is that of all tests that come after.
    """
    monkeypatch.setattr(type(spark), "stop", lambda _: None)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Attempts whose rows were staged by tasks of Spark."""
    from shardline.datasource.spark_native import save

    found, stage = list[str](), save.NativeWrite.stage

    def noted(saving: NativeWrite, attempt: str) -> Staged:
        found.append(attempt)
        return stage(saving, attempt)

    monkeypatch.setattr(save.NativeWrite, "stage", noted)
    return found


@pytest.fixture
def native_reads(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeReads]:
    """Plain reads are planned natively, and ranges of streams of any size; counted from here on."""
    from shardline.datasource.spark_native import load_plans
    from support.spark.native import fresh_rule

    monkeypatch.setattr(load_plans, "SMALL_ROWS", 0)
    with fresh_rule(spark) as installed:
        yield installed


@pytest.fixture(params=some_of(["arrow", "native"], {"native"}))
def reads(
    request: pytest.FixtureRequest, spark: SparkSession, native_reads: NativeReads
) -> Iterator[Reads]:
    """The test runs over both paths, and fails if its plain reads took the other one.

    In each run over the native one, but for tests that name their paths: what has few rows goes
    through Arrow in all tests that do not ask for this.
    """
    from support.spark.native import Reads

    found = Reads(str(request.param), native_reads)
    before = spark.conf.get("spark.shardline.nativeReads", None)
    spark.conf.set("spark.shardline.nativeReads", str(found.path == "native").lower())
    yield found
    if before is None:
        spark.conf.unset("spark.shardline.nativeReads")
    else:
        spark.conf.set("spark.shardline.nativeReads", before)
    found.check()


@pytest.fixture
def compared_plans() -> Iterator[Compared]:
    """Kept plans of views are compared with the ordinary way in each step."""
    from support.spark.kept_plans import compare_kept_plans

    with compare_kept_plans() as compared:
        yield compared


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A fresh location, on local disk unless the tests run over S3."""
    return new_location(tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
