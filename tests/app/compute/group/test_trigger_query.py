"""A trigger query is active while Spark runs it, and while it can hear of news."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardline.app.compute.group.trigger_query import TriggerQuery
from shardline.datasource.errors import LeaseExpired
from support.fakes.clock import ManualClock

LOST = LeaseExpired("the hold is gone", code="HOLD_EXPIRED")
ENDED = RuntimeError("of Spark")


def _query(*, active: bool, error: Exception | None) -> TriggerQuery:
    """A query that was started, and its stream."""
    host = SimpleNamespace(clock=ManualClock(), interval_ms=1000)
    made = TriggerQuery(cast("Any", host), "group:x:1", ("a",), 0, "group:x", Path("checkpoint"))
    made._query = cast("Any", SimpleNamespace(isActive=active, exception=lambda: ENDED))
    made._stream = cast("Any", SimpleNamespace(error=error))
    return made


@pytest.mark.parametrize(
    ("active", "error", "told"),
    [(True, None, True), (False, None, False), (True, LOST, False), (False, LOST, False)],
)
def test_one_whose_stream_has_failed_is_not_active_whatever_spark_says(
    *, active: bool, error: Exception | None, told: bool
) -> None:
    """The JVM may not have heard of the error: its query would wait for an end for ever."""
    assert _query(active=active, error=error).is_active() is told


def test_the_members_of_a_group_ask_the_jvm_once_in_a_round() -> None:
    """What it says is known for two intervals and a half; the end, and an error, at once."""
    query = _query(active=True, error=None)
    clock = cast("ManualClock", query.host.clock)
    assert query.is_active()
    query._query = cast("Any", SimpleNamespace(isActive=False, stop=lambda: None))
    clock.advance(2_499)
    assert query.is_active()
    clock.advance(1)
    assert not query.is_active()
    for what in ("stop", "error"):
        query = _query(active=True, error=None)
        assert query.is_active()
        query._query = cast("Any", SimpleNamespace(isActive=False, stop=lambda: None))
        query._stream = cast("Any", SimpleNamespace(error=None, stop=lambda: None))
        if what == "stop":
            query.stop()
        else:
            query._stream = cast("Any", SimpleNamespace(error=LOST))
        assert not query.is_active()


def test_the_error_of_the_stream_is_told_as_it_is() -> None:
    """Spark has its text only, by which no class is known."""
    assert _query(active=False, error=LOST).error() is LOST
    assert _query(active=False, error=None).error() is ENDED
