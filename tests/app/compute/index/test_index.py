"""A running index: exact at every time that it has, hydrated, bounded, gone when stopped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.app.compute.index import mapped_table
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import (
    Index,
    IndexRegistry,
    IndexSettings,
    RunningIndex,
    run_index,
)
from shardline.app.execution.observations import (
    Ended,
    Failed,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from support.fakes.reads import Place, contents, incarnation, model_at, updates_of
from support.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ON_K = IndexDescription(name="by_k", on="t", key=("k",))
QUICK = IndexSettings(poll_ms=2)


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    found.close()


def at(place: Place, upper: int | None) -> Progress:
    """The report that the index has got to `upper`."""
    while True:
        found = place.next(Progress)
        if found.write == upper:
            return found


def only(indexes: IndexRegistry, place: Place) -> Index:
    (found,) = indexes.of(place.url, "t")
    return found


def test_it_follows_the_object(place: Place) -> None:
    """Contents at each time from `as_of` on are the model's; times before are not answered."""
    rows = [((1, "a"), 5, 1), ((1, "b"), 7, 2), ((2, "c"), 7, 1)]
    later = [((1, "a"), 12, -1), ((2, "d"), 14, 1)]
    place.put("t", rows, 10, SCHEMA)
    indexes = IndexRegistry()
    running = run_index(place.host, incarnation("by_k", 6), ON_K, indexes, QUICK)
    place.next(Started)
    place.next(Hydrated)
    place.put("t", later, 20, SCHEMA)
    told = at(place, 20)
    assert told.inputs == {"t": 20}
    index = only(indexes, place)
    for as_of in range(6, 20):
        wanted = model_at(rows + later, as_of)
        assert contents(index.arranged.scan(as_of)) == wanted
        for key in (1, 2, 3):
            mine = Counter({row: n for row, n in wanted.items() if row[0] == key})
            assert contents(index.lookup((key,), as_of)) == mine
    assert not index.is_readable(5)
    assert not index.is_readable(20)
    running.stop()
    running.stop()
    assert indexes.of(place.url, "t") == ()


def test_it_waits_for_its_first_time(place: Place) -> None:
    """An index created at a time that is not settled yet answers once it is."""
    place.put("t", [((1, "a"), 5, 1)], 10, SCHEMA)
    indexes = IndexRegistry()
    running = run_index(place.host, incarnation("by_k", 15), ON_K, indexes, QUICK)
    place.next(Started)
    assert indexes.of(place.url, "t") == ()
    place.put("t", [], 16, SCHEMA)
    place.next(Hydrated)
    assert contents(only(indexes, place).lookup((1,), 15)) == Counter({(1, "a"): 1})
    running.stop()


class Waits(SystemClock):
    """A clock whose waits end by their signal, or at once; it keeps how long they were to be."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.ends_by_signal = True

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.asked.append(timeout_ms)
        return signal.wait(60 if self.ends_by_signal else 0.001)


def test_it_is_told_of_what_its_process_writes_and_looks_for_the_rest(place: Place) -> None:
    """Once an interval where it is told, which is at rest; often where another process writes."""
    place.put("t", [], 10, SCHEMA)
    clock = Waits()
    settings = IndexSettings(poll_ms=64)
    host = replace(place.host, clock=clock, interval_ms=1000)
    running = run_index(host, incarnation("by_k", 9), ON_K, IndexRegistry(), settings)
    place.next(Hydrated)
    for upper in (20, 30, 40):
        place.put("t", [], upper, SCHEMA)
        at(place, upper)
    wait_until("it waits to be told", lambda: clock.asked[-1] == 1000, 60)
    assert clock.asked[0] == 1
    clock.ends_by_signal = False
    place.put("t", [], 45, SCHEMA)
    other = ShardClient.open(place.url).writer("t")
    for upper in (50, 60):
        other.compare_and_append(updates_of([], SCHEMA), other.upper(), Frontier(upper))
        at(place, upper)
        del clock.asked[:]
    wait_until("it looks often", lambda: 64 in clock.asked, 60)
    assert max(clock.asked) == 64
    running.stop()


def test_it_tells_its_size(place: Place) -> None:
    """Records and bytes are gauges, of this incarnation."""
    place.put("t", [((i, "x"), 0, 1) for i in range(50)], 10, SCHEMA)
    running = run_index(place.host, incarnation("by_k", 9, epoch=4), ON_K, IndexRegistry(), QUICK)
    told = place.next(Measured)
    assert (told.epoch, told.now["records"]) == (4, 50)
    assert (told.now["size"] or 0) > 50 * 9
    running.stop()


@pytest.mark.parametrize("room", [True, False], ids=["a file", "a full disk"])
def test_large_runs_are_in_files(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Mapped into memory; in memory itself where the disk has no room. Answers are the same."""
    monkeypatch.setattr(mapped_table, "IN_MEMORY_MAX", 0)
    files = []

    def mapped(table: pa.Table, folder: Path) -> pa.Table:
        files.append(folder)
        if not room:
            raise OSError(28, "No space left on device")
        return given(table, folder)

    given = mapped_table.mapped
    monkeypatch.setattr(mapped_table, "mapped", mapped)
    host = replace(place.host, checkpoints=tmp_path / "checkpoints")
    rows = [((i % 7, "x"), i % 3, 1) for i in range(50)]
    place.put("t", rows, 10, SCHEMA)
    indexes = IndexRegistry()
    running = run_index(host, incarnation("by_k", 0), ON_K, indexes, QUICK)
    place.next(Hydrated)
    for as_of in range(10):
        assert contents(only(indexes, place).arranged.scan(as_of)) == model_at(rows, as_of)
    assert set(files) == {tmp_path / "checkpoints"}
    assert not list(tmp_path.rglob("*.*")), "they have no names"
    running.stop()


