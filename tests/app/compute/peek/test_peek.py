"""Peeks without Spark: one response each, in order, bounded, cancelled, refused with reasons."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import Index, IndexRegistry, IndexSettings
from shardline.app.compute.peek.answer import FindBlockage, PeekSettings, Relations
from shardline.app.compute.peek.peek import PeekServer
from shardline.app.compute.results import from_ipc
from shardline.app.protocol.compute import Peek, PeekResponse
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import SharedClock
from support.fakes.reads import Inputs, Place, contents, updates_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ERRORS = pa.schema([("error", pa.string())])
ROWS = [((1, "a"), 5, 1), ((2, "b"), 6, 2)]
ALL = "SELECT * FROM t"


class Conf:
    """The settings of a session that has nothing else."""

    def get(self, name: str) -> str:
        assert name == "spark.sql.session.timeZone"
        return "UTC"


class Session:
    conf = Conf()


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    found.host = replace(found.host, spark=Session())  # type: ignore[arg-type]  # no JVM here
    found.put("t", ROWS, 10, SCHEMA)
    yield found
    found.close()


def peeks_of(
    place: Place,
    inputs: Inputs | None = None,
    find_blockage: FindBlockage = lambda _: None,
    indexes: IndexRegistry | None = None,
    relations: Relations | None = None,
    **chosen: Any,
) -> PeekServer:
    def nothing(name: str, as_of: int | None) -> pa.Table:
        raise AssertionError((name, as_of))

    def bind(query: str, names: object) -> str:
        raise AssertionError((query, names))

    settings = PeekSettings(poll_ms=2, **chosen)
    catalog = inputs or Inputs()
    return PeekServer(
        place.host,
        catalog,
        relations or nothing,
        bind,
        indexes=indexes or IndexRegistry(),
        settings=settings,
        find_blockage=find_blockage,
    )


def peek(uuid: str, as_of: int, query: str = ALL, limit: int = 1 << 20) -> Peek:
    return Peek(uuid=uuid, query=query, inputs=("t",), as_of=as_of, limit_bytes=limit)


def answer(place: Place, peeks: PeekServer, asked: Peek) -> PeekResponse:
    peeks.start(asked)
    return place.next(PeekResponse)


def test_rows_come_as_of_their_time(place: Place) -> None:
    """The contents at the peek's time, as an Arrow stream, and no lease is left."""
    peeks = peeks_of(place)
    found = answer(place, peeks, peek("a", 5))
    assert contents(from_ipc(found.rows or b"")) == Counter({(1, "a"): 1})
    found = answer(place, peeks, peek("b", 6, "SELECT v FROM t WHERE k = 2"))
    assert contents(from_ipc(found.rows or b"")) == Counter({("b",): 2})
    assert not place.client.state("t").leased
    assert sum(one.count for one in peeks.durations()) == 2
    peeks.stop()


def test_an_index_of_a_former_object_of_the_name_is_not_asked(place: Place) -> None:
    """Until it looks again, which then ends, it has what was dropped."""
    arranged = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 5)
    arranged.append(updates_of([((9, "gone"), 5, 1)], SCHEMA), Frontier(10))
    on = IndexDescription(name="i", on="t", key=("k",))
    former = Index(place.host, on, "s0f", arranged, IndexSettings())
    indexes = IndexRegistry()
    indexes.add(place.client.location.url, former)
    peeks = peeks_of(place, indexes=indexes)
    found = answer(place, peeks, peek("a", 5))
    assert contents(from_ipc(found.rows or b"")) == Counter({(1, "a"): 1})
    peeks.stop()


def test_a_time_in_the_future_is_waited_for(place: Place) -> None:
    """A peek at a time that is not settled yet is answered once it is."""
    peeks = peeks_of(place)
    peeks.start(peek("a", 12))
    place.put("t", [((3, "c"), 12, 1)], 13, SCHEMA)
    found = place.next(PeekResponse)
    assert contents(from_ipc(found.rows or b""))[3, "c"] == 1
    peeks.stop()


def test_waiting_has_an_end(place: Place) -> None:
    """An object that does not get there in time is named, with its upper."""
    peeks = peeks_of(place, settle_ms=10)
    error = answer(place, peeks, peek("a", 500)).error
    assert error.startswith("[NOT_YET_READABLE] shard 't' was not settled at 500")
    assert "its upper is [10]" in error
    peeks.stop()


