"""Lines about objects that have become bad or well: one for each change, none for what passes."""

from __future__ import annotations

from shardline.app.cli.verdict_lines import (
    Condition,
    VerdictLines,
    condition_of,
    describe_change,
    read_conditions,
)
from shardline.app.execution.observations import Failed
from shardline.app.introspection.events import Phase
from shardline.app.introspection.store import Relations
from support.fakes.introspection import DELAYS, FLIGHTS, World

WELL = condition_of("running", "", "", 60_000)
STARTING = condition_of("starting", "", "", 60_000)
JUST_STARTED = condition_of("running", "", "", 100)
STALLED = condition_of("stalled", "no file", "bring it back", 0)


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
    assert told(*steps) == ["a: running", "b: running"]


def test_what_fails_is_told_with_why_and_what_to_do_and_told_again_when_it_is_well() -> None:
    """At once; retries that fail alike are no news, another reason is."""
    full = condition_of("stalled", "disk full", "", 0)
    retries: list[dict[str, Condition]] = [
        {"a": WELL},
        {"a": STALLED},
        {"a": STARTING},
        {"a": JUST_STARTED},
        {"a": STALLED},
        {"a": full},
        {"a": JUST_STARTED},
        {"a": WELL},
    ]
    assert told(*retries) == [
        "a: running",
        "a: stalled: no file — bring it back",
        "a: stalled: disk full",
        "a: running",
    ]


def test_what_is_gone_is_told() -> None:
    """Once; an object that was never told of goes without a word."""
    assert told({"a": WELL, "b": STARTING}, {}, {}) == ["a: running", "a: dropped"]


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


def test_conditions_are_those_of_the_relation() -> None:
    """By object, with the error and its hint; how long it has run counts by the clock."""
    world = World()
    world.run(DELAYS)
    world.run(FLIGHTS)
    relations = Relations(world.sink)
    now_ms = world.clock.now_ms()
    assert read_conditions(relations, now_ms)["delays"].tone == "passing"
    assert read_conditions(relations, now_ms + 10_000)["delays"] == WELL
    world.tell(
        Failed(id="delays", epoch=1, error="disk full", hint="make room"),
        Phase(id="delays", epoch=1, phase="suspended", at_ms=now_ms),
    )
    found = read_conditions(relations, now_ms)
    assert found["delays"] == Condition("stalled: disk full", "bad", "make room")
    assert found.keys() == {"delays", "flights"}
