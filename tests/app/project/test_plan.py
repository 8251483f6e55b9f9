"""A plan is the difference between two sets of descriptions, in an order that works."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from shardline.app.cli.explain_plan import plan_summary, plan_view
from shardline.app.project.plan import Change, Plan, Step, make_plan, plan_from_json, plan_json
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.datasource.errors import InvalidUsage


def source(name: str, **options: str) -> SourceDescription:
    return SourceDescription(name=name, format="csv", options=options, schema="a INT")


def view(name: str, *inputs: str, query: str = "q") -> ViewDescription:
    return ViewDescription(name=name, query=query, inputs=inputs, schema="a INT")


def project(*objects: ObjectDescription) -> dict[str, ObjectDescription]:
    return {one.name: one for one in objects}


def shown(plan: Plan) -> list[str]:
    """The lines of a terminal of 80 columns."""
    out = StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=False)
    console.print(plan_view(plan))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def acts(steps: tuple[Step, ...]) -> list[str]:
    return [f"{step.act} {step.name}" for step in steps]


def test_everything_is_new_where_nothing_runs() -> None:
    """Inputs are made first, whatever the order of the description."""
    wanted = project(view("v", "s"), IndexDescription(name="i", on="v"), source("s"))
    plan = make_plan(wanted, {})
    assert acts(plan.steps) == ["create s", "create v", "create i"]
    assert (plan.unchanged, plan.affected) == ((), {})


def test_a_plan_travels_as_json() -> None:
    """It is shown at the other end as it would be here, and no secret goes along."""
    hidden = SinkDescription(name="k", on="v", format="kafka", options={"kafka.password": "x1y2"})
    fed = replace(source("s", path="p"), options={"path": "p", "secret.key": "x1y2"})
    wanted = project(fed, view("v", "s", query="other"), IndexDescription(name="i", on="v"), hidden)
    gone = SinkDescription(name="g", on="v", format="kafka", options={"token": "x1y2"})
    plan = make_plan(wanted, project(source("s", path="q"), view("v", "s"), gone))
    text = msgspec.json.encode(plan_json(plan))
    assert b"x1y2" not in text
    back = plan_from_json(msgspec.json.decode(text))
    assert shown(back) == shown(plan)
    assert (back.unchanged, back.affected) == (plan.unchanged, plan.affected)
    with pytest.raises(InvalidUsage, match=r"\[MALFORMED_MESSAGE\] this is no plan"):
        plan_from_json({"steps": 7})


def test_what_is_equal_is_left_alone() -> None:
    """No step for equal descriptions, and none for a client's subscription."""
    wanted = project(source("s"), view("v", "s"))
    running = {**wanted, "t1": SubscribeDescription(name="t1", on="v")}
    plan = make_plan(wanted, running)
    assert plan.is_empty
    assert plan.unchanged == ("s", "v")


def test_a_change_is_told_field_by_field() -> None:
    """Options one by one, and never the value of a secret."""
    old = SourceDescription(
        name="s", format="kafka", options={"a": "1", "b": "2", "sasl.password": "x"}, retain_ms=5
    )
    new = SourceDescription(
        name="s", format="kafka", options={"a": "1", "b": "3", "c": "4", "sasl.password": "y"},
        envelope="upsert", key=("k", "l"),
    )  # fmt: skip
    (step,) = make_plan({"s": new}, {"s": old}).steps
    assert step == Step(
        "change",
        new,
        (
            Change("option 'b'", "2", "3"),
            Change("option 'sasl.password'", "(secret)", "(secret)"),
            Change("option 'c'", "", "4"),
            Change("envelope", "none", "upsert"),
            Change("key", "", "k, l"),
            Change("retained ms", "5", ""),
        ),
    )


def test_views_follow_what_changes_above_them() -> None:
    """Only where contents change: keeping history longer concerns nobody below."""
    running = project(source("s"), source("r"), view("v", "s"), view("w", "v"), view("x", "r"))
    changed = {**running, "s": source("s", path="other")}
    plan = make_plan(changed, running)
    assert acts(plan.steps) == ["change s"]
    assert plan.affected == {"v": ("s",), "w": ("s",)}
    longer = SourceDescription(name="s", format="csv", schema="a INT", retain_ms=9)
    assert make_plan({**running, "s": longer}, running).affected == {}


def test_a_drop_waits_for_a_reader_that_moves_away() -> None:
    """The view reads something else first, then its old input goes."""
    running = project(source("a"), source("b"), view("v", "a"), view("old", "a"))
    wanted = project(source("b"), view("v", "b"))
    plan = make_plan(wanted, running)
    assert acts(plan.steps) == ["drop old", "change v", "drop a"]


