"""Repairs: what is taken away, exactly once, whatever fails on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.coordinator.offline_repairs import OfflineRepairs
from shardline.app.storage import repair
from shardline.app.storage.errors import (
    ERRORS,
    SETTLE_RETRIES,
    live_errors,
    open_errors,
    open_skipped,
    retract_errors,
    settle_time,
)
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.repair import (
    REPAIR,
    Repair,
    bad_rows,
    repair_errors,
    skipped_rows,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.waiting import RetryPolicy
from shardline.datasource.write import WriteHandle
from support.fakes.clock import ManualClock, SeededIds

_numbers = count()


class World:
    """A source `in` that writes its shards in the order of a real one."""

    def __init__(self, columns: pa.Schema = ERRORS) -> None:
        place = f"memory://repair-{next(_numbers)}"
        self.client = ShardClient.open(place, clock=ManualClock(), ids=SeededIds())
        self.remap = Remap.open(self.client, "in", Origin("csv", 0))
        if columns != ERRORS:
            self.client.create("in_errors", ShardSchema.from_arrow(columns), times_by="source in")
        else:
            open_errors(self.client, "in")
        # As a source does: by itself a shard without readers keeps nothing but its newest time.
        self.client.set_retention("in_errors", 3_600_000)
        self.client.create("in", ShardSchema.from_arrow(pa.schema([("k", pa.int64())])))
        self.time = 0

    def bind(self) -> int:
        """Bind the next micro-batch, at a later time than all before."""
        bound = self.remap.read()
        self.time = -(-max(bound.upper, self.time + 1) // 10) * 10
        number = 0 if bound.last is None else bound.last.number + 1
        assert self.remap.bind(bound, number=number, offset="o", files=(), at=self.time)
        return self.time

    def append(self, shard: str, at: int, *raws: str, rows: pa.Table | None = None) -> None:
        handle = self.client.writer(shard)
        upper = handle.upper()
        assert upper.time is not None
        assert upper.time <= at, "somebody stands in the way of a micro-batch"
        rows = table(*raws) if raws else rows
        done = handle.compare_and_append(rows, upper, Frontier(at + 1))
        assert not hasattr(done, "expected"), done

    def bring(self, *raws: str) -> None:
        """One whole micro-batch with these errors."""
        at = self.bind()
        self.append("in_errors", at, *raws)
        self.append("in", at)

    def live(self) -> Counter[str]:
        return Counter(live_errors(self.client, "in").column("raw").to_pylist())

    def skipped(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for row in skipped_rows(self.client, "in").rows:
            found[str(row.raw)] += row.count
        return found

    def repair(self, act: Any, number: int, *errors: str, as_of: int | None = None) -> int | None:
        newest = bad_rows(self.client, "in").as_of
        wanted = Repair(act, newest if as_of is None else as_of, errors)
        return repair_errors(self.client, "in", wanted, writer=REPAIR, number=number)


def table(*raws: str) -> pa.Table:
    rows = [{"error": "bad", "raw": raw, "file": "file:///f.csv"} for raw in raws]
    return pa.Table.from_pylist(rows, ERRORS)


def test_what_is_there_has_a_name_a_time_and_a_count() -> None:
    """Equal rows are one line; a row that went and came again has come later."""
    world = World()
    world.bring("a", "a")
    world.bring("b")
    found = bad_rows(world.client, "in")
    rows, newest = found.rows, found.as_of
    assert found.count == 3
    assert [(row.raw, row.count, row.since_ms) for row in rows] == [("a", 2, 10), ("b", 1, 20)]
    assert {row.file for row in rows} == {"file:///f.csv"}
    assert newest == 20
    assert world.repair("retract", 1, rows[0].id) == 2
    world.bring("a")
    again = bad_rows(world.client, "in").rows
    assert [(row.raw, row.since_ms) for row in again] == [("b", 20), ("a", world.time)]
    assert {row.id for row in again} == {row.id for row in rows}


def test_the_newest_are_shown_and_those_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And how many there are: the older ones are not read, but for those with a given id."""
    monkeypatch.setattr(repair, "SHOWN_MAX", 2)
    world = World()
    world.bring("a", "a")
    [oldest] = bad_rows(world.client, "in").rows
    for raw in ("b", "c", "d"):
        world.bring(raw)
    found = bad_rows(world.client, "in")
    assert ([row.raw for row in found.rows], found.count) == (["c", "d"], 5)
    assert bad_rows(world.client, "in", [oldest.id]).rows == (oldest, *found.rows)
    assert world.repair("skip", 1) == 5
    left = skipped_rows(world.client, "in")
    assert (len(left.rows), left.count) == (2, 5)


