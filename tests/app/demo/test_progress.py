"""The progress that the main job shows on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shardline.app.cli.status import ObjectStatus, SystemStatus
from shardline.app.demo.progress import DemoProgress, ProgressDisplay
from support.fakes.clock import ManualClock

REASON = "22 s behind the clock: its last micro-batch took 9.3 s, most of it for reading its inputs"


@pytest.mark.parametrize(("width", "height"), [(110, 40), (80, 24)])
def test_no_object_is_cut_off_the_screen(width: int, height: int) -> None:
    """When many are in trouble, and each has much to say, there is still a line for each."""
    objects = tuple(
        ObjectStatus(f"view_{n}", "view", "falling behind", "bad", REASON, "look at its plan")
        for n in range(16)
    )
    seen = SystemStatus("0 of 16 objects are fresh.", 0, objects)
    now = DemoProgress(5_000, 3, 30, 1_000, 90_000, len(objects), seen)
    console = Console(file=io.StringIO(), width=width, height=height)
    display = ProgressDisplay(console, ManualClock(), lambda: now, 1_000)
    assert display._look()
    console.print(display.view())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= height
    shown = [line.split()[0] for line in lines if line.startswith("view_")]
    assert shown == [one.name for one in objects]
    assert f"  {REASON}"[:70] in "\n".join(lines)
