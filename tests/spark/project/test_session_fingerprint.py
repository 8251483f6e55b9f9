"""An earlier analysis is taken only where a session still means the same by a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from shardline.app.project.project import CheckedProject, Project
from shardline.app.sql.catalyst import Catalyst
from shardline.app.sql.problems import InvalidProject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEXT = """
CREATE SOURCE t USING csv OPTIONS (path 'in') SCHEMA (n INT NOT NULL, s STRING);
CREATE MATERIALIZED VIEW sums AS SELECT s, sum(n) AS n, split(s, ',') AS parts FROM t GROUP BY s;
CREATE MATERIALIZED VIEW large AS SELECT n, CAST(n AS DECIMAL(20, 2)) / 3 AS part FROM sums;
CREATE MATERIALIZED VIEW own AS SELECT {function}(n) AS n FROM t;
CREATE INDEX fast ON large (N);
"""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own: functions and settings go with it."""
    return spark.newSession()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that Spark is asked for."""
    found: list[str] = []
    query = Catalyst.query

    def noted(self: Catalyst, text: str) -> object:
        found.append(text)
        return query(self, text)

    monkeypatch.setattr(Catalyst, "query", noted)
    return found


def check(session: SparkSession, *earlier: CheckedProject, function: str = "abs") -> CheckedProject:
    return Project.parse({"a.sql": TEXT.format(function=function)}).check(session, earlier=earlier)


def test_a_session_that_means_the_same_is_not_asked(
    session: SparkSession, asked: list[str]
) -> None:
    """The result is that of a check which knows of nothing earlier."""
    first = check(session)
    assert len(asked) == 3
    again = check(session, first)
    assert len(asked) == 3
    assert again == first == check(session)


def set_precision(session: SparkSession) -> None:
    """Another type of a division."""
    session.conf.set("spark.sql.decimalOperations.allowPrecisionLoss", "false")


def hide_own(session: SparkSession) -> None:
    """A function of the user's, under a name that Spark has as well."""
    session.sql("CREATE TEMPORARY FUNCTION abs(n INT) RETURNS STRING RETURN 'x'")


@pytest.mark.parametrize("change", [set_precision, hide_own])
def test_a_session_that_may_mean_something_else_is_asked(
    session: SparkSession, asked: list[str], change: Callable[[SparkSession], None]
) -> None:
    """Settings and functions."""
    first = check(session)
    change(session)
    asked.clear()
    found = check(session, first)
    assert asked
    assert found == check(session)


def test_variables_of_the_session_are_not_there_for_views(session: SparkSession) -> None:
    """A view runs in a session of its own, and in the next process they have other values."""
    session.sql("DECLARE VARIABLE least INT DEFAULT 0")
    texts = {
        "a.sql": TEXT.format(function="abs"),
        "b.sql": "CREATE MATERIALIZED VIEW v AS SELECT n + least AS x FROM t;",
    }
    with pytest.raises(InvalidProject, match="least"):
        Project.parse(texts).check(session)


def test_a_function_of_a_user_may_have_been_replaced(session: SparkSession) -> None:
    """Under the same name it has another type: the view's columns are those of the new one."""
    session.sql("CREATE TEMPORARY FUNCTION mine(n INT) RETURNS INT RETURN n")
    first = check(session, function="mine")
    session.sql("CREATE OR REPLACE TEMPORARY FUNCTION mine(n INT) RETURNS STRING RETURN 'x'")
    found = check(session, first, function="mine")
    assert found.schemas["own"].startswith("n STRING")
    assert found.schemas["sums"] == first.schemas["sums"]
