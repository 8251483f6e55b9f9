"""A project's files, as they are now, are compared with what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from shardline.app.coordinator.project_comparison import ComparedObject, compare_objects
from shardline.app.project.origin import ProjectOrigin
from shardline.app.project.plan import make_plan
from shardline.app.project.project import CheckedProject, Project
from shardline.app.project.replacement import ExistingShard
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    progress_shard,
)
from shardline.app.sql.problems import InvalidProject, Place, Problem
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import ShardSchema
from support.fakes.sites import Site, index, project, source

ORDERS = SourceDescription(name="orders", format="csv", options={"path": "in"}, schema="id INT")
LARGE = ViewDescription(
    name="large", query="SELECT * FROM orders", inputs=("orders",), schema="id INT"
)
FAST = IndexDescription(name="fast", on="large")
OUT = SinkDescription(name="out", on="large", format="parquet", options={"path": "out"})

LONG = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
TEXT = LONG.replace("long", "string")


def named(*objects: ObjectDescription) -> dict[str, ObjectDescription]:
    return {one.name: one for one in objects}


def compared(
    wanted: dict[str, ObjectDescription], running: dict[str, ObjectDescription], **given: Any
) -> dict[str, ComparedObject]:
    plan = make_plan(wanted, running, **given)
    places = {name: Place("a.sql", number, 1) for number, name in enumerate(wanted, 1)}
    return {one.object: one for one in compare_objects(plan, running, places)}


def test_each_object_has_what_a_run_does_with_it() -> None:
    """New, changed, gone and as it is; inputs first, and what is gone last."""
    before = named(ORDERS, LARGE, OUT)
    after = named(ORDERS, replace_struct(LARGE, query="SELECT id FROM orders"), FAST)
    found = compared(after, before)
    assert {name: one.change for name, one in found.items()} == {
        "orders": "none",
        "large": "change",
        "fast": "create",
        "out": "drop",
    }
    assert list(found)[-1] == "out"
    assert found["orders"].why == ()
    assert found["orders"].now == found["orders"].wanted
    assert found["large"].why == ("Its query differs.",)
    assert "SELECT * FROM orders" in str(found["large"].now)
    assert "SELECT id FROM orders" in str(found["large"].wanted)
    assert (found["fast"].now, found["out"].wanted) == (None, None)
    assert (found["fast"].file, found["fast"].line) == ("a.sql", 3)
    assert (found["out"].file, found["out"].line) == ("", 0)


def test_what_follows_from_a_change_is_said() -> None:
    """Readers of what changes, history that is lost, sinks that stop for good."""
    there = ExistingShard(ShardSchema.parse(LONG), rows=7, since=1, upper=9)
    shards = {"large": there, progress_shard("out"): there}
    wider = replace_struct(LARGE, query="SELECT name AS id FROM orders")
    found = compared(
        named(ORDERS, wider, FAST, OUT),
        named(ORDERS, LARGE, FAST, OUT),
        columns={"large": TEXT},
        shards=shards,
    )
    assert found["large"].change == "replace"
    assert found["large"].why[1].startswith("Its shard cannot be kept: column 'id'")
    assert found["large"].why[-1] == "Lost: 7 rows, and their history."
    assert found["fast"].why == ("What it reads changes: `large`.",)
    assert any(line.startswith("It stops for good, as `large`") for line in found["out"].why)


def test_an_object_of_another_kind_is_created_anew() -> None:
    """And what reads it, though its definition stays."""
    view = ViewDescription(name="orders", query="SELECT 1 AS id", inputs=(), schema="id INT")
    found = compared(named(view, LARGE), named(ORDERS, LARGE))
    assert {name: one.change for name, one in found.items()} == {
        "orders": "change",
        "large": "change",
    }
    assert found["large"].why[0].startswith("It is stopped and created anew")


def test_no_secret_is_in_a_comparison() -> None:
    """Neither in definitions nor in what differs."""
    before = replace_struct(ORDERS, options={"password": "hunter2", "url": "x://a:hunter3@h"})
    after = replace_struct(ORDERS, options={"password": "hunter4", "url": "x://a:hunter5@h"})
    found = compared(named(after), named(before))["orders"]
    assert found.change == "change"
    assert "(secret)" in str(found.now)
    assert "hunter" not in repr(found)


# --- in an application ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a project, checked without Spark: its text decides what it is found to be."""
    made = tmp_path / "project"
    made.mkdir()

    def check(self: Project, *_: object) -> CheckedProject:
        origin = self._origin
        assert origin is not None
        texts = {"a.sql": (made / "a.sql").read_text()} if origin.folder else origin.texts
        if "broken" in texts["a.sql"]:
            place = Place("a.sql", 3, 7, "SELECT broken")
            raise InvalidProject([Problem(place, "UNKNOWN_COLUMN", "no column", "look")])
        objects = [index()] if "index" in texts["a.sql"] else []
        return replace(project(source(), *objects), origin=origin, identity=self._identity)

    monkeypatch.setattr(Project, "check", check)
    return made


