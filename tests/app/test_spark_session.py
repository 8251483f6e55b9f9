"""The end of a session, without Spark."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from shardline.app.spark_session import stop_session


def test_what_stopping_raises_hides_no_other_error(caplog: pytest.LogCaptureFixture) -> None:
    """It may be the answer of the call to the JVM that a signal has interrupted."""
    spark = MagicMock()
    spark.stop.side_effect = KeyError("m")
    stop_session(spark)
    assert [one.message for one in caplog.records] == ["Spark was not stopped in order"]
