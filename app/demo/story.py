"""The story runs the demo from beginning to end, and explains it to a newcomer as it goes on.

    run_demo(settings, console, capture, fresh=False, stay=False) -> bool

The result is True if the check held: the shards agree with plain Spark over the raw files.

Every step can be cut off by SIGKILL and is repeated by the next run, which leaves out what is done
already (objects, files, offsets).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from shardline.app.cli.explain_plan import plan_view
from shardline.app.cli.result_table import result_table
from shardline.app.cli.start_progress import StartProgress
from shardline.app.cli.status import fetch_status, status_view
from shardline.app.cli.tables import age, plain_table, utc
from shardline.app.compute.results import from_ipc
from shardline.app.coordinator.application import Application
from shardline.app.demo.check import Check
from shardline.app.demo.data import FLIGHTS, unpack
from shardline.app.demo.feed import Feed, landed, split
from shardline.app.demo.flights import apply_project, load_project, refuse_other_project, start_over
from shardline.app.demo.place import Place, lock_folder
from shardline.app.demo.progress import (
    DemoProgress,
    FailureWatch,
    Objects,
    ProgressDisplay,
    last_arrival_ms,
    read_progress,
    settled_time,
)
from shardline.app.logs import log_hint
from shardline.app.protocol.compute import SubscribeDropped
from shardline.app.protocol.objects import SourceDescription
from shardline.app.server.application_server import ServedApplication, serve_application
from shardline.app.server.introspection_needed import check_introspection
from shardline.app.server.start_mark import start_mark
from shardline.app.settings.config import Settings
from shardline.app.spark_session import open_session, settings_within, stop_session
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, SystemClock
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.installation import CONF, PROGRAM, folder_of_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.cli.stderr_capture import StderrCapture
    from shardline.app.project.project import CheckedProject

__all__ = ["run_demo"]

T = TypeVar("T")

_PROGRESS_MS: Final = 2000.0
_PROGRESS_TERMINAL_MS: Final = 500.0
_POLL_MS: Final = 300.0
_SHOWN_CHANGES: Final = 6

_RANKING: Final = """\
SELECT r.place, r.name AS airline, d.flights, d.cancelled,
       round(r.mean_arr_delay, 2) AS mean_delay_min
