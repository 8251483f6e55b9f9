"""Functions that call the JVM say what to use in a session that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import shardline
from shardline.datasource.errors import InvalidUsage

SESSION: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
FRAME: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()


def test_a_session_of_connect_is_refused_with_what_works_there() -> None:
    """Before anything is opened: the path does not exist."""
    calls: dict[str, Callable[[], object]] = {
        "snapshot": lambda: shardline.snapshot(SESSION, "/nowhere/shards/o"),
        "changes": lambda: shardline.changes(SESSION, "/nowhere/shards/o"),
        "save": lambda: shardline.save(FRAME, "/nowhere/shards/o"),
        "transaction": lambda: shardline.transaction(SESSION, "/nowhere/shards"),
        "micro_batch": lambda: shardline.micro_batch(FRAME, 0),
        "interval_of": lambda: shardline.interval_of(FRAME, 0),
        "compare_and_append": lambda: shardline.compare_and_append(
            FRAME, "/nowhere/shards/o", lower=0, upper=1, writer=("w", 1)
        ),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidUsage, match="CLASSIC_SESSION_NEEDED") as refused:
            call()
        assert "Spark Connect" in str(refused.value), name
        assert "use " in str(refused.value), name
