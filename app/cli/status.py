"""The `status` command shows every object with a verdict in words, as a table on a terminal.

    shown = fetch_status("http://127.0.0.1:6875", token)
    show_status(console, lambda: fetch_status(url, token), clock)   refreshes until interrupted
    verdict(shown[0])                                               the words, a pure function

All values are those of `/api/v1`, so the command runs on any machine that reaches the application,
without Spark. On a terminal the table is refreshed in place; elsewhere it is printed once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardline.app.cli.tables import plain_table
from shardline.app.server.client import get_json
from shardline.datasource.clock import Clock

__all__ = [
    "FRESH_MS",
    "ObjectStatus",
    "Verdict",
    "fetch_status",
    "show_status",
    "status_table",
    "verdict",
]

FRESH_MS: Final = 5_000
"""An object counts as up to date if its lag behind the clock is no more than this."""

_SINK_FRESH_MS: Final = 15_000
"""The same for a sink: without rows to write it reports its progress every ten seconds only."""

_REFRESH_MS: Final = 1_000
_DAY_MS: Final = 86_400_000

Tone: TypeAlias = Literal["good", "wait", "bad", "idle"]

_STYLES: Final[Mapping[Tone, str]] = {
    "good": "green",
    "wait": "yellow",
    "bad": "bold red",
    "idle": "dim",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """An object's state in a few words, and their tone."""

    words: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """One line of the table; None stands for a value that is not known.

    Attributes:
        name: Of the object.
        kind: source, view, index, sink or subscribe.
        status: As in relation `objects`.
        lag_ms: Lag behind the clock.
        finished: True if its output is complete for ever.
        hydrated: True if it has caught up.
        rows: Number of rows that a source has received so far.
        since: Of its shard.
        upper: Of its output.
        error: The reason for a bad status; "" if there is none.
        hint: What to do about it.
        blame: The input that it waits for; "" if it waits for none.
    """

    name: str
    kind: str
    status: str
    lag_ms: int | None = None
    finished: bool = False
    hydrated: bool | None = None
    rows: float | None = None
    since: int | None = None
    upper: int | None = None
    error: str = ""
    hint: str = ""
    blame: str = ""


def verdict(shown: ObjectStatus) -> Verdict:
    """The verdict on an object."""
    match shown.status:
        case "stalled" | "frozen" | "ceased":
            why = f": {shown.error}" if shown.error else ""
            return Verdict(f"{shown.status}{why}", "bad")
        case "paused" | "dropped" if not shown.finished:
            return Verdict(shown.status, "idle")
        case "created":
            return Verdict("waiting for its turn", "wait")
        case "starting":
            return Verdict("starting", "wait")
        case _:
            return _freshness(shown)


def _freshness(shown: ObjectStatus) -> Verdict:
    if shown.finished:
        return Verdict("finished", "good")
    if shown.hydrated is False:
        return Verdict("hydrating", "wait")
    if shown.lag_ms is None:
        return Verdict("nothing written yet", "wait")
    if shown.lag_ms <= (_SINK_FRESH_MS if shown.kind == "sink" else FRESH_MS):
        return Verdict("up to date", "good")
    blame = f", waits for {shown.blame}" if shown.blame else ""
    return Verdict(f"lagging by {_length(shown.lag_ms)}{blame}", "bad")


def _length(milliseconds: int) -> str:
    """A time span in its two largest units: `12 s`, `3 min 20 s`, `2 d 4 h`."""
    seconds = milliseconds // 1000
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append((count, unit))
    shown = [f"{count} {unit}" for count, unit in parts[:2] if count]
    return " ".join(shown) or "0 s"


