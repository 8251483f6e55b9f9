"""An ingestion without Spark: what its ticks do while a micro-batch is staged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa

from shardline.app.execution.host import Incarnation
from shardline.app.execution.rest_pace import RestPace
from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.commit import StagedMicroBatch
from shardline.app.storage.ingestion import Ingestion
from shardline.app.storage.resume import PlannedMicroBatch
from shardline.app.storage.source_look import SourceSeen
from support.fakes.source_world import ROWS, World


class Source(World):
    """An ingestion whose Spark is a test: a micro-batch takes `takes_ms` by the clock."""

    def __init__(self) -> None:
        super().__init__()
        incarnation = Incarnation("in", "u1", 1, 1, (1, 1))
        self.rest = RestPace(self.clock, 1_000, 5_000)
        host = replace(self.host(), rest=self.rest)
        made: Any = Ingestion(host, incarnation, SourceDescription(name="in", format="csv"))
        made._timeline = self.timeline()
        made._query = SimpleNamespace(status={"message": "Processing new data"})
        made._checkpoint = SimpleNamespace(
            planned=lambda number: PlannedMicroBatch(f"o{number}", frozenset())
        )
        made._look = SimpleNamespace(look=lambda _: SourceSeen("asked"))
        made._reports = MagicMock()
        reading = SimpleNamespace(bad_rows="keep", marks_errors=False, decoded=self.decoded)
        made._staging = SimpleNamespace(reading=reading, stage=self.stage)
        self.ingestion = made
        self.takes_ms = 0
        self.rows = [1]
        self.seen: list[int] = []

    @contextmanager
    def decoded(self, _frame: object, _number: int, _planned: object) -> Iterator[Any]:
        yield SimpleNamespace(counts=SimpleNamespace(errors=0))

    def stage(self, _decoded: object, _live: int, _expected: int) -> StagedMicroBatch:
        for _ in range(self.takes_ms // 1_000):
            self.clock.advance(1_000)
            self.ingestion._tick()
        self.seen.append(self.upper())
        return StagedMicroBatch(self.staged("in", pa.table({"number": self.rows}, ROWS)))

    def upper(self) -> int:
        return self.uppers()[0]

    def uppers_while(self, seconds: int) -> list[int]:
        """How far the upper is in each of the seconds that pass, in seconds behind the first."""
        began_ms, seen = self.clock.now_ms(), []
        for _ in range(seconds):
            self.clock.advance(1_000)
            self.ingestion._tick()
            seen.append((self.upper() - began_ms) // 1_000)
        return seen


def test_a_micro_batch_that_takes_hours_does_not_look_as_if_nothing_came() -> None:
    """Spark is working, and says so; the upper stays near the time at which that began."""
    source = Source()
    source.ingestion._on_micro_batch(None, 0)
    begun_ms = source.clock.now_ms()
    source.takes_ms = 60_000
    source.ingestion._on_micro_batch(None, 1)
    assert source.seen[-1] == begun_ms + 5_001
    assert source.upper() == source.clock.now_ms() + 1
    source.clock.advance(60_000)
    source.ingestion._tick()
    assert source.upper() == source.clock.now_ms() + 1, "it is quiet, and was asked"


def test_the_same_micro_batch_again_stops_no_ticks() -> None:
    """Spark repeats the last one after a restart; there is nothing to be staged."""
    source = Source()
    source.ingestion._on_micro_batch(None, 0)
    source.ingestion._on_micro_batch(None, 0)
    source.clock.advance(60_000)
    source.ingestion._tick()
    assert source.upper() == source.clock.now_ms() + 1


def test_at_rest_the_uppers_move_every_five_seconds() -> None:
    """All of a source's shards, and each second again from the first news of any object on."""
    source = Source()
    source.ingestion._on_micro_batch(None, 0)
    assert source.uppers_while(59) == [*range(1, 60)]
    looked = source.ingestion._look.look = MagicMock(return_value=SourceSeen("asked"))
    assert source.uppers_while(13) == [1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 11, 11, 11]
    assert looked.call_count == 3, "it is not looked at in between"
    source.rest.note_news()
    assert source.uppers_while(3) == [1, 2, 3]


def test_rows_that_come_at_rest_are_committed_at_once() -> None:
    """And all other sources are awake before they can be seen, however long they were staged.

    A micro-batch without rows is no news: sources of shards have them while nothing happens there.
    """
    source = Source()
    source.ingestion._on_micro_batch(None, 0)
    source.uppers_while(62)
    source.rows = []
    source.ingestion._on_micro_batch(None, 1)
    assert source.rest.is_resting
    source.clock.advance(1_000)
    assert source.rest.moment(source.clock.now_ms()) + 1 == source.upper(), "all others come along"
    source.rows = [2]
    source.clock.advance(1_000)
    source.ingestion._on_micro_batch(None, 2)
    assert source.upper() == source.clock.now_ms() + 1
    assert not source.rest.is_resting
    source.takes_ms = 90_000
    source.ingestion._on_micro_batch(None, 3)
    assert source.upper() == source.clock.now_ms() + 1
    assert not source.rest.is_resting


def test_a_tick_that_failed_at_rest_is_made_up_for() -> None:
    """In the next second, and not at the next moment."""
    source = Source()
    source.ingestion._on_micro_batch(None, 0)
    source.uppers_while(61)
    look = source.ingestion._look.look
    source.ingestion._look.look = lambda _: SourceSeen("absent", "it is away")
    assert source.uppers_while(4)[-1] < 0
    source.ingestion._look.look = look
    source.clock.advance(1_000)
    source.ingestion._tick()
    assert source.upper() == source.clock.now_ms() // 5_000 * 5_000 + 1


def test_a_source_that_begins_ends_the_rest() -> None:
    """Its upper moves as it comes, also where it has no rows at all."""
    source = Source()
    source.clock.advance(61_000)
    assert source.rest.is_resting
    source.ingestion._run_incarnation()  # it fails, for want of a Spark that would read
    assert not source.rest.is_resting