def test_a_row_that_is_no_utf_8_is_listed_and_goes() -> None:
    """JSON that cannot be decoded is kept byte by byte."""
    world = World()
    world.bring("a")
    raw = pa.array([b'{"k": \xff', b'{"k": \xfe\xfe'], pa.binary())
    at = world.bind()
    bad = pa.table(
        [
            pa.array(["bad"] * 2),
            pa.Array.from_buffers(pa.string(), 2, raw.buffers()),
            pa.nulls(2, pa.string()),
            pa.nulls(2, pa.string()),
        ],
        schema=ERRORS,
    )
    handle = world.client.writer("in_errors")
    handle.compare_and_append(bad, handle.upper(), Frontier(at + 1))
    world.append("in", at)
    rows = bad_rows(world.client, "in").rows
    assert {row.raw for row in rows} == {"a", '{"k": \ufffd', '{"k": \ufffd\ufffd'}
    (meant,) = [row.id for row in rows if row.raw == '{"k": \ufffd']
    assert world.repair("skip", 1, meant) == 1
    assert world.repair("retract", 2) == 2
    assert bad_rows(world.client, "in").rows == ()
    assert world.skipped() == {'{"k": \ufffd': 1}


@pytest.mark.parametrize("act", ["retract", "skip", "all by hand"])
def test_errors_of_an_older_version_go(act: str) -> None:
    """Their shard has no column `file` until the source starts: a paused one does not."""
    older = ERRORS.remove(ERRORS.get_field_index("file"))
    world = World(older)
    world.append("in_errors", at := world.bind(), rows=table("a", "b").select(older.names))
    world.append("in", at)
    [first, _] = bad_rows(world.client, "in").rows
    assert first.file is None
    if act == "all by hand":
        assert retract_errors(world.client, "in") == 2
        return
    assert world.repair(act, 1, first.id) == 1
    assert world.live() == Counter({"a", "b"} - {first.raw})
    assert world.skipped() == Counter({first.raw} if act == "skip" else set())


def test_the_chosen_ones_go_and_the_source_goes_on() -> None:
    """Retracted ones without a trace, skipped ones with a note; the next micro-batch fits."""
    world = World()
    world.bring("a", "b", "c", "c")
    ids = {row.raw: row.id for row in bad_rows(world.client, "in").rows}
    assert world.repair("retract", 1, ids["a"]) == 1
    assert (world.live(), world.skipped()) == ({"b": 1, "c": 2}, {})
    assert world.repair("skip", 2, ids["b"], ids["c"]) == 3
    assert (world.live(), world.skipped()) == ({}, {"b": 1, "c": 2})
    world.bring("d")
    world.append("in_skipped", world.time, "e")
    assert (world.live(), world.skipped()) == ({"d": 1}, {"b": 1, "c": 2, "e": 1})


@pytest.mark.parametrize("act", ["retract", "skip"])
def test_a_repetition_takes_nothing_that_came_later(act: str) -> None:
    """Not even an error equal to one that was meant; also if there was nothing to do."""
    world = World()
    world.bring("a")
    seen = bad_rows(world.client, "in").as_of
    assert world.repair(act, 1, as_of=seen) == 1
    assert world.repair(act, 2, as_of=seen) == 0
    world.bring("a")
    assert world.repair(act, 1, as_of=seen) is None
    assert world.repair(act, 2, as_of=seen) is None
    assert world.live() == {"a": 1}
    assert sum(world.skipped().values()) == (1 if act == "skip" else 0)


