"""Relations as of an earlier moment are what they were then, as far as that is recorded."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardline.app.execution.observations import Failed, Hydrated
from shardline.app.introspection.events import (
    Dropped,
    Following,
    Installed,
    LaneOpened,
    Maintenance,
    Phase,
    Polled,
    Remembered,
    TakenOver,
    Wanted,
    WantedObject,
)
from shardline.app.introspection.histories import gaps
from shardline.app.introspection.history import HistoryKeeper
from shardline.app.protocol.object_state import VERDICTS
from shardline.app.protocol.objects import Description, ViewDescription
from shardline.app.protocol.storage import StatusUpdate
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World

OTHER = ViewDescription(name="delays", query="SELECT 1", inputs=(), schema="a INT")
EVERY: dict[str, Description] = {"flights": FLIGHTS, "delays": DELAYS, "out": OUT}

RECORDED = {
    "objects": (
        "id", "global_id", "type", "domain", "status", "error", "hint", "last_status_change_at",
        "as_of", "definition",
    ),
    "object_dependencies": ("object_id", "referenced_object_id"),
    "source_statuses": ("id", "type", "last_status_change_at", "status", "error", "details"),
    "sink_statuses": ("id", "type", "last_status_change_at", "status", "error", "details"),
    "status_history": ("occurred_at", "object_id", "type", "status", "error", "details"),
    "verdict_history": ("occurred_at", "object_id", "verdict", "because", "to_do", "blame_id"),
    "definition_history": ("occurred_at", "object_id", "state", "definition", "inputs"),
    "maintenance": ("occurred_at", "shard", "took", "failed"),
    "wallclock_lag_history": ("object_id", "lag", "occurred_at"),
}  # fmt: skip
"""Columns that an earlier moment has, by relation."""


class StillClock:
    """A clock that stands while somebody waits, so that a store's threads let no time pass."""

    def __init__(self, clock: ManualClock) -> None:
        self.now_ms, self.elapsed_ms = clock.now_ms, clock.elapsed_ms

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        del timeout_ms
        return signal.wait(30)


