"""A noted table has lines of full width below its rows, and keeps within the height of a screen.

    noted = NotedTable(plain_table("object", "verdict"), height=console.height)
    noted.add_row("orders", "stalled", notes=(Text("disk full"), Text("→ make room")), badness=2)
    console.print(noted)

A note is about one row, and a column of the table would break it into many short lines.

Where not all lines fit, rows come first, as they say in a word what is wrong: only the worst row
keeps its notes. Where not even the rows fit, the worst ones stay, and a line counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

__all__ = ["NotedTable"]

_ROW: Final = "noted_row"
"""Key of the mark by which the lines of a row are known once the table is laid out."""

_HEAD: Final = -1
"""Stands for the lines that are of no row."""

_INDENT: Final = "  "
_MORE: Final = " …"

Line: TypeAlias = list[Segment]
"""A line of the screen."""


@dataclass(frozen=True, slots=True)
class _Row:
    notes: tuple[Text, ...]
    badness: int


class NotedTable:
    """A table with notes; to be printed, or to be shown by a live display."""

    def __init__(
        self,
        table: Table,
        *,
        above: RenderableType | None = None,
        height: int | None = None,
        say_rest: Callable[[Sequence[int]], str] = lambda rows: f"and {len(rows)} more",
    ) -> None:
        """Begin without any row.

        Args:
            table: Columns, without rows.
            above: What is shown above the table, and takes lines of the same height.
            height: Lines that there are; None for any number.
            say_rest: Returns the line about rows that have no room, by their positions.
        """
        self._table = table
        self._above = above
        self._height = height
        self._say_rest = say_rest
        self._rows: list[_Row] = []

    def add_row(self, *cells: RenderableType, notes: Sequence[Text] = (), badness: int = 0) -> None:
        """Add a row.

        Args:
            cells: Of its columns.
            notes: Each begins a line below the row, unless all of them fit on one.
            badness: Rows with more of it are the last to go; of equal ones the later goes first.
        """
        self._table.add_row(*cells, style=Style(meta={_ROW: len(self._rows)}))
        self._rows.append(_Row(tuple(notes), badness))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay out what there is room for."""
        above = [] if self._above is None else console.render_lines(self._above, options, pad=False)
        room = None if self._height is None else max(self._height - len(above), 1)
        for line in [*above, *self._fit(console, options, room)]:
            yield from line
            yield Segment.line()

    def _fit(self, console: Console, options: ConsoleOptions, room: int | None) -> list[Line]:
        laid_out = console.render_lines(self._table, options, pad=False)
        rows = {row: list(lines) for row, lines in groupby(laid_out, key=_row_of)}
        width = max(options.max_width - len(_INDENT), 1)
        notes = {
            row: [list(note.wrap(console, width)) for note in _joined(one.notes, width)]
            for row, one in enumerate(self._rows)
            if one.notes
        }
        if room is not None:
            left = room - len(laid_out)
            if left < 0:
                rows, notes = self._worst(rows, room), {}
            elif left < sum(len(note) for of in notes.values() for note in of):
                worst = min(notes, key=self._order)
                notes = {worst: _cut(notes[worst], left, width)}
        lines: list[Line] = []
        for row, of_row in rows.items():
            below = [Text.assemble(_INDENT, line) for line in chain(*notes.get(row, ()))]
            lines += of_row
            lines += [_line(text, console, options) for text in below]
        left_out = [row for row in range(len(self._rows)) if row not in rows]
        if left_out:
            lines.append(_line(Text(self._say_rest(left_out), "dim"), console, options))
        return lines

    def _worst(self, rows: dict[int, list[Line]], room: int) -> dict[int, list[Line]]:
        """The head and the worst rows, in their order; there is a line left for the others."""
        left = room - len(rows[_HEAD]) - 1
        kept = {_HEAD}
        for row in sorted(range(len(self._rows)), key=self._order):
            left -= len(rows[row])
            if left < 0:
                break
            kept.add(row)
        return {row: lines for row, lines in rows.items() if row in kept}

    def _order(self, row: int) -> tuple[int, int]:
        return -self._rows[row].badness, row


def _row_of(line: Line) -> int:
    metas = (segment.style.meta for segment in line if segment.style is not None)
    return next((meta[_ROW] for meta in metas if _ROW in meta), _HEAD)


def _joined(notes: tuple[Text, ...], width: int) -> tuple[Text, ...]:
    """All notes of a row as one, if they fit on a line."""
    one = Text(" ").join(notes)
    return (one,) if "\n" not in one.plain and one.cell_len <= width else notes


def _line(text: Text, console: Console, options: ConsoleOptions) -> Line:
    whole = options.update(no_wrap=True, overflow="ellipsis")
    return console.render_lines(text, whole, pad=False)[0]


def _cut(notes: list[list[Text]], room: int, width: int) -> list[list[Text]]:
    """As much of each note as there is room for together; the longest gives way first."""
    sizes = [len(note) for note in notes]
    while sum(sizes) > room:
        longest = max(sizes)
        # Of notes that have one line each the last one goes.
        sizes[sizes.index(longest) if longest > 1 else sum(sizes) - 1] -= 1
    for note, size in zip(notes, sizes, strict=True):
        if 0 < size < len(note):
            note[size - 1].rstrip()
            note[size - 1].truncate(width - len(_MORE))
            note[size - 1].append(_MORE)
    return [note[:size] for note, size in zip(notes, sizes, strict=True)]
