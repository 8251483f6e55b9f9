"""A plan says which shards a change keeps or replaces, what is lost and which sinks stop."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from shardline.app.cli.explain_plan import plan_summary, plan_view
from shardline.app.coordinator.planning import objects_to_replace
from shardline.app.project.permission import Permissions, find_refusal, refuse_unreachable
from shardline.app.project.plan import Plan, make_plan, plan_from_json, plan_json
from shardline.app.project.project import CheckedProject
from shardline.app.project.replacement import ExistingShard
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import SinkDescription, SourceDescription, ViewDescription
from shardline.app.sql.problems import InvalidProject, Place, Problem
from shardline.datasource.types.schema import ShardSchema

MARCH_MS = 1_772_323_200_000
"""2026-03-01 00:00 UTC."""


def columns(*fields: tuple[str, str], nullable: bool = True) -> str:
    """Columns in Spark's JSON."""
    made = [{"name": n, "type": t, "nullable": nullable, "metadata": {}} for n, t in fields]
    return json.dumps({"type": "struct", "fields": made})


def shard(
    *fields: tuple[str, str], nullable: bool = True, upper: int | None = MARCH_MS + 60_000,
    source_format: str = "csv", key: tuple[str, ...] = (), rows: int = 3,
) -> ExistingShard:  # fmt: skip
    schema = ShardSchema.parse(columns(*fields, nullable=nullable))
    return ExistingShard(schema, key, MARCH_MS, upper, rows, source_format)


def source(schema: str = "new", **changes: object) -> SourceDescription:
    return SourceDescription(name="s", format="csv", schema=schema, **changes)  # type: ignore[arg-type]


def view(query: str = "new") -> ViewDescription:
    return ViewDescription(name="v", query=query, inputs=("s",), schema="")


def sink(name: str, on: str, path: str, format_: str = "parquet") -> SinkDescription:
    return SinkDescription(name=name, on=on, format=format_, options={"path": path})


def named(*objects: ObjectDescription) -> dict[str, ObjectDescription]:
    return {one.name: one for one in objects}


def of_source(before: str, after: str) -> Plan:
    """The plan for a source whose column changes its type."""
    return make_plan(
        named(source("new")),
        named(source("old")),
        columns={"s": columns(("a", after))},
        shards={"s": shard(("a", before))},
    )


def shown(plan: Plan) -> str:
    out = StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=False)
    console.print(plan_view(plan))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


_DECIMALS = ("decimal(10,0)", "decimal(12,2)", "decimal(20,0)")
"""With ten digits before the point at least: room for every INT, as Delta counts."""

WIDER = {
    "byte": ("short", "integer", "long", "double", *_DECIMALS),
    "short": ("integer", "long", "double", *_DECIMALS),
    "integer": ("long", "double", *_DECIMALS),
    "long": ("decimal(20,0)",),
    "float": ("double",),
    "double": (),
    "decimal(10,0)": ("decimal(12,2)", "decimal(20,0)"),
    "decimal(10,2)": ("decimal(12,2)", "decimal(12,4)"),
    "decimal(12,2)": (),
    "decimal(12,4)": (),
    "decimal(20,0)": (),
    "date": ("timestamp_ntz",),
    "timestamp_ntz": (),
    "timestamp": (),
    "string": (),
    "binary": (),
    "boolean": (),
}
"""Delta's documents, "Type widening", "Supported type changes", in the names of Spark's JSON.
Iceberg's are among them: int to long, float to double, a decimal of more digits."""


@pytest.mark.parametrize("before", WIDER)
def test_only_what_delta_widens_keeps_the_shard(before: str) -> None:
    """Every other pair of types is a replacement, which the plan refuses."""
    kept = {after for after in WIDER if not of_source(before, after).replaced}
    assert kept == {before, *WIDER[before]}
    refused = {a for a in WIDER if find_refusal(of_source(before, a), Permissions()) is not None}
    assert refused == WIDER.keys() - kept


SOURCES = [
    ("a new column at the end", [("a", "long"), ("b", "string")], {}, ""),
    ("a column that is gone", [("b", "string")], {}, "column 'a' is missing"),
    ("a column in front", [("b", "string"), ("a", "long")], {}, "column 'b' has moved"),
    ("another key", [("a", "long")], {"key": ("a",)}, "it is (none), and would be (a)"),
    ("another format", [("a", "long")], {"format": "json"}, "offsets of format 'csv' mean nothing"),
    ("another path", [("a", "long")], {"options": {"path": "q"}}, ""),
    ("more history", [("a", "long")], {"retain_ms": 9}, ""),
]


