"""The status table: verdicts in words, and where it is shown."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import pytest
from rich.console import Console
from typing_extensions import override

from shardline.app.cli.status import ObjectStatus, show_status, status_table, verdict
from support.fakes.clock import ManualClock

RUNNING = ObjectStatus("delays", "view", "running", lag_ms=800, hydrated=True)


@pytest.mark.parametrize(
    ("shown", "words", "tone"),
    [
        (RUNNING, "up to date", "good"),
        (replace(RUNNING, lag_ms=5_000), "up to date", "good"),
        (replace(RUNNING, lag_ms=12_345), "lagging by 12 s", "bad"),
        (replace(RUNNING, kind="sink", lag_ms=12_345), "up to date", "good"),
        (replace(RUNNING, kind="sink", lag_ms=20_000), "lagging by 20 s", "bad"),
        (replace(RUNNING, lag_ms=200_000), "lagging by 3 min 20 s", "bad"),
        (replace(RUNNING, lag_ms=7_200_000), "lagging by 2 h", "bad"),
        (
            replace(RUNNING, lag_ms=60_000, blame="flights"),
            "lagging by 1 min, waits for flights",
            "bad",
        ),
        (replace(RUNNING, hydrated=False, lag_ms=10**9), "hydrating", "wait"),
        (replace(RUNNING, lag_ms=None), "nothing written yet", "wait"),
        (replace(RUNNING, finished=True, lag_ms=0), "finished", "good"),
        (replace(RUNNING, status="stalled", error="disk full"), "stalled: disk full", "bad"),
        (
            replace(RUNNING, status="frozen", error="part p missing"),
            "frozen: part p missing",
            "bad",
        ),
        (replace(RUNNING, status="ceased"), "ceased", "bad"),
        (replace(RUNNING, status="paused"), "paused", "idle"),
        (replace(RUNNING, status="paused", finished=True), "finished", "good"),
        (replace(RUNNING, status="created"), "waiting for its turn", "wait"),
        (replace(RUNNING, status="starting"), "starting", "wait"),
    ],
)
def test_the_verdict_is_in_words(shown: ObjectStatus, words: str, tone: str) -> None:
    """What is broken comes before what is late, and what is late before what is fresh."""
    found = verdict(shown)
    assert (found.words, found.tone) == (words, tone)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_elsewhere_than_on_a_terminal_it_is_printed_once() -> None:
    """A log or a pipe gets one table; errors bring their hint."""
    console = Console(file=io.StringIO(), width=120)
    broken = replace(RUNNING, status="stalled", error="disk full", hint="make room", upper=5)
    show_status(console, lambda: [RUNNING, broken], ManualClock())
    text = text_of(console)
    assert "2 objects, 1 need attention" in text
    assert "stalled: disk full" in text
    assert "make room" in text


def test_on_a_terminal_it_is_refreshed_until_it_is_ended() -> None:
    """Rows per second are those since the last look."""

    class Ended(ManualClock):
        waits = 0

        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            self.waits += 1
            return self.waits > 2 or super().wait(signal, timeout_ms)

    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    counts = iter((1000.0, 1000.0, 3500.0))
    show_status(console, lambda: [replace(RUNNING, rows=next(counts))], Ended())
    assert "2,500" in text_of(console)


def test_times_of_the_clock_are_shown_as_times_of_day() -> None:
    """Others as numbers; the empty frontier as what it is."""
    console = Console(file=io.StringIO(), width=120)
    lines = [
        replace(RUNNING, name="a", since=5, upper=1_700_000_000_123),
        replace(RUNNING, name="b", finished=True),
    ]
    console.print(status_table(lines, {}, 0))
    assert "22:13:20" in text_of(console)
    assert "∞" in text_of(console)
