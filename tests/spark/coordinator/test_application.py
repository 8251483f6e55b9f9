"""A whole project in one application: run, asked, changed, restarted, taken over.

What objects hold is compared with DuckDB over the files that were put in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.project.plan import plan_from_json
from shardline.app.protocol.compute import SubscribeResponse
from shardline.app.server.application_server import serve_application
from shardline.app.server.client import send_project
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Fenced, InvalidUsage
from support.spark.projects import QUERIES, SQL, Place, rows
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def running(spark: SparkSession, place: Place, text: str = SQL) -> Iterator[Application]:
    """An application with the project applied."""
    settings = RuntimeSettings(
        interval_ms=500, query_timeout=Duration("180s"), retain_history=Duration("1h")
    )
    data = place.folder / "data"
    with Application(spark, place.client(), settings, data=data) as application:
        application.apply(place.project(text).check(spark))
        yield application


def settled(application: Application, place: Place) -> None:
    """Wait until all views run and hold what the files say."""
    wait_until(
        "all views hold what the files say",
        lambda: application.running().keys() >= QUERIES.keys() and place.agrees(),
        PATIENCE_S,
    )


def eventually(what: str, happened: Callable[[], bool]) -> None:
    wait_until(what, happened, PATIENCE_S)


def ids(application: Application) -> dict[str, tuple[str, int]]:
    objects = application.runtime.lane.state.objects
    return {name: (known.global_id, known.dataflow) for name, known in objects.items()}


def test_a_project_follows_its_files(spark: SparkSession, place: Place) -> None:
    """Views, a view of a view, index and sink hold what DuckDB says, before and after changes.

    And a start over the same location goes on: same ids, nothing twice.
    """
    with running(spark, place) as application:
        settled(application, place)
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        place.put("customers", "b", "customer,name\n1,anna\n")
        settled(application, place)
        asked = application.sql("SELECT name, orders, total FROM spent")
        assert rows(asked) == place.expected("spent"), "a read sees what was written before it"
        by_key = application.sql("SELECT total FROM spent WHERE name = 'bob'")
        assert rows(by_key) == [(560,)]
        known = application.sql("SELECT object_id, hydrated FROM introspection.hydration_statuses")
        assert {"orders", "customers", "spent", "large", "best"} <= {row[0] for row in rows(known)}
        first = ids(application)
        moment = SystemClock().now_ms()
        commands = "SELECT index, says FROM introspection.command_history"
        lane = rows(application.sql(f"{commands} WHERE unix_millis(occurred_at) <= {moment}"))
    place.put("orders", "c", "id,customer,price\n5,1,90\n")
    with running(spark, place) as application:
        settled(application, place)
        assert ids(application) == first
        then = rows(application.sql(f"{commands} AS OF {moment}"))
        assert lane == then != rows(application.sql(commands)), "the take-over is one of now"
        assert application.plan(place.project().check(spark)).steps == ()

        def written() -> bool:
            out = place.folder / "out"
            some = any(out.glob("_upper=*/*.parquet"))
            found = spark.read.parquet(str(out)).count() if some else 0
            return found == len(place.expected("large"))

        eventually("the sink has written every row once", written)


@pytest.mark.night
def test_a_subscription_adds_up_to_the_contents(spark: SparkSession, place: Place) -> None:
    """From the snapshot on, every change once; also while nothing happens the time goes on."""
    with running(spark, place) as application:
        settled(application, place)
        subscription = application.subscribe("SUBSCRIBE large")
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        from shardline.app.compute.subscribe.subscription import batch_rows

        total: dict[tuple[int, int], int] = {}
        reached = 0
        for batch in subscription:
            assert isinstance(batch, SubscribeResponse), batch
            assert not batch.error, batch
            assert batch.lower >= reached
            reached = batch.upper or reached
            for row in batch_rows(batch).to_pylist():
                key = (row["id"], row["price"])
                total[key] = total.get(key, 0) + row["_diff"]
            if sorted(key for key, n in total.items() if n) == place.expected("large"):
                break
        subscription.close()
        assert all(n in (0, 1) for n in total.values()), total


def test_a_changed_definition_takes_the_old_ones_place(spark: SparkSession, place: Place) -> None:
    """Contents become those of the new one; what was left out stops, and its shard stays."""
    with running(spark, place) as application:
        settled(application, place)
        before = ids(application)
        text = SQL.replace("${in}", str(place.folder))
        changed = text.replace("price > 50;", "price > 65;").replace(
            "CREATE INDEX spent_by_name ON spent (name);", ""
        )
        with serve_application(application, RuntimeSettings(), place.folder) as where:
            _sent_projects_are_checked(application, where, changed)
        eventually(
            "large holds the new rows",
            lambda: rows(application.sql("SELECT id, price FROM large")) == [(3, 70)],
        )
        eventually("the index is gone", lambda: "spent_by_name" not in application.running())
        after = ids(application)
        assert after["spent"] == before["spent"], "what did not change runs on untouched"
        assert after["large"][0] == before["large"][0]
        assert after["large"][1] != before["large"][1]
        _state_outlives_a_change_above_it(application, spark, place, changed)
        with pytest.raises(InvalidUsage, match=r"large_out.*reads 'large'"):
            application.drop(["large"])
        assert "large" in application.drop(["large", "large_out"])
        assert not place.client().exists("large")
        assert "large" not in application.running()
        with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
            application.sql("SELECT * FROM large")


def _state_outlives_a_change_above_it(
    application: Application, spark: SparkSession, place: Place, text: str
) -> None:
    """And is put right for what changes while the view changes."""
    state = place.client().state("spent_state_1").shard
    changed = text.replace("GROUP BY c.name;", "GROUP BY c.name HAVING sum(o.price) > 70;")
    application.apply(place.project(changed).check(spark))
    place.put("orders", "b", "id,customer,price\n4,2,20\n")
    wanted = [("ann", 2, 80), ("bob", 2, 80)]
    eventually(
        "spent holds the new rows",
        lambda: rows(application.sql("SELECT name, orders, total FROM spent")) == wanted,
    )
    assert place.client().state("spent_state_1").shard == state


def _sent_projects_are_checked(
    application: Application, where: ApplicationAddress, changed: str
) -> None:
    """What is sent is planned, refused as a whole, or applied, as a project of one's own is."""
    files = {"all.sql": changed}
    before = application.running()
    wrong = {
        "a.sql": "CREATE VIEW v AS SELECT 1;",
        "b.sql": changed.replace("FROM large ", "FROM l "),
    }
    with pytest.raises(InvalidUsage, match=r"(?s)\[INVALID_PROJECT\] .*a.sql:1:8.*b.sql:\d+") as no:
        send_project(where, wrong, dry_run=False, timeout_ms=60_000)
    assert "CREATE MATERIALIZED VIEW" in str(no.value), "with the hints"
    stranger = ApplicationAddress(url=where.url, token="", pid=0)
    with pytest.raises(InvalidUsage, match="TOKEN_NEEDED"):
        send_project(stranger, files, dry_run=False, timeout_ms=60_000)

    def acts(*, dry_run: bool) -> list[tuple[str, str]]:
        answer = send_project(where, files, dry_run=dry_run, timeout_ms=60_000)
        return [(step.act, step.name) for step in plan_from_json(answer["plan"]).steps]

    todo = [("drop", "spent_by_name"), ("change", "large")]
    assert acts(dry_run=True) == todo
    assert application.running() == before
    assert acts(dry_run=False) == todo
    eventually("nothing is left to do", lambda: acts(dry_run=True) == [])


