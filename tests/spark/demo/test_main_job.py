"""The main job on a slice of the real data: killed, interrupted, started again, and still right.

Each run is a real process, and dear: three of them show everything. One is killed when it has
printed or done something, never after a time; the seed decides which view is waited for. What the
shards hold in the end is compared with DuckDB over the package's CSV files, without Spark.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from support.page.browser import browsing, chromium_path, pictures_folder
from support.page.demo_walk import DemoWalk, Visitor
from support.processes.job import running_job

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20130101
DAYS = 20
DAYS_FIRST = 16
"""Of the first run: the others also show that more days can be asked for later."""

A_DAY_IN_S = 15
"""Pace of the first run: some days have arrived when it is visited, and others come meanwhile."""

WITH_UI = ("--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0")
"""Spark's own pages, at any free port."""

SOME_IN = r"flights (?!0 )[\d,]+ rows"
"""In a line of progress: flights have been taken in."""


@dataclass
class Story:
    """What happened, run by run."""

    data: Path
    before_first_day: str = ""
    killed: str = ""
    walk: DemoWalk | None = None
    interrupted: tuple[int, str] = (0, "")
    finished: tuple[int, str] = (0, "")

    @property
    def client(self) -> ShardClient:
        """The shards, without Spark."""
        return ShardClient.open(str(self.data / "shards"), create=False)

    @property
    def days_arrived(self) -> int:
        """How many daily files there are for Spark to see."""
        return len(list(self.data.glob("work/*/landing/*.csv")))

    def upper(self, shard: str) -> int:
        """How far a shard is; 0 if it is not there yet."""
        client = self.client
        return (client.state(shard).upper.time or 0) if client.exists(shard) else 0

    def contents(self, shard: str, as_of: int | None = None) -> pa.Table:
        """What a shard holds."""
        with self.client.reader(shard) as reader:
            return reader.snapshot(as_of)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """One run interrupted while flights arrive, one killed once all have, and one that ends.

    All of them are looked at by the same window of a browser, if there is one.
    """
    with ExitStack() as open_:
        return tell(tmp_path_factory.mktemp("main jöb"), open_)


