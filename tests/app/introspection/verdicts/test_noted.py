"""Verdicts that are noted: which changes make a line of the history, and when."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardline.app.execution.observations import Hydrated, Measured
from shardline.app.introspection.events import Dropped, Polled
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.verdicts import judged, noted
from shardline.app.introspection.verdicts.situation import Judgement, Situation
from shardline.app.protocol.objects import ViewDescription
from shardline.app.protocol.storage import StatusUpdate
from support.fakes.introspection import DELAYS, FAST, FLIGHTS, World

WELL = Situation("flights", "source")
LATE = replace(WELL, lag_ms=60_000, step_ms=1)
IDLE = replace(WELL, quiet_ms=900_000)
STALLED = replace(WELL, status="stalled", error="disk full")


def test_a_change_is_noted_when_it_is_seen_twice_and_at_once_if_it_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lag that goes to and fro over the limit fills no history; what is gone has no verdict."""
    facts = Facts()
    seen = [WELL, IDLE, WELL, IDLE, IDLE, STALLED, WELL, STALLED, WELL, WELL]
    assert noted_of(monkeypatch, facts, seen) == [
        (0, "healthy"),
        (4, "idle"),
        (5, "stalled"),
        (9, "healthy"),
    ]
    assert facts.verdicts["flights"].since_ms == 9_000
    monkeypatch.setattr(judged, "situations", lambda *_: {})
    noted.note_verdicts(facts, 10_000)
    assert (facts.verdicts, facts.judgements) == ({}, {})


def test_errors_are_noted_once_it_is_known_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is seen in the shard before its object tells; one that never does is noted."""
    counted = replace(WELL, errors=1)
    told = replace(counted, error="1 row cannot be decoded")
    facts = Facts()
    lines = noted_of(monkeypatch, facts, [WELL, counted, told, WELL, WELL, counted, counted])
    assert lines == [(0, "healthy"), (2, "unreadable"), (4, "healthy"), (6, "unreadable")]
    texts = [row[3] for _, row in facts.verdict_changes.rows]
    assert texts[1] == "its contents have 1 error: 1 row cannot be decoded"
    assert texts[3] == "its contents have 1 error"


def test_another_cause_under_the_same_word_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks back must not read of an error that was mended; the same one again is no news."""
    retried = replace(STALLED, error="disk full, 17 of 20 tries")
    again = replace(STALLED, error="disk full, 18 of 20 tries")
    other = replace(STALLED, error="no such bucket")
    facts = Facts()
    seen = [WELL, retried, again, again, other, again, other, other, other]
    assert noted_of(monkeypatch, facts, seen) == [(0, "healthy"), (1, "stalled"), (7, "stalled")]
    assert facts.verdict_changes.rows[-1][1][3] == "no such bucket"
    assert facts.verdicts["flights"].since_ms == 1_000


def test_who_looks_back_sees_the_cause_of_then_and_since_when_the_verdict_holds() -> None:
    """Also at a moment at which only the cause has changed."""
    world = World()
    world.run(FLIGHTS)

    def fail(error: str) -> int:
        """The time at which it has failed in this way for a while."""
        for _ in range(3):
            now = world.clock.now_ms()
            world.tell(StatusUpdate(id="flights", status="stalled", error=error, at_ms=now))
            world.clock.advance(1_000)
            world.tell()
        return world.clock.now_ms()

    at_ms = [fail("disk full"), fail("no such bucket")]
    for _ in range(3):
        fail("no such bucket")
    first, second = (world.relations.rows("verdicts", as_of=at)[0] for at in at_ms)
    assert (first["because"], second["because"]) == ("disk full", "no such bucket")
    assert first["since"] == second["since"] == world.rows("verdicts")[0]["since"]
    errors = [row for row in world.rows("events") if row["kind"] == "error"]
    assert len(errors) == 1, "it is the same trouble"


def test_another_object_to_blame_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that are late the worst one changes from look to look: that is noted once it lasts."""
    facts = Facts()
    bad, late = Judgement("stalled"), Judgement("falling behind")

    def on(blame: str, cause: Judgement) -> dict[str, Judgement]:
        return {"v": Judgement("waiting", blame=blame), "a": cause, "b": cause}

    seen = [on("a", bad), on("b", bad), on("b", bad)]
    seen += [on("ba"[n % 2], late) for n in range(20)] + [on("a", late)] * 11
    look_at(monkeypatch, facts, seen)
    rows = [(at // 1_000, row[5]) for at, row in facts.verdict_changes.rows if row[0] == "v"]
    assert rows == [(0, "a"), (2, "b"), (32, "a")]


def test_an_object_that_is_made_anew_has_a_verdict_of_its_own() -> None:
    """Also if it has the name of one that was dropped, and the word of its last verdict."""
    world = World()
    world.run(FLIGHTS)
    world.clock.advance(60_000)
    world.tell()
    before = world.rows("verdicts")[0]
    world.clock.advance(60_000)
    world.tell()
    world.tell(Dropped(id="flights", at_ms=world.clock.now_ms()))
    world.run(ViewDescription(name="flights", query="SELECT 1", inputs=(), schema="a INT"))
    world.clock.advance(1_000)
    world.tell()
    now_ms = world.clock.now_ms()
    for as_of in (None, now_ms):
        (row,) = world.relations.rows("verdicts", as_of=as_of)
        assert (row["type"], row["verdict"]) == ("view", before["verdict"]), as_of
        assert str(row["since"]) > str(before["since"]), as_of


def test_what_is_late_is_noted_once_that_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long step, as the first ones after a start are, is no mark, and its end is none."""
    seen = [WELL, *[LATE] * 10, WELL, *[LATE] * 11, WELL, WELL]
    assert noted_of(monkeypatch, Facts(), seen) == [
        (0, "healthy"),
        (22, "falling behind"),
        (24, "healthy"),
    ]


