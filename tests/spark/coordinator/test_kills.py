"""Processes are killed at random: what they were part of goes on, and nothing is lost or twice.

What objects hold is compared with DuckDB over the files that were put in.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from shardline.app.coordinator.application import Application
from shardline.app.lane.log import read_lane
from shardline.app.settings.config import Duration, RuntimeSettings
from support.faults.kills import (
    DROPPED,
    PLANNER,
    executors_of,
    jvm_of,
    kill,
    processes_of,
)
from support.processes.job import running_job
from support.spark.isolation import phases_of
from support.spark.projects import QUERIES, SQL, Place, rows
from support.tree import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120
SEED = 11
SETTINGS = RuntimeSettings(
    interval_ms=500, query_timeout=Duration("180s"), restart_pause_max=Duration("4s")
)

COUNTED = """
CREATE SOURCE ticks USING counter OPTIONS (rate '20');
CREATE MATERIALIZED VIEW counted AS
  SELECT counter % 5 AS k, count(*) AS n, sum(counter) AS total FROM ticks GROUP BY counter % 5;
"""


def application_of(spark: SparkSession, place: Place) -> Application:
    return Application(spark, place.client(), SETTINGS, data=place.folder / "data")


def settled(application: Application, place: Place, *, without: tuple[str, ...] = ()) -> None:
    """Wait until all views run and hold what the files say."""
    views = QUERIES.keys() - set(without)

    def happened() -> bool:
        right = all(place.contents(view) == place.expected(view) for view in views)
        return right and application.running().keys() >= views

    wait_until("all views hold what the files say", happened, PATIENCE_S)


def ids(application: Application) -> dict[str, tuple[str, int]]:
    objects = application.runtime.lane.state.objects
    return {name: (known.global_id, known.dataflow) for name, known in objects.items()}


def test_sources_survive_the_death_of_their_processes(spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL of what plans the streams of shards and of a generator, in every part of a life."""
    chance = random.Random(SEED)
    place, jvm = Place(tmp_path), jvm_of(spark)
    killed: set[int] = set()

    def strike() -> None:
        """Kill one of the processes that were not there before."""
        found: list[int] = []

        def some() -> bool:
            found[:] = [pid for pid in processes_of(jvm, PLANNER) if pid not in killed]
            return bool(found)

        wait_until("there is a process to kill", some, PATIENCE_S)
        killed.add(chance.choice(found))
        kill(max(killed & set(found)))

    with application_of(spark, place) as application:
        application.apply(place.project(SQL + COUNTED).check(spark))
        strike()  # while objects are created
        wait_until("a view has begun", lambda: place.contents("large") is not None, PATIENCE_S)
        strike()  # while others catch up
        settled(application, place)
        wait_until("it counts", lambda: place.contents("counted") is not None, PATIENCE_S)
        known = ids(application)
        assert known.keys() >= {*QUERIES, "ticks", "counted"}
        strike()  # in the steady state
        place.put("orders", "k", "id,customer,price\n10,1,51\n")
        place.put("customers", "k", "customer,name\n1,anna\n")
        settled(application, place)
        everything = processes_of(jvm, PLANNER)
        for pid in everything:
            kill(pid)
        place.put("orders", "z", "id,customer,price\n20,2,500\n")
        settled(application, place)
        strike()
        application.drop(DROPPED)  # while it fails and is dropped
        assert ids(application).items() <= known.items()
        place.put("orders", "zz", "id,customer,price\n21,1,7\n")
        settled(application, place, without=DROPPED)
        assert_counted(application, place)


def assert_counted(application: Application, place: Place) -> None:
    """The generator's numbers are there once each, and the view of them is what DuckDB says."""
    client = place.client()
    upper = client.state("counted").upper.time
    wait_until("more is counted", lambda: client.state("counted").upper.time != upper, PATIENCE_S)
    at = (client.state("counted").upper.time or 0) - 1
    with client.reader("ticks") as ticks, client.reader("counted") as counted:
        numbers, found = ticks.snapshot(at), rows(counted.snapshot(at))  # noqa: F841 - DuckDB's
    with duckdb.connect() as duck:
        wanted = duck.sql(
            "SELECT counter % 5, count(*), sum(counter)::BIGINT FROM numbers GROUP BY 1"
        ).fetchall()
        (whole,) = duck.sql(
            "SELECT min(counter), max(counter) - count(*), count(*) - count(DISTINCT counter) "
            "FROM numbers"
        ).fetchall()
    assert found == sorted(wanted)
    assert whole == (1, 0, 0), "1, 2, 3, …, each once"
    assert application.lost is None


@pytest.mark.night
@pytest.mark.cluster
def test_a_project_survives_the_loss_of_executors(tmp_path: Path) -> None:
    """SIGKILL of an executor while objects catch up, and of all of them in the steady state.

    The job is the one that was started: nobody starts it again.
    """
    chance = random.Random(SEED)
    place = Place(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "all.sql").write_text(SQL)
    arguments = [
        str(tmp_path / "project"), "--data", str(tmp_path / "data"), "--set", f"in={tmp_path}",
        "--location", str(tmp_path / "shards"),
    ]  # fmt: skip
    options = ["--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m"]
    with running_job(tmp_path, *arguments, options=options) as job:
        job.wait_for_line("^checking the project")
        jvm = job.jvm()

        def strike(moment: str, happened: Callable[[], bool], count: int = 1) -> None:
            job.wait_for(moment, happened)
            job.wait_for("executors", lambda: len(executors_of(jvm)) == 2)
            for pid in chance.sample(executors_of(jvm), count):
                kill(pid)

        strike("views catch up", lambda: place.contents("orders") is not None)
        job.wait_for("all views are right", place.agrees)
        first = {n: o.global_id for n, o in read_lane(place.client())[0].objects.items()}
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        strike("a file arrives", lambda: True, count=2)
        job.wait_for("all views are right", place.agrees)
        now = {n: o.global_id for n, o in read_lane(place.client())[0].objects.items()}
        assert first.items() <= now.items(), "ids stay"
        assert job.interrupt() == 130


@pytest.mark.night
def test_a_drop_that_was_cut_off_is_finished(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the middle of a drop: what was dropped never runs again, the others go on."""
    place = Place(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "support.faults.kills", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-5000:]
    before = read_lane(place.client())[0].objects
    phases = phases_of(monkeypatch)
    with application_of(spark, place) as application:
        # Nobody has said yet what is wanted: the order alone decides what runs.
        wait_until(
            "the drop is finished",
            lambda: not set(DROPPED) & ids(application).keys(),
            PATIENCE_S,
        )
        gone = ("large", "large_out", "CREATE SINK", "CREATE MATERIALIZED VIEW large")
        kept = ";".join(p for p in SQL.split(";") if not any(word in p for word in gone)) + ";"
        application.apply(place.project(kept).check(spark))
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        settled(application, place, without=DROPPED)
        begun = {change.id for change in phases if change.phase == "starting"}
        assert not begun - ids(application).keys(), "nothing else has come back"
        assert begun >= QUERIES.keys() - set(DROPPED)
        now = ids(application)
        for name in before.keys() - set(DROPPED):
            assert now[name] == (before[name].global_id, before[name].dataflow), name
        # Shards go last, the object's own at the end: what is left of them goes now.
        application.drop(["large"])
    client = place.client()
    for shard in ("large", "large_errors", "large_out_progress"):
        assert not client.exists(shard), shard
