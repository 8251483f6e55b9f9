"""The `status` command shows every object with its verdict, why, and what to do.

    seen = fetch_status(find(folder), clock.now_ms())
    console.print(status_view(seen, width=100))
    watch_status(console, look, clock)      refreshes until interrupted

The words are those of the relations `verdicts` and `verdict_summary`, which the application
computes: nothing is judged here. All values come over `/api/v1`, so the command runs on any machine
that reaches the application, without Spark. Times are in the reader's zone, which the title names.
"""

from __future__ import annotations

import fnmatch
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from shardline.app.cli.noted_table import NotedTable
from shardline.app.cli.tables import COLUMN_GAP, NAME_WIDTH, plain_table, size
from shardline.app.introspection.verdicts.wording import span
from shardline.app.protocol.object_state import VERDICTS, Tone, Verdict
from shardline.app.server.client import get_json
from shardline.app.server.discovery import ApplicationAddress
from shardline.datasource.clock import Clock
from shardline.datasource.errors import unknown_names

__all__ = [
    "ObjectStatus",
    "SystemStatus",
    "fetch_status",
    "filter_status",
    "status_json",
    "status_table",
    "status_view",
    "watch_status",
]

_REFRESH_MS: Final = 1_000
_NARROW: Final = 70
"""Below this width it has names, verdicts and lags alone."""

_GIVE_WAY: Final = ("changed", "size", "rows/s", "restarts", "rows", "errors")
"""Columns that are left out, one after the other, where names would be broken for them."""

_WHOLE_NAME: Final = 24
"""Names up to this length are not broken for other columns."""

_STYLES: Final[Mapping[Tone, str]] = {
    "good": "green",
    "wait": "yellow",
    "bad": "bold red",
    "idle": "dim",
}

_ORDER: Final = tuple(VERDICTS)
"""Verdicts, from the best to the worst."""


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """One object; None stands for a value that is not known.

    Attributes:
        name: Of the object.
        kind: source, view, index, sink or subscribe.
        verdict: In a word or two.
        tone: good, idle, wait or bad.
        because: Why; "" if there is nothing to say.
        to_do: What to do about it.
        blame: The object that is the cause; "" if it is this one, or nothing is wrong.
        needs_a_person: True if it does not become well by itself: it is bad, or waits for one that
            is.
        since: Since when it is so, ISO 8601.
        ready_at: When it is expected to be fresh.
        lag_ms: Lag behind the clock.
        finished: True if its output is complete for ever.
        rows: Rows of its contents.
        size_bytes: Their size in the shard, encoded, with all history that is kept.
        received: Rows that a source has received so far.
        changed_at: When rows of it have come or gone the last time.
        errors: Live errors by which reads of it fail.
        restarts: How often it was started again.
        retry_at: When it is started again, if it is suspended.
        read_frontier: It can be read from here on; ms since the epoch.
        write_frontier: Everything before is settled; ms since the epoch.
    """

    name: str
    kind: str
    verdict: Verdict = "healthy"
    tone: Tone = "good"
    because: str = ""
    to_do: str = ""
    blame: str = ""
    needs_a_person: bool = False
    since: str | None = None
    ready_at: str | None = None
    lag_ms: int | None = None
    finished: bool = False
    rows: int | None = None
    size_bytes: int | None = None
    received: float | None = None
    changed_at: str | None = None
    errors: int = 0
    restarts: int = 0
    retry_at: str | None = None
    read_frontier: int | None = None
    write_frontier: int | None = None


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """The whole.

    Attributes:
        summary: In a sentence or two.
        at_ms: When it was fetched, ms since the epoch.
        objects: All objects, or those that a filter has left.
    """

    summary: str
    at_ms: int
    objects: tuple[ObjectStatus, ...]

    @property
    def needs_a_person(self) -> bool:
        """True if an object does not become well by itself."""
        return any(one.needs_a_person for one in self.objects)


def fetch_status(where: ApplicationAddress, now_ms: int) -> SystemStatus:
    """Fetch the status of every object from a running application.

    Args:
        where: The application.
        now_ms: Now, ms since the epoch.

    Raises:
        InvalidUsage: Nothing answers there, or the token is refused.
        Determinate: It did not answer in time, or failed.
    """

    def rows(relation: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = get_json(where, f"relations/{relation}")["rows"]
        return found

    known = {
        relation: {row[column]: row for row in rows(relation)}
        for relation, column in _RELATIONS.items()
    }
    (whole,) = rows("verdict_summary")
    verdicts = rows("verdicts")
    bad = {row["object_id"] for row in verdicts if row["bad"]}
    return SystemStatus(
        whole["summary"], now_ms, tuple(_status(row, known, bad) for row in verdicts)
    )


_RELATIONS: Final = {
    "objects": "id",
    "wallclock_lag": "object_id",
    "frontiers": "object_id",
    "error_counts": "export_id",
    "source_statistics": "id",
}
"""Relations beside the verdicts, each with the column that names the object."""


def _status(
    row: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Mapping[str, Any]]],
    bad: Collection[str],
) -> ObjectStatus:
    name, kind = row["object_id"], row["type"]
    found = {relation: rows.get(name, {}) for relation, rows in known.items()}
    frontier = found["frontiers"]
    return ObjectStatus(
        name=name,
        kind=kind,
        verdict=row["verdict"],
        tone=row["tone"],
        because=row["because"] or "",
        to_do=row["to_do"] or "",
        blame=row["blame_id"] or "",
        needs_a_person=name in bad or row["blame_id"] in bad,
        since=row["since"],
        ready_at=row["ready_at"],
        lag_ms=found["wallclock_lag"].get("lag"),
        finished=bool(frontier) and frontier["write_frontier"] is None,
        rows=row["records"],
        size_bytes=row["size"],
        received=found["source_statistics"].get("messages_received"),
        changed_at=row["changed_at"],
        errors=found["error_counts"].get("count", 0),
        restarts=max(0, (found["objects"].get("epoch") or 1) - 1),
        retry_at=row["retry_at"],
        read_frontier=frontier.get("read_frontier"),
        write_frontier=frontier.get("write_frontier"),
    )