@pytest.mark.night
def test_the_location_belongs_to_one_runtime(spark: SparkSession, place: Place) -> None:
    """A second is told who holds it; with take-over the first stops, and the second goes on."""
    with running(spark, place) as first:
        settled(first, place)
        with pytest.raises(InvalidUsage, match="LOCATION_HELD"), running(spark, place):
            pass
        data = place.folder / "data 2"
        settings = RuntimeSettings(
            interval_ms=500, query_timeout=Duration("180s"), retain_history=Duration("1h")
        )
        with Application(spark, place.client(), settings, data=data, take_over=True) as second:
            second.apply(place.project().check(spark))
            eventually("the first is fenced", lambda: isinstance(first.lost, Fenced))
            place.put("orders", "b", "id,customer,price\n4,2,500\n")
            settled(second, place)
            assert ids(second) == ids(first)


def test_a_follower_hydrates_and_is_promoted(spark: SparkSession, place: Place) -> None:
    """It writes nothing before it is allowed to, cannot change a definition, and then takes over.

    Files arrive before, while and after it does. At each time of the whole history every view is
    what DuckDB makes of its inputs at that time, no order is lost and none is there twice.
    """
    with running(spark, place) as first:
        settled(first, place)
        data = place.folder / "data 2"
        settings = RuntimeSettings(
            interval_ms=500, query_timeout=Duration("180s"), retain_history=Duration("1h")
        )
        # Names of queries are unique in a session; elsewhere, it would be a process of its own.
        own = spark.newSession()
        with Application(own, place.client(), settings, data=data, read_only=True) as second:
            second.apply(place.project().check(spark))
            with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
                second.configure({"restart_pause": "2s"})
            writers = place.client().state("large").writers
            place.put("orders", "b", "id,customer,price\n4,2,500\n")
            settled(first, place)
            assert first.lost is None
            assert place.client().state("large").writers.keys() == writers.keys()
            place.put("orders", "c", "id,customer,price\n5,1,90\n")
            second.allow_writes()
            settled(second, place)
            place.put("orders", "d", "id,customer,price\n6,1,91\n")
            place.put("customers", "d", "customer,name\n2,bea\n")
            eventually("the first is fenced", lambda: isinstance(first.lost, Fenced))
            settled(second, place)
            place.put("orders", "e", "id,customer,price\n7,2,92\n")
            settled(second, place)
            second.configure({"restart_pause": "2s"})
            eventually(
                "the order has its settings",
                lambda: second.runtime.lane.state.settings.get("restart_pause") == "2s",
            )
            assert len(place.agrees_at_every_time()) >= 3, "the files came at several times"
