"""Verdicts of a real application: what waits, lags or cannot be read, and whose fault it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.project.project import Project
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path '{in}/orders', maxFilesPerTrigger '1')
  SCHEMA (id INT, price INT);
CREATE SOURCE names USING csv OPTIONS (path '{in}/names') SCHEMA (id INT, name STRING);
CREATE SOURCE later USING csv OPTIONS (path '{in}/later') SCHEMA (id INT);
CREATE MATERIALIZED VIEW shares AS SELECT id, 100 / price AS share FROM orders;
CREATE MATERIALIZED VIEW above AS SELECT id FROM shares WHERE share > 1;
CREATE MATERIALIZED VIEW named AS SELECT o.id, n.name FROM orders o JOIN names n ON o.id = n.id;
CREATE MATERIALIZED VIEW waits AS SELECT id FROM later;
"""

ALL = {"orders", "names", "later", "shares", "above", "named", "waits"}


class Scene:
    """An application over files of one folder, and what it says of its objects."""

    def __init__(self, folder: Path, application: Application) -> None:
        self.folder = folder
        self.application = application

    def put(self, source: str, name: str, text: str) -> None:
        """Let a file arrive whole."""
        fresh = self.folder / f"{source}-{name}.new"
        fresh.write_text(text)
        fresh.rename(self.folder / source / f"{name}.csv")

    def rows(self, relation: str, about: str | None = None) -> list[dict[str, Any]]:
        """Rows of a relation."""
        assert self.application.feeds is not None
        return self.application.feeds.relations.rows(relation, object=about)

    def verdicts(self) -> dict[str, dict[str, Any]]:
        return {str(row["object_id"]): row for row in self.rows("verdicts")}

    def wait_for(self, **wanted: str) -> dict[str, dict[str, Any]]:
        """Wait until each of these objects has its verdict; returns all of them."""
        seen: dict[str, dict[str, Any]] = {}

        def are() -> bool:
            seen.update(self.verdicts())
            found = {name: seen[name]["verdict"] for name in wanted if name in seen}
            return found == wanted

        try:
            wait_until(f"{wanted}", are, PATIENCE_S)
        except AssertionError as error:
            said = {name: (row["verdict"], row["because"]) for name, row in seen.items()}
            raise AssertionError(f"{error}, but {said}") from None
        return seen

    def refusal(self, query: str) -> ShardError:
        """The error of a query."""
        with pytest.raises(ShardError) as caught:
            self.application.sql(query)
        return caught.value

    def upper(self, name: str) -> int:
        client = ShardClient.open(str(self.folder / "shards"))
        return client.state(name).upper.time or 0


def test_verdicts_tell_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    """In the life of one application, each as it happens, and as it passes."""
    for name in ("orders", "names", "later"):
        (tmp_path / name).mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "all.sql").write_text(SQL.replace("{in}", str(tmp_path)))
    settings = RuntimeSettings(interval_ms=500, query_timeout=Duration("180s"))
    client = ShardClient.open(str(tmp_path / "shards"))
    with Application(spark, client, settings, data=tmp_path / "data") as application:
        scene = Scene(tmp_path, application)
        scene.put("orders", "a", "1,10\n2,60\n")
        scene.put("names", "a", "1,ann\n2,bob\n")
        checked = Project.load(project).check(spark)
        # Between the check and the start, or the project would be refused.
        (tmp_path / "later").rmdir()
        application.apply(checked)
        what_waits_is_known(scene)
        files_that_wait_outside_count(scene)
        what_cannot_be_read_says_whose_fault_it_is(scene)
        a_folder_that_is_moved_away_is_no_quiet_folder(scene)
        (summary,) = scene.rows("verdict_summary")
        assert str(summary["summary"]).startswith("1 of 7 objects is fresh.")


def what_waits_is_known(scene: Scene) -> None:
    """A folder that is not there: the source says so; what reads it waits, and is everywhere."""
    seen = scene.wait_for(later="stalled", waits="waiting", named="healthy", above="healthy")
    assert seen.keys() == ALL
    assert "later" in seen["later"]["because"]
    assert seen["waits"]["blame_id"] == "later"
    refused = scene.refusal("SELECT * FROM waits")
    assert refused.code == "NOT_CREATED"
    assert "`later` is stalled" in refused.detail
    assert {row["id"] for row in scene.rows("objects")} == ALL


def files_that_wait_outside_count(scene: Scene) -> None:
    """Near to the clock, and yet not all there; so is what reads it."""
    for number in range(16):
        scene.put("orders", f"b{number:02}", f"{100 + number},{number + 1}\n")
    seen = scene.wait_for(orders="catching up", above="waiting")
    assert seen["orders"]["files_waiting"] > 0
    assert seen["orders"]["bytes_waiting"] > 0
    assert "outside" in seen["orders"]["because"]
    assert seen["above"]["blame_id"] == "orders"
    seen = scene.wait_for(orders="healthy", above="healthy")
    assert seen["orders"]["files_waiting"] == 0


def what_cannot_be_read_says_whose_fault_it_is(scene: Scene) -> None:
    """A row that cannot be decoded, and one that cannot be computed with."""
    scene.put("names", "b", "three,carl\n")
    scene.put("orders", "z", "7,0\n")
    seen = scene.wait_for(
        orders="healthy",  # all of its rows are there, and not its fault
        names="unreadable",
        named="unreadable",
        shares="unreadable",
        above="unreadable",
    )
    assert (seen["named"]["blame_id"], seen["above"]["blame_id"]) == ("names", "shares")
    assert "cannot be decoded" in seen["named"]["because"]
    assert scene.refusal("SELECT * FROM above").code == "INPUT_HAS_ERRORS"
    counted = scene.application.sql("SELECT export_id, count FROM introspection.error_counts")
    found = {row["export_id"] for row in counted.to_pylist() if row["count"]}
    assert found == {"names", "named", "shares", "above"}


def a_folder_that_is_moved_away_is_no_quiet_folder(scene: Scene) -> None:
    """Nothing of it is known any more, so nothing is claimed; it goes on when it is back."""
    folder = scene.folder / "orders"
    shutil.move(folder, scene.folder / "away")
    seen = scene.wait_for(orders="stalled")
    assert "is not there" in seen["orders"]["because"]
    before = scene.upper("orders")
    wait_until("it is late", lambda: lag_of(scene, "orders") > 3_000, PATIENCE_S)
    assert scene.upper("orders") == before
    shutil.move(scene.folder / "away", folder)
    scene.wait_for(orders="healthy")
    wait_until("it goes on", lambda: scene.upper("orders") > before, PATIENCE_S)

    def history() -> list[str]:
        return [row["verdict"] for row in scene.rows("verdict_history", "orders")]

    wait_until("both are noted", lambda: history()[-2:] == ["stalled", "healthy"], PATIENCE_S)


def lag_of(scene: Scene, name: str) -> int:
    """How far an object is behind the clock, in ms."""
    (row,) = scene.rows("wallclock_lag", name)
    lag = row["lag"]
    assert isinstance(lag, int)
    return lag