def test_who_waits_for_what_is_not_noted_yet_is_not_noted_as_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a history would have an object that waits for one that is healthy."""
    facts = Facts()
    well, late = Judgement("healthy"), Judgement("falling behind")
    waits = Judgement("waiting", blame="flights")
    seen = [(well, well), *[(late, waits)] * 5, (well, well), *[(late, waits)] * 13]
    look_at(monkeypatch, facts, [{"flights": one, "delays": view} for one, view in seen])
    rows = [(at // 1_000, *row[:3:2]) for at, row in facts.verdict_changes.rows]
    assert rows == [
        (0, "flights", "healthy"),
        (0, "delays", "healthy"),
        (17, "flights", "falling behind"),
        (17, "delays", "waiting"),
    ]


def look_at(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, seen: list[dict[str, Judgement]]
) -> None:
    """Look at judgements of each second."""
    for second, judgements in enumerate(seen):
        situations = {name: Situation(name, "view") for name in judgements}
        found = SimpleNamespace(judgements=judgements, situations=situations)
        monkeypatch.setattr(noted, "judge_facts", lambda *_, found=found: found)
        noted.note_verdicts(facts, second * 1_000)


def noted_of(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, seen: list[Situation]
) -> list[tuple[int, object]]:
    """The lines of the history, by the second, of a situation for each second."""
    for second, one in enumerate(seen):
        monkeypatch.setattr(judged, "situations", lambda *_, one=one: {one.name: one})
        noted.note_verdicts(facts, second * 1_000)
        assert facts.judgements.keys() == {"flights"}
    return [(at // 1_000, row[2]) for at, row in facts.verdict_changes.rows]


def test_an_object_has_changed_when_rows_have_come_or_gone() -> None:
    """Numbers of anything else are no rows."""
    world = World()
    world.run(FLIGHTS)
    name = FLIGHTS.name
    quiet = {"updates_committed": 0.0, "bytes_received": 12.0}
    world.tell(Measured(id=name, epoch=1, added=quiet))
    assert world.rows("verdicts", name)[0]["changed_at"] is None
    world.tell(Measured(id=name, epoch=1, added={"updates_committed": 2.0}))
    first = world.rows("verdicts", name)[0]["changed_at"]
    assert first is not None
    world.clock.advance(5_000)
    world.tell(Measured(id=name, epoch=1, added=quiet))
    assert world.rows("verdicts", name)[0]["changed_at"] == first


def test_a_source_to_which_nothing_comes_after_a_start_is_idle() -> None:
    """Nobody knows how long its feed has been dead, but that it is not since it runs."""
    world = World()
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    seen = []
    for _ in range(310):
        world.clock.advance(1000)
        world.tell(Polled(id="flights", since=0, upper=world.clock.now_ms()))
        seen.append(world.rows("verdicts")[0])
    assert [row["verdict"] for row in seen] == ["healthy"] * 299 + ["idle"] * 11
    assert {row["changed_at"] for row in seen} == {None}, "no rows have come that are known of"
    world.tell(Measured(id="flights", epoch=1, added={"updates_committed": 1}))
    assert world.rows("verdicts")[0]["verdict"] == "healthy"


def test_what_begins_while_all_else_rests_is_healthy() -> None:
    """Its input's upper moves every five seconds, and it hears of that a little later."""
    world = World()
    world.run(FAST)
    world.tell(Hydrated(id="fast", epoch=1, took_ms=1))
    seen, upper = set[object](), world.clock.now_ms()
    for tick in range(200):
        if tick % 20 == 2:
            upper = world.clock.now_ms() - 400
        world.tell(Polled(id="fast", since=0, upper=upper))
        seen.add(world.rows("verdicts", "fast")[0]["verdict"])
        world.clock.advance(250)
    assert seen == {"healthy"}


def test_a_view_whose_steps_all_take_a_minute_falls_behind_all_the_time() -> None:
    """One to two minutes late for good: nothing comes and goes in its history."""
    world = World()
    for one in (FLIGHTS, DELAYS):
        world.run(one)
        world.tell(Hydrated(id=one.name, epoch=1, took_ms=1))
    for second in range(1800):
        now_ms = world.clock.now_ms()
        world.tell(Polled(id="flights", since=0, upper=now_ms))
        if second % 60 == 0:
            world.tell(Polled(id="delays", since=0, upper=max(1, now_ms - 60_000)))
        world.clock.advance(1000)
    found = [row for row in world.rows("verdict_history") if row["object_id"] == "delays"]
    assert [row["verdict"] for row in found][-1] == "falling behind"
    assert len(found) <= 3
    (verdict,) = world.rows("verdicts", "delays")
    assert (verdict["verdict"], verdict["ready_at"]) == ("falling behind", None)
