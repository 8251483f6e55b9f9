"""Functions that call the JVM say what to use in a session that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import shardline
from shardline.datasource.errors import InvalidUsage

SESSION: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
FRAME: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()

CLASSIC: Any = {kind.__name__: object.__new__(kind) for kind in (DataFrame, SparkSession)}
"""Neither is asked for anything, so that no JVM is needed."""

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "snapshot": (lambda given: shardline.snapshot(given, "data/x"), "SparkSession"),
    "changes": (lambda given: shardline.changes(given, "data/x"), "SparkSession"),
    "transaction": (lambda given: shardline.transaction(given, "data"), "SparkSession"),
    "save": (lambda given: shardline.save(given, "data/x"), "DataFrame"),
    "compare_and_append": (
        lambda given: shardline.compare_and_append(
            given, "data/x", lower=0, upper=1, writer=("w", 1)
        ),
        "DataFrame",
    ),
    "micro_batch": (lambda given: shardline.micro_batch(given, 0), "DataFrame"),
}


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
        assert ",," not in str(refused.value), name


@pytest.mark.parametrize("name", CALLS)
def test_the_first_argument_is_named_where_it_is_of_another_kind(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before anything is made; it was an attribute of PySpark that is not there."""
    monkeypatch.chdir(tmp_path)
    call, kind = CALLS[name]
    other = CLASSIC["DataFrame" if kind == "SparkSession" else "SparkSession"]
    for given in (other, "data/x", None):
        told = rf"shardline\.{name} was given .* first.*is a {kind} of Spark"
        with pytest.raises(InvalidUsage, match=told):
            call(given)
    assert not list(tmp_path.iterdir())
