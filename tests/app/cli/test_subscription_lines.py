"""Updates of a subscription as lines for a person."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardline.app.cli.subscription_lines import SubscriptionLines


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reader is an hour ahead of UTC."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(*batches: dict[str, Any]) -> list[str]:
    printed: list[str] = []
    lines = SubscriptionLines(printed.append)
    for batch in batches:
        lines.show(batch)
    return printed


def batch(*updates: tuple[int, int, str | None, Any]) -> dict[str, Any]:
    rows = [{"name": n, "n": x, "_ts": t, "_diff": d} for t, d, n, x in updates]
    return {"lower": 0, "upper": 9, "updates": rows}


def test_updates_are_lines_with_times_of_the_readers_zone() -> None:
    """No raw milliseconds; the head comes again only when a column has become wider."""
    assert shown(
        batch((1_795_419_821_000, 1, "YV", 18)),
        batch(),
        batch((1_795_419_824_500, -1, "YV", 18), (1_795_419_824_500, 1, None, 7)),
        batch((1_795_419_825_000, 1, "Mesa\x1b[2J", 1200)),
    ) == [
        "time (CET)               diff  name   n",
        "2026-11-23 08:43:41.000    +1  YV    18",
        "2026-11-23 08:43:44.500    -1  YV    18",
        "2026-11-23 08:43:44.500    +1  NULL   7",
        "time (CET)               diff  name            n",
        "2026-11-23 08:43:45.000    +1  Mesa\\x1b[2J  1200",
    ]


def test_its_end_is_told() -> None:
    """By an error, or by the application."""
    assert shown({"lower": 1, "upper": 2, "error": "[X] no"}, {"dropped_at": 7}) == [
        "ended by an error: [X] no",
        "ended by the application, complete before 7",
    ]
