"""Columns of a type that the session has switched off are a problem of the source that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.project.project import Project
from shardline.app.sql.problems import InvalidProject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROJECT = Project.parse(
    {
        "p.sql": "CREATE SOURCE calls USING csv OPTIONS (path 'later') SCHEMA (at TIME(6), n INT);"
        "CREATE MATERIALIZED VIEW v AS SELECT n FROM calls;"
    }
)
SETTING = "spark.sql.timeType.enabled"


def test_time_is_refused_with_the_setting_that_allows_it(spark: SparkSession) -> None:
    """Spark has it switched off by default."""
    with pytest.raises(InvalidProject) as error:
        PROJECT.check(spark)
    (problem,) = error.value.problems
    assert problem.message == "the data type TIME is not supported"
    assert problem.place is not None
    assert problem.place.text[problem.place.column - 1 :].startswith("at TIME(6)")
    assert SETTING in problem.hint
    spark.conf.set(SETTING, "true")
    try:
        assert set(PROJECT.check(spark).descriptions) == {"calls", "v"}
    finally:
        spark.conf.unset(SETTING)
