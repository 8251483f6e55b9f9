"""One object that fails or blocks keeps no other one from being fresh.

What objects hold is compared with DuckDB over the files that were put in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shardline.app.coordinator.application import Application
from shardline.app.lane.log import read_lane
from shardline.app.lane.process_state import PhaseChange, ProcessState
from shardline.app.runtime.runtime import Runtime
from shardline.app.settings.config import Duration, RuntimeSettings
from support.spark.isolation import (
    PATIENCE_S,
    Yard,
    condition,
    pools_of_jobs,
    register_mood,
    register_patient,
    relation,
)
from support.spark.projects import rows
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = RuntimeSettings(
    interval_ms=500, query_timeout=Duration("180s"), restart_pause_max=Duration("4s")
)

TABLES = {"orders": "id INT, price INT", "moods": "n INT"}

QUERIES = {
    "large": "SELECT id, price FROM orders WHERE price > 50",
    "ratios": "SELECT id, 100 // price FROM orders",
    "mooded": "SELECT count(*)::BIGINT, sum(n)::BIGINT FROM moods",
}

FAILING = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, price INT) ENVELOPE UPSERT KEY (id);
CREATE SOURCE moods USING mood OPTIONS (path '${in}/moods');
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW ratios AS SELECT id, 100 div price AS ratio FROM orders;
CREATE MATERIALIZED VIEW mooded AS SELECT count(*) AS n, sum(n) AS total FROM moods;
CREATE INDEX large_by_id ON large (id);
CREATE SINK large_out FROM large USING parquet OPTIONS (path '${in}/out');
CREATE SINK large_lost FROM large USING parquet OPTIONS (path '${in}/taken/lost');
"""


@contextmanager
def running(spark: SparkSession, yard: Yard, text: str, **settings: Any) -> Iterator[Application]:
    """An application with the project applied."""
    chosen, data = msgspec.structs.replace(SETTINGS, **settings), yard.folder / "data"
    with Application(spark, yard.client(), chosen, data=data) as application:
        application.apply(yard.project(text).check(spark))
        yield application