def test_errors_that_nobody_has_seen_are_not_meant() -> None:
    """All are those of a time; what came after it stays."""
    world = World()
    world.bring("a")
    seen = bad_rows(world.client, "in").as_of
    world.bring("a", "b")
    assert world.repair("retract", 1, as_of=seen) == 1
    assert world.live() == {"a": 1, "b": 1}


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("act", ["retract", "skip"])
def test_an_answer_that_is_lost_is_read_back(
    act: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each append of a repair: done again with its number, it is done once."""
    for fatal in range(1, 3 if act == "skip" else 2):
        world = World()
        world.bring("a", "a", "b")
        seen = bad_rows(world.client, "in").as_of
        fails = _failing(WriteHandle.compare_and_append, fatal, happens=lost == "answer")
        with monkeypatch.context() as patch:
            patch.setattr(WriteHandle, "compare_and_append", fails)
            with pytest.raises(Indeterminate):
                world.repair(act, 1, as_of=seen)
            # Another client, as after a crash: nothing of this process is remembered.
            again = ShardClient.open(world.client.location.url, clock=ManualClock())
            repair_errors(again, "in", Repair(act, seen), writer=REPAIR, number=1)  # type: ignore[arg-type]
        assert world.live() == {}
        assert world.skipped() == ({"a": 2, "b": 1} if act == "skip" else {})


def _failing(
    real: Callable[..., Any], fatal: int, *, happens: bool, writer: str = REPAIR
) -> Callable[..., Any]:
    """An append whose answer is lost, at the `fatal`-th one of a repair by `writer…`."""
    calls = count(1)

    def append(handle: WriteHandle, *given: Any, **named: Any) -> Any:
        if not handle.writer.startswith(writer) or next(calls) != fatal:
            return real(handle, *given, **named)
        if happens:
            real(handle, *given, **named)
        raise Indeterminate("no answer")

    return append


def test_a_repair_that_is_never_repeated_takes_no_note_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing runs nobody repeats it, and what comes next has another number."""
    world = World()
    world.bring("a", "b")
    found = bad_rows(world.client, "in")
    rows, seen = found.rows, found.as_of
    ids = {row.raw: row.id for row in rows}
    dies = _failing(WriteHandle.compare_and_append, 2, happens=False, writer="repair-offline")
    with monkeypatch.context() as patch:
        patch.setattr(WriteHandle, "compare_and_append", dies)
        once = RetryPolicy(first_ms=1, longest_ms=1, attempts_max=1)
        patch.setattr("shardline.app.coordinator.offline_repairs._RETRIES", once)
        with pytest.raises(Indeterminate):
            OfflineRepairs(world.client).repair("in", "skip", seen, [ids["a"]])
    assert (world.live(), world.skipped()) == ({"a": 1, "b": 1}, {"a": 1})
    again = ShardClient.open(world.client.location.url, clock=ManualClock(), ids=SeededIds(1))
    assert OfflineRepairs(again).repair("in", "skip", seen, [ids["b"]]) == 1
    assert (world.live(), world.skipped()) == ({"a": 1}, {"a": 1, "b": 1})


def test_two_repairs_at_a_time_take_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins and ends between the notes and the retraction of the first."""
    world = World()
    world.bring("a", "b")
    found = bad_rows(world.client, "in")
    rows, seen = found.rows, found.as_of
    ids = {row.raw: row.id for row in rows}
    other = ShardClient.open(world.client.location.url, clock=ManualClock(), ids=SeededIds(1))
    real, skipped = WriteHandle.compare_and_append, list[str]()

    def append(handle: WriteHandle, *given: Any, **named: Any) -> Any:
        if handle.machine.name == "in_errors" and not skipped:
            skipped.append("b")
            assert OfflineRepairs(other).repair("in", "skip", seen, [ids["b"]]) == 1
        return real(handle, *given, **named)

    monkeypatch.setattr(WriteHandle, "compare_and_append", append)
    assert OfflineRepairs(world.client).repair("in", "skip", seen, [ids["a"]]) == 1
    assert (world.live(), world.skipped()) == ({}, {"a": 1, "b": 1})


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a repair waits for does not come: that is known soon."""
    few = replace(SETTLE_RETRIES, attempts_max=2)
    monkeypatch.setattr("shardline.app.storage.repair.SETTLE_RETRIES", few)


@pytest.mark.usefixtures("few_attempts")
def test_a_retraction_waits_for_errors_that_may_come() -> None:
    """Of a micro-batch that is bound: their time must not be taken from them."""
    world = World()
    world.bring("a")
    at = world.bind()
    with pytest.raises(Determinate, match="CONTENTION"):
        world.repair("retract", 1)
    world.append("in_errors", at, "b")
    assert world.repair("retract", 1) == 2


@pytest.mark.usefixtures("few_attempts")
def test_notes_wait_for_a_micro_batch_that_is_bound() -> None:
    """Its own notes could not be told from those of the repair, and would be lost."""
    world = World()
    world.bring("a")
    at = world.bind()
    world.append("in_errors", at)
    with pytest.raises(Determinate, match="CONTENTION"):
        world.repair("skip", 1)
    assert world.skipped() == {}
    world.append("in", at)
    assert world.repair("skip", 1) == 1


@pytest.mark.parametrize("when", ["settled", "looked"])
def test_a_source_that_notes_rows_meanwhile_is_no_obstacle(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the time that a repair has settled, or its look at the notes, and its own notes."""
    world = World()
    world.bring("a")
    open_skipped(world.client, "in")
    meets: list[int] = []

    def meet(notes: bool) -> None:
        if notes == (when == "looked") and not meets:
            meets.append(1)
            at = world.bind()
            for shard, raws in (("in_errors", ()), ("in_skipped", ("n",)), ("in", ())):
                world.append(shard, at, *raws)

    def settles(*given: Any) -> bool:
        settled = settle_time(*given)
        meet(notes=False)
        return settled

    def appends(handle: WriteHandle, *given: Any, **named: Any) -> Any:
        if handle.writer == REPAIR:
            meet(notes=True)
        return real(handle, *given, **named)

    real = WriteHandle.compare_and_append
    monkeypatch.setattr("shardline.app.storage.repair.settle_time", settles)
    monkeypatch.setattr(WriteHandle, "compare_and_append", appends)
    assert world.repair("skip", 1) == 1
    assert (meets, world.live(), world.skipped()) == ([1], {}, {"a": 1, "n": 1})


def test_what_is_unknown_is_refused_and_changes_nothing() -> None:
    """A name of a source, of an error, and a time that nobody can read any more."""
    world = World()
    with pytest.raises(InvalidUsage, match="NOTHING_APPENDED"):
        world.repair("retract", 1)
    world.bring("a")
    with pytest.raises(InvalidUsage, match="UNKNOWN_ERROR"):
        world.repair("retract", 1, "00000000")
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        repair_errors(world.client, "inn", Repair("retract", 1), writer=REPAIR, number=1)
    assert world.live() == {"a": 1}
