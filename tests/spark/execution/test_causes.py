"""Causes of errors that Spark really raises, as a status tells them: file, function, what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.app.execution.causes import find_cause
from shardline.app.execution.observations import Failed
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.storage.sinks.others import register_function
from support.spark.failures import BRIEF, CAUSES, FOLDER, Place, made
from support.spark.ingestions import TIMEOUT_S, Runtime, Source
from support.spark.ingestions import running as running_source
from support.spark.sinks import Input, host_of, life, running
from support.spark.user_functions import hand_over, hand_over_shares
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_what_spark_raises_today_has_the_causes_that_are_expected(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The recorded texts are those of this version: each situation again, in one session."""
    found = {name: find_cause(error) for name, error in made(Place(spark, tmp_path), BRIEF)}
    said = {
        name: (cause.sentence.replace(str(tmp_path), FOLDER), cause.hint)
        for name, cause in found.items()
    }
    assert said == {name: CAUSES[name] for name in BRIEF}


def failure(source: Source) -> Failed:
    wait_until("the source fails", lambda: bool(source.failures()), TIMEOUT_S)
    return source.failures()[0]


@pytest.mark.parametrize("pattern", ["(a|b)*c", "(ab|ba?)+c"])
def test_a_pattern_that_fills_the_stack_ends_its_query_alone(
    spark: SparkSession, pattern: str
) -> None:
    """In a task, where Spark would end the JVM by itself, and with it all that runs there."""
    texts = spark.range(2).selectExpr("repeat('ab', 200000 + CAST(id AS INT)) AS s")
    with pytest.raises(Exception, match="StackOverflowError") as caught:
        texts.where(f"s RLIKE '{pattern}'").collect()
    cause = find_cause(caught.value)
    assert "a regular expression repeats a choice" in cause.message
    assert cause.hint.startswith("write [ab]*")
    assert spark.range(3).where("rand() >= 0").count() == 3


def test_a_damaged_file_of_a_source(spark: SparkSession, location: str, tmp_path: Path) -> None:
    """It is named at each attempt alike; a good one in its place is taken in, as the hint says."""
    runtime = Runtime(spark, location, tmp_path / "checkpoints")
    inbox = tmp_path / "in box"
    inbox.mkdir()
    damaged = inbox / "day 2.parquet"
    pq.write_table(pa.table({"id": [1]}), inbox / "day 1.parquet")
    damaged.write_bytes(b"this is no Parquet at all")
    description = SourceDescription(
        name="days", format="parquet", schema="id BIGINT", options={"path": str(inbox)}
    )
    told = []
    for _ in range(2):
        with running_source(runtime, description) as source:
            told.append(failure(source))
    assert [(one.error, one.hint) for one in told] == 2 * [
        (
            f"[FAILED_READ_FILE] file '{damaged}' cannot be read: it is not a Parquet file",
            "repair the file, or put a good one in its place",
        )
    ]
    pq.write_table(pa.table({"id": [2]}), damaged)
    with running_source(runtime, description) as source:
        source.wait_for_rows((1,), (2,))


def test_a_sink_whose_folder_or_function_does_not_work(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    """The path that is in the way; the function, with the line and the piece of its query."""
    host = host_of(spark, location, tmp_path / "checkpoints")
    Input(host.client).step(10, (1, "a", 1))
    blocking = tmp_path / "file"
    blocking.touch()
    register_function("hand_over", hand_over)
    register_function("hand_over_shares", hand_over_shares)

    def told(format_name: str, **options: str) -> tuple[str, str]:
        sink = SinkDescription(name="out", on="in", format=format_name, options=options)
        shutil.rmtree(host.checkpoints, ignore_errors=True)
        with running(host, sink, life(as_of=10)) as reports:
            failed = reports.failure()
        return failed.error, failed.hint

    assert told("parquet", path=str(blocking / "below")) == (
        f"'{blocking}' is a file, and a folder is needed there",
        "choose another path, or move the file away",
    )
    for function, situation in (
        ("hand_over", "streamed function"),
        ("hand_over_shares", "streamed function by Spark"),
    ):
        assert told("foreachBatch", function=function) == CAUSES[situation]