def test_a_peek_that_had_to_queue_waits_no_longer_than_the_others(place: Place) -> None:
    """Its time began when it came: whoever asked would be gone before the name is told."""
    clock = SharedClock()
    place.host = replace(place.host, clock=clock)
    late = [peek("b", 500), peek("c", 5)]

    def come_now(_: str) -> None:
        while late:
            peeks.start(late.pop(0))

    peeks = peeks_of(place, find_blockage=come_now, threads=1, settle_ms=100)
    first = answer(place, peeks, peek("a", 500))
    second, third = place.next(PeekResponse), place.next(PeekResponse)
    assert [one.uuid for one in (first, second, third)] == ["a", "b", "c"]
    assert "shard 't' was not settled at 500" in first.error
    assert "shard 't' was not settled at 500" in second.error
    assert third.rows is not None, "what is settled is answered, however late"
    assert clock.elapsed_ms() == 100
    peeks.stop()


def test_objects_and_their_errors_are_waited_for_no_longer_than_one_of_them(place: Place) -> None:
    """The error shard that is behind is named while somebody waits for it."""
    clock = SharedClock()
    place.host = replace(place.host, clock=clock)
    place.put("t_errors", [], 10, ERRORS)

    def settle_late(_: str) -> None:
        if clock.elapsed_ms() >= 60 and place.client.state("t").upper == Frontier(10):
            place.put("t", [], 501, SCHEMA)

    peeks = peeks_of(place, find_blockage=settle_late, settle_ms=100)
    error = answer(place, peeks, peek("a", 500)).error
    assert error.startswith("[NOT_YET_READABLE] shard 't_errors' was not settled at 500")
    assert clock.elapsed_ms() == 100
    peeks.stop()


def test_what_does_not_move_is_not_waited_for(place: Place) -> None:
    """An object that is stalled says so at once; what it has is answered all the same."""
    asked: list[str] = []

    def stalled(name: str) -> tuple[str, str]:
        asked.append(name)
        return "it is stalled: disk full", "make room"

    peeks = peeks_of(place, find_blockage=stalled, settle_ms=10**9)
    error = answer(place, peeks, peek("a", 500)).error
    assert error == (
        "[OBJECT_BLOCKED] 't' cannot be read at 500: it is stalled: disk full — hint: make room; "
        "AS OF 9 reads what it has"
    )
    assert asked == ["t"]
    assert answer(place, peeks, peek("b", 9)).rows is not None
    assert asked == ["t"], "what is settled is not asked about"
    peeks.stop()


def test_a_time_that_is_gone_is_refused_with_since(place: Place) -> None:
    """A peek before the since says from when on it would be answered."""
    place.client.hold("t", "h").downgrade(Frontier(9))
    peeks = peeks_of(place)
    error = answer(place, peeks, peek("a", 5)).error
    assert error.startswith("[HISTORY_GONE] 't' can no longer be read at 5: its since is 9")
    assert "AS OF 9 or later" in error
    peeks.stop()


def test_unknown_objects_are_told(place: Place) -> None:
    """An object without a shard is an error with what there is."""
    peeks = peeks_of(place)
    asked = Peek(uuid="a", query="SELECT * FROM s", inputs=("s",), as_of=5, limit_bytes=1)
    found = answer(place, peeks, asked)
    assert found.error.startswith("[SHARD_NOT_FOUND] no shard 's'")
    assert found.kind == "invalid_usage"
    peeks.stop()


@pytest.mark.parametrize("then", [None, 77])
def test_relations_are_read_at_the_time_that_was_asked_for(place: Place, then: int | None) -> None:
    """Not at that of the objects, which is chosen for a query that says none."""
    asked: list[tuple[str, int | None]] = []

    def relation(name: str, as_of: int | None) -> pa.Table:
        asked.append((name, as_of))
        raise InvalidUsage("it is not known", code="BEFORE_HISTORY", hint="later")

    peeks = peeks_of(place, relations=relation)
    peek = Peek(
        uuid="a", query="SELECT 1", inputs=("introspection.verdicts", "t"), as_of=5,
        limit_bytes=1 << 20, relations_as_of=then,
    )  # fmt: skip
    found = answer(place, peeks, peek)
    assert asked == [("verdicts", then)]
    assert (found.error, found.kind) == (
        "[BEFORE_HISTORY] it is not known — hint: later",
        "invalid_usage",
    )
    peeks.stop()