def filter_status(
    seen: SystemStatus,
    names: Sequence[str] = (),
    *,
    kinds: Sequence[str] = (),
    verdicts: Sequence[str] = (),
    only_bad: bool = False,
    may_lack: bool = False,
) -> SystemStatus:
    """Keep the objects that pass every filter; an empty filter passes all.

    Args:
        seen: The whole.
        names: Names or patterns, as a shell has them: `orders*`.
        kinds: source, view, index, sink or subscribe.
        verdicts: Verdicts; `catching-up` stands for `catching up`.
        only_bad: Only those that need a person; of one that waits for another, that one if it is
            among the others that are asked for.
        may_lack: True if a name may be of no object, as of one that was dropped while it is
            watched.

    Raises:
        InvalidUsage: `UNKNOWN_OBJECT`: no object has a name, or a name like a pattern, of `names`;
            it tells all of those. Whoever asks for an object must not be told that it is well
            because there is none.
    """
    every = [one.name for one in seen.objects]
    lacking = [name for name in names if not any(fnmatch.fnmatchcase(one, name) for one in every)]
    if lacking and not may_lack:
        raise unknown_names("object", lacking, every)
    wanted = {verdict.replace("-", " ") for verdict in verdicts}
    asked = [
        one
        for one in seen.objects
        if (not names or any(fnmatch.fnmatchcase(one.name, name) for name in names))
        and (not kinds or one.kind in kinds)
        and (not wanted or one.verdict in wanted)
    ]
    bad = {one.name for one in asked if one.tone == "bad"}
    return replace(
        seen,
        objects=tuple(
            one
            for one in asked
            if not only_bad or one.name in bad or (one.needs_a_person and one.blame not in bad)
        ),
    )


def status_json(seen: SystemStatus) -> dict[str, Any]:
    """The status for JSON: names are stable; times are ISO 8601 in UTC, frontiers milliseconds."""
    return {"summary": seen.summary, "objects": [asdict(one) for one in seen.objects]}


def status_view(
    seen: SystemStatus,
    *,
    width: int,
    height: int | None = None,
    before: SystemStatus | None = None,
    zone: tzinfo | None = None,
) -> RenderableType:
    """Lay out the summary and the table.

    Args:
        seen: The status.
        width: Columns of the terminal.
        height: Its lines, where what does not fit is never seen; None where it scrolls.
        before: The last look, for rates.
        zone: Of the reader; None for the machine's.
    """
    at = datetime.fromtimestamp(seen.at_ms / 1000, UTC).astimezone(zone)
    shown = f"{at:%Y-%m-%d %H:%M:%S} {at.tzname()}"
    head = Text.assemble((seen.summary, "bold"), "  ", (shown, "dim"))
    above = Group(head, Text())
    return status_table(seen, width=width, height=height, before=before, above=above)


def status_table(
    seen: SystemStatus,
    *,
    width: int,
    height: int | None = None,
    before: SystemStatus | None = None,
    above: RenderableType | None = None,
) -> RenderableType:
    """Lay out the table: a line for each object, and below it why it is not well.

    Args:
        seen: The status.
        width: Columns of the terminal.
        height: Its lines, where what does not fit is never seen: the objects come first, then the
            reason of the worst one. None where it scrolls.
        before: The last look, for rates.
        above: What is shown above it, on the same lines.
    """
    rows = _columns(seen, width, before)
    kind = width >= _NARROW
    texts = ("kind", "verdict") if kind else ("verdict",)
    table = plain_table(
        "object", *texts, *rows, right=rows, fold=("object", "verdict"), least=NAME_WIDTH
    )
    noted = NotedTable(
        table, above=above, height=height, say_rest=lambda left: _say_rest(seen, left)
    )
    for position, one in enumerate(seen.objects):
        named = (one.name, one.kind) if kind else (one.name,)
        verdict = Text(one.verdict, style=_STYLES[one.tone])
        values = (texts[position] for texts in rows.values())
        noted.add_row(*named, verdict, *values, notes=_notes(one), badness=_badness(one))
    if seen.objects:
        return noted
    nothing = Text("nothing to show", style="dim")
    return nothing if above is None else Group(above, nothing)