def test_another_kind_of_the_same_name_makes_room_first() -> None:
    """What reads it is made again too: it cannot stay without its input."""
    running = project(source("a"), source("x"), view("v", "x"), view("w", "v"))
    wanted = project(source("a"), view("x", "a"), view("v", "x"), view("w", "v"))
    plan = make_plan(wanted, running)
    assert acts(plan.steps) == ["drop w", "drop v", "drop x", "create x", "create v", "create w"]


def test_a_name_that_was_a_shard_of_another_is_free_first() -> None:
    """A source goes before an object that takes the name of its errors."""
    plan = make_plan(project(source("b"), view("a_errors", "b")), project(source("a"), source("b")))
    assert acts(plan.steps) == ["drop a", "create a_errors"]


NAMES = [f"n{number}" for number in range(6)]


@st.composite
def projects(draw: st.DrawFn) -> dict[str, ObjectDescription]:
    """Some of six names, each a source or a view of earlier ones, an index or a sink."""
    made: dict[str, ObjectDescription] = {}
    for name in draw(st.permutations(NAMES)):
        readable = [
            n for n, d in made.items() if isinstance(d, SourceDescription | ViewDescription)
        ]
        kind = draw(st.sampled_from(["none", "source", "view", "index", "sink"]))
        if kind == "source" or (kind in {"view", "index", "sink"} and not readable):
            made[name] = source(name, path=draw(st.sampled_from("xy")))
        elif kind == "view":
            inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
            made[name] = view(name, *sorted(inputs))
        elif kind == "index":
            made[name] = IndexDescription(name=name, on=draw(st.sampled_from(readable)))
        elif kind == "sink":
            on = draw(st.sampled_from(readable))
            made[name] = SinkDescription(name=name, on=on, format="parquet")
    return made


def reads(description: ObjectDescription) -> set[str]:
    match description:
        case SourceDescription():
            return set()
        case ViewDescription(inputs=inputs):
            return set(inputs)
        case IndexDescription(on=on) | SinkDescription(on=on):
            return {on}


@given(projects(), projects())
def test_steps_lead_from_what_runs_to_what_is_wanted(
    wanted: dict[str, ObjectDescription], running: dict[str, ObjectDescription]
) -> None:
    """At each step everything has its inputs; at the end there is nothing more to do."""
    there = dict(running)
    plan = make_plan(wanted, running)
    for step in plan.steps:
        match step.act:
            case "drop":
                assert there.pop(step.name) == step.description
            case "create":
                assert step.name not in there
                there[step.name] = step.description
            case "change":
                assert type(there[step.name]) is type(step.description)
                assert step.changes
                there[step.name] = step.description
        for one in there.values():
            assert reads(one) <= set(there), step
    assert there == wanted
    assert make_plan(wanted, there).is_empty
    assert set(plan.unchanged) | {s.name for s in plan.steps if s.name in wanted} == set(wanted)


def test_a_plan_is_shown_in_eighty_columns() -> None:
    """Signs for the acts, changes below, and the strategy of each view with its reason."""
    wanted = project(
        source("s", path="new"),
        ViewDescription(
            name="v", query="q2", inputs=("s",), schema="a INT", reason="an aggregate (count)"
        ),
        ViewDescription(name="w", query="q", inputs=("s",), schema="a INT", strategy="linear"),
        SinkDescription(name="o", on="v", format="parquet"),
    )
    running = project(
        source("s", path="old"),
        view("v", "s", query="q1"),
        ViewDescription(name="w", query="q", inputs=("s",), schema="a INT", strategy="linear"),
        source("[gone]"),
    )
    plan = make_plan(wanted, running)
    assert shown(plan) == [
        "1 to create, 2 to change, 1 to drop, 1 unchanged",
        "",
        "- source [gone]  csv, envelope none",
        "",
        "~ source s  csv, envelope none",
        "    option 'path'  old → new",
        "",
        "~ view v  reads s",
        "    query   q1 → q2",
        "    reason  (nothing) → an aggregate (count)",
        "",
        "+ sink o  v to parquet, envelope diff",
        "",
        "follow what changes above them",
        "  w: reads s",
        "",
        "view  kept up to date by  because of",
        "v     its query run anew  an aggregate (count)",
        "w     the change alone",
    ]
    assert plan_summary(make_plan(wanted, wanted)) == "4 unchanged"