FROM carrier_ranking r JOIN delays_by_carrier d ON d.carrier = r.carrier
ORDER BY r.place LIMIT 6"""

_ONE: Final = "SELECT * FROM carrier_ranking WHERE carrier = 'UA'"


@dataclass(frozen=True, slots=True)
class _Context:
    """The values that every step of the story needs."""

    settings: Settings
    console: Console
    clock: Clock
    spark: SparkSession
    client: ShardClient
    place: Place
    resolved: CheckedProject
    application: Application
    where: ServedApplication

    def say(self, text: str) -> None:
        """Print a paragraph, wrapped."""
        self.console.print(Text(text))

    def chapter(self, title: str, explanation: str) -> None:
        """Print a headline and its explanation."""
        self.console.print()
        self.console.print(Text(title, style="bold"))
        self.console.print(Text(explanation))

    def ask(self, query: str) -> pa.Table:
        """Run a query, and print it with its result."""
        self.console.print(Padding(Text(query, style="cyan"), (1, 0, 0, 2)))
        result = self.application.sql(query)
        self.console.print(result_table(result))
        return result


def run_demo(
    settings: Settings, console: Console, capture: StderrCapture, *, fresh: bool, stay: bool
) -> bool:
    """Run the job: True if the shards agree with plain Spark over the raw files.

    Args:
        settings: All settings.
        console: Takes the story.
        capture: Of this process.
        fresh: True to drop what earlier runs have made.
        stay: True to go on running after the check, until Ctrl-C.

    Raises:
        ShardError: The location or a folder cannot be used, or another run works there.
    """
    clock = SystemClock()
    demo = settings.demo
    check_introspection(settings.runtime)
    if demo.url.startswith("memory:"):
        raise InvalidUsage(
            f"the location '{demo.url}' lives in one process, and Spark runs in several",
            code="INVALID_LOCATION",
            hint="use a folder or s3://bucket/prefix; memory:// is for tests without Spark",
        )
    with lock_folder(demo.data, clock, demo.lock_timeout_ms), contextlib.ExitStack() as open_:
        # Before the JVM starts: an error of the location then takes a second, and not ten.
        client = ShardClient.open(demo.url, settings.storage)
        place = Place(demo.data, client.location.id)
        _introduce(settings, console, client, place, capture)
        with start_mark(demo.data), StartProgress(console) as progress:
            unpack(place.source)
            feed = None
            if not (fresh or place.dropping.exists()):
                # While Spark starts: something moves in the first seconds, and there is something
                # to read once the objects run.
                feed = open_.enter_context(_start_feed(settings, place, clock))
                progress.follow(partial(_days_arrived, feed))
            progress.step("starting Spark")
            within = settings_within(demo.data)
            spark = capture.start_spark(lambda: open_session("shardline main job", within))
            # If the JVM is gone, that is the error to report, and not that it cannot be stopped.
            open_.callback(stop_session, spark)
            progress.step("checking the project")
            # Before the check: a source whose folder is not there would be refused.
            place.make()
            resolved = load_project(place).check(spark)
            progress.step("starting the runtime")
            application = open_.enter_context(
                Application(
                    spark, client, settings.runtime, data=demo.data, storage=settings.storage
                )
            )
            refuse_other_project(application, resolved)
            where = open_.enter_context(serve_application(application, settings.runtime, demo.data))
        cast = _Context(
            settings, console, clock, spark, client, place, resolved, application, where
        )
        console.print(Text(f"page         {where.page_link()}"), soft_wrap=True)
        holds = _start_over(cast) if feed is None else _play(cast, feed)
        if stay:
            _stay(cast)
        return holds


def _introduce(
    settings: Settings,
    console: Console,
    client: ShardClient,
    place: Place,
    capture: StderrCapture,
) -> None:
    console.print(Text("Shardline's main job: flights from New York, 2013, as a stream", "bold"))
    console.print(
        Text(
            "A shard is a table that remembers how it changed. SQL views over shards of these "
            "flights are kept up to date by one runtime; kill it at any moment and start it "
            "again: it goes on."
        )
    )
    console.print(Text(f"shards       {client.location.url}"))
    console.print(Text(f"other files  {place.data} (daily files, checkpoints)"))
    console.print(Text(f"log          {capture.log_file}"))
    console.print(Text(f"days         {settings.demo.days} of 365"))


def _start_feed(settings: Settings, place: Place, clock: Clock) -> Feed:
    """Let the first days arrive; use what is returned as a context manager."""
    place.make()
    days = split(place.source / f"{FLIGHTS}.csv", settings.demo.days)
    return Feed(days, place, settings.demo.days_per_second, clock)


def _days_arrived(feed: Feed) -> str:
    return f"{feed.landed_days} of {len(feed.days)} days have arrived"


def _start_over(cast: _Context) -> bool:
    """Drop what earlier runs have made, and play from the beginning."""
    cast.chapter("0. A fresh start", "Dropping the objects, their shards and the daily files.")
    start_over(cast.application, cast.client, cast.place, cast.resolved)
    with _start_feed(cast.settings, cast.place, cast.clock) as feed:
        return _play(cast, feed)


def _play(cast: _Context, feed: Feed) -> bool:
    _project(cast)
    at = _stream(cast, feed)
    _look_back(cast, at)
    _show_index(cast)
    _show_objects(cast)
    return _compare(cast, at)


# --- the steps --------------------------------------------------------------------------------


def _project(cast: _Context) -> None:
    cast.chapter(
        "1. The project",
        "conf/demo has the SQL: sources, views, an index and a sink. What is not there yet is "
        "made; what is there goes on.",
    )
    plan = apply_project(cast.application, cast.place, cast.resolved)
    cast.console.print()
    cast.console.print(plan_view(plan))


def _stream(cast: _Context, feed: Feed) -> int:
    """Land every day, and wait until every object has them; returns the time that all have."""
    landed_days = feed.landed_days
    left = len(feed.days) - landed_days
    arrive = f"{left} days arrive as CSV files, {landed_days} are here."
    if not feed.had_to_land:
        arrive = f"Nothing to do: all {landed_days} days have arrived (--fresh starts over)."
    data = _data_option(cast)
    cast.chapter("2. The stream", f"{arrive} Meanwhile, in another terminal:")
    for command in (
        "status",
        'sql "SELECT * FROM carrier_ranking ORDER BY place"',
        "subscribe carrier_ranking",
    ):
        cast.console.print(Text(f"  {PROGRAM} {command}{data}"), soft_wrap=True)
    interval_ms = _PROGRESS_TERMINAL_MS if cast.console.is_terminal else _PROGRESS_MS
    started_ms = cast.clock.elapsed_ms()
    whole = len(cast.resolved.descriptions)
    standing = partial(read_progress, cast.client, cast.where, feed, whole, cast.clock)
    with ProgressDisplay(cast.console, cast.clock, standing, interval_ms):
        _until(cast, standing, lambda objects: _all_run(objects) or None)
        feed.go_on()
        at = _catch_up(cast, feed, standing)
    cast.say(f"Everything is in after {age(int(cast.clock.elapsed_ms() - started_ms))}.")
    return at


def _catch_up(cast: _Context, feed: Feed, standing: Callable[[], DemoProgress]) -> int:
    """Wait until every object has all flights; returns the last time that all have settled."""
    _until(cast, standing, lambda _: feed.wait(0) or None)
    described = cast.resolved.descriptions.values()
    tables = [one.name for one in described if isinstance(one, SourceDescription)]
    last = _until(cast, standing, lambda _: last_arrival_ms(cast.client, feed, tables))
    return _until(cast, standing, lambda objects: settled_time(objects, last))


def _until(
    cast: _Context, standing: Callable[[], DemoProgress], found: Callable[[Objects], T | None]
) -> T:
    """Wait until all objects exist and `found` returns a value for them; returns the value.

    Raises:
        Determinate: An object fails, and does not recover.
        Fenced: Another runtime has taken over.
    """
    patience, never = FailureWatch(cast.clock), threading.Event()
    while True:
        objects = standing().objects
        if len(objects) == len(cast.resolved.descriptions):
            what = found(objects)
            if what is not None:
                return what
        failing = patience.check(objects)
        if failing is not None:
            raise Determinate(
                f"'{failing.name}' is {failing.verdict}: {failing.because}",
                code="OBJECT_FAILED",
                hint=failing.to_do or log_hint(),
            )
        if cast.application.lost is not None:
            raise cast.application.lost
        cast.clock.wait(never, _POLL_MS)


def _all_run(objects: Objects) -> bool:
    """True if each object is fresh."""
    return all(one.tone in ("good", "idle") for one in objects)


def _data_option(cast: _Context) -> str:
    """The option by which other commands find this run; "" if they find it without one."""
    default = folder_of_paths(CONF / "app.toml") / "data"
    return "" if cast.place.data == default else f" --data '{cast.place.data}'"


# --- the results ------------------------------------------------------------------------------


def _look_back(cast: _Context, at: int) -> None:
    """Show contents now and at an earlier time, and changes in between."""
    cast.chapter("3. A query", "Over two views at one time, after everything that was written.")
    cast.ask(_RANKING)
    changes = _changes(cast, at)
    times = sorted(set(changes["_ts"].to_pylist()))
    if not times:
        return
    earlier = times[(len(times) - 1) // 2]
    cast.chapter(
        "4. Now, and then",
        f"The same as it was at {utc(earlier)} UTC, half of the changes ago.",
    )
    cast.ask(f"{_RANKING}\nAS OF '{utc(earlier)}'")
    _show_changes(cast, changes)


def _changes(cast: _Context, at: int) -> pa.Table:
    """Read all changes of the delays since the shard's since, by a subscription up to `at`."""
    since = cast.client.state("delays_by_carrier").since.time
    assert since is not None
    begun = min(since, at)
    query = f"SUBSCRIBE delays_by_carrier WITHOUT SNAPSHOT AS OF {begun} UP TO {at + 1}"
    subscription = cast.application.subscribe(query)
    found: list[pa.Table] = []
    try:
        for batch in subscription:
            if isinstance(batch, SubscribeDropped):
                break
            if batch.updates is not None:
                found.append(from_ipc(batch.updates))
            if batch.upper is not None and batch.upper > at:
                break
    finally:
        subscription.close()
    if not found:
        return pa.table({"_ts": pa.array([], pa.int64())})
    return pa.concat_tables(found)