def _notes(one: ObjectStatus) -> list[Text]:
    """Why it is not well, and what to do."""
    if one.tone not in ("bad", "wait"):
        return []
    remedy = f"→ {one.to_do}" if one.to_do else ""
    return [Text(text, style) for text, style in ((one.because, ""), (remedy, "dim")) if text]


def _badness(one: ObjectStatus) -> int:
    """Of what needs a person first; then by the verdict; a cause is worse than what it causes."""
    return 2 * _ORDER.index(one.verdict) - bool(one.blame)


def _say_rest(seen: SystemStatus, positions: Sequence[int]) -> str:
    verdicts = Counter(seen.objects[position].verdict for position in positions)
    counted = [f"{many} {verdict}" for verdict, many in verdicts.items()]
    said = ", ".join(counted) if len(counted) > 1 else f"all {next(iter(verdicts))}"
    return f"and {len(positions)} more: {said}"


def _columns(seen: SystemStatus, width: int, before: SystemStatus | None) -> dict[str, list[str]]:
    """The columns that say something, by name, each with a text for every object."""
    every = seen.objects
    found = {"lag": [_lag(one) for one in every]}
    if width < _NARROW:
        return found  # names, verdicts and what to do need all the rest of it
    found["rows"] = [_count(one.rows) for one in every]
    if before is not None:
        rates = _rates(seen, before)
        found["rows/s"] = [rates.get(one.name, "") for one in every]
    found["size"] = ["" if o.size_bytes is None else size(o.size_bytes) for o in every]
    found["changed"] = [_ago(one.changed_at, seen.at_ms) for one in every]
    # Rare and important: their columns are there when there is something in them.
    found["errors"] = [_count(one.errors or None) for one in every]
    found["restarts"] = [_count(one.restarts or None) for one in every]
    found["retry"] = [_in(one.retry_at, seen.at_ms) for one in every]
    found["ready"] = [_in(one.ready_at, seen.at_ms) for one in every]
    told = {name: texts for name, texts in found.items() if any(texts)}
    return _fitting(told, width - _width_of_words(every))


def _width_of_words(objects: Sequence[ObjectStatus]) -> int:
    """Columns that names, kinds and verdicts take."""
    names = [min(len(one.name), _WHOLE_NAME) for one in objects]
    kinds = [len(one.kind) for one in objects]
    verdicts = [len(one.verdict) for one in objects]
    return (
        sum(max(lengths, default=0) + COLUMN_GAP for lengths in (names, kinds, verdicts))
        - COLUMN_GAP
    )


def _fitting(columns: dict[str, list[str]], room: int) -> dict[str, list[str]]:
    """The columns that fit beside the names; what is told least about trouble gives way."""
    widths = {name: COLUMN_GAP + max(map(len, (name, *texts))) for name, texts in columns.items()}
    for name in _GIVE_WAY:
        if sum(widths.values()) > room:
            widths.pop(name, None)
    return {name: texts for name, texts in columns.items() if name in widths}


def _lag(one: ObjectStatus) -> str:
    if one.finished:
        return "finished"
    return "" if one.lag_ms is None else span(one.lag_ms)


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _ago(moment: str | None, now_ms: int) -> str:
    return "" if moment is None else f"{span(-_until_ms(moment, now_ms))} ago"


def _in(moment: str | None, now_ms: int) -> str:
    return "" if moment is None else f"in {span(_until_ms(moment, now_ms))}"


def _until_ms(moment: str, now_ms: int) -> float:
    return datetime.fromisoformat(moment).timestamp() * 1000 - now_ms


def _rates(seen: SystemStatus, before: SystemStatus) -> dict[str, str]:
    """Rows that each source has received in a second, between two looks."""
    passed_ms = seen.at_ms - before.at_ms
    known = {one.name: one.received for one in before.objects}
    return {
        one.name: f"{max(0.0, one.received - was) * 1000 / passed_ms:,.0f}"
        for one in seen.objects
        if passed_ms > 0 and one.received is not None and (was := known.get(one.name)) is not None
    }


def watch_status(
    console: Console,
    look: Callable[[], SystemStatus],
    clock: Clock,
    *,
    ended: threading.Event | None = None,
) -> None:
    """Show the status and refresh it each second, until `ended` or an interrupt.

    Args:
        console: Takes the output: in place on a terminal, one table after the other elsewhere.
        look: Returns the present status.
        clock: Of this process.
        ended: Set it to end; None for never.
    """
    ended = ended or threading.Event()
    seen = look()
    if not console.is_terminal:
        console.print(status_view(seen, width=console.width))
        while not clock.wait(ended, _REFRESH_MS):
            before, seen = seen, look()
            console.print(status_view(seen, width=console.width, before=before))
        return
    first = status_view(seen, width=console.width, height=console.height)
    with Live(first, console=console, auto_refresh=False) as live:
        while not clock.wait(ended, _REFRESH_MS):
            before, seen = seen, look()
            view = status_view(seen, width=console.width, height=console.height, before=before)
            live.update(view, refresh=True)
