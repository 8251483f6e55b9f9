"""Events are what a person would mark on a time line: each once, of the kind that it is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from shardline.app.execution.observations import Failed, Hydrated, Progress
from shardline.app.introspection.events import (
    Acted,
    ActionOutcome,
    Dropped,
    LaneOpened,
    Maintenance,
    Phase,
    Remembered,
    Wanted,
    WantedObject,
)
from shardline.app.introspection.facts import Facts
from shardline.app.protocol.object_state import ShownPhase
from shardline.app.protocol.objects import SubscribeDescription, ViewDescription
from support.fakes.introspection import DELAYS, FLIGHTS, World


@pytest.fixture
def world() -> World:
    return World()


def marks(world: World, *kinds: str) -> list[tuple[Any, Any, Any]]:
    """Kind, object and message of the events of some kinds, or of all."""
    return [
        (row["kind"], row["object_id"], row["message"])
        for row in world.rows("events")
        if not kinds or row["kind"] in kinds
    ]


def live(world: World, name: str, seconds: int) -> None:
    """An object moves for a while."""
    for _ in range(seconds):
        world.clock.advance(1000)
        epoch = world.sink.read(lambda facts, _: facts.objects[name].epoch)
        world.tell(Progress(id=name, epoch=epoch, write=world.clock.now_ms() - 10))


def test_an_object_that_fails_and_recovers(world: World) -> None:
    """One error, however often it is tried again, and one recovery with the time that it took."""
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    live(world, "flights", 3)
    for epoch in (1, 2, 3):
        now = world.clock.now_ms()
        world.tell(
            Phase(id="flights", epoch=epoch, phase="running", at_ms=now),
            Failed(id="flights", epoch=epoch, error="disk full", hint="make room"),
            Phase(id="flights", epoch=epoch, phase="suspended", at_ms=now, failures=epoch),
        )
        world.clock.advance(20_000)
        world.tell()
    now = world.clock.now_ms()
    world.tell(
        Phase(id="flights", epoch=4, phase="running", at_ms=now),
        Hydrated(id="flights", epoch=4, took_ms=1),
    )
    live(world, "flights", 3)
    assert marks(world, "error", "recovery", "start", "pause") == [
        ("error", "flights", "stalled: disk full. It has failed once"),
        ("recovery", "flights", "healthy again, after 42 s"),
    ]


def test_an_object_that_is_paused_and_resumed(world: World) -> None:
    """A pause is no error, and its end a start."""
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    live(world, "flights", 3)
    phases: tuple[tuple[ShownPhase, int], ...] = (("paused", 30), ("running", 3))
    for phase, seconds in phases:
        world.tell(Phase(id="flights", epoch=1, phase=phase, at_ms=world.clock.now_ms()))
        live(world, "flights", seconds)
    assert marks(world, "pause", "start", "error", "recovery") == [
        ("pause", "flights", "it was stopped on request"),
        ("start", "flights", "resumed"),
    ]


def test_an_object_that_fails_as_soon_as_it_is_resumed(world: World) -> None:
    """Both are marked: that a person has resumed it, and what became of that."""
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    live(world, "flights", 3)
    world.tell(Phase(id="flights", epoch=1, phase="paused", at_ms=world.clock.now_ms()))
    live(world, "flights", 3)
    now = world.clock.now_ms()
    world.tell(
        Phase(id="flights", epoch=2, phase="running", at_ms=now),
        Failed(id="flights", epoch=2, error="disk full", hint="make room"),
        Phase(id="flights", epoch=2, phase="suspended", at_ms=now, failures=1),
    )
    world.clock.advance(1000)
    world.tell()
    assert marks(world, "pause", "start", "error") == [
        ("pause", "flights", "it was stopped on request"),
        ("start", "flights", "resumed"),
        ("error", "flights", "stalled: disk full. It has failed once"),
    ]


def test_what_a_person_has_asked_for(world: World) -> None:
    """Not what was refused, nor what shows as a mark of another kind."""
    asked: tuple[tuple[str, str, ActionOutcome], ...] = (
        ("restart", "flights", "done"),
        ("restart", "delays", "refused"),
        ("pause", "flights", "done"),
        ("drop", "flights", "done"),
        ("allow_writes", "", "done"),
        ("configure", "index_limit=1g", "done"),
        ("sweep", "flights", "unknown"),
        ("expire_hold", "flights/view:v/1", "done"),
    )
    for action, target, outcome in asked:
        now = world.clock.now_ms()
        world.tell(Acted(at_ms=now, action=action, target=target, outcome=outcome, message="m"))
        world.clock.advance(1000)
    assert marks(world) == [
        ("action", "flights", "restart"),
        ("action", None, "allow writes"),
        ("action", None, "configure index_limit=1g"),
        ("action", "flights", "sweep: outcome unknown"),
        ("action", "flights", "expire hold view:v/1"),
    ]
    rows = world.rows("action_history")
    assert [(r["action"], r["target"] or "", r["outcome"]) for r in rows] == list(asked)
    assert world.rows("action_history", "delays")[0]["message"] == "m"


def act(world: World, *actions: str, outcome: ActionOutcome = "done") -> None:
    """What a person does to `flights`, a tenth of a second apart."""
    for action in actions:
        now = world.clock.now_ms()
        world.tell(Acted(at_ms=now, action=action, target="flights", outcome=outcome))
        world.clock.advance(100)


def test_a_pause_that_was_over_before_it_showed_has_its_marks(world: World) -> None:
    """Once, whether the verdict showed it or only the actions tell; a refused one has none."""
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    live(world, "flights", 3)
    act(world, "pause", "resume")
    short = [("pause", "flights", "it was stopped for a moment"), ("start", "flights", "resumed")]
    assert marks(world, "pause", "start") == short
    act(world, "pause", outcome="refused")
    act(world, "resume")
    assert marks(world, "pause", "start") == short
    act(world, "pause")
    world.tell(Phase(id="flights", epoch=1, phase="paused", at_ms=world.clock.now_ms()))
    live(world, "flights", 3)
    act(world, "resume")
    world.tell(Phase(id="flights", epoch=1, phase="running", at_ms=world.clock.now_ms()))
    live(world, "flights", 3)
    act(world, "pause", "resume")
    assert marks(world, "pause", "start") == [
        *short,
        ("pause", "flights", "it was stopped on request"),
        ("start", "flights", "resumed"),
        *short,
    ]


def test_a_resume_that_may_have_been_done_ends_a_pause(world: World) -> None:
    """When is not known, so it has no marks; and a later pause does not begin with it."""
    world.run(FLIGHTS)
    act(world, "pause")
    act(world, "resume", outcome="unknown")
    assert marks(world, "pause", "start") == []
    world.clock.advance(60_000)
    act(world, "pause", "resume")
    began, ended = (row for row in world.rows("events") if row["kind"] in {"pause", "start"})
    began_at, ended_at = (datetime.fromisoformat(str(row["occurred_at"])) for row in (began, ended))
    assert ended_at - began_at < timedelta(seconds=1)


def test_of_a_pause_whose_verdict_is_not_kept_any_more_nothing_is_said(world: World) -> None:
    """It need not have been short."""
    world.run(FLIGHTS)
    act(world, "pause", "resume")
    short = marks(world, "pause", "start")
    assert len(short) == 2

    def forget(facts: Facts, now_ms: int) -> None:
        facts.verdict_changes.horizon_ms = now_ms
        facts.verdict_changes.revision += 1

    world.sink.read(forget)
    assert marks(world, "pause", "start") == []
    act(world, "pause", "resume")
    assert marks(world, "pause", "start") == short


def test_definitions_and_drops(world: World) -> None:
    """Created, changed, given up: an object that is changed was not dropped."""
    other = ViewDescription(name="delays", query="SELECT 1 AS a", inputs=(), schema="a INT")
    wanted = Wanted((WantedObject(id="delays", description=other),), 0)
    world.run(FLIGHTS)
    world.clock.advance(1000)
    world.run(DELAYS)
    world.clock.advance(1000)
    world.tell(wanted, Dropped(id="delays", at_ms=world.clock.now_ms()))
    world.clock.advance(1000)
    world.run(other)
    world.clock.advance(1000)
    world.tell(Wanted((), world.clock.now_ms()))
    world.tell(Dropped(id="delays", at_ms=world.clock.now_ms()))
    assert marks(world, "definition", "drop") == [
        ("definition", "flights", "source created"),
        ("definition", "delays", "view created"),
        ("definition", "delays", "definition of the view changed"),
        ("drop", "delays", "view dropped"),
    ]


def test_what_comes_and_goes_with_a_client_is_no_event(world: World) -> None:
    """A subscription, or an object that was asked for and given up before it was created."""
    world.run(SubscribeDescription(name="t1", on="delays"))
    world.clock.advance(1000)
    world.tell(Dropped(id="t1", at_ms=world.clock.now_ms()))
    one = WantedObject(id="delays", description=DELAYS)
    world.tell(Wanted((one,), world.clock.now_ms()))
    world.clock.advance(1000)
    world.tell(Wanted((), world.clock.now_ms()))
    assert marks(world) == []


def test_subscriptions_are_in_no_history(world: World) -> None:
    """With all that they do: a hundred an hour would push out what has happened to the others."""
    world.run(FLIGHTS)
    histories = [r.name for r in world.relations.declared.values() if r.histories]
    before = {name: world.rows(name) for name in histories}
    for number in range(3):
        one = SubscribeDescription(name=f"t{number}", on="flights")
        world.run(one)
        world.clock.advance(2000)
        world.tell(Failed(id=one.name, epoch=1, error="no", hint=""))
        assert world.rows("verdicts", one.name)
        world.clock.advance(120_000)
        world.tell(Progress(id=one.name, epoch=1, read=world.clock.now_ms()))
        world.tell(Dropped(id=one.name, at_ms=world.clock.now_ms()))
    for name in histories:
        about = [row for row in world.rows(name) if "t1" in str(row.values())]
        assert about == [], name
    assert {name for name in histories if before[name]} >= {"status_history", "definition_history"}


def test_subscriptions_in_histories_of_earlier_versions_are_gone(world: World) -> None:
    """Their ends are noted no more, so that they would be there for ever."""
    now = world.clock.now_ms()
    rows = ((now, ("t1", "subscribe", "running", "", (), ())),)
    world.tell(
        Remembered(relation="status_history", rows=rows), LaneOpened(objects=("t1",), at_ms=now)
    )
    world.run(SubscribeDescription(name="t1", on="flights"))
    world.tell(Dropped(id="t1", at_ms=now + 1))
    world.clock.advance(1000)
    assert world.relations.rows("objects", as_of=now + 1) == []


def test_marks_reach_further_back_than_those_of_maintenance(world: World) -> None:
    """A busy shard has its thousand rounds in a day or two; nothing else is forgotten for that."""
    began = world.clock.now_ms()
    world.tell(LaneOpened(objects=(), at_ms=began))
    world.run(FLIGHTS)
    for number in range(1_200):
        at_ms = began + 10_000 + 1000 * number
        world.tell(Maintenance(shard="flights", at_ms=at_ms, took_ms=1, merges=1))
    for _ in range(20):
        world.clock.advance(100_000)
        world.tell()
    assert len(world.rows("maintenance")) == 1_000
    found = world.relations.rows("events", as_of=began + 1)
    assert [row["message"] for row in found] == ["the application started", "source created"]


def test_starts_say_how_long_nothing_ran(world: World) -> None:
    """As the shard tells it: the end of the run before, and the start of this one."""
    now = world.clock.now_ms()
    rows = ((now - 7_300_000, ("start", ())), (now - 7_200_000, ("end", ())))
    world.tell(Remembered(relation="run_history", rows=rows))
    world.tell(LaneOpened(objects=(), at_ms=now))
    assert marks(world) == [
        ("start", None, "the application started"),
        ("start", None, "the application started; it had not run for 2 h"),
    ]


def test_maintenance_says_what_it_did(world: World) -> None:
    """Numbers with their nouns, and steps that failed."""
    now = world.clock.now_ms()
    world.tell(
        Maintenance(shard="delays", at_ms=now, took_ms=1_400, merges=1, collected=12),
        Maintenance(shard="delays", at_ms=now + 1, took_ms=20, failed=("gc", "sweep")),
    )
    assert marks(world) == [
        ("maintenance", "delays", "1 merge, 12 blobs deleted, in 1 s"),
        ("maintenance", "delays", "failed: gc, sweep, in 0.0 s"),
    ]


def test_a_verdict_that_is_noted_again_is_no_event(world: World) -> None:
    """Each application notes the first verdict on each object, also if it is that of before."""
    row = ("flights", "source", "stalled", "disk full", "", "")
    rows = tuple((world.clock.now_ms() - back, row) for back in (9_000, 6_000, 3_000))
    world.tell(Remembered(relation="verdict_history", rows=rows))
    assert marks(world, "error") == [("error", "flights", "stalled: disk full")]


def test_what_is_asked_for_again_is_noted_once(world: World) -> None:
    """Until something about it changes: here, what keeps it from being created."""
    for error in ("", "", "no such column", "no such column"):
        one = WantedObject(id="delays", description=DELAYS, error=error)
        world.tell(Wanted((one,), world.clock.now_ms()))
        world.clock.advance(1000)
    found = [(row["state"], row["error"]) for row in world.rows("definition_history")]
    assert found == [("uncreated", None), ("uncreated", "no such column")]


def test_another_object_of_the_same_name_is_judged_on_its_own(world: World) -> None:
    """Its first error is one, also if the object before it had the same."""
    for _ in range(2):
        world.run(FLIGHTS)
        now = world.clock.now_ms()
        world.tell(
            Failed(id="flights", epoch=1, error="disk full"),
            Phase(id="flights", epoch=1, phase="suspended", at_ms=now),
        )
        world.clock.advance(2000)
        world.tell()
        world.clock.advance(1000)
        world.tell(Dropped(id="flights", at_ms=world.clock.now_ms()))
        world.clock.advance(2000)
        world.tell()
    assert [kind for kind, *_ in marks(world, "error", "drop")] == ["error", "drop"] * 2


def test_events_are_made_once_until_something_happens(world: World) -> None:
    """Whoever follows them reads the same list, and a new one after an event."""
    world.run(FLIGHTS)
    (events,) = (r for r in world.relations.declared.values() if r.name == "events")
    first = world.sink.read(events.rows)
    assert world.sink.read(events.rows) is first
    world.tell(Maintenance(shard="flights", at_ms=world.clock.now_ms(), took_ms=1, merges=1))
    assert len(list(world.sink.read(events.rows))) == len(list(first)) + 1
