"""The status of a streaming query, read in one call, is the one that PySpark reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.spark_native import query_status
from shardline.datasource.spark_native.query_status import status_reader
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_it_is_pysparks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, and after its end; without a call of PySpark's, where the Spark is known."""
    (tmp_path / "in").mkdir()
    query = (
        spark.readStream.schema("n INT")
        .csv(str(tmp_path / "in"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    read: Any = status_reader(spark)
    try:
        wait_until("it waits", lambda: read(query)["message"].startswith("Waiting"), 60)
        assert read(query) == query.status
    finally:
        query.stop()
    assert read(query) == query.status
    assert read(query)["message"] == "Stopped"
    monkeypatch.setattr(query_status, "is_checked", lambda _: False)
    assert status_reader(spark)(query) == query.status
