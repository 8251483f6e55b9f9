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