@dataclass
class Story:
    """A location with applications that come and go, and what was seen of them when."""

    name: str
    clock: ManualClock = field(default_factory=ManualClock)
    running: dict[str, Installed] = field(default_factory=dict)
    wanted: dict[str, Description] = field(default_factory=dict)
    seen: dict[int, dict[str, Any]] = field(default_factory=dict)
    lags: dict[tuple[str, int], int] = field(default_factory=dict)
    epoch: int = 1

    def __post_init__(self) -> None:
        self.url = f"memory://{self.name}"
        self.world = World(self.clock)
        self.open()

    def open(self) -> None:
        """An application begins."""
        client = ShardClient.open(self.url, clock=StillClock(self.clock))
        writes = threading.Event()
        writes.set()
        self.keeper = HistoryKeeper(
            self.world.sink, client, writes=writes, check_fence=lambda: None
        )
        self.world.tell(LaneOpened(objects=tuple(self.running), at_ms=self.clock.now_ms()))
        self.keeper._load_first()

    def restart(self, seconds: int, *, lost: str = "") -> None:
        """The application is stopped, and another one started; it may have lost an object."""
        self.keeper.flush()
        self.clock.advance(seconds * 1000)
        self.running.pop(lost, None)
        numbers = self.world.dataflows, self.world.operators
        self.world = World(self.clock, *numbers)
        self.open()
        for event in self.running.values():
            self.begin(replace(event, at_ms=self.clock.now_ms()))
        self.tell_wanted()
        self.pass_time(1)

    def install(self, description: Description) -> None:
        self.begin(self.world.installed(description))

    def begin(self, event: Installed) -> None:
        """An object runs in a new incarnation."""
        self.epoch += 1
        self.running[event.id] = event = replace(event, epoch=self.epoch)
        now = self.clock.now_ms()
        phase = Phase(id=event.id, epoch=self.epoch, phase="running", at_ms=now)
        self.world.tell(event, phase)

    def want(self, name: str) -> None:
        self.wanted[name] = EVERY[name]
        self.tell_wanted()

    def give_up(self, name: str) -> None:
        self.wanted.pop(name, None)
        self.tell_wanted()

    def change(self) -> None:
        self.drop("delays")
        self.install(OTHER)

    def tell_wanted(self) -> None:
        objects = (WantedObject(id=n, description=d) for n, d in self.wanted.items())
        self.world.tell(Wanted(tuple(objects), self.clock.now_ms()))

    def drop(self, name: str) -> None:
        if self.running.pop(name, None) is not None:
            self.world.tell(Dropped(id=name, at_ms=self.clock.now_ms()))

    def fail(self, name: str) -> None:
        if name not in self.running:
            return
        now = self.clock.now_ms()
        self.world.tell(Failed(id=name, epoch=self.epoch, error="disk full", hint="make room"))
        self.world.tell(Phase(id=name, epoch=self.epoch, phase="suspended", at_ms=now, failures=1))

    def report(self, name: str) -> None:
        if name not in self.running:
            return
        update = StatusUpdate(
            id=name, status="stalled", error="read: no", hints=("look",), at_ms=self.clock.now_ms()
        )
        self.world.tell(update)

    def move(self, name: str) -> None:
        if name not in self.running:
            return
        upper = self.clock.now_ms() - 300
        self.world.tell(
            Hydrated(id=name, epoch=self.epoch, took_ms=1), Polled(id=name, since=0, upper=upper)
        )

    def merge(self, name: str) -> None:
        now = self.clock.now_ms()
        self.world.tell(Maintenance(shard=name, at_ms=now, took_ms=1.5, merges=1, failed=("gc",)))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1000)
            self.world.tell()
            minute = self.clock.now_ms() // 60_000
            for row in self.world.rows("wallclock_lag"):
                if isinstance(lag := row["lag"], int):
                    key = (str(row["object_id"]), minute)
                    self.lags[key] = max(lag, self.lags.get(key, 0))
        self.look()

    def look(self) -> None:
        """Note what all relations have at this moment."""
        noted = self.world.sink.read(
            lambda facts, _: {name: (n.verdict, n.since_ms) for name, n in facts.verdicts.items()}
        )
        live = {name: recorded(self.world, name) for name in RECORDED}
        self.seen[self.clock.now_ms()] = {"noted": noted, **live}

    def check(self) -> None:
        """Each moment is what was seen then."""
        for at_ms, live in self.seen.items():
            for name in RECORDED:
                assert recorded(self.world, name, at_ms) == live[name], (name, at_ms)
            verdicts = self.world.relations.rows("verdicts", as_of=at_ms)
            assert {r["object_id"]: (r["verdict"], r["since"]) for r in verdicts} == {
                name: (verdict, iso(since)) for name, (verdict, since) in live["noted"].items()
            }
            (whole,) = self.world.relations.rows("verdict_summary", as_of=at_ms)
            words = [verdict for verdict, _ in live["noted"].values()]
            assert (whole["objects"], whole["bad"]) == (
                len(words), sum(VERDICTS[word] == "bad" for word in words)
            )  # fmt: skip
            self.check_lags(at_ms)

    def check_lags(self, at_ms: int) -> None:
        """Of minutes that are over, the largest lag that was seen in them."""
        minute = at_ms // 60_000
        if minute < self.clock.now_ms() // 60_000:
            found = self.world.relations.rows("wallclock_lag", as_of=at_ms)
            for row in found:
                assert row["lag"] == self.lags[str(row["object_id"]), minute], at_ms


def recorded(world: World, name: str, as_of: int | None = None) -> list[tuple[object, ...]]:
    """Rows of a relation with the columns that are recorded, in an order of their own."""
    rows = world.relations.rows(name, as_of=as_of)
    return sorted((tuple(row[column] for column in RECORDED[name]) for row in rows), key=repr)


def iso(at_ms: int) -> str:
    world = World(ManualClock(at_ms))
    world.tell(Maintenance(shard="a", at_ms=at_ms, took_ms=0))
    return str(world.rows("maintenance")[0]["occurred_at"])


STEPS: dict[str, Callable[[Story, str, int], object]] = {
    "install": lambda story, name, _: story.install(EVERY[name]),
    "change": lambda story, *_: story.change(),
    "drop": lambda story, name, _: story.drop(name),
    "fail": lambda story, name, _: story.fail(name),
    "report": lambda story, *_: story.report("flights"),
    "move": lambda story, name, _: story.move(name),
    "want": lambda story, name, _: story.want(name),
    "give up": lambda story, name, _: story.give_up(name),
    "merge": lambda story, name, _: story.merge(name),
    "restart": lambda story, _, seconds: story.restart(seconds),
    "crash": lambda story, name, seconds: story.restart(seconds, lost=name),
}
NUMBERS = itertools.count()
STEP = st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from(sorted(EVERY)), st.integers(1, 70))


