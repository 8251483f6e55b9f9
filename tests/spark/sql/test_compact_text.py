"""The text that is kept of a query is the query that Spark reads in the text as written."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import ParseException

from shardline.app.sql.problems import TextProblem
from shardline.app.sql.tokens import compact_text
from support.profiles import wide_examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PIECES = st.sampled_from(
    ["/* ", " */", "/*+ ", "-- ", "\\\n", "\n", "\r\n", ", 2", ", 'a'", "/", "*"]
)


def plan(spark: SparkSession, text: str) -> str | None:
    """The plan that Spark's parser makes of a query; None if it is none."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    with suppress(ParseException):
        return str(parser.parsePlan(text).toString())
    return None


@wide_examples(20)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_comments_are_what_spark_takes_for_them(spark: SparkSession, rest: str) -> None:
    """Or the text is refused, as its kept text would be another query."""
    text = f"SELECT 1 {rest}"
    meant = plan(spark, text)
    try:
        kept = compact_text(text)
    except TextProblem:
        return
    assert meant is None or plan(spark, kept) == meant
