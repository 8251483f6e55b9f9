"""Oneshot ingestions without Spark: when they begin, and that each has one answer."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
from typing_extensions import override

from shardline.app.protocol.storage import RunOneshotIngestion, StagedBatches
from shardline.app.storage.one_shot import Oneshots
from shardline.datasource.clock import SystemClock
from support.fakes.reads import Place


class Watched(SystemClock):
    """A clock that tells that somebody waits."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.waits.set()
        return super().wait(signal, timeout_ms)


def test_nothing_is_ingested_before_the_runtime_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's waits until it is promoted; one that is cancelled meanwhile never begins."""
    saved = list[tuple[str, int]]()
    answers: queue.Queue[StagedBatches] = queue.Queue()

    def save(_frame: Any, *, txn: tuple[str, int], **_rest: object) -> None:
        saved.append(txn)

    monkeypatch.setattr("shardline.datasource.save", save)
    spark, clock, place = MagicMock(), Watched(), Place()
    spark.read.format().options().load().count.return_value = 7
    oneshots = Oneshots(replace(place.host, spark=spark, clock=clock), answers.put)
    for uuid in ("stays", "goes"):
        oneshots.start(RunOneshotIngestion(uuid=uuid, into="t", format="csv"))
    assert clock.waits.wait(60)
    oneshots.cancel("goes")
    found = answers.get(timeout=60)
    assert found.uuid == "goes"
    assert "cancelled" in found.error
    assert saved == []
    place.host.writes.set()
    assert answers.get(timeout=60) == StagedBatches(uuid="stays", rows=7)
    assert saved == [("oneshot-stays", 1)]
    oneshots.stop()
    place.close()


class Scene:
    """Ingestions whose source waits at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: queue.Queue[StagedBatches] = queue.Queue()
        self.reads: queue.Queue[threading.Event] = queue.Queue()
        self.saved = list[tuple[str, int]]()
        monkeypatch.setattr("shardline.datasource.save", self._save)
        self.spark, self.place = MagicMock(), Place()
        self.spark.read.format().options().load().count.side_effect = self._count
        self.place.host.writes.set()
        self.oneshots = Oneshots(replace(self.place.host, spark=self.spark), self.answers.put)

    def _save(self, _frame: Any, *, txn: tuple[str, int], **_rest: object) -> None:
        self.saved.append(txn)

    def _count(self) -> int:
        gate = threading.Event()
        self.reads.put(gate)
        assert gate.wait(60)
        return 7

    def ask(self) -> None:
        self.oneshots.start(RunOneshotIngestion(uuid="u", into="t", format="csv"))


def test_a_request_that_comes_again_runs_when_its_cancelled_run_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never both at once, and with one answer: of two, the first would be taken for the second."""
    scene = Scene(monkeypatch)
    scene.ask()
    first = scene.reads.get(timeout=60)
    scene.oneshots.cancel("u")
    scene.ask()
    scene.ask()
    assert scene.reads.empty()
    first.set()
    scene.reads.get(timeout=60).set()
    assert scene.answers.get(timeout=60) == StagedBatches(uuid="u", rows=7)
    assert scene.saved == [("oneshot-u", 1)]
    scene.oneshots.stop()
    assert scene.answers.empty()
    assert scene.reads.empty()
    scene.place.close()


def test_what_is_cancelled_between_two_jobs_appends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No job is there to be stopped then, and the rows would come in behind the cancellation."""
    scene = Scene(monkeypatch)
    scene.ask()
    gate = scene.reads.get(timeout=60)
    scene.oneshots.cancel("u")
    gate.set()
    assert "cancelled before anything was appended" in scene.answers.get(timeout=60).error
    assert scene.saved == []
    scene.oneshots.stop()
    scene.place.close()


def test_stopping_goes_on_where_the_jvm_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped behind it gives up the lease of the location."""
    scene = Scene(monkeypatch)
    scene.ask()
    gate = scene.reads.get(timeout=60)

    def refuse(_: str) -> None:
        gate.set()
        raise ConnectionRefusedError

    scene.spark.sparkContext.cancelJobGroup.side_effect = refuse
    scene.oneshots.stop()
    assert scene.answers.get(timeout=60).uuid == "u"
    scene.ask()
    assert scene.answers.get(timeout=60).error.startswith("[STOPPED]")
    scene.place.close()


def test_an_ingestion_without_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered, and one that comes when there are threads runs."""
    scene = Scene(monkeypatch)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        scene.ask()
    assert scene.answers.get(timeout=60).error.startswith("[NO_THREAD] can't start new")
    scene.ask()
    scene.reads.get(timeout=60).set()
    assert scene.answers.get(timeout=60).rows == 7
    scene.oneshots.stop()
    scene.place.close()
