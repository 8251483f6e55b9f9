"""Errors of Spark's parser are worded for the text as its user has written it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.project.project import Project
from shardline.app.sql.problems import InvalidProject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("query", "at", "near"),
    [
        ("SELECT FROM c", "2:43", "near 'c'"),
        ("SELECT counter, FROM c", "2:52", "near 'c'"),
        ("SELECT counter FROM c GROUP BY", "2:61", "near end of input"),
    ],
)
def test_a_message_names_no_word_that_the_text_does_not_have(
    spark: SparkSession, query: str, at: str, near: str
) -> None:
    """Spark gets names of views in place of the project's, each with an alias behind AS."""
    text = f"CREATE SOURCE c USING counter;\nCREATE MATERIALIZED VIEW v AS {query};"
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": text}).check(spark)
    (problem,) = error.value.problems
    assert f"{problem.place}" == f"p.sql:{at}"
    assert problem.message == f"syntax error at or {near}"
