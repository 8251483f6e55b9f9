"""Sinks whose input does not change: time passes without a micro-batch of Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.storage import sink_query as sink_module
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.datasource.frontier import Frontier
from support.spark.sinks import Input, diffs, life, parquet, running
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.app.execution.host import Host

pytestmark = pytest.mark.spark


def test_an_idle_sink_moves_without_a_micro_batch(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next is written once, also by a sink whose checkpoint is behind its accounts."""
    monkeypatch.setattr(sink_module, "_IDLE_MS", 1_000)
    sink = parquet(tmp_path)
    planned = life().checkpoint(host.checkpoints) / "offsets"
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20))
        reports.reached(source.step(30))
        assert [file.name for file in planned.glob("[0-9]*")] == ["0"]
        reports.reached(source.step(40, (1, "a", -1)))
        reports.reached(source.step(50))
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(60, (2, "b", 1)))
        assert {file.name for file in planned.glob("[0-9]*")} == {"0", "1", "2"}

    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (1, "a", 40, -1), (2, "b", 60, 1)]


def test_an_idle_sink_that_was_replaced_ends(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its query, which would else go on until its next micro-batch."""
    monkeypatch.setattr(sink_module, "_IDLE_MS", 1_000)
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        SinkProgress.open(host.client, sink).record(Interval(11, Frontier(15)), 0)
        source.step(20)
        failed = reports.failure()
        assert "another incarnation" in failed.error
        wait_until("its query ends", lambda: not _is_active(host, life().query_name), 60)


def test_an_idle_sink_whose_target_was_away_goes_on_when_it_is_back(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to send rows to find out that it is away, nor to restart the sink."""
    monkeypatch.setattr(sink_module, "_IDLE_MS", 1_000)
    sink = parquet(tmp_path)
    folder = Path(sink.options["path"])
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        reports.reached(source.step(20))
        folder.rename(tmp_path / "away")
        source.step(30)
        assert reports.stalled().error.startswith("[TARGET_WENT_BACK]")
        (tmp_path / "away").rename(folder)
        assert "TARGET_CAME_BACK" in reports.failure().error
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(40, (2, "b", 1)))
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 40, 1)]


def test_an_idle_sink_says_that_its_folder_has_become_a_file(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has written nothing yet, which no rows would be missing from."""
    monkeypatch.setattr(sink_module, "_IDLE_MS", 1_000)
    sink = parquet(tmp_path)
    folder = Path(sink.options["path"])
    with running(host, sink) as reports:
        reports.reached(source.step(10))
        shutil.rmtree(folder)
        folder.write_text("in the way")
        source.step(20)
        assert "[NO_FOLDER]" in reports.failure().error
    with running(host, sink, life(2)) as reports:
        assert "is a file, and the sink needs a folder" in reports.failure().error
    folder.unlink()
    with running(host, sink, life(3)) as reports:
        reports.reached(source.step(30, (1, "a", 1)))
    assert diffs(host.spark, sink) == [(1, "a", 30, 1)]


def _is_active(host: Host, name: str) -> bool:
    return any(query.name == name for query in host.spark.streams.active)
