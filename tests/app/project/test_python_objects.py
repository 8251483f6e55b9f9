"""Objects from Python are checked as those from SQL are, and are the same."""

from __future__ import annotations

import pytest

from shardline.app.project.project import Project


def only_problem(project: Project) -> str:
    (problem,) = project.problems
    return str(problem)


@pytest.mark.parametrize("retain", [-5, "-6 days", "5 fortnights", "7"])
def test_a_retention_is_a_duration(retain: str | int) -> None:
    """Else it would fail in the middle of an application, when it is set."""
    project = Project().source("s", "rate", retain=retain)
    assert f"'{retain}' is no duration" in only_problem(project)
    project = Project().view("v", "SELECT 1 AS a", retain=retain)
    assert f"'{retain}' is no duration" in only_problem(project)


def test_a_key_has_each_column_once() -> None:
    """Compared without case."""
    source = Project().source("s", "rate", envelope="upsert", key=("id", "ID"))
    assert "column 'ID' stands in the key twice" in only_problem(source)
    index = Project().source("s", "rate").index("s", ["x", "X"])
    assert "column 'X' stands in the key twice" in only_problem(index)
    sink = Project().source("s", "rate")
    sink.sink("o", "s", "memory", envelope="upsert", key=("id", "id"))
    assert "column 'id' stands in the key twice" in only_problem(sink)


def test_a_view_is_one_statement_and_what_stands_around_it_is_none() -> None:
    """As in a file: semicolons and comments are no part of it, and places are those of the text."""
    text = "-- all of them\nSELECT value FROM s; -- and no more\n"
    project = Project().source("s", "rate").view("v", text)
    assert project.problems == []
    same = Project.parse(
        {"a.sql": f"CREATE SOURCE s USING rate; CREATE MATERIALIZED VIEW v AS {text}"}
    )
    views = [{one.name: one for one in of._reading.written}["v"] for of in (project, same)]
    assert views[0].description == views[1].description
    assert str(views[0].place("query")) == "view v:2:1"
    assert "expected one query, found several" in only_problem(
        Project().view("v", "SELECT 1; SELECT 2")
    )
    broken = only_problem(Project().view("v", "-- a\nSELECT FROM t.u.v"))
    assert broken.startswith("view v:2:13: 't.u.v' is no object")