def write(folder: Path, text: str) -> None:
    (folder / "a.sql").write_text(f"-- {text}")


def test_the_files_are_read_anew_each_time(site: Site, folder: Path) -> None:
    """What runs stays; a project that is broken answers with its problems."""
    write(folder, "with an index")
    with site.application() as application:
        application.apply(Project.load(folder).check(None))  # type: ignore[arg-type]
        site.wait("all is there", lambda: len(application.running()) == 2)
        ask = application.comparison.compare
        assert {one.object: one.change for one in ask().changes} == {"t": "none", "i": "none"}
        write(folder, "without")
        found = ask()
        assert (found.name, found.folder) == ("", str(folder))
        assert {one.object: one.change for one in found.changes} == {"t": "none", "i": "drop"}
        assert found.problems == ()
        write(folder, "broken")
        found = ask()
        assert (found.changes, found.folder) == ((), str(folder))
        (problem,) = found.problems
        assert (problem.file, problem.line, problem.hint) == ("a.sql", 3, "look")
        (folder / "a.sql").unlink()
        (problem,) = ask().problems
        assert (problem.code, problem.file, problem.line) == ("NO_PROJECT", "", 0)
        assert len(application.running()) == 2


def test_spark_is_told_what_is_known(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the project that was applied, and then of the last comparison, also a broken one later."""
    known: list[list[CheckedProject]] = []
    check = Project.check

    def noted(self: Project, *given: Any) -> CheckedProject:
        known.append(list(given[2]))
        return check(self, *given)

    write(folder, "with an index")
    with site.application() as application:
        applied = Project.load(folder).check(None)  # type: ignore[arg-type]
        application.apply(applied)
        monkeypatch.setattr(Project, "check", noted)
        ask = application.comparison.compare
        for text in ("with an index", "without", "broken", "with an index"):
            write(folder, text)
            ask()
    assert [len(found) for found in known] == [1, 2, 2, 2]
    assert all(found[-1] is applied for found in known)
    assert [list(found[0].descriptions) for found in known] == [
        ["t", "i"],
        ["t", "i"],
        ["t"],
        ["t"],
    ]


def test_texts_that_were_sent_are_those_that_were_sent(site: Site, folder: Path) -> None:
    """A change that is refused or planned only is not what was applied."""
    sent = {"a.sql": "-- with an index"}
    (folder / "a.sql").write_text("")
    with site.application() as application:
        application.change(sent, dry_run=False)
        site.wait("all is there", lambda: len(application.running()) == 2)
        application.change({"a.sql": "-- without"}, dry_run=True)
        found = application.comparison.compare()
        assert {one.object: one.change for one in found.changes} == {"t": "none", "i": "none"}
        assert (found.name, found.folder, found.refused) == ("", "", "")


def test_without_texts_there_is_no_project(site: Site) -> None:
    """Before the first one, and for one that was made in Python."""
    with site.application() as application:
        for _ in range(2):
            with pytest.raises(InvalidUsage, match="NO_PROJECT"):
                application.comparison.compare()
            application.apply(project(source()))


def test_a_project_that_is_added_to_in_python_has_no_texts(tmp_path: Path) -> None:
    """Read again, it would lack what was added."""
    (tmp_path / "a.sql").write_text("CREATE SOURCE a USING counter;")
    loaded = Project.load(tmp_path, {"x": "hunter2"})
    assert loaded._origin == ProjectOrigin(tmp_path, {"x": "hunter2"})
    assert "hunter2" not in repr(loaded._origin)
    assert loaded.index("a")._origin is None
