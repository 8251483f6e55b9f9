"""A drop's explanation shows what goes for good: objects, shards, rows, and the history of each.

drop_view(plan)      everything that a drop deletes, to be printed in 80 columns
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from shardline.app.cli.tables import plain_table, size, utc
from shardline.app.project.dropping import DroppedShard, DropPlan

__all__ = ["drop_view"]


def drop_view(plan: DropPlan) -> RenderableType:
    """Lay out a plan: a line for each object, and one for each of its shards."""
    numbers = ("rows", "size")
    table = plain_table(
        "object", "shard", *numbers, "history", right=numbers, fold=("object", "shard")
    )
    for one in plan.objects:
        head = f"{one.kind} {one.name}" if one.kind else f"{one.name} (runs no more)"
        first = Text(head, style="bold red")
        if not one.shards:
            table.add_row(first, "none", "", "", "")
        for shard in one.shards:
            table.add_row(
                first,
                escape(shard.name),
                f"{shard.rows:,}",
                size(shard.size_bytes),
                _history(shard),
            )
            first = Text()
    count = len(plan.objects)
    what = "this object goes" if count == 1 else f"these {count} objects go"
    return Group(Text(f"{what} for good, with all that is shown", style="bold"), Text(), table)


def _history(shard: DroppedShard) -> str:
    if shard.upper == 0:
        return "nothing yet"
    since, upper = (
        "" if ms is None else utc(ms)[:19] or str(ms) for ms in (shard.since, shard.upper)
    )
    return f"{since or 'none'} to\n{upper or 'its end'}"