@pytest.mark.parametrize(("fields", "changes", "why"), [one[1:] for one in SOURCES])
def test_a_source_keeps_its_shard_or_says_why_not(
    fields: list[tuple[str, str]], changes: dict[str, object], why: str
) -> None:
    """By what its shard can take, whatever else of its definition changes."""
    before = source("old")
    plan = make_plan(
        named(replace(before, schema="new", **changes)),
        named(before),
        columns={"s": columns(*fields)},
        shards={"s": shard(("a", "long"))},
    )
    assert [why in one.why for one in plan.replaced] == ([True] if why else [])


def test_nulls_of_a_source_are_looked_for_row_by_row() -> None:
    """NOT NULL in a source's columns is no reason for another shard, in a view's it is one."""
    for one, filled_by, made in ((source(), "csv", 0), (view(), "", 1)):
        plan = make_plan(
            named(one),
            {},
            columns={one.name: columns(("a", "long"), nullable=False)},
            shards={one.name: shard(("a", "long"), source_format=filled_by)},
        )
        assert len(plan.replaced) == made, one


def test_a_shard_that_was_never_written_is_replaced_without_a_question() -> None:
    """A source that could not start is corrected: nothing is lost."""
    plan = make_plan(
        named(source()),
        named(source("old")),
        columns={"s": columns(("a", "integer"))},
        shards={"s": shard(("a", "decimal(10,2)"), upper=0, source_format="json")},
    )
    assert [one.loses_history for one in plan.replaced] == [False]
    assert find_refusal(plan, Permissions()) is None
    assert "nothing was written yet, so nothing is lost" in shown(plan)


def test_a_shard_that_is_finished_has_a_history_to_lose() -> None:
    """Its upper is no number, and everything is in it."""
    plan = make_plan(
        named(source()),
        named(source("old")),
        columns={"s": columns(("a", "integer"))},
        shards={"s": shard(("a", "decimal(10,2)"), upper=None, source_format="json")},
    )
    refusal = find_refusal(plan, Permissions())
    assert refusal is not None
    assert refusal.code == "REPLACEMENT_REFUSED"


def test_contents_of_a_view_are_no_source_s() -> None:
    """A source of its name would add its rows to them; a view corrects what it finds."""
    there = {"s": shard(("a", "long"), source_format="")}
    plan = make_plan(named(source()), {}, columns={"s": columns(("a", "long"))}, shards=there)
    assert [one.why for one in plan.replaced] == ["no source has filled the shard that is there"]
    same = {"v": shard(("a", "long"), source_format="")}
    plan = make_plan(named(view()), {}, columns={"v": columns(("a", "long"))}, shards=same)
    assert plan.replaced == ()


STAYS = [
    ("the same columns", [("a", "long")], {}, {}),
    ("a wider column", [("a", "integer")], {}, {}),
    ("a shard of the offsets of another format", [("a", "long")], {"source_format": "json"}, {}),
    ("a shard without a source", [("a", "long")], {"source_format": ""}, {}),
    ("columns that are guessed", [("a", "string")], {}, {"schema": ""}),
]


@pytest.mark.parametrize(("fields", "there", "more"), [one[1:] for one in STAYS])
def test_what_stays_and_fits_is_never_replaced(
    fields: list[tuple[str, str]], there: dict[str, object], more: dict[str, object]
) -> None:
    """Nor is it a step: a start of what runs already changes nothing."""
    plan = make_plan(
        named(replace(source(), **more), view()),
        named(replace(source(), **more), view()),
        columns={"s": columns(("a", "long")), "v": columns(("a", "long"))},
        shards={"s": shard(*fields, **there), "v": shard(("a", "string"))},  # type: ignore[arg-type]
    )
    assert (plan.replaced, plan.steps) == ((), ())


@pytest.mark.parametrize(
    "there",
    [
        shard(("a", "long")),
        # Its bindings are gone already: a replacement was broken off. No view has a key.
        shard(("a", "long"), source_format="", key=("a",)),
    ],
)
def test_a_view_that_comes_after_a_source_gets_a_shard_of_its_own(there: ExistingShard) -> None:
    """Though it has the same columns: what a source keeps beside it would be in the view's way."""
    after = ViewDescription(name="s", query="SELECT 1", inputs=(), schema="")
    for running in (named(source()), {}):
        plan = make_plan(
            named(after), running, columns={"s": columns(("a", "long"))}, shards={"s": there}
        )
        (one,) = plan.replaced
        assert (one.why, one.rows) == ("a source has filled the shard that is there", 3)
        refusal = find_refusal(plan, Permissions())
        assert refusal is not None
        assert refusal.code == "REPLACEMENT_REFUSED"
        assert plan_from_json(json.loads(json.dumps(plan_json(plan)))) == plan
        assert objects_to_replace(plan, Permissions(replace=True)) == named(after)


def test_a_view_makes_its_own_shard_anew() -> None:
    """It alone writes it, so nothing has to be stopped first."""
    plan = lossy()
    assert [one.name for one in plan.replaced] == ["v"]
    assert objects_to_replace(plan, Permissions(replace=True)) == {}


