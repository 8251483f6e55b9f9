"""Starts of views without Spark: what a checkpoint must have, and what a failed one leaves."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardline.app.compute.holds import hold_name
from shardline.app.compute.view import streaming_query
from shardline.app.compute.view.streaming_query import RunningView
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.spark.sinks import SCHEMA, host_of, life

VIEW = ViewDescription(name="out", query="SELECT f(k) FROM in", inputs=("in",), schema="k BIGINT")

CHECKPOINT = {
    "metadata": '{"id":"8c1c6a4e-4f0e-4c36-8a4a-0d6a6f7b2c11"}',
    "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"time":11}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}
"""Files that Spark leaves of a query with one micro-batch."""


class Rendered:
    """A view that calls Python, and so has a streaming query of its own."""

    calls_user_functions, is_temporal = True, False

    def __init__(self, *_: object) -> None:
        """Nothing is planned."""

    def is_replacing(self) -> bool:
        return False


class Query:
    """A streaming query that only keeps what it found in its checkpoint as it was started."""

    def __init__(self, *arguments: Any, with_time: bool) -> None:
        assert not with_time
        folder = next(a for a in arguments if isinstance(a, Path))
        found = [path for path in folder.rglob("*") if path.is_file()]
        self.found = {str(path.relative_to(folder)) for path in found}
        self.id = self.runId = "q"

    def start(self, _: object, stopping: threading.Event) -> Query:
        assert not stopping.is_set()
        return self

    def stop(self) -> None:
        """It has no thread."""


@pytest.mark.parametrize("text", ["", "\0\0\0", "v1\n{"])
@pytest.mark.parametrize("torn", [*CHECKPOINT, "none"])
def test_a_checkpoint_that_a_power_cut_has_torn_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str, text: str
) -> None:
    """Spark fails at it at each start, and the view would be started over it for ever."""
    advancer = SimpleNamespace(add=lambda _: None, remove=lambda _: None)
    monkeypatch.setattr(streaming_query, "get_advancer", lambda *_: advancer)
    monkeypatch.setattr(streaming_query, "View", Rendered)
    monkeypatch.setattr(streaming_query, "TriggerQuery", Query)
    host = host_of(cast("Any", None), str(tmp_path / "lake"), tmp_path / "checkpoints")
    host.client.create("in", ShardSchema.from_arrow(SCHEMA))
    host.client.writer("in").compare_and_append(None, Frontier(0), Frontier(11))
    incarnation = life(as_of=5)
    hold = hold_name(incarnation, host.checkpoints)
    host.client.hold("in", hold, since=7)
    folder = incarnation.checkpoint(host.checkpoints)
    for name, written in CHECKPOINT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name == torn else written)

    run = RunningView(host, incarnation, VIEW)
    run.start()
    run.stop()

    query = run._query
    assert isinstance(query, Query)
    assert query.found == (set(CHECKPOINT) if torn == "none" else set())
    # The hold of a checkpoint that is thrown away goes with it; another keeps the first time.
    held = host.client.state("in").critical
    assert (hold in held, f"{hold}:begin" in held) == (torn == "none", torn != "none")


@pytest.mark.parametrize("owns_query", [True, False])
def test_a_view_that_gets_no_thread_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owns_query: bool
) -> None:
    """It is started again: two would follow the inputs, and its first query would run for ever."""
    left: list[object] = []

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    def begun(query: Query, *_: object) -> Query:
        left.append(query)
        return query

    def ended(query: Query) -> None:
        left.remove(query)

    advancer = SimpleNamespace(add=refuse if owns_query else left.append, remove=left.remove)
    if owns_query:
        advancer.remove = lambda _: None
        monkeypatch.setattr(Query, "start", begun)
        monkeypatch.setattr(Query, "stop", ended)
    groups = SimpleNamespace(ask_to_join=refuse, remove_stopped=lambda _: None)
    monkeypatch.setattr(Rendered, "calls_user_functions", owns_query)
    monkeypatch.setattr(streaming_query, "get_advancer", lambda *_: advancer)
    monkeypatch.setattr(streaming_query, "get_groups", lambda *_: groups)
    monkeypatch.setattr(streaming_query, "View", Rendered)
    monkeypatch.setattr(streaming_query, "TriggerQuery", Query)
    host = host_of(cast("Any", None), str(tmp_path / "lake"), tmp_path / "checkpoints")
    host.client.create("in", ShardSchema.from_arrow(SCHEMA))
    host.client.writer("in").compare_and_append(None, Frontier(0), Frontier(11))
    with pytest.raises(RuntimeError, match="new thread"):
        streaming_query.run_view(host, life(as_of=5), VIEW)
    assert left == []
