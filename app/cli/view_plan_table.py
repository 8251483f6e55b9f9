"""The table of a view's plan shows its operators as a tree, and beside each how it is kept.

    view_plan_table(plan_rows(plan))     of `plan`
    view_plan_table(rows)                of the answer to EXPLAIN VIEW

What does not fit is folded, never cut, and what is folded stays below the place in the tree where
it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["view_plan_table"]


def view_plan_table(rows: Iterable[Sequence[str]]) -> Table:
    """Lay out rows of part, item, detail; a part is named in its first row alone."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold", ratio=3)
    table.add_column(overflow="fold", ratio=4)
    before = ""
    for part, item, detail in rows:
        text = item.lstrip()
        place = Padding(Text(text), (0, 0, 0, len(item) - len(text)))
        table.add_row("" if part == before else part, place, Text(detail))
        before = part
    return table
