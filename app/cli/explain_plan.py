"""A plan's explanation shows its steps, affected objects, and the strategy of each view.

    plan_view(plan)         the whole plan, to be printed
    plan_summary(plan)      its numbers of steps, in one line

It fits into 80 columns; long queries are folded, never cut.
"""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardline.app.cli.tables import plain_table, utc
from shardline.app.cli.view_plan_table import view_plan_table
from shardline.app.project.plan import Plan, Step, StepKind
from shardline.app.project.replacement import Replacement
from shardline.app.project.statements import ObjectDescription, kind_of
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.protocol.view_plan import plan_rows

__all__ = ["plan_summary", "plan_view"]

_SIGNS: Final[dict[StepKind, tuple[str, str]]] = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "drop": ("-", "red"),
}


def plan_summary(plan: Plan) -> str:
    """The numbers of steps by kind, in one line."""
    counts = {act: sum(step.act == act for step in plan.steps) for act in _SIGNS}
    parts = [f"{count} to {act}" for act, count in counts.items() if count]
    if plan.replaced:
        parts.append(f"{len(plan.replaced)} of them to replace")
    parts.append(f"{len(plan.unchanged)} unchanged")
    return ", ".join(parts)


def plan_view(plan: Plan) -> RenderableType:
    """Lay out a plan: its steps, the objects that they affect, and the strategy of each view."""
    views: list[RenderableType] = []
    if plan.owner:
        views += [Text(f"the project {plan.owner} runs here", style="bold red"), Text()]
    views.append(Text(plan_summary(plan), style="bold"))
    for step in plan.steps:
        views += [Text(), _step(step)]
    if plan.replaced:
        views += [Text(), Text("replaced: the shard is dropped and made anew", style="bold red")]
        views += [_indented(line) for one in plan.replaced for line in _replacement(one)]
    if plan.stopped:
        views += [Text(), Text("stop for good, as their input is replaced", style="bold red")]
        views += [_indented(f"{one.name}, of {one.on}: {one.hint}") for one in plan.stopped]
    if plan.shortened:
        title = "shortened: times that can be read now are lost by the retention"
        views += [Text(), Text(title, style="bold red")]
        views += [_indented(f"{one.name}: {_span(one.since, one.until)}") for one in plan.shortened]
    followers = [name for name in plan.affected if name in plan.unchanged]
    if followers:
        views += [Text(), Text("follow what changes above them", style="bold")]
        views += [
            _indented(f"{name}: reads {', '.join(plan.affected[name])}") for name in followers
        ]
    kept = [d for d in plan.wanted.values() if isinstance(d, ViewDescription)]
    if kept:
        views += [Text(), _strategies(kept)]
    for one in plan.views:
        views += [Text(), Text(f"how {one.view} will be kept", style="bold")]
        views.append(view_plan_table(plan_rows(one)))
    left = _left_out(plan)
    if left:
        views += [Text(), Text(f"not planned here, as they are many: {', '.join(left)}")]
        views.append(Text("EXPLAIN VIEW name shows each of them when it runs"))
    return Group(*views)


def _left_out(plan: Plan) -> list[str]:
    """Views that are made or changed and have no plan of their own here."""
    planned = {one.view for one in plan.views}
    made = [one.description for one in plan.steps if one.act != "drop"]
    views = [one.name for one in made if isinstance(one, ViewDescription)]
    return [name for name in views if name not in planned] if planned else []


def _replacement(one: Replacement) -> list[str]:
    """The reason, and what is lost."""
    lost = "nothing was written yet, so nothing is lost"
    if one.loses_history:
        rows = "1 row" if one.rows == 1 else f"{one.rows:,} rows"
        lost = f"lost: {rows}, and their history {_span(one.since, one.upper)}"
    stalled = (
        ["  it is stalled already, and stays so without --allow-replace"] if one.stalled else []
    )
    return [f"{one.name}: {one.why}", *stalled, f"  {lost}"]


def _span(since: int | None, upper: int | None) -> str:
    """The times at which a shard can be read, the upper left out."""
    start = "from its beginning" if not since else f"from {_time(since)}"
    end = "to its end" if upper is None else f"to {_time(upper)}"
    return f"{start} {end}"


def _time(ms: int) -> str:
    return f"{utc(ms)} UTC" if utc(ms) else str(ms)


def _indented(text: str) -> Padding:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, 2))


def _step(step: Step) -> RenderableType:
    sign, style = _SIGNS[step.act]
    head = Text(f"{sign} {kind_of(step.description)} ", style=style)
    head.append(step.name, style=f"bold {style}")
    head.append(f"  {_about(step.description)}", style="default")
    if not step.changes:
        return head
    table = Table.grid(padding=(0, 2))
    for change in step.changes:
        arrow = f"{change.before or '(nothing)'} → {change.after or '(nothing)'}"
        table.add_row(Text(change.what), Text(arrow))
    return Group(head, Padding(table, (0, 0, 0, 4)))


def _about(description: ObjectDescription) -> str:
    match description:
        case SourceDescription():
            key = f", key {', '.join(description.key)}" if description.key else ""
            return f"{description.format}, envelope {description.envelope}{key}"
        case ViewDescription():
            return f"reads {', '.join(description.inputs) or 'nothing'}"
        case IndexDescription():
            return f"on {description.on} ({', '.join(description.key) or 'all columns'})"
        case SinkDescription():
            return f"{description.on} to {description.format}, envelope {description.envelope}"


def _strategies(views: list[ViewDescription]) -> Table:
    table = plain_table("view", "kept up to date by", "because of", fold=("view",))
    words = {
        "linear": "the change alone",
        "incremental": "the change, joined with what is there",
        "recompute": "its query run anew",
    }
    for view in views:
        table.add_row(escape(view.name), words[view.strategy], escape(view.reason))
    return table
