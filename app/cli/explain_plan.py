"""A plan's explanation shows its steps, affected objects, and the strategy of each view.

    plan_view(plan)      the whole plan, to be printed
    say(plan)            its numbers of steps, in one line

It fits into 80 columns; long queries are folded, never cut.
"""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardline.app.cli.tables import plain_table
from shardline.app.project.plan import Plan, Step, StepKind
from shardline.app.project.statements import ObjectDescription, kind_of
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)

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
    parts.append(f"{len(plan.unchanged)} unchanged")
    return ", ".join(parts)


def plan_view(plan: Plan) -> RenderableType:
    """Lay out a plan: its steps, the objects that they affect, and the strategy of each view."""
    views: list[RenderableType] = [Text(plan_summary(plan), style="bold")]
    for step in plan.steps:
        views += [Text(), _step(step)]
    followers = [name for name in plan.affected if name in plan.unchanged]
    if followers:
        views += [Text(), Text("follow what changes above them", style="bold")]
        views += [
            Padding(Text(f"{name}: reads {', '.join(plan.affected[name])}"), (0, 0, 0, 2))
            for name in followers
        ]
    kept = [d for d in plan.wanted.values() if isinstance(d, ViewDescription)]
    if kept:
        views += [Text(), _strategies(kept)]
    return Group(*views)


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
    table = plain_table("view", "kept up to date by", "because of")
    table.columns[0].overflow = "fold"
    words = {"linear": "the change alone", "recompute": "its query run anew"}
    for view in views:
        table.add_row(escape(view.name), words[view.strategy], escape(view.reason))
    return table
