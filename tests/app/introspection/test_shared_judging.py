"""Relations of one moment are judged once, and say what each would say by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardline.app.execution.observations import Hydrated
from shardline.app.introspection.apply import apply
from shardline.app.introspection.events import Polled
from shardline.app.introspection.input_lag import slowest, slowest_sources
from shardline.app.introspection.relations.verdicts import VERDICTS
from shardline.app.introspection.verdicts import judged
from shardline.app.introspection.verdicts.gather import situations
from shardline.app.introspection.verdicts.rules import judge, summarize
from shardline.app.introspection.verdicts.trend import Trend
from shardline.app.protocol.graph import reachable_names
from shardline.app.protocol.objects import SourceDescription, ViewDescription, inputs_of
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World

if TYPE_CHECKING:
    from shardline.app.introspection.facts import Facts
    from shardline.app.introspection.verdicts.situation import Situation

NAMES = [f"o{i}" for i in range(7)]
VALUES: list[int | None] = [None, 0, 1, 3, 4, 5]
SECONDS = st.integers(0, 40)


def slowest_source_alone(facts: Facts, name: str) -> str | None:
    """The model: a walk up from one object, and the slowest of the sources that it meets."""
    known = {one.id: inputs_of(one.installed.description) for one in facts.objects.values()}
    above = reachable_names(name, lambda each: known.get(each, ()))
    return slowest(facts, tuple(sorted(each for each in above if known.get(each) == ())))


@given(
    reads=st.lists(st.sets(st.sampled_from([*NAMES, "unknown"]), max_size=4), max_size=4),
    uppers=st.lists(st.just("unknown") | st.none() | st.integers(0, 3), min_size=7, max_size=7),
)
@example(reads=[{"o0", "o1"}, {"o3", "o2"}], uppers=[3, 1, 2, 0, 0, 0, 0])
@example(reads=[{"o0", "o1"}], uppers=[1, 1, 2, 0, 0, 0, 0])
@example(reads=[{"o0", "o1"}], uppers=[None, 3, 2, 0, 0, 0, 0])
def test_the_slowest_source_is_that_of_a_walk_for_each_object(
    reads: list[set[str]], uppers: list[int | str | None]
) -> None:
    """In every graph, also with circles, unknown inputs, and uppers that are equal or unknown."""
    world = World()
    graph: dict[str, set[str]] = dict(zip(NAMES, [set(), set(), set(), *reads], strict=False))
    for name, inputs in graph.items():
        view = ViewDescription(name=name, query="", inputs=tuple(sorted(inputs)), schema="a INT")
        world.tell(world.installed(view if inputs else SourceDescription(name=name, format="csv")))
    for name, upper in zip(graph, uppers, strict=False):
        if not isinstance(upper, str):
            world.tell(Polled(id=name, since=0, upper=upper))

    def look(facts: Facts, _now_ms: int) -> None:
        found = slowest_sources(facts)
        expected = {name: slowest_source_alone(facts, name) for name in facts.objects}
        assert found == {name: source for name, source in expected.items() if source is not None}

    world.sink.read(look)


def test_all_relations_of_a_moment_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for a moment, and again when the time or the facts are others."""
    world = World()
    for description in (FLIGHTS, DELAYS, OUT):
        world.run(description)
    calls: list[int] = []

    def counted(facts: Facts, now_ms: int) -> dict[str, Situation]:
        calls.append(now_ms)
        return situations(facts, now_ms)

    monkeypatch.setattr(judged, "situations", counted)
    every = [relation.name for relation in VERDICTS]
    world.clock.advance(1)
    world.relations.read_together(every)
    assert len(calls) == 1
    world.relations.read_together(every)
    assert len(calls) == 1, "nothing has changed"
    world.clock.advance(1)
    world.relations.read_together(every)
    assert len(calls) == 2, "the time has"
    world.tell(Polled(id="flights", since=0, upper=None))
    assert str(world.rows("verdict_summary")[0]["summary"]).startswith("1 of 3 objects is fresh.")
    assert len(calls) == 3, "the facts have"


@given(
    st.lists(
        st.tuples(st.sampled_from(["flights", "delays", "tick", "wait"]), SECONDS), max_size=20
    )
)
def test_a_judgement_that_is_kept_is_that_of_the_present_facts(
    steps: list[tuple[str, int]],
) -> None:
    """Whatever has happened since it was made: an event, a second, a look."""
    world = World()
    for description in (FLIGHTS, DELAYS, OUT):
        world.run(description)

    def look(facts: Facts, now_ms: int) -> None:
        alone = judge(situations(facts, now_ms))
        assert judged.judge_facts(facts, now_ms).judgements == alone
        (summary,) = (relation for relation in VERDICTS if relation.name == "verdict_summary")
        assert [row[0] for row in summary.rows(facts, now_ms)] == [summarize(alone).words]

    for what, seconds in steps:
        if what == "wait":
            world.clock.advance(seconds * 1000)
        elif what == "tick":
            world.tell()
        else:
            world.tell(Polled(id=what, since=0, upper=world.clock.now_ms() - seconds * 1000))
        world.sink.read(look)


def test_the_tick_of_a_second_makes_a_new_judgement() -> None:
    """It notes the lags, and with them turns that an object catches up, at the same time."""
    world = World()
    world.run(FLIGHTS)
    world.tell(Hydrated(id="flights", epoch=1, took_ms=1))
    seen = []
    for lag_ms in (60_000, 50_000, 40_000, 30_000):
        world.clock.advance(4_000)

        def come_nearer(facts: Facts, now_ms: int, lag_ms: int = lag_ms) -> None:
            apply(facts, Polled(id="flights", since=0, upper=now_ms - lag_ms), now_ms)

        world.sink.read(come_nearer)
        before = world.rows("verdicts")[0]["verdict"]
        world.tell()
        seen.append((before, world.rows("verdicts")[0]["verdict"]))
    assert seen[2] == ("falling behind", "catching up")


@given(st.lists(st.tuples(st.sampled_from([0, 999, 4_000, 9_000]), st.sampled_from(VALUES))))
@example([(9_000, 5), (9_000, 3), (9_000, 4), (9_000, 5), (9_000, 5)])
def test_a_trend_that_was_asked_says_the_same_as_one_that_was_not(
    notes: list[tuple[int, int | None]],
) -> None:
    """What it has found is forgotten with the next note."""
    asked, now_ms = Trend(), 0
    for count, (step_ms, value) in enumerate(notes, 1):
        now_ms += step_ms
        asked.note(now_ms, value)
        fresh, then_ms = Trend(), 0
        for again_ms, other in notes[:count]:
            then_ms += again_ms
            fresh.note(then_ms, other)
        assert (asked.direction(), asked.remaining_ms()) == (
            fresh.direction(), fresh.remaining_ms()
        )  # fmt: skip