def tell(folder: Path, open_: ExitStack) -> Story:
    """Let it happen in a folder."""
    told = Story(folder / "data")
    pace = str(1 / A_DAY_IN_S)
    first = ["--data", str(told.data), "--days", str(DAYS_FIRST), "--days-per-second", pace]
    more = ["--data", str(told.data), "--days", str(DAYS)]
    visitor = open_.enter_context(visiting())
    told.walk = None if visitor is None else visitor.walk

    with running_job(folder, *first, command="demo", options=WITH_UI) as job:
        job.wait_for("the first day has arrived", lambda: told.days_arrived > 0)
        told.before_first_day = job.said
        job.wait_for_line(SOME_IN)
        # What is looked at waits for its object by itself.
        job.wait_for("some days have arrived", lambda: told.days_arrived > DAYS_FIRST // 8)
        if visitor is not None:
            visitor.walk_through(job.said)
            visitor.look_into_spark()
            with trouble(told):
                visitor.see_trouble(ranking_out="stalled")
            visitor.see_recovery("ranking_out")
        told.interrupted = job.interrupt(), job.said
    with running_job(folder, *more, command="demo") as job:
        # As files: the last run has nothing to land, but may have something to take in.
        if visitor is not None:
            job.wait_for_line(r"^page ")
            visitor.open(job.said)
            visitor.stay()
        job.wait_for("all days have arrived", lambda: told.days_arrived == DAYS)
        view = random.Random(SEED).choice(["delays_by_carrier", "carrier_ranking"])
        before = told.upper(view)
        job.wait_for(f"{view} goes on", lambda: told.upper(view) > before)
        job.kill("all")
        told.killed = f"when {view} had gone on"
        if visitor is not None:
            visitor.see_loss()
    with running_job(folder, *more, command="demo") as job:
        if visitor is not None:
            visitor.see_return()
        told.finished = job.finish(), job.said
    return told


@contextmanager
def visiting() -> Iterator[Visitor | None]:
    """Somebody with a browser, if there is one."""
    if not chromium_path():
        yield None
        return
    with browsing() as browser:
        yield Visitor(browser, pictures_folder())


@contextmanager
def trouble(story: Story) -> Iterator[None]:
    """Take away where a sink writes, and give it back in the end.

    Not what a view reads: one that follows changes goes on without what it has read already.
    """
    (target,) = story.data.glob("work/*/out/carrier_ranking")
    target.rename(target.with_name(f"{target.name} away"))
    target.write_text("a file where a folder was")
    try:
        yield
    finally:
        target.unlink()
        target.with_name(f"{target.name} away").rename(target)


@pytest.mark.night
def test_the_check_holds_after_a_kill(story: Story) -> None:
    """The run after the kill goes on, ends, and agrees with plain Spark."""
    status, said = story.finished
    assert status == 0, f"{story.killed}\n{said}"
    assert "The check holds." in said
    assert said.count(" equal") >= 13
    assert "Traceback" not in said


def test_days_arrive_while_spark_starts(story: Story) -> None:
    """There is something to see in the first seconds, and something to read for the sources."""
    assert "checking the project" not in story.before_first_day


@pytest.fixture
def walk(story: Story) -> DemoWalk:
    """What was seen in the browser."""
    if story.walk is None:
        pytest.skip("there is no Chromium: install Debian's `chromium`, or name one in CHROMIUM")
    return story.walk


def test_the_page_shows_it(walk: DemoWalk) -> None:
    """Opened by the printed link while it runs, screen by screen; nothing breaks a rule."""
    assert walk.wrong == []
    objects = {"flights", "airlines", "very_late", "ranking_out", "carrier_ranking_by_carrier"}
    assert {name for name in objects if name not in walk.text["/"]} == set()
    assert "mean_arr_delay" in walk.text["/object/carrier_ranking"]
    assert all(word in walk.ranking for word in ("carrier", "place", "UA"))


def test_an_object_leads_to_its_query_in_sparks_ui(walk: DemoWalk) -> None:
    """A view to that of its group; others have the name of their object, its id and incarnation."""
    assert re.search(r"^Name: group:[0-9a-f]+:\d+$", walk.in_spark, re.MULTILINE)
    named = set(re.findall(r"\b(\w+):u\d+:\d+", walk.queries))
    assert named >= {"flights", "airlines", "planes", "airports", "ranking_out"}
    assert "group:" in walk.queries


def test_each_query_in_sparks_ui_says_which_objects_it_is_of(walk: DemoWalk) -> None:
    """A source or sink is named so; the views of a group have a section each."""
    said = walk.sections_in_spark
    assert len(said) == 5, said
    assert [name for name, titles in said.items() if not titles] == []
    for name, titles in said.items():
        owner = name.partition(":")[0]
        if owner != "group":
            assert any(re.search(rf"\b{owner}\b", title) for title in titles), (name, titles)


def test_sparks_ui_shows_our_metrics_and_leads_back(walk: DemoWalk) -> None:
    """By the names of `/metrics`, with the object's verdict; the link was followed."""
    for name in ("object_lag_seconds", "object_upper_seconds", "hold_behind_seconds"):
        assert f"shardline_{name}" in walk.metrics_in_spark
    assert re.match(r"view carrier_ranking: [a-z ]+, [\d,.]+ s behind", walk.metrics_in_spark)


def test_the_page_shows_what_fails_and_that_it_recovers(walk: DemoWalk) -> None:
    """Which, why, and that the others go on; and when that has passed."""
    assert "out/carrier_ranking" in walk.troubles["ranking_out"]
    assert re.match(r"^\d of 10 objects are fresh\.", walk.sentence), walk.sentence
    assert {("error", "ranking_out"), ("recovery", "ranking_out")} <= walk.marks


def test_the_page_says_that_the_application_is_gone_and_goes_on_when_it_is_back(
    walk: DemoWalk,
) -> None:
    """In large letters, with what was there; at the same address, and without a reload."""
    assert "The application does not answer." in walk.lost
    assert walk.lost_px >= 24
    assert "objects are fresh." in walk.kept
    assert walk.back.startswith("Live, ")


def test_ctrl_c_stops_it_cleanly(story: Story) -> None:
    """Status 130 and a sentence; no stack trace of Java, and none of ours."""
    status, said = story.interrupted
    assert status == 130, said
    assert "Stopped. Start again to go on." in said
    assert "at org.apache" not in said
    assert "/app/" not in said


def test_a_run_with_nothing_to_do_says_so(story: Story) -> None:
    """All that is to arrive has arrived: no object is made or changed, and the run still ends."""
    status, said = story.finished
    assert status == 0, said
    assert f"Nothing to do: all {DAYS} days have arrived" in said
    assert "10 unchanged" in said
    assert "to create" not in said


@pytest.fixture(scope="module")
def duck(story: Story) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the package's files as tables, and `arrived` for the flights that did."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for file in (story.data / "source").glob("*.csv"):
            read = connection.read_csv(str(file), na_values="NA", sample_size=-1)
            if file.stem == "flights":
                read.filter(f"month = 1 AND day <= {DAYS}").create("arrived")
            else:
                read.create(f"raw_{file.stem}")
        yield connection


def ask(duck: duckdb.DuckDBPyConnection, query: str, **tables: pa.Table) -> pa.Table:
    """What DuckDB answers; `tables` are more tables."""
    for name, table in tables.items():
        duck.register(name, table)
    return duck.sql(query).to_arrow_table()


def tuples(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a table as plain tuples."""
    return [tuple(row.values()) for row in table.to_pylist()]


def test_flights_are_the_raw_lines_each_exactly_once(
    story: Story, duck: duckdb.DuckDBPyConnection
) -> None:
    """The multiset of rows is that of the files, by DuckDB, in both directions."""
    flights = story.contents("flights")
    assert flights.num_rows == ask(duck, "FROM arrived").num_rows > 10_000
    for query in ("FROM flights EXCEPT ALL FROM arrived", "FROM arrived EXCEPT ALL FROM flights"):
        assert ask(duck, query, flights=flights).num_rows == 0


def test_delays_are_those_of_the_raw_lines(story: Story, duck: duckdb.DuckDBPyConnection) -> None:
    """Counts and sums per airline, by DuckDB."""
    expected = ask(
        duck,
        """
        SELECT carrier, count(*), count(*) - count(dep_time), count(dep_delay),
               sum(dep_delay)::BIGINT, count(arr_delay), sum(arr_delay)::BIGINT,
               count(*) FILTER (arr_delay > 15)
        FROM arrived GROUP BY carrier ORDER BY carrier
        """,
    )
    assert tuples(story.contents("delays_by_carrier").sort_by("carrier")) == tuples(expected)


def test_the_ranking_is_that_of_the_raw_lines(
    story: Story, duck: duckdb.DuckDBPyConnection
) -> None:
    """Place and mean delay of each airline, by DuckDB's window functions."""
    expected = ask(
        duck,
        """
        SELECT carrier, name, n, mean, row_number() OVER (ORDER BY mean DESC, carrier) AS place
        FROM (
            SELECT carrier, any_value(name) AS name, count(*) AS n,
                   sum(arr_delay)::DOUBLE / count(arr_delay) AS mean
            FROM arrived LEFT JOIN raw_airlines USING (carrier)
            GROUP BY carrier HAVING count(arr_delay) > 0)
        ORDER BY place
        """,
    )
    assert tuples(story.contents("carrier_ranking").sort_by("place")) == tuples(expected)


@pytest.mark.parametrize(
    ("table", "key"), [("airlines", "carrier"), ("planes", "tailnum"), ("airports", "faa")]
)
def test_tables_are_their_files(
    story: Story, duck: duckdb.DuckDBPyConnection, table: str, key: str
) -> None:
    """As many rows as the file has lines, each key once, in spite of being read by every run."""
    found = story.contents(table)
    assert found.num_rows == ask(duck, f"FROM raw_{table}").num_rows
    assert found.group_by([key]).aggregate([]).num_rows == found.num_rows


def test_every_earlier_time_is_still_readable(
    story: Story, duck: duckdb.DuckDBPyConnection
) -> None:
    """At each time of its history the delays are those of some number of whole days, growing."""
    state = story.client.state("delays_by_carrier")
    assert state.since.time is not None
    times = sorted(
        {time for b in state.trace.batches for p in b.parts for time in p.time_bounds or ()}
    )
    assert len(times) > 1
    assert times[0] >= state.since.time, "a day is kept, and these runs take minutes"
    totals = [sum(story.contents("delays_by_carrier", t)["flights"].to_pylist()) for t in times]
    by_day = tuples(ask(duck, "SELECT count(*) FROM arrived GROUP BY day ORDER BY day"))
    rows = [int(str(day[0])) for day in by_day]
    whole_days = {sum(rows[:n]) for n in range(1, DAYS + 1)}
    assert set(totals) <= whole_days
    assert totals == sorted(totals)
    assert totals[-1] == max(whole_days)


def test_what_is_left_behind_are_the_holds_of_those_that_read(story: Story) -> None:
    """Each reader's durable hold on its inputs: none of a killed run is left, none is unnamed."""
    readers = {
        "flights": ["busiest_planes", "delays_by_carrier", "very_late"],
        "planes": ["busiest_planes"],
        "airlines": ["carrier_ranking"],
        "delays_by_carrier": ["carrier_ranking"],
        "carrier_ranking": ["ranking_out"],
    }
    for shard, expected in readers.items():
        holds = story.client.state(shard).critical
        assert sorted(name.split(":")[1] for name in holds) == expected, (shard, list(holds))


def test_the_log_is_json_lines(story: Story) -> None:
    """Whatever was killed when, every line of the log but a torn last one is a JSON object."""
    lines = (story.data / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert all({"ts", "level", "msg"} <= set(json.loads(line)) for line in lines)