def _show_changes(cast: _Context, changes: pa.Table) -> None:
    # The airline with the most changes: others may have one only.
    counts = changes["carrier"].value_counts().to_pylist()
    busiest = max(counts, key=lambda one: (one["counts"], one["values"]))["values"]
    cast.chapter(
        "5. Changes",
        f"What happened to the row of '{busiest}' lately, as a subscription tells it: each change "
        "takes the old row away (_diff -1) and adds the new one (_diff +1), both at the same _ts.",
    )
    shown = changes.filter(pc.equal(changes["carrier"], busiest))
    shown = shown.sort_by([("_ts", "ascending"), ("_diff", "ascending")])
    last = shown.slice(max(shown.num_rows - _SHOWN_CHANGES, 0))
    times = pa.array([utc(time) for time in last["_ts"].to_pylist()])
    columns = ["carrier", "_diff", "flights", "cancelled", "arr_delay_sum"]
    cast.console.print(result_table(last.select(columns).add_column(1, "_ts, UTC", times)))


def _show_index(cast: _Context) -> None:
    cast.chapter("6. A look-up", "Answered from the index on carrier_ranking: no Spark job runs.")
    cast.ask(_ONE)


def _show_objects(cast: _Context) -> None:
    cast.chapter("7. What runs", "As the command status shows it, with a verdict in words.")
    seen = fetch_status(cast.where, cast.clock.now_ms())
    cast.console.print(status_view(seen, width=cast.console.width))


def _compare(cast: _Context, at: int) -> bool:
    cast.chapter(
        "8. Is it true?",
        "The same questions, asked of plain Spark over the raw CSV files.",
    )
    table = plain_table("", "plain Spark", "shards", " ", right=("plain Spark", "shards"))
    check = Check(
        cast.spark,
        cast.client.location.url,
        cast.settings.storage,
        cast.place,
        cast.resolved.schemas,
    )
    holds = True
    days: Sequence[str] = landed(cast.place)
    for finding in check.findings(days, at):
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


def _stay(cast: _Context) -> None:
    cast.say(f"Still running; {cast.where.page_link()}; Ctrl-C stops it.")
    never = threading.Event()
    while cast.application.lost is None:
        cast.clock.wait(never, _POLL_MS)
    raise cast.application.lost