@pytest.mark.slow
@given(st.lists(STEP, min_size=1, max_size=14))
@example([("install", "flights", 3), ("move", "flights", 3), ("crash", "flights", 5)])
@example([("install", "delays", 3), ("change", "delays", 3), ("restart", "out", 5)])
@example([("want", "out", 3), ("install", "out", 3), ("drop", "out", 3), ("give up", "out", 3)])
@example([("install", "flights", 3), ("want", "out", 3), ("restart", "out", 3)])
@example([("install", "flights", 1), ("want", "flights", 1), ("crash", "flights", 1)])
@example([("install", "flights", 1), ("move", "flights", 70), ("move", "flights", 70)])
def test_a_moment_is_what_it_was(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens later: events, restarts, drops, objects that were lost in a crash."""
    story = Story(f"past-{next(NUMBERS)}")
    story.pass_time(1)
    for what, name, seconds in steps:
        story.clock.advance(500)
        STEPS[what](story, name, seconds)
        story.pass_time(seconds)
    story.check()
    story.restart(1)
    story.check()


def test_the_slowest_input_of_then_is_to_blame() -> None:
    """By the largest lags of the minute; how far behind it the object was is not recorded."""
    story = Story("slowest")
    planes = replace(FLIGHTS, name="planes")
    both = replace(DELAYS, name="both", inputs=("delays", "planes"))
    for description in (FLIGHTS, planes, DELAYS, both):
        story.install(description)
    behind = {"flights": 9_000, "planes": 30_000, "delays": 50_000, "both": 51_000}
    story.clock.advance(MINUTE - story.clock.now_ms() % MINUTE)
    began = story.clock.now_ms()
    for _ in range(62):
        now = story.clock.now_ms()
        polled = [Polled(id=name, since=0, upper=now - lag) for name, lag in behind.items()]
        story.world.tell(*polled)
        story.clock.advance(1000)
    rows = story.world.relations.rows("materialization_lag", as_of=began + 30_000)
    unknown = {"local_lag": None, "global_lag": None}
    slowest = {row.pop("object_id"): row for row in rows}
    assert slowest == {
        "delays": unknown
        | {"slowest_local_input_id": "flights", "slowest_global_input_id": "flights"},
        "both": unknown | {"slowest_local_input_id": "delays", "slowest_global_input_id": "planes"},
    }


MINUTE, DAY = 60_000, 24 * 3_600_000


def refusal(world: World, name: str, at_ms: int) -> InvalidUsage:
    with pytest.raises(InvalidUsage) as caught:
        world.relations.rows(name, as_of=at_ms)
    return caught.value


def test_a_relation_that_nothing_records_has_no_history() -> None:
    """The hint names those that have; every history is among them."""
    world = World()
    error = refusal(world, "frontiers", 1)
    assert error.code == "NO_HISTORY"
    histories = {r.name for r in world.relations.declared.values() if r.histories}
    named = set(error.hint.partition(": ")[2].split(", "))
    assert histories < named
    assert {"verdicts", "verdict_summary", "objects", "object_dependencies"} < named


def test_a_time_that_is_not_known_is_refused_with_the_nearest_that_is() -> None:
    """Before the first application, in the future, before the retention, while nothing ran."""
    story = Story("refusals")
    began = story.clock.now_ms()
    story.install(FLIGHTS)
    story.pass_time(90)
    world = story.world
    before = refusal(world, "verdicts", began - 2 * MINUTE)
    assert (before.code, before.hint) == (
        "BEFORE_HISTORY",
        f"as_of={began} is the first moment that is known",
    )
    assert "begins at 2023-11-14T22:13:20.000Z, 2 min after 2023-11-14T22:11:20.000Z" in str(before)
    assert world.relations.rows("verdicts", as_of=began) == []
    assert refusal(world, "verdicts", story.clock.now_ms() + 1).code == "NOT_YET"

    for far in (999_999_999_999_999, 10**40):
        error = refusal(world, "verdicts", far)
        assert (error.code, str(far) in str(error)) == ("NOT_YET", True), "no year of a calendar"
        assert refusal(world, "verdicts", -far).code == "BEFORE_HISTORY"

    stopped = story.clock.now_ms()
    story.restart(3600)
    gap = refusal(story.world, "objects", stopped + 30 * MINUTE)
    assert gap.code == "NOT_RECORDED"
    began_again = stopped + 3600_000
    assert f"as_of={stopped} is the last moment before, as_of={began_again}" in gap.hint
    assert story.world.relations.rows("objects", as_of=stopped)[0]["id"] == "flights"
    assert story.world.relations.rows("objects", as_of=began_again)[0]["id"] == "flights"

    story.clock.advance(DAY)
    story.pass_time(3)
    story.clock.advance(30 * DAY - 2_000)
    story.pass_time(1)
    old = refusal(story.world, "objects", began_again)
    assert old.code == "BEFORE_HISTORY"
    horizon = int(old.hint.partition("=")[2].partition(" ")[0])
    assert horizon == story.clock.now_ms() - 30 * DAY
    (row,) = story.world.relations.rows("objects", as_of=horizon)
    assert (row["id"], row["status"]) == ("flights", "running"), "its row is older, and holds"
    lag = refusal(story.world, "wallclock_lag", horizon)
    assert lag.code == "BEFORE_HISTORY", "it is kept for a day only"


def test_a_time_in_which_the_application_stood_still_is_not_known() -> None:
    """A laptop that sleeps: the process is there all the time, and says nothing."""
    story = Story("asleep")
    story.install(FLIGHTS)
    story.pass_time(2)
    slept = story.clock.now_ms()
    story.clock.advance(8 * 3_600_000)
    woken = story.clock.now_ms()
    story.world.tell()
    story.pass_time(2)

    def is_known() -> bool:
        error = refusal(story.world, "verdicts", slept + 3 * 3_600_000)
        assert error.code == "NOT_RECORDED"
        assert f"as_of={slept} is the last moment before, as_of={woken} the first" in error.hint
        for as_of in (slept, woken):
            (row,) = story.world.relations.rows("verdicts", as_of=as_of)
            assert row["object_id"] == "flights"
        marks = [row["message"] for row in story.world.rows("events") if row["kind"] == "start"]
        return "the application went on; it had stood still for 8 h" in marks

    assert is_known()
    story.restart(1)
    assert is_known()


def test_a_follower_that_stood_still_takes_nothing_from_the_past_of_the_holder() -> None:
    """It takes over as soon as it wakes up: until then the holder has noted what was."""
    world = World()
    world.tell(Following())
    world.clock.advance(1_000)
    world.tell()
    world.clock.advance(3_600_000)
    world.tell(TakenOver(objects=(), at_ms=world.clock.now_ms()))
    assert world.sink.read(lambda facts, _: gaps(facts.runs)) == []


def test_a_short_pause_between_two_applications_is_no_gap() -> None:
    """An application that takes over begins before the other one has written for the last time."""
    story = Story("hand-over")
    story.install(FLIGHTS)
    story.pass_time(10)
    stopped = story.clock.now_ms()
    story.restart(119)
    (row,) = story.world.relations.rows("objects", as_of=stopped + MINUTE)
    assert row["id"] == "flights"


def test_histories_of_older_versions_are_read() -> None:
    """Without definitions, starts and causes: what they lack is NULL, or refused."""
    world = World()
    at = world.clock.now_ms() - 10 * MINUTE
    status = ("flights", "source", "running", "", (), ())
    verdict = ("flights", "source", "stalled", "disk full", "make room")
    gone = ("delays", "view", "dropped", "", (), ())
    world.tell(
        Remembered(
            relation="status_history",
            rows=((at, status), (at, ("delays", "view", "running", "", (), ())), (at + 5, gone)),
        ),
        Remembered(relation="verdict_history", rows=((at, verdict),)),
    )
    rows = world.relations.rows
    (one,) = rows("verdicts", as_of=at + 10)
    assert (one["verdict"], one["because"], one["blame_id"]) == ("stalled", "disk full", None)
    assert rows("verdict_history")[0]["blame_id"] is None
    (whole,) = rows("verdict_summary", as_of=at + 10)
    assert whole["summary"] == "0 of 1 objects are fresh. `flights` is stalled: disk full."
    assert {r["id"]: r["definition"] for r in rows("objects", as_of=at + 1)} == {
        "flights": None,
        "delays": None,
    }
    (source,) = rows("source_statuses", as_of=at + 10)
    assert (source["id"], source["type"], source["status"]) == ("flights", None, "running")
    assert refusal(world, "object_dependencies", at + 10).code == "BEFORE_HISTORY"


def test_rows_are_chosen_by_their_values() -> None:
    """Now and then, with and without the object; a column that is not there is refused."""
    world = World()
    for description in (FLIGHTS, DELAYS, OUT):
        world.run(description)
    for as_of in (None, world.clock.now_ms() + 1):
        world.clock.advance(1)
        rows = world.relations.rows("objects", where={"type": "view"}, as_of=as_of)
        assert [row["id"] for row in rows] == ["delays"]
        both = world.relations.rows("objects", object="out", where={"type": "view"}, as_of=as_of)
        assert both == []
    with pytest.raises(InvalidUsage) as caught:
        world.relations.rows("objects", where={"typ": "view"})
    assert (caught.value.code, caught.value.hint) == ("UNKNOWN_COLUMN", "did you mean 'type'?")


def test_when_an_object_was_created_survives_a_restart() -> None:
    """Unless it is older than its history: then nobody knows."""
    story = Story("created")
    story.clock.advance(500)
    created = story.clock.now_ms()
    story.install(FLIGHTS)
    story.pass_time(2)
    story.restart(60)
    now = story.clock.now_ms()
    for as_of in (now, None):
        (row,) = story.world.relations.rows("objects", as_of=as_of)
        assert row["created_at"] == iso(created), as_of
    old = World()
    at = old.clock.now_ms()
    old.tell(LaneOpened(objects=("flights",), at_ms=at), old.installed(FLIGHTS))
    for as_of in (at, None):
        assert old.relations.rows("objects", as_of=as_of)[0]["created_at"] is None