def fetch_status(url: str, token: str = "") -> list[ObjectStatus]:
    """Fetch the status of every object from the application at `url`.

    Raises:
        InvalidUsage: Nothing answers there, or the token is refused.
        Determinate: It did not answer in time, or failed.
    """

    def by_object(relation: str, column: str) -> dict[str, dict[str, Any]]:
        rows = get_json(url, token, f"relations/{relation}")["rows"]
        return {row[column]: row for row in rows}

    objects = by_object("objects", "id")
    lags = by_object("wallclock_lag", "object_id")
    frontiers = by_object("frontiers", "object_id")
    hydrated = by_object("hydration_statuses", "object_id")
    blamed = by_object("materialization_lag", "object_id")
    sources = by_object("source_statistics", "id")
    return [
        _status(
            row,
            lags.get(name, {}) | hydrated.get(name, {}) | blamed.get(name, {}),
            frontiers.get(name),
            sources.get(name, {}),
        )
        for name, row in objects.items()
    ]


def _status(
    row: Mapping[str, Any],
    known: Mapping[str, Any],
    frontier: Mapping[str, Any] | None,
    source: Mapping[str, Any],
) -> ObjectStatus:
    behind, lag_ms = known.get("local_lag"), known.get("lag")
    # An input is to blame when the object itself has read nearly all that the input has.
    waits = behind is not None and lag_ms is not None and behind < lag_ms - FRESH_MS
    return ObjectStatus(
        name=row["id"],
        kind=row["type"],
        status=row["status"],
        lag_ms=lag_ms,
        finished=frontier is not None and frontier["write_frontier"] is None,
        hydrated=known.get("hydrated"),
        rows=source.get("messages_received"),
        since=frontier["read_frontier"] if frontier else None,
        upper=frontier["write_frontier"] if frontier else None,
        error=row["error"] or "",
        hint=row["hint"] or "",
        blame=(known.get("slowest_local_input_id") or "") if waits else "",
    )


def show_status(
    console: Console,
    look: Callable[[], list[ObjectStatus]],
    clock: Clock,
    *,
    ended: threading.Event | None = None,
) -> None:
    """Print the table; on a terminal, refresh it each second until `ended` or an interrupt.

    Args:
        console: Takes the output.
        look: Returns the present lines, as `fetch_status` does.
        clock: Of this process.
        ended: Set it to end; None for never.
    """
    first = look()
    if not console.is_terminal:
        console.print(status_table(first, {}, 0.0))
        return
    ended = ended or threading.Event()
    before, at_ms = _counts(first), clock.elapsed_ms()
    with Live(status_table(first, {}, 0.0), console=console, auto_refresh=False) as live:
        while not clock.wait(ended, _REFRESH_MS):
            shown, now_ms = look(), clock.elapsed_ms()
            live.update(status_table(shown, before, now_ms - at_ms), refresh=True)
            before, at_ms = _counts(shown), now_ms


def _counts(shown: list[ObjectStatus]) -> dict[str, float]:
    return {o.name: o.rows for o in shown if o.rows is not None}


def status_table(shown: list[ObjectStatus], before: Mapping[str, float], passed_ms: float) -> Table:
    """Lay out the table.

    Args:
        shown: Its lines.
        before: Rows of each object at the last refresh, for rates.
        passed_ms: Time since then.
    """
    bad = sum(verdict(o).tone == "bad" for o in shown)
    title = f"{len(shown)} objects, " + (f"{bad} need attention" if bad else "all is well")
    numbers = ("rows/s", "since", "upper")
    table = plain_table("object", "kind", "freshness", *numbers, right=numbers, title=title)
    table.columns[0].overflow = "fold"
    for line in shown:
        found = verdict(line)
        words = Text(found.words, style=_STYLES[found.tone])
        if line.hint and found.tone == "bad":
            words.append(f"\n{line.hint}", style="dim")
        table.add_row(
            line.name,
            line.kind,
            words,
            _rate(line, before, passed_ms),
            _time(line.since),
            "∞" if line.finished else _time(line.upper),
        )
    return table


def _rate(line: ObjectStatus, before: Mapping[str, float], passed_ms: float) -> str:
    if line.rows is None or line.name not in before or passed_ms <= 0:
        return ""
    return f"{max(0.0, line.rows - before[line.name]) * 1000 / passed_ms:,.0f}"


def _time(frontier: int | None) -> str:
    """A frontier as the time of day in UTC; as a number if it is no time of the clock."""
    if frontier is None:
        return ""
    seconds = frontier % _DAY_MS // 1000
    if frontier < _DAY_MS:
        return str(frontier)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
