"""Settings that decide what a query means are part of what a view is."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyspark
import pytest

from shardline.app.compute.view import view_inputs
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.session_settings import engine_versions, query_settings
from shardline.app.compute.view.streaming_query import run_view
from shardline.app.execution.observations import Measured
from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native.time_interval import Interval
from support.spark.views import Bench, contents, no_fence, view
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS = pa.schema([("id", pa.int64()), ("who", pa.string()), ("price", pa.int32())])
HOURS = view(
    "hours",
    "SELECT id, hour(timestamp_seconds(id)) AS h FROM orders",
    "id BIGINT, h INT",
    "orders",
    strategy="linear",
)


def bench_of_utc(spark: SparkSession, location: str, folder: Path) -> Bench:
    """A bench with a session of its own, in UTC."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return Bench(session, location, folder / "checkpoints")


def test_a_session_that_reads_the_query_otherwise_corrects_the_output(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """Hours of another time zone are put right; a restart with equal settings writes nothing."""
    bench = bench_of_utc(spark, location, tmp_path)
    session = bench.spark
    orders = bench.input("orders", ORDERS)
    orders.push(5, ((3600, "ada", 10), 1), ((7200, "bob", 20), 1))
    orders.idle(40)

    def run(zone: str, lower: int, upper: int) -> tuple[int, Counter[Any]]:
        session.conf.set("spark.sql.session.timeZone", zone)
        before = len(bench.told(Measured))
        interval = Interval(lower, upper, starts=lower == 5)
        View(bench.host, bench.incarnation("hours", 5), HOURS, no_fence).advance(session, interval)
        steps = len(bench.told(Measured)) - before
        return steps, contents(bench.client, "hours", upper - 1)

    def of(zone: str) -> Counter[Any]:
        told = (datetime.fromtimestamp(n, ZoneInfo(zone)).hour for n in (3600, 7200))
        return Counter(zip((3600, 7200), told, strict=True))

    assert run("UTC", 5, 10) == (1, of("UTC"))
    assert run("Etc/UTC", 10, 20) == (0, of("UTC"))
    assert run("Asia/Tokyo", 20, 30) == (1, of("Asia/Tokyo"))
    assert run("Asia/Tokyo", 30, 40) == (0, of("Asia/Tokyo"))
    assert contents(bench.client, "hours", 19) == of("UTC")


def test_another_version_of_what_evaluates_puts_the_output_right(
    spark: SparkSession, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would take back as it sees it now may not be what is there."""
    bench = bench_of_utc(spark, location, tmp_path)
    orders = bench.input("orders", ORDERS)
    orders.push(5, ((3600, "ada", 10), 1))
    orders.idle(40)

    def steps(versions: tuple[str, ...], lower: int, upper: int) -> int:
        monkeypatch.setattr(view_inputs, "engine_versions", lambda _spark: versions)
        before = len(bench.told(Measured))
        interval = Interval(lower, upper, starts=lower == 5)
        made = View(bench.host, bench.incarnation("hours", 5), HOURS, no_fence)
        made.advance(bench.spark, interval)
        return len(bench.told(Measured)) - before

    ours = engine_versions(bench.spark)
    assert ours[0] == f"Spark {pyspark.__version__}"
    assert ours[1].startswith("Java ")
    assert steps(ours, 5, 10) == 1
    assert steps(ours, 10, 20) == 0
    assert steps(("Spark 5.0.0", ours[1]), 20, 30) == 1
    assert steps(("Spark 5.0.0", ours[1]), 30, 40) == 0


def test_a_view_that_means_something_else_by_now_waits_for_no_news(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """Its inputs rest: the micro-batch that puts its output right must not be left to them."""
    bench = bench_of_utc(spark, location, tmp_path)
    orders = bench.input("orders", ORDERS)
    orders.push(5, ((3600, "ada", 10), 1))
    for zone, upper, hour in (("UTC", 10, 1), ("Asia/Tokyo", 20, 10)):
        bench.spark.conf.set("spark.sql.session.timeZone", zone)
        orders.idle(upper)
        run = run_view(bench.host, bench.incarnation("hours", 5), HOURS)
        wait_until("it is there", _has_reached(bench, upper), 60)
        run.stop()
        assert contents(bench.client, "hours", upper - 1) == {(3600, hour): 1}


def _has_reached(bench: Bench, upper: int) -> Callable[[], bool]:
    return lambda: bench.upper("hours") == upper


def test_settings_of_meaning_are_told_when_unusual(spark: SparkSession) -> None:
    """What is set to its default is as what is not set, and what means nothing does not count."""
    session = spark.newSession()
    usual = query_settings(session)
    session.conf.set("spark.sql.ansi.enabled", "TRUE")
    session.conf.set("spark.sql.shuffle.partitions", "7")
    assert query_settings(session) == usual == ()
    zones = java_class(spark, "java.util.TimeZone")
    zone = zones.getDefault()
    zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
    try:
        # What is not set is the zone of the machine, and contents are of that.
        session.conf.unset("spark.sql.session.timeZone")
        assert query_settings(session) == ("spark.sql.session.timeZone=Asia/Tokyo",)
    finally:
        zones.setDefault(zone)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.caseSensitive", "true")
    session.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    session.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    assert query_settings(session) == (
        "spark.sql.ansi.enabled=false",
        "spark.sql.caseSensitive=true",
        "spark.sql.jsonGenerator.ignoreNullFields=false",
        "spark.sql.legacy.timeParserPolicy=LEGACY",
    )
