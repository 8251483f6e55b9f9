"""A person on call mends a project that runs: bad rows, pauses and restarts, by the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.project.project import Project
from shardline.app.server.application_server import serve_application
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.jobs.operate import main
from support.spark.projects import rows
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server]

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path '{folder}/orders', header 'true'{option})
  SCHEMA (id INT, price INT);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE SINK large_out FROM large USING csv OPTIONS (path '{folder}/out');
"""


def eventually(what: str, happened: Callable[[], bool]) -> None:
    wait_until(what, happened, 300)


class Place:
    """A folder with orders, and the application over it."""

    def __init__(self, spark: SparkSession, application: Application, folder: Path) -> None:
        self.spark, self.application, self.folder = spark, application, folder

    def put(self, name: str, *lines: str) -> Path:
        fresh = self.folder / f"{name}.new"
        fresh.write_text("\n".join(["id,price", *lines, ""]))
        return fresh.rename(self.folder / "orders" / f"{name}.csv")

    def apply(self, option: str = "") -> None:
        text = SQL.format(folder=self.folder, option=option)
        project = Project.parse({"all.sql": text})
        self.application.apply(project.check(self.spark))

    def large(self) -> object:
        """The ids that the view shows to a reader, or the error of the read."""
        try:
            found = self.application.sql("SELECT id FROM large", timeout_ms=60_000)
        except ShardError as error:
            return str(error)
        return [row[0] for row in rows(found)]

    def written(self) -> list[int]:
        """The ids that the sink of the view has written, one for each change."""
        files = (self.folder / "out").glob("_upper=*/*.csv")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted(int(line.split(",")[0]) for line in lines)

    def skipped(self, rest: str = "") -> list[str]:
        """The rows that were left out, as a query shows them."""
        query = "SELECT raw FROM orders_skipped"
        found = self.application.sql(f"{query}{rest}", timeout_ms=20_000)
        return sorted(str(row[0]) for row in rows(found))

    def object(self, name: str) -> dict[str, Any]:
        assert self.application.feeds is not None
        return self.application.feeds.relations.rows("objects", object=name)[0]

    def upper(self, name: str) -> int:
        client = ShardClient.open(str(self.folder / "shards"))
        return client.state(name).upper.time or 0