def test_the_log_says_how_a_query_has_ended(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each: answered, or failed, which is a warning and has the error."""
    caplog.set_level("INFO", logger="shardline.app.compute.peek")
    peeks = peeks_of(place, settle_ms=10)
    answer(place, peeks, peek("a", 5))
    answer(place, peeks, peek("b", 500))
    peeks.stop()
    ended = {r.context["peek"]: r for r in caplog.records if hasattr(r, "context")}
    assert [r.getMessage() for r in ended.values()] == ["a query was answered", "a query failed"]
    assert ended["b"].levelname == "WARNING"
    assert ended["b"].exc_info is not None
    assert "was not settled at 500" in str(ended["b"].exc_info[1])


@pytest.mark.parametrize(("as_of", "live"), [(5, False), (6, True), (7, True), (8, False)])
def test_live_errors_of_any_input_are_the_answer(place: Place, as_of: int, live: bool) -> None:
    """An error of what an object is made of fails peeks for as long as it is live."""
    rows = [(("no date",), 6, 2), (("no date",), 8, -2)]
    place.put("raw_errors", rows, 10, ERRORS)
    place.put("other_errors", rows, 10, ERRORS)
    peeks = peeks_of(place, Inputs(t=("raw",)))
    found = answer(place, peeks, peek("a", as_of))
    if live:
        assert found.error.startswith("[INPUT_HAS_ERRORS] 'raw' has 2 live errors, the first")
        assert "no date" in found.error
        assert found.rows is None
    else:
        assert found.error == ""
    peeks.stop()


def test_a_result_is_bounded(place: Place) -> None:
    """More bytes than the limit is an error that names it, however the peek is answered."""
    place.put("t", [((7, "x"), 10, 10**9)], 20, SCHEMA)
    peeks = peeks_of(place)
    error = answer(place, peeks, peek("a", 15, limit=5000)).error
    assert error.startswith("[RESULT_TOO_LARGE] the result is larger than its limit of 5,000")
    few = answer(place, peeks, peek("b", 15, "SELECT * FROM t WHERE k = 1", limit=5000))
    assert few.error == ""
    peeks.stop()


def test_every_peek_has_one_response(place: Place) -> None:
    """Waiting, running, repeated, refused: one response each, whatever the order."""
    peeks = peeks_of(place, threads=1, waiting=2)
    peeks.start(peek("runs", 500))
    while not place.client.state("t").leased:
        threading.Event().wait(0.001)
    for uuid in ("waits", "waits too", "one too many", "waits"):
        peeks.start(peek(uuid, 5))
    refused = place.next(PeekResponse)
    assert (refused.uuid, refused.error[:16]) == ("one too many", "[TOO_MANY_PEEKS]")
    assert [one.uuid for one in peeks.active()] == ["runs", "waits", "waits too"]
    peeks.cancel("waits")
    assert place.next(PeekResponse) == PeekResponse(uuid="waits", cancelled=True)
    peeks.cancel("waits")
    peeks.cancel("unknown")
    peeks.cancel("runs")
    assert place.next(PeekResponse) == PeekResponse(uuid="runs", cancelled=True)
    assert place.next(PeekResponse).uuid == "waits too"
    peeks.stop()
    assert place.rest() == []
    assert peeks.active() == []


def test_stopping_answers_what_is_left(place: Place) -> None:
    """All that run or wait are cancelled; later ones are refused."""
    peeks = peeks_of(place, threads=1)
    for uuid in ("a", "b", "c"):
        peeks.start(peek(uuid, 500))
    peeks.stop()
    found = {one.uuid: one for one in (place.next(PeekResponse) for _ in range(3))}
    assert all(one.cancelled for one in found.values())
    assert answer(place, peeks, peek("d", 5)).error.startswith("[STOPPED]")
    assert not place.client.state("t").leased


def test_what_is_forgotten_is_not_answered_and_may_be_asked_again(place: Place) -> None:
    """The same peek of a later connection is another one, which the end of the first leaves be."""
    peeks = peeks_of(place, threads=1)
    for uuid in ("runs", "waits"):
        peeks.start(peek(uuid, 12))
    for uuid in ("runs", "waits", "never"):
        peeks.forget(uuid)
    assert peeks.active() == []
    for uuid in ("runs", "waits"):
        peeks.start(peek(uuid, 12))
    place.put("t", [((3, "c"), 12, 1)], 13, SCHEMA)
    found = [place.next(PeekResponse) for _ in range(2)]
    assert {one.uuid for one in found} == {"runs", "waits"}
    assert all(contents(from_ipc(one.rows or b""))[3, "c"] == 1 for one in found)
    peeks.stop()
    assert not [one for one in place.rest() if isinstance(one, PeekResponse)]


def test_a_query_without_a_thread_is_refused_and_later_ones_are_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has no threads for a while costs no place for queries, and ends in order."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    peeks = peeks_of(place, threads=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert answer(place, peeks, peek("a", 5)).error.startswith("[NO_THREAD] can't start new")
    assert not peeks.active()
    assert answer(place, peeks, peek("b", 5)).rows
    peeks.stop()