UNFIT = [
    ("another type", shard(("a", "string")), "column 'a' cannot change from string to long"),
    ("another key", shard(("a", "long"), key=("a",)), "a shard's key never changes: it is (a)"),
]


@pytest.mark.parametrize(("there", "why"), [one[1:] for one in UNFIT])
def test_a_source_that_an_earlier_change_has_stalled_can_be_replaced(
    there: ExistingShard, why: str
) -> None:
    """Its definition stays. It is shown, needs the permission, and keeps nothing from running."""
    plan = make_plan(
        named(source()), named(source()), columns={"s": columns(("a", "long"))}, shards={"s": there}
    )
    (one,) = plan.replaced
    assert one.why.startswith(why)
    assert (one.stalled, one.rows, [step.act for step in plan.steps]) == (True, 3, ["change"])
    text = shown(plan)
    assert "1 to change, 1 of them to replace" in plan_summary(plan)
    assert "it is stalled already, and stays so without --allow-replace" in text
    assert find_refusal(plan, Permissions()) is None
    assert plan_from_json(json.loads(json.dumps(plan_json(plan)))) == plan
    assert objects_to_replace(plan, Permissions()) == {}
    assert objects_to_replace(plan, Permissions(replace=True)) == named(source())


def lossy(*sinks: SinkDescription, before: dict[str, ObjectDescription] | None = None) -> Plan:
    """A plan that replaces a view, with these sinks, which have written before."""
    running = named(source(), view("old"), *sinks) if before is None else before
    written = {f"{one.name}_progress": shard(("x", "long")) for one in sinks}
    return make_plan(
        named(source(), view(), *sinks),
        running,
        columns={"v": columns(("a", "integer"))},
        shards={
            "v": shard(("a", "decimal(10,2)"), rows=1_234, source_format=""),
            **written,
        },
    )


def test_a_lossy_plan_says_what_goes_and_is_refused_until_it_is_allowed() -> None:
    """What is replaced, why, from when to when; which sink stops, and what to do about it."""
    plan = lossy(sink("out", "v", "o"), sink("raw", "s", "p"))
    assert plan_summary(plan) == "1 to change, 1 of them to replace, 3 unchanged"
    assert """
replaced: the shard is dropped and made anew
  v: column 'a' cannot change from decimal(10,2) to integer
    lost: 1,234 rows, and their history from 2026-03-01 00:00:00.000 UTC to
  2026-03-01 00:01:00.000 UTC

stop for good, as their input is replaced
  out, of v: give it another path; or take it out of the project, empty its
  folder, put it back
""" in shown(plan)
    refusal = find_refusal(plan, Permissions(adopt=True))
    assert refusal is not None
    assert refusal.code == "REPLACEMENT_REFUSED"
    assert "drop the history of 'v', and stop sink 'out' for good" in refusal.detail
    assert "--allow-replace" in refusal.hint
    assert find_refusal(plan, Permissions(replace=True)) is None
    assert shown(plan_from_json(plan_json(plan))) == shown(plan)


def test_a_sink_that_moves_to_another_folder_does_not_stop() -> None:
    """It begins there with the new shard; one that has written nothing does so anyway."""
    moved = sink("out", "v", "elsewhere")
    before = named(source(), view("old"), sink("out", "v", "o"))
    assert lossy(moved, before=before).stopped == ()
    fresh = make_plan(
        named(view(), sink("out", "v", "o")),
        named(view("old"), sink("out", "v", "o")),
        columns={"v": columns(("a", "integer"))},
        shards={
            "v": shard(("a", "string"), source_format=""),
            "out_progress": shard(("x", "long"), upper=0),
        },
    )
    assert (len(fresh.replaced), fresh.stopped) == (1, ())


def test_another_format_into_the_same_folder_does_stop() -> None:
    """A folder of files knows whose rows it has, also for a sink that has changed."""
    before = named(source(), view("old"), sink("out", "v", "o", "parquet"))
    assert [one.name for one in lossy(sink("out", "v", "o", "csv"), before=before).stopped] == [
        "out"
    ]


def test_only_a_new_or_changed_source_needs_its_folder() -> None:
    """A start must not depend on the folder of one that runs already."""
    problem = Problem(Place("a.sql", 1, 1), "PATH_NOT_FOUND", "it reads 'p'", "create it")
    resolved = CheckedProject(dict(named(source())), unreachable={"s": problem})
    refuse_unreachable(make_plan(named(source()), named(source())), resolved)
    refuse_unreachable(make_plan({}, named(source())), resolved)
    for running in ({}, named(source("old"))):
        with pytest.raises(InvalidProject, match="PATH_NOT_FOUND"):
            refuse_unreachable(make_plan(named(source()), running), resolved)