def test_a_person_mends_what_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are skipped, kept out and noted; a view is paused and loses nothing."""
    (tmp_path / "orders").mkdir()
    client = ShardClient.open(str(tmp_path / "shards"))
    settings = RuntimeSettings(
        interval_ms=500, query_timeout=Duration("60s"), retain_history=Duration("1h")
    )

    def command(*words: str) -> tuple[int, str]:
        verb, *rest = words
        status = main([verb, *rest, "--data", str(tmp_path)])
        told = capsys.readouterr()
        return status, told.out + told.err

    with (
        Application(spark, client, settings, data=tmp_path / "data") as application,
        serve_application(application, RuntimeSettings(), tmp_path),
    ):
        place = Place(spark, application, tmp_path)
        place.put("a", "1,60", "2,10")
        place.apply()
        eventually("the view is there", lambda: place.large() == [1])
        _errors_are_kept_and_skipped(place, command)
        _a_source_stops_until_its_file_is_correct(place)
        _rows_are_skipped(place, command)
        _a_view_is_paused(place, command)


def _errors_are_kept_and_skipped(place: Place, command: Callable[..., tuple[int, str]]) -> None:
    place.put("b", "3,70", "4,many")
    eventually("reads fail", lambda: "INPUT_HAS_ERRORS" in str(place.large()))
    eventually("the sink stands", lambda: place.object("large_out")["status"] == "stalled")
    assert "'orders' has 1 live error" in place.object("large_out")["error"]
    assert place.written() == [1], "it shows no more than a reader is shown"
    status, shown = command("errors", "large")
    assert status == 1
    assert "orders: 1 error; reads fail while there are any" in shown
    assert f"{place.folder}/orders/b.csv, line 3" in shown
    assert "4,many" in shown
    found = place.application.sql("SELECT raw, file FROM orders_errors").to_pylist()
    assert [(row["raw"], row["file"].endswith("/orders/b.csv")) for row in found] == [
        ("4,many", True)
    ]
    with pytest.raises(ShardError, match=r"\[NOTHING_SKIPPED\] .*onBadRow 'skip'"):
        place.application.sql("SELECT * FROM orders_skipped")
    status, shown = command("errors", "orders", "--skip")
    assert (status, "dry run: nothing was changed" in shown) == (1, True)
    status, shown = command("errors", "orders", "--skip", "--commit")
    assert (status, shown) == (0, "skipped 1 error of orders; 0 errors left\n")
    eventually("reads go on", lambda: place.large() == [1, 3])
    eventually("the sink goes on", lambda: place.written() == [1, 3])
    assert place.skipped() == ["4,many"]


def _a_source_stops_until_its_file_is_correct(place: Place) -> None:
    place.apply(", onBadRow 'stop'")
    place.put("c", "5,80", "6,lots")
    eventually("it stops", lambda: "BAD_ROWS" in str(place.object("orders")["error"]))
    told = place.object("orders")
    assert told["status"] == "stalled"
    assert "/orders/c.csv: 6,lots" in str(told["error"])
    assert "DROPMALFORMED" in str(told["hint"])
    client = ShardClient.open(str(place.folder / "shards"))
    with client.reader("orders") as reader:
        assert sorted(reader.snapshot().column("id").to_pylist()) == [1, 2, 3]
    place.put("c", "5,80", "6,90")
    eventually("it goes on", lambda: place.large() == [1, 3, 5, 6])


def _rows_are_skipped(place: Place, command: Callable[..., tuple[int, str]]) -> None:
    place.apply(", onBadRow 'skip'")
    place.put("d", "7,99", "8,none")
    eventually("the good row is there", lambda: place.large() == [1, 3, 5, 6, 7])
    status, shown = command("errors", "orders")
    assert status == 0
    assert "orders: 2 rows skipped" in shown
    assert "4,many" in shown
    assert f"{place.folder}/orders/d.csv, line 3" in shown
    assert place.skipped() == ["4,many", "8,none"]
    now = place.upper("orders") - 1
    assert place.skipped(f" WHERE file LIKE '%/d.csv' AS OF {now}") == ["8,none"]
    with pytest.raises(ShardError, match=r"\[SKIPPED_WITH_OTHERS\] .*query it alone"):
        place.application.sql("SELECT * FROM orders_skipped, orders")
    assert place.application.feeds is not None
    relations = place.application.feeds.relations
    eventually(
        "it is counted",
        lambda: relations.rows("source_statistics", object="orders")[0]["rows_skipped"] == 1,
    )


def _a_view_is_paused(place: Place, command: Callable[..., tuple[int, str]]) -> None:
    status, shown = command("pause", "larg")
    assert (status, "UNKNOWN_OBJECT" in shown, "'large'" in shown) == (2, True, True)
    assert command("pause", "large") == (0, "paused large: `resume large` lets it go on\n")
    eventually("it is paused", lambda: place.object("large")["status"] == "paused")
    upper = place.upper("large")
    place.put("e", "9,77")
    eventually("the source goes on", lambda: place.upper("orders") > upper + 2_000)
    assert place.upper("large") == upper
    assert command("resume", "large") == (0, "resumed large\n")
    eventually("nothing was lost", lambda: place.large() == [1, 3, 5, 6, 7, 9])
    before = place.object("large")["epoch"]
    assert command("restart", "large") == (0, "restarted large\n")
    eventually("another one runs", lambda: place.object("large")["epoch"] > before)
    eventually("and reads", lambda: place.large() == [1, 3, 5, 6, 7, 9])
