"""A plan says which times are lost by a shorter retention, and is refused until that is allowed."""

from __future__ import annotations

import json
from dataclasses import replace as with_fields
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from shardline.app.cli.explain_plan import plan_view
from shardline.app.coordinator.project_comparison import compare_objects
from shardline.app.project.permission import Permissions, find_refusal
from shardline.app.project.plan import make_plan, plan_from_json, plan_json
from shardline.app.project.replacement import ExistingShard
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.types.schema import ShardSchema

MARCH_MS = 1_772_323_200_000
"""2026-03-01 00:00 UTC."""

DAY_MS = 86_400_000

COLUMNS = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'

SOURCE = SourceDescription(name="s", format="csv", schema="a BIGINT", retain_ms=7 * DAY_MS)
VIEW = ViewDescription(
    name="v", query="SELECT a FROM s", inputs=("s",), schema="a BIGINT", retain_ms=7 * DAY_MS
)


def shard(
    retain_ms: int | None = 7 * DAY_MS, first: int = MARCH_MS, newest: int = MARCH_MS + 6 * DAY_MS
) -> ExistingShard:
    schema = ShardSchema.parse(COLUMNS)
    return ExistingShard(
        schema, (), MARCH_MS, newest + 1, 3, "csv", retain_ms=retain_ms, first=first, newest=newest
    )


KEPT = [
    ("as it is", 7 * DAY_MS, shard(newest=MARCH_MS + 60 * DAY_MS)),
    ("longer", 8 * DAY_MS, shard(newest=MARCH_MS + 60 * DAY_MS)),
    ("shorter, and it began later", DAY_MS, shard(newest=MARCH_MS + DAY_MS)),
    ("never written", DAY_MS, shard(first=MARCH_MS, newest=-1)),
    ("set before, and the process had died", DAY_MS, shard(retain_ms=DAY_MS)),
]


@pytest.mark.parametrize(("retain_ms", "there"), [one[1:] for one in KEPT])
def test_a_retention_that_loses_nothing_needs_no_permission(
    retain_ms: int, there: ExistingShard
) -> None:
    """Also if maintenance has not come yet to move the since to where it is now."""
    wanted: dict[str, ObjectDescription] = {
        "s": replace(SOURCE, retain_ms=retain_ms, options={"path": "b"})
    }
    plan = make_plan(wanted, {"s": SOURCE}, shards={"s": there}, columns={"s": COLUMNS})
    assert ([step.name for step in plan.steps], plan.shortened) == (["s"], ())
    assert find_refusal(plan, Permissions()) is None


@pytest.mark.parametrize("before_ms", [7 * DAY_MS, None])
@pytest.mark.parametrize("runs", [True, False])
def test_times_that_are_lost_are_said_and_need_a_permission(
    before_ms: int | None, *, runs: bool
) -> None:
    """Of a source and a view, that run or are created again; no other permission is one for it."""
    there = shard(retain_ms=before_ms)
    wanted: dict[str, ObjectDescription] = {
        "s": replace(SOURCE, retain_ms=DAY_MS),
        "v": replace(VIEW, retain_ms=DAY_MS),
    }
    running: dict[str, ObjectDescription] = {"s": SOURCE, "v": VIEW} if runs else {}
    plan = make_plan(
        wanted,
        running,
        shards={"s": there, "v": with_fields(there, source_format="")},
        columns=dict.fromkeys("sv", COLUMNS),
    )
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(plan_view(plan))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    begin = lines.index("shortened: times that can be read now are lost by the retention")
    assert lines[begin + 1 : begin + 3] == [
        f"  {name}: from 2026-03-01 00:00:00.000 UTC to 2026-03-06 00:00:00.000 UTC"
        for name in "sv"
    ]
    refusal = find_refusal(plan, Permissions(replace=True, adopt=True))
    assert refusal is not None
    assert refusal.code == "RETENTION_REFUSED"
    assert "the history of 's', 'v'" in refusal.detail
    assert "--allow-shorten" in refusal.hint
    assert find_refusal(plan, Permissions(shorten=True)) is None
    assert plan_from_json(json.loads(json.dumps(plan_json(plan)))) == plan
    for one in compare_objects(plan, running, {}):
        assert one.why[-1] == "Lost: the first 5 d of its history."


def test_a_shard_that_is_replaced_loses_all_and_is_said_once() -> None:
    """Its retention is a detail then."""
    wanted: dict[str, ObjectDescription] = {"v": replace(VIEW, retain_ms=DAY_MS)}
    columns = {"v": COLUMNS.replace("long", "string")}
    plan = make_plan(wanted, {"v": VIEW}, shards={"v": shard()}, columns=columns)
    assert ([one.name for one in plan.replaced], plan.shortened) == (["v"], ())
