"""The main job from beginning to end, told to somebody who has never seen a shard.

    tell(settings, console) -> bool      whether the check held

Every step can be cut off by SIGKILL and is repeated by the next run: what has been done is found
done (shards, files, checkpoints), what has not is done then.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from rich.console import Console
from rich.text import Text

from app.config import Settings
from app.demo.check import check
from app.demo.data import DELAYS, FLIGHTS, RANKING, unpack
from app.demo.feed import Feed, landed, split
from app.demo.lake import HISTORY_HOLD, Lake
from app.demo.place import Place, alone, jvm_alone
from app.demo.progress import Standing, Ticker, look
from app.demo.queries import Queries, write_tables
from app.session import open_session
from app.tables import age, moment, plain_table, size, utc
from datasource.client import ShardClient
from datasource.clock import Clock, SystemClock
from datasource.errors import InvalidUsage
from datasource.state import ShardState

__all__ = ["tell"]

_log = logging.getLogger(__name__)

_PROGRESS_MS = 2000.0
_PROGRESS_TERMINAL_MS = 500.0
_POLL_MS = 200.0
_SHOWN_AIRLINES = 6
_ROUNDS_MAX = 1000
"""Each round waits for all three queries; a round that finds more to do has found new data, and
there are 365 files of it."""


@dataclass(frozen=True, slots=True)
class _Cast:
    """What every step needs."""

    settings: Settings
    console: Console
    clock: Clock
    lake: Lake
    place: Place

    def say(self, text: str) -> None:
        """One paragraph, wrapped."""
        self.console.print(Text(text))

    def chapter(self, title: str, explanation: str) -> None:
        """A headline, and what it means."""
        self.console.print()
        self.console.print(Text(title, style="bold"))
        self.console.print(Text(explanation))


def tell(settings: Settings, console: Console, *, fresh: bool) -> bool:
    """Run the job: True if the shards agree with plain Spark over the raw files.

    Args:
        settings: All of them.
        console: Where to tell the story.
        fresh: Whether to drop what earlier runs have made.

    Raises:
        ShardError: The location or a folder cannot be used, or another run works there.
        StreamingQueryException: A query failed.
    """
    clock = SystemClock()
    demo = settings.demo
    if demo.url.startswith("memory:"):
        raise InvalidUsage(
            f"the location '{demo.url}' lives in one process, and Spark runs in several",
            code="INVALID_LOCATION",
            hint="use a folder or s3://bucket/prefix; memory:// is for tests without Spark",
        )
    with alone(demo.data, clock, demo.lock_timeout_ms):
        # Before the JVM: what is wrong with a location is then said within a second.
        client = ShardClient.open(demo.url, settings.storage)
        place = Place(demo.data, client.location.id)
        _introduce(settings, console, client, place)
        spark = open_session("shardline main job")
        # What fails is told in a sentence, and logged in full: no stack traces between the lines.
        spark.sparkContext.setLogLevel("FATAL")
        try:
            # Bound to a name until the end: it holds the lock.
            _lock = jvm_alone(spark, demo.data, clock, demo.lock_timeout_ms)
            lake = Lake(spark, client, settings.storage)
            return _play(_Cast(settings, console, clock, lake, place), fresh=fresh)
        finally:
            # The JVM may be gone, which is then what there is to tell about.
            with contextlib.suppress(Exception):
                spark.stop()


def _introduce(settings: Settings, console: Console, client: ShardClient, place: Place) -> None:
    console.print(Text("Shardline's main job: flights from New York, 2013, as a stream", "bold"))
    console.print(
        Text(
            "A shard is a table that remembers how it changed. Three queries keep shards of these "
            "flights up to date; kill this job at any moment and start it again: it goes on."
        )
    )
    console.print(Text(f"shards       {client.location.url}"))
    console.print(Text(f"other files  {place.data} (daily files, checkpoints, log)"))
    console.print(Text(f"days         {settings.demo.days} of 365"))


def _play(cast: _Cast, *, fresh: bool) -> bool:
    lake, place = cast.lake, cast.place
    if fresh or place.dropping.exists():
        cast.chapter("0. A fresh start", "Dropping the shards, checkpoints and daily files.")
        lake.drop(place)
    lake.check_ours(place)
    unpack(place.source)
    place.make()
    _tables(cast)
    _hold(cast)
    feed = Feed(
        split(place.source / FLIGHTS.file, cast.settings.demo.days),
        place,
        cast.settings.demo.days_per_second,
        cast.clock,
    )
    standing = partial(look, lake.client, place, feed, cast.clock)
    if standing().finished and len(landed(place)) >= len(feed.days):
        cast.chapter(
            "3. The stream",
            f"Nothing to do: all {len(landed(place))} days have arrived, and every query has "
            "taken them in. (--fresh starts over.)",
        )
    else:
        _stream(cast, feed, standing)
    _look_back(cast)
    _show_changes(cast)
    _show_shards(cast)
    return _compare(cast)


def _tables(cast: _Cast) -> None:
    cast.chapter(
        "1. Four tables",
        "Written whole. Only the difference to what is there is stored: again, and it is nothing.",
    )
    for name, (rows, updates) in write_tables(cast.lake, cast.place.source).items():
        change = f"{updates:,} changes stored" if updates else "nothing changed"
        cast.say(f"  {name:9} {rows:6,} rows, {change}")


def _hold(cast: _Cast) -> None:
    for dataset in (FLIGHTS, DELAYS, RANKING):
        cast.lake.make(dataset)
    since = cast.lake.hold_history()
    whole = all(frontier.time == 0 for frontier in since.values())
    cast.chapter(
        "2. A hold on history",
        f"The hold '{HISTORY_HOLD}' keeps three shards readable as of "
        f"{'every time since they were made' if whole else 'earlier times'}, "
        "for the look back below. "
        "It is kept on purpose when this job ends; --fresh gives it up.",
    )


def _stream(cast: _Cast, feed: Feed, standing: Callable[[], Standing]) -> None:
    left = len(feed.days) - feed.landed_days
    going_on = "Going on where the last run stopped. " if cast.place.has_checkpoints else ""
    cast.chapter(
        "3. The stream",
        f"{going_on}{left} days arrive as CSV files, {feed.landed_days} are here. Three queries:\n"
        f"  {FLIGHTS.name:18} takes the files in\n"
        f"  {DELAYS.name:18} follows {FLIGHTS.name}: sums per airline\n"
        f"  {RANKING.name:18} follows {DELAYS.name}: who is late most",
    )
    interval_ms = _PROGRESS_TERMINAL_MS if cast.console.is_terminal else _PROGRESS_MS
    started_ms = cast.clock.elapsed_ms()
    queries = Queries(cast.lake, cast.place, cast.settings.demo.files_per_micro_batch, cast.clock)
    with queries, Ticker(cast.console, cast.clock, standing, interval_ms):
        feed.start()
        try:
            while not feed.wait(_POLL_MS):
                queries.ensure()
            _catch_up(queries, standing)
        finally:
            feed.stop()
    cast.say(f"Everything is in after {age(int(cast.clock.elapsed_ms() - started_ms))}.")


def _catch_up(queries: Queries, standing: Callable[[], Standing]) -> None:
    """Wait until every query has taken in everything, each after the one it follows."""
    for _ in range(_ROUNDS_MAX):
        queries.process_all()
        queries.ensure()
        if standing().finished:
            return
    raise AssertionError(standing())


# --- what came of it ------------------------------------------------------------------------------


def _times(state: ShardState) -> list[int]:
    """Every time at which the shard changed, ascending."""
    parts = (part for batch in state.trace.batches for part in batch.parts)
    return sorted({time for part in parts if part.time_bounds for time in part.time_bounds})


def _look_back(cast: _Cast) -> None:
    """The contents now and at an earlier time, side by side."""
    times = [t for t in _times(cast.lake.state(DELAYS)) if t >= _readable_from(cast)]
    if not times:
        return
    earlier = times[(len(times) - 1) // 2]
    cast.chapter(
        "4. Now, and then",
        "The same shard read twice: now, and with timestampAsOf as it was at "
        f"{earlier} ({utc(earlier)} UTC), half of its changes ago.",
    )
    now, then = (
        {row["carrier"]: row for row in frame.orderBy("carrier").collect()}
        for frame in (
            cast.lake.contents(DELAYS),
            cast.lake.contents(DELAYS, timestampAsOf=earlier),
        )
    )
    ranking = cast.lake.contents(RANKING).orderBy("place").collect()
    numbers = ("flights", "then", "cancelled", "then ", "mean delay, min")
    table = plain_table("", "airline", *numbers, right=["", *numbers])
    for row in ranking[:_SHOWN_AIRLINES]:
        new, old = now[row["carrier"]], then.get(row["carrier"])
        table.add_row(
            str(row["place"]),
            Text(row["name"] or row["carrier"]),
            f"{new['flights']:,}",
            f"{old['flights']:,}" if old else "",
            f"{new['cancelled']:,}",
            f"{old['cancelled']:,}" if old else "",
            f"{row['mean_arr_delay']:.2f}",
        )
    cast.console.print(table)
    if len(ranking) > _SHOWN_AIRLINES:
        cast.say(f"… and {len(ranking) - _SHOWN_AIRLINES} more")


def _readable_from(cast: _Cast) -> int:
    since = cast.lake.state(DELAYS).since.time
    assert since is not None
    return since


def _show_changes(cast: _Cast) -> None:
    times = _times(cast.lake.state(DELAYS))[-3:]
    if not times:
        return
    start = max(times[0], _readable_from(cast) + 1)
    changes = cast.lake.changes(DELAYS, startingTimestamp=start)
    busiest = cast.lake.contents(DELAYS).orderBy(F.desc("flights"), "carrier").first()
    assert busiest is not None
    cast.chapter(
        "5. Changes",
        f"What happened to the row of '{busiest['carrier']}' lately: each change takes the old row "
        "away (_diff -1) and adds the new one (_diff +1), both at the same _ts.",
    )
    numbers = ("_ts", "_diff", "flights", "cancelled", "arr_delay_sum")
    table = plain_table("carrier", *numbers, right=numbers)
    rows = changes.where(F.col("carrier") == busiest["carrier"]).orderBy("_ts", "_diff")
    for row in rows.collect():
        table.add_row(
            row["carrier"],
            str(row["_ts"]),
            f"{row['_diff']:+d}",
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            f"{row['arr_delay_sum']:,}",
        )
    cast.console.print(table)


def _show_shards(cast: _Cast) -> None:
    cast.chapter(
        "6. The shards",
        "since: readable as of this time and later. upper: all before it is settled.",
    )
    numbers = ("rows", "parts", "size", "holds")
    table = plain_table("shard", *numbers, "since", "upper", right=numbers)
    table.columns[0].overflow = "fold"
    for shard in cast.lake.reports():
        holds = [holder for holder in shard.holders if holder.kind == "hold"]
        table.add_row(
            shard.name,
            f"{shard.diff_sum:,}",
            f"{shard.part_count:,}",
            size(shard.size_bytes),
            str(len(holds)),
            moment(shard.since).partition("\n")[0],
            moment(shard.upper).partition("\n")[0],
        )
    cast.console.print(table)
    cast.say(f"More: ./spark-submit.sh inspect {_shell(cast.lake.url)} {DELAYS.name}")


def _shell(url: str) -> str:
    path = url.removeprefix("file://")
    try:
        short = os.path.relpath(path) if path != url else path
    except ValueError:
        short = path
    shown = short if len(short) < len(path) and not short.startswith("..") else path
    return f"'{shown}'" if " " in shown else shown


def _compare(cast: _Cast) -> bool:
    cast.chapter(
        "7. Is it true?",
        "The same questions, asked of plain Spark over the raw CSV files.",
    )
    table = plain_table("", "plain Spark", "shards", " ", right=("plain Spark", "shards"))
    holds = True
    for finding in check(cast.lake, cast.place, landed(cast.place)):
        holds = holds and finding.agrees
        verdict = "equal" if finding.agrees else "DIFFERENT"
        table.add_row(finding.what, f"{finding.expected:,}", f"{finding.found:,}", verdict)
    cast.console.print(table)
    cast.say(
        "The check holds."
        if holds
        else "THE CHECK DOES NOT HOLD. If these shards or files were changed by something else, "
        "start over with --fresh; otherwise please report it, with the log."
    )
    return holds
