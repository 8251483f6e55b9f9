"""A table with notes: which of them there is room for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from shardline.app.cli.noted_table import NotedTable
from shardline.app.cli.tables import plain_table

LONG = "no space left on the device of the folder"
"""Takes three lines of a screen of 20 columns."""


def lines_of(height: int | None, *rows: tuple[str, tuple[str, ...], int]) -> list[str]:
    """The lines of rows on a screen of 20 columns, below one line of something else."""
    noted = NotedTable(plain_table("name", "word"), above=Text("above"), height=height)
    for name, notes, badness in rows:
        noted.add_row(name, "ill", notes=[Text(note) for note in notes], badness=badness)
    console = Console(file=io.StringIO(), width=20)
    console.print(noted)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


ROWS = (("a", (LONG, "make room"), 1), ("b", ("off", "go on"), 2), ("c", (), 0))
NOTES_OF_A = ["  no space left on", "  the device of the", "  folder", "  make room"]
HEAD = ["above", "name  word"]


@pytest.mark.parametrize("height", [None, 10, 100])
def test_all_notes_where_there_is_room(height: int | None) -> None:
    """Those of a row are on one line if they fit."""
    expected = [*HEAD, "a     ill", *NOTES_OF_A, "b     ill", "  off go on", "c     ill"]
    assert lines_of(height, *ROWS) == expected


@pytest.mark.parametrize("height", [6, 9])
def test_only_those_of_the_worst_row(height: int) -> None:
    """Once one line is missing."""
    assert lines_of(height, *ROWS) == [*HEAD, "a     ill", "b     ill", "  off go on", "c     ill"]


@pytest.mark.parametrize(
    ("height", "notes"),
    [
        (7, NOTES_OF_A),
        (6, ["  no space left on", "  the device of th …", "  make room"]),
        (5, ["  no space left on …", "  make room"]),
        (4, ["  no space left on …"]),
        (3, []),
    ],
)
def test_long_notes_are_cut_and_the_last_one_as_late_as_may_be(
    height: int, notes: list[str]
) -> None:
    """A remedy of one line says more than the end of a reason."""
    assert lines_of(height, ROWS[0]) == [*HEAD, "a     ill", *notes]


@pytest.mark.parametrize(
    ("height", "shown"), [(5, "ab"), (4, "b"), (3, ""), (1, "")], ids=["two", "one", "none", "tiny"]
)
def test_only_the_worst_rows_where_not_all_fit(height: int, shown: str) -> None:
    """In their order, and the others are counted."""
    rows = (*ROWS, ("d", (), 0))
    left = f"and {4 - len(shown)} more"
    assert lines_of(height, *rows) == [*HEAD, *(f"{name}     ill" for name in shown), left]