def test_one_that_is_stopped_while_it_hydrates_answers_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rows that it has read until then it would be wrong, and a view would keep that."""
    for time in range(4):
        place.put("t", [((time, "a"), time, 1)], time + 1, SCHEMA)
    indexes, appended, given = IndexRegistry(), [], ShardFollower.contents
    stopping: list[RunningIndex] = []

    def contents_until_stopped(shard: ShardFollower, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in given(shard, *args):
            yield batch
            stopping[0]._stopped.set()

    monkeypatch.setattr(ShardFollower, "contents", contents_until_stopped)
    monkeypatch.setattr(Arrangement, "append", lambda *args: appended.append(args))
    monkeypatch.setattr(RunningIndex, "start", lambda _: None)
    running = run_index(place.host, incarnation("by_k", 3), ON_K, indexes, QUICK)
    stopping.append(running)
    running._run()
    assert not appended
    assert indexes.of(place.url, "t") == ()
    assert not [one for one in place.rest() if isinstance(one, Failed)]


def test_one_that_is_too_large_says_so(place: Place) -> None:
    """Beyond its limit an index ends with an error, and answers nothing."""
    place.put("t", [((i, "x" * 100), 0, 1) for i in range(50)], 10, SCHEMA)
    indexes = IndexRegistry()
    small = IndexSettings(poll_ms=2, limit_bytes=2000)
    running = run_index(place.host, incarnation("by_k", 9), ON_K, indexes, small)
    failed = place.next(Failed)
    assert failed.error.startswith("[INDEX_TOO_LARGE] index 'by_k' of 't' needs more than")
    assert indexes.of(place.url, "t") == ()
    running.stop()


def with_short_history(place: Place) -> tuple[RunningIndex, Index]:
    """An index with a row of time 0, which reads from time 9 on and keeps 5 ms."""
    place.put("t", [((1, "a"), 0, 1)], 10, SCHEMA)
    indexes = IndexRegistry()
    short = IndexSettings(poll_ms=2, history_ms=5)
    running = run_index(place.host, incarnation("by_k", 9), ON_K, indexes, short)
    place.next(Hydrated)
    return running, only(indexes, place)


def test_history_is_kept_for_who_reads_there(place: Place) -> None:
    """History behind the upper goes, but never a time that somebody holds."""
    running, index = with_short_history(place)
    with index.hold(9) as readable:
        assert readable
        place.put("t", [((1, "a"), 50, -1)], 100, SCHEMA)
        at(place, 100)
        assert contents(index.lookup((1,), 9)) == Counter({(1, "a"): 1})
    place.put("t", [], 200, SCHEMA)
    at(place, 200)
    assert index.arranged.view.since == 194
    running.allow_compaction(198)
    assert index.arranged.view.since == 198
    running.stop()


def test_a_cached_frame_ends_with_its_time(place: Place) -> None:
    """It would hold back the shard's history until somebody asks again, or for ever."""
    running, index = with_short_history(place)
    cached = mock.Mock()
    index._frames.base, index._frames.as_of = cached, 9
    with index.hold(9):
        place.put("t", [], 100, SCHEMA)
        at(place, 100)
        cached.release.assert_not_called()
    place.put("t", [], 200, SCHEMA)
    at(place, 200)
    cached.release.assert_called_once()
    assert index._frames.base is None
    running.stop()


def test_the_shard_is_held_until_it_has_been_read(place: Place) -> None:
    """From before it starts until it stops, an index holds what it has not read."""
    place.put("t", [((1, "a"), 0, 1)], 10, SCHEMA)
    running = run_index(place.host, incarnation("by_k", 20), ON_K, IndexRegistry(), QUICK)
    (lease,) = place.client.state("t").leased.values()
    assert lease.since == 20
    running.stop()
    assert not place.client.state("t").leased


def test_a_finished_object_stays_indexed(place: Place) -> None:
    """At the end of its object an index says so and goes on answering."""
    place.put("t", [((1, "a"), 0, 1)], 10, SCHEMA)
    indexes = IndexRegistry()
    running = run_index(place.host, incarnation("by_k", None), ON_K, indexes, QUICK)
    place.put("t", [((1, "a"), 11, 1)], None, SCHEMA)
    place.next(Ended)
    assert only(indexes, place).lookup((1,), 10**12).num_rows == 2
    running.stop()


def test_a_dropped_object_fails_its_index(place: Place) -> None:
    """An index of what is gone ends with an error; nothing stale is answered."""
    place.put("t", [((1, "a"), 0, 1)], 10, SCHEMA)
    indexes = IndexRegistry()
    running = run_index(place.host, incarnation("by_k", 9), ON_K, indexes, QUICK)
    place.next(Hydrated)
    holders = list(place.client.state("t").leased)
    place.client.drop("t", despite_holders=holders)
    assert place.next(Failed).error.startswith("[")
    running.stop()
    assert indexes.of(place.url, "t") == ()


def start(place: Place, description: IndexDescription, as_of: int) -> RunningIndex:
    return run_index(place.host, incarnation("i", as_of), description, IndexRegistry(), QUICK)


def test_what_cannot_be_indexed_is_refused_at_once(place: Place) -> None:
    """An unknown object, an unknown column and a time that is gone are errors of the call."""
    place.put("t", [((1, "a"), 0, 1)], 10, SCHEMA)
    with pytest.raises(InvalidUsage, match=r"\[SHARD_NOT_FOUND\]"):
        start(place, IndexDescription(name="i", on="nope"), 5)
    with pytest.raises(InvalidUsage, match=r"\[UNKNOWN_COLUMN\]"):
        start(place, IndexDescription(name="i", on="t", key=("x",)), 5)
    assert not place.client.state("t").leased
