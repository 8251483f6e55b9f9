"""Lines about objects that have become bad or well: one for each change, none for what passes."""

from __future__ import annotations

from shardline.app.cli.verdict_lines import (
    Condition,
    VerdictLines,
    condition_of,
    describe_change,
    read_conditions,
)
from shardline.app.execution.observations import Failed, Hydrated, Progress
from shardline.app.introspection.events import Phase
from shardline.app.introspection.store import Relations
from support.fakes.introspection import DELAYS, FLIGHTS, World

WELL = condition_of("healthy", "good", 60_000)
STARTING = condition_of("starting", "wait", 60_000)
JUST_STARTED = condition_of("healthy", "good", 100)
STALLED = condition_of(
    "stalled", "bad", 0, error="no file", because="no file, for 3 s", to_do="bring it back"
)
LATER = condition_of(
    "stalled", "bad", 0, error="no file", because="no file, for 9 s", to_do="bring it back"
)


def told(*seen: dict[str, Condition]) -> list[str]:
    """What is printed when these are the conditions, one after the other."""
    printed: list[str] = []
    lines = VerdictLines(describe_change, printed.append)
    for conditions in seen:
        lines.show(conditions)
    return printed


def test_a_start_is_one_line_for_each_object() -> None:
    """Its steps are none, and an object that stays well is not told of again."""
    steps: list[dict[str, Condition]] = [
        {"a": STARTING},
        {"a": JUST_STARTED, "b": STARTING},
        {"a": WELL, "b": JUST_STARTED},
        {"a": WELL, "b": WELL},
        {"a": WELL, "b": WELL},
    ]
    assert told(*steps) == ["a: healthy", "b: healthy"]


def test_what_fails_is_told_with_why_and_what_to_do_and_told_again_when_it_is_well() -> None:
    """At once; retries that fail alike are no news, another reason is."""
    full = condition_of("stalled", "bad", 0, error="disk full", because="disk full")
    retries: list[dict[str, Condition]] = [
        {"a": WELL},
        {"a": STALLED},
        {"a": STARTING},
        {"a": JUST_STARTED},
        {"a": LATER},
        {"a": full},
        {"a": JUST_STARTED},
        {"a": WELL},
    ]
    assert told(*retries) == [
        "a: healthy",
        "a: stalled: no file, for 3 s — bring it back",
        "a: stalled: disk full",
        "a: healthy",
    ]


def test_what_is_gone_is_told() -> None:
    """Once; an object that was never told of goes without a word."""
    assert told({"a": WELL, "b": STARTING}, {}, {}) == ["a: healthy", "a: dropped"]


def test_other_verdicts_need_another_description_only() -> None:
    """Whatever can be compared is a verdict."""
    printed: list[str] = []
    lines: VerdictLines[str] = VerdictLines(
        lambda name, before, after: f"{name}: {before} → {after}", printed.append
    )
    for verdict in ("catching up", "healthy", "healthy"):
        lines.show({"a": verdict})
    lines.show({})
    assert printed == ["a: None → catching up", "a: catching up → healthy", "a: healthy → None"]


def test_one_long_step_is_no_line() -> None:
    """Falling behind is one once it lasts; and so is being well again."""
    late = [condition_of("falling behind", "bad", age, because="40 s") for age in (0, 2_999, 3_000)]
    assert [one.tone for one in late] == ["wait", "wait", "bad"]
    assert told({"a": WELL}, {"a": late[1]}, {"a": WELL}) == ["a: healthy"]
    assert told({"a": WELL}, {"a": late[2]}, {"a": condition_of("idle", "idle", 5_000)}) == [
        "a: healthy",
        "a: falling behind: 40 s",
        "a: idle",
    ]


def test_conditions_are_those_of_the_relation() -> None:
    """By object, with what to do; how long they last counts by the clock."""
    world = World()
    world.run(DELAYS)
    world.run(FLIGHTS)
    relations = Relations(world.sink)
    world.tell(
        Hydrated(id="delays", epoch=1, took_ms=1),
        Progress(id="delays", epoch=1, write=world.clock.now_ms()),
    )
    now_ms = world.clock.now_ms()
    found = read_conditions(relations, now_ms)
    assert {name: one.tone for name, one in found.items()} == {"delays": "wait", "flights": "wait"}
    world.tell(
        Failed(id="delays", epoch=1, error="disk full", hint="make room"),
        Phase(id="delays", epoch=1, phase="suspended", at_ms=now_ms),
    )
    found = read_conditions(relations, now_ms)
    assert found["delays"] == Condition("stalled", "bad", "disk full")
    assert (found["delays"].because, found["delays"].to_do) == ("disk full", "make room")
