"""A view whose output is gone while its inputs rest is told as failed, and not only as late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardline.app.compute.view import streaming_query
from shardline.app.compute.view.idle_failures import IdleFailures
from shardline.app.compute.view.streaming_query import RunningView
from shardline.app.execution.observations import Failed
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.spark.sinks import SCHEMA, Reports, host_of, life

GONE = InvalidUsage("no shard 'out'", code="SHARD_NOT_FOUND")


def test_an_error_lasts_when_nothing_else_came_for_seconds() -> None:
    """One success in between, and it is of the moment again."""
    clock = ManualClock(1_000)
    failures = IdleFailures("out", clock)
    for _ in range(2):
        assert not failures.lasts(GONE)
        clock.advance(9_000)
        assert not failures.lasts(GONE)
        clock.advance(1_000)
        assert failures.lasts(GONE)
        failures.end()


def test_a_store_that_does_not_answer_is_waited_for() -> None:
    """However long: it neither is an error that lasts nor ends one that does."""
    clock = ManualClock(1_000)
    failures = IdleFailures("out", clock)
    for _ in range(3):
        assert not failures.lasts(Determinate("no space left on device"))
        clock.advance(60_000)
    assert not failures.lasts(GONE)
    assert not failures.lasts(Indeterminate("no answer"))
    clock.advance(10_000)
    assert failures.lasts(GONE)


class View:
    """A view over inputs that rest."""

    calls_user_functions, is_temporal, is_due = True, False, False
    error: InvalidUsage | None = None

    def __init__(self, *_: object) -> None:
        """Nothing is planned."""

    def behind_ms(self, _: object) -> None:
        """Not known."""

    def follow(self, _: object) -> bool:
        if self.error is not None:
            raise self.error
        return True


def test_an_output_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the lane starts the view again. An output that is back in time is none."""
    query = SimpleNamespace(id="q", runId="q", stop=lambda: None, is_active=lambda: True)
    advancer = SimpleNamespace(add=lambda _: None, remove=lambda _: None)
    monkeypatch.setattr(streaming_query, "get_advancer", lambda *_: advancer)
    monkeypatch.setattr(streaming_query, "View", View)
    clock, reports = ManualClock(1_000), Reports()
    host = host_of(cast("Any", None), str(tmp_path / "lake"), tmp_path / "checkpoints")
    host = replace(host, clock=clock, report=reports)
    host.client.create("in", ShardSchema.from_arrow(SCHEMA))
    host.client.writer("in").compare_and_append(None, Frontier(0), Frontier(11))
    description = ViewDescription(name="out", query="SELECT k FROM in", inputs=("in",), schema="")
    run = RunningView(host, life(as_of=5), description)
    run._query = run._trigger = cast("Any", query)
    states = host.client.readable("in")

    def failures() -> list[str]:
        run.tick(states)
        return [one.error for one in reports.all if isinstance(one, Failed)]

    for error in (GONE, None, GONE):
        monkeypatch.setattr(View, "error", error)
        assert failures() == []
        clock.advance(9_000)
    clock.advance(1_000)
    assert len(failures()) == 1
    assert "no shard 'out'" in failures()[0]
