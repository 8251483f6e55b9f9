"""The main job on a slice of the real data: killed, interrupted, started again, and still right.

Each run is a real process. It is killed when it has printed or done something, never after a time;
the seed decides when and which of its two processes dies. What the shards hold in the end is
compared with DuckDB over the package's CSV files, without Spark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from datasource.client import ShardClient
from support.job import RunningJob, running_job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("main-job")]

SEED = 20130101
DAYS = 20
DAYS_FIRST = 12
"""Of all runs but the last: that one also shows that more days can be asked for later."""

IN = r"{} (?!0 in)[\d,]+ in"
"""In a line of progress: a query has taken something in."""


@dataclass
class Story:
    """What happened, run by run."""

    data: Path
    killed: list[str] = field(default_factory=list)
    interrupted: tuple[int, str] = (0, "")
    finished: tuple[int, str] = (0, "")
    again: tuple[int, str] = (0, "")

    @property
    def client(self) -> ShardClient:
        """The shards, without Spark."""
        return ShardClient.open(str(self.data / "shards"), create=False)

    def contents(self, shard: str, as_of: int | None = None) -> pa.Table:
        """What a shard holds."""
        with self.client.reader(shard) as reader:
            return reader.snapshot(as_of)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Three runs killed, one interrupted, one that ends, and one that finds nothing to do."""
    folder = tmp_path_factory.mktemp("main jöb")
    chance = random.Random(SEED)
    told = Story(folder / "data")
    first = ["--data", str(told.data), "--days", str(DAYS_FIRST), "--days-per-second", "3"]
    last = ["--data", str(told.data), "--days", str(DAYS)]

    def arrived(count: int) -> Callable[[], bool]:
        return lambda: len(list(told.data.glob("work/*/landing/*.csv"))) >= count

    def kill(job: RunningJob, when: str) -> None:
        whom = chance.choice(["all", "jvm", "python"])
        job.kill(whom)
        told.killed.append(f"{whom} {when}")

    with running_job(folder, *first, script="demo.py") as job:
        table = chance.choice(["airlines", "planes", "airports", "weather"])
        job.wait_for_line(rf"^1\. Four tables|^  {table} ")
        kill(job, f"while writing tables, at {table}")
    with running_job(folder, *first, script="demo.py") as job:
        count = chance.randrange(1, DAYS_FIRST - 2)
        job.wait_for(f"day {count} arrives", arrived(count))
        kill(job, f"when day {count} arrived")
    with running_job(folder, *first, script="demo.py") as job:
        job.wait_for_line(IN.format("flights"))
        told.interrupted = job.interrupt(), job.said
    with running_job(folder, *first, script="demo.py") as job:
        query = chance.choice(["delays_by_carrier", "carrier_ranking"])
        job.wait_for_line(IN.format(query))
        kill(job, f"when {query} had begun")
    with running_job(folder, *last, script="demo.py") as job:
        told.finished = job.finish(), job.said
    with running_job(folder, *last, script="demo.py") as job:
        told.again = job.finish(), job.said
    return told


def test_the_check_holds_after_kills_anywhere(story: Story) -> None:
    """The run after the last kill goes on, ends, and agrees with plain Spark."""
    status, said = story.finished
    assert status == 0, f"{story.killed}\n{said}"
    assert "The check holds." in said
    assert said.count(" equal") >= 13


def test_ctrl_c_stops_it_cleanly(story: Story) -> None:
    """Status 130 and a sentence; no stack trace of Java, and none of ours."""
    status, said = story.interrupted
    assert status == 130, said
    assert "Stopped. Start again to go on." in said
    assert "at org.apache" not in said
    assert "/app/" not in said


def test_a_run_with_nothing_to_do_says_so(story: Story) -> None:
    """Everything is found done: no query starts, no table changes, the check still holds."""
    status, said = story.again
    assert status == 0, said
    assert f"Nothing to do: all {DAYS} days have arrived" in said
    assert said.count("nothing changed") == 4
    assert "The check holds." in said


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


@pytest.mark.parametrize("table", ["airlines", "planes", "airports", "weather"])
def test_tables_are_their_files(story: Story, duck: duckdb.DuckDBPyConnection, table: str) -> None:
    """As many rows as the file has lines, in spite of being written by every run."""
    found = story.contents(table)
    assert found.num_rows == ask(duck, f"FROM raw_{table}").num_rows
    key = story.client.state(table).key
    assert found.group_by(list(key)).aggregate([]).num_rows == found.num_rows


def test_every_earlier_time_is_still_readable(
    story: Story, duck: duckdb.DuckDBPyConnection
) -> None:
    """At each time of its history the delays are those of some number of whole days, growing."""
    state = story.client.state("delays_by_carrier")
    assert state.since.time == 0, "the job's hold keeps it there"
    times = sorted(
        {time for b in state.trace.batches for p in b.parts for time in p.time_bounds or ()}
    )
    assert len(times) > 1
    totals = [sum(story.contents("delays_by_carrier", t)["flights"].to_pylist()) for t in times]
    by_day = tuples(ask(duck, "SELECT count(*) FROM arrived GROUP BY day ORDER BY day"))
    rows = [int(str(day[0])) for day in by_day]
    whole_days = {sum(rows[:n]) for n in range(1, DAYS + 1)}
    assert set(totals) <= whole_days
    assert totals == sorted(totals)
    assert totals[-1] == max(whole_days)


def test_what_is_left_behind_are_the_queries_holds(story: Story) -> None:
    """Each stream's durable hold, and the one that keeps history: none unnamed, none twice."""
    holds = {name: set(story.client.state(name).critical) for name in story.client.shards()}
    assert {name for name, of_shard in holds.items() if of_shard} == {
        "flights", "delays_by_carrier", "carrier_ranking",
    }  # fmt: skip
    assert holds["flights"] == {"main-job-history", "query-delays_by_carrier"}
    assert holds["delays_by_carrier"] == {"main-job-history", "query-carrier_ranking"}
    assert holds["carrier_ranking"] == {"main-job-history"}


def test_the_log_is_json_lines(story: Story) -> None:
    """Whatever was killed when, every line of the log but a torn last one is a JSON object."""
    lines = (story.data / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert all({"ts", "level", "msg"} <= set(json.loads(line)) for line in lines)