def until(what: str, application: Application, name: str, *wanted: str) -> None:
    """Wait until an object's status is as wanted, its error and hint say something fitting."""
    seen: list[tuple[str, str, str]] = []

    def happened() -> bool:
        seen.append(condition(application, name))
        status, error, hint = seen[-1]
        return status == wanted[0] and all(word in f"{error} {hint}" for word in wanted[1:])

    try:
        wait_until(what, happened, PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; {name}: {list(dict.fromkeys(seen))}") from None


def test_failing_objects_fail_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A source that raises, a view that fails on a row and a sink without a target stop nobody.

    They are told as stalled, with error and hint, and go on when the cause is gone.
    """
    register_mood(spark)
    yard = Yard(tmp_path, TABLES, QUERIES)
    yard.put("orders", "a", "id,price\n1,10\n2,60\n3,0\n")
    yard.put("moods", "a", "n\n1\n2\n")
    yard.switch("moods.fails", "read")
    owner = "taken/lost/_shardline.json"
    # Not a file in the place of the folder: that is refused before anything runs.
    (yard.folder / owner).parent.mkdir(parents=True)
    yard.switch(owner, '{"sink": "somebody", "location": "elsewhere"}')
    with running(spark, yard, FAILING) as application:
        yard.until_right("large")
        until("the source is stalled", application, "moods", "stalled", "no mood for read")
        until("the view is stalled", application, "ratios", "stalled", "DIVIDE_BY_ZERO", "rows")
        until("the sink is stalled", application, "large_lost", "stalled", "taken", "folder")
        yard.put("orders", "b", "id,price\n4,500\n2,70\n")
        yard.until_right("large")
        by_key = application.sql("SELECT price FROM large WHERE id = 2")
        assert rows(by_key) == [(70,)]
        for name in ("orders", "large", "large_by_id", "large_out"):
            assert condition(application, name) == ("running", "", ""), name

        yard.switch("moods.fails")
        yard.switch(owner)
        yard.put("orders", "c", "id,price\n3,5\n")
        yard.until_right("large", "ratios", "mooded")
        for name in application.running():
            until("it runs again", application, name, "running")

        yard.switch("moods.fails", "latest")
        until("the source is stalled", application, "moods", "stalled", "no mood for latest")
        yard.put("moods", "b", "n\n3\n")
        yard.put("orders", "d", "id,price\n5,51\n")
        yard.until_right("large", "ratios")
        yard.switch("moods.fails")
        yard.until_right("mooded")
        for out in ("out", "taken/lost"):
            wait_until("a sink has written", partial(written, spark, yard, out), PATIENCE_S)


def written(spark: SparkSession, yard: Yard, out: str) -> bool:
    """Whether the files of a sink add up to its input."""
    if not list(yard.folder.glob(f"{out}/_upper=*/*.parquet")):
        return False
    found = spark.read.parquet(str(yard.folder / out)).groupBy("id", "price")
    total = found.agg({"_diff": "sum"}).where("`sum(_diff)` != 0").collect()
    return sorted((r.id, r.price) for r in total) == yard.expected("large")


BLOCKING = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, price INT) ENVELOPE UPSERT KEY (id);
CREATE SOURCE moods USING mood OPTIONS (path '${in}/moods');
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW waited AS SELECT id, patient(price) AS price FROM orders;
CREATE MATERIALIZED VIEW mooded AS SELECT count(*) AS n, sum(n) AS total FROM moods;
"""

LATER = """
CREATE SOURCE slow_1 USING mood OPTIONS (path '${in}/slow_1');
CREATE SOURCE slow_2 USING mood OPTIONS (path '${in}/slow_2');
CREATE MATERIALIZED VIEW small AS SELECT id, price FROM orders WHERE price <= 50;
"""

BLOCKED_QUERIES = QUERIES | {
    "waited": "SELECT id, price FROM orders",
    "small": "SELECT id, price FROM orders WHERE price <= 50",
}


@pytest.mark.night
def test_blocked_functions_block_nobody_else(spark: SparkSession, tmp_path: Path) -> None:
    """A view's function and a source that never return leave lane, listener and others alone.

    Nor do two sources that never open keep the places in which queries start. What is blocked
    does not keep the application from ending, and goes on when it is started again.
    """
    register_mood(spark)
    register_patient(spark, tmp_path)
    tables = TABLES | {"slow_1": "n INT", "slow_2": "n INT"}
    yard = Yard(tmp_path, tables, BLOCKED_QUERIES)
    yard.put("orders", "a", "id,price\n1,10\n2,60\n")
    yard.put("moods", "a", "n\n1\n2\n")
    flags = ("patient", "moods", "slow_1", "slow_2")
    application = Application(spark, yard.client(), SETTINGS, data=tmp_path / "data")
    application.__enter__()
    ending = threading.Thread(target=application.__exit__, args=(None, None, None), daemon=True)
    try:
        application.apply(yard.project(BLOCKING).check(spark))
        yard.until_right("large", "waited", "mooded")
        for flag, place in zip(flags, ("call", "latest", "open", "open"), strict=True):
            yard.switch(f"{flag}.blocks", place)
        yard.put("orders", "b", "id,price\n3,20\n4,500\n")
        for flag in flags[:2]:
            yard.until_blocked(flag)
        yard.until_right("large")

        application.apply(yard.project(BLOCKING + LATER).check(spark))
        for flag in flags[2:]:
            yard.until_blocked(flag)
        yard.until_right("small")
        assert "small" in application.drop(["small"])
        assert not yard.client().exists("small")
        assert_moves(
            application,
            "SELECT write_frontier FROM introspection.frontiers WHERE object_id = 'large'",
        )
        assert_moves(application, "SELECT events FROM introspection.listener")

        yard.put("orders", "c", "id,price\n5,51\n")
        yard.until_right("large")
        before = yard.contents("waited")
        ending.start()
        wait_until("the application has ended", lambda: not ending.is_alive(), 2 * PATIENCE_S)
        assert yard.contents("waited") == before, "nothing came while it was blocked"
    finally:
        for flag in flags:
            yard.switch(f"{flag}.blocks")
        if not ending.ident:
            ending.start()
            ending.join()
    wait_until("queries that were given up end", lambda: not spark.streams.active, PATIENCE_S)
    with running(spark, yard, BLOCKING):
        yard.until_right("large", "waited", "mooded")


def assert_moves(application: Application, query: str) -> None:
    """Wait until what a query over relations gives has become another thing."""
    before = relation(application, query)
    wait_until(f"{query} moves", lambda: relation(application, query) != before, PATIENCE_S)


HYDRATION = 3
"""Dataflows that catch up side by side in the project of fifty objects."""

SOURCES, VIEWS, INDEXES, SINKS = 10, 20, 15, 5

FIFTY_PATIENCE_S = 300
"""For all of them to start, each with processes of its own, beside other tests."""


def fifty() -> tuple[str, dict[str, str], dict[str, str]]:
    """A project of 50 objects, the tables of its sources, and what to ask DuckDB of its views."""
    tables = {f"s{i}": "id INT, n INT" for i in range(SOURCES)}
    kinds = (
        "SELECT id, n * {j} AS n FROM s{i} WHERE n > {j}",
        "SELECT n % 3 AS k, count(*) AS n FROM s{i} GROUP BY n % 3",
        "SELECT a.id AS id, b.n - a.n AS n FROM s{i} a JOIN s{j} b ON a.id = b.id",
    )
    queries = {
        f"v{number}": kinds[number % 3].format(i=number % SOURCES, j=(number + 1) % SOURCES)
        for number in range(VIEWS)
    }
    lines = [
        f"CREATE SOURCE {name} USING csv OPTIONS (path '${{in}}/{name}', header 'true') "
        "SCHEMA (id INT, n INT) ENVELOPE UPSERT KEY (id);"
        for name in tables
    ]
    lines += [f"CREATE MATERIALIZED VIEW {name} AS {text};" for name, text in queries.items()]
    keys = ("id", "k", "id")
    lines += [f"CREATE INDEX i{i} ON v{i} ({keys[i % 3]});" for i in range(INDEXES)]
    lines += [
        f"CREATE SINK o{i} FROM v{i} USING parquet OPTIONS (path '${{in}}/out/{i}');"
        for i in range(SINKS)
    ]
    return "\n".join(lines), tables, queries


@pytest.mark.night
def test_fifty_objects_share_a_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hydrate a few at a time and hold what DuckDB says; the next start finds their ids.

    All jobs of a query run in the scheduler pool of its domain.
    """
    turns = turns_of(monkeypatch)
    text, tables, queries = fifty()
    yard = Yard(tmp_path, tables, queries)
    for number, name in enumerate(tables):
        yard.put(name, "a", "id,n\n" + "".join(f"{i},{i * number % 7}\n" for i in range(20)))
    settings = {"hydration_concurrency": HYDRATION, "hydration_patience": "10 min"}
    with running(spark, yard, text, **settings) as application:
        yard.until_right(*queries, patience_s=FIFTY_PATIENCE_S)
        wait_until("all run", lambda: is_whole(application), PATIENCE_S)
        ids = known_ids(application)
        pools = pools_of_jobs(spark)
        query = "SELECT domain, run_id FROM introspection.objects WHERE run_id IS NOT NULL"
        ran = {
            (domain, pool)
            for domain, run in relation(application, query)
            for pool in pools.get(str(run), ())
        }
    assert 0 < most_at_once(turns) <= HYDRATION
    assert ran == {("storage", "storage"), ("compute", "compute")}
    found = read_lane(yard.client())[0].objects
    assert {n: (o.global_id, o.dataflow) for n, o in found.items()} == ids, "for the next start"


def is_whole(application: Application) -> bool:
    """Whether all fifty objects run and have caught up."""
    query = "SELECT count(*) FROM introspection.hydration_statuses WHERE hydrated"
    return len(application.running()) == 50 and relation(application, query) == [(50,)]


def known_ids(application: Application) -> dict[str, tuple[str, int]]:
    """Global id and number of the dataflow of each object."""
    objects = application.runtime.lane.state.objects
    return {name: (known.global_id, known.dataflow) for name, known in objects.items()}


def turns_of(patch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Phases of compute objects from now on, and the reports that they have hydrated, in order.

    A report that overtakes the completion of its start ends the turn, and its phase is told later.
    """
    told: list[tuple[str, str]] = []
    on_phase, hydrated = Runtime.on_phase, ProcessState.hydrated

    def note_phase(self: Runtime, change: PhaseChange) -> None:
        if change.kind == "compute":
            told.append((change.id, change.phase))
        on_phase(self, change)

    def note_hydrated(self: ProcessState, name: str, epoch: int, now_ms: int) -> None:
        told.append((name, "hydrated"))
        hydrated(self, name, epoch, now_ms)

    patch.setattr(Runtime, "on_phase", note_phase)
    patch.setattr(ProcessState, "hydrated", note_hydrated)
    return told


def most_at_once(turns: list[tuple[str, str]]) -> int:
    """How many compute objects were between their start and their hydration at most."""
    under_way: set[str] = set()
    most = 0
    for name, phase in turns:
        if phase == "starting":
            under_way.add(name)
        elif phase in {"hydrated", "stopping", "stopped"}:
            under_way.discard(name)
        most = max(most, len(under_way))
    return most
