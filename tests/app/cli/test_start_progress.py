"""Tests of the progress of a start."""

from __future__ import annotations

import io

from rich.console import Console

from shardline.app.cli.start_progress import StartProgress
from support.waiting import wait_until


def test_a_terminal_shows_what_happens_beside_the_step() -> None:
    """Read anew at each moment, so that it moves while a step takes long."""
    file = io.StringIO()
    days = iter(range(1, 1_000_000))
    with StartProgress(Console(file=file, force_terminal=True, width=80)) as progress:
        progress.step("starting Spark")
        progress.follow(lambda: f"{next(days)} of 365 days")
        wait_until("it moves", lambda: "3 of 365 days" in file.getvalue(), 30)
    assert "starting Spark" in file.getvalue()


def test_elsewhere_each_step_is_a_line() -> None:
    """And news that move are none: they would fill a file."""
    file = io.StringIO()
    with StartProgress(Console(file=file, width=80)) as progress:
        progress.follow(lambda: "3 of 365 days")
        progress.step("starting Spark")
        progress.step("checking the project")
    assert file.getvalue() == "starting Spark …\nchecking the project …\n"
