"""An error that an expression throws at a row is data, whatever class and condition it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from shardline.app.compute.errors import data_error_text
from shardline.app.testing import Lab
from shardline.datasource.errors import Determinate
from support.profiles import some_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FAILING: Final = {
    "a format for numbers": ("to_number(s, '99')", "abc", "12"),
    "a pattern of LIKE": ("'a' LIKE s", "a\\", "a"),
    "a regular expression": ("'a' RLIKE s", "(", "a"),
    "bounds of a sequence": ("size(sequence(1, length(s) - 3, 1))", "a", "abcdef"),
    "a map of unequal arrays": ("size(map_from_arrays(split(s, ','), array(1)))", "a,b", "a"),
    "a document of XML": ("xpath_int(s, 'a')", "<a", "<a>1</a>"),
    "a format of texts": ("format_string(s, 1)", "%d %s", "%d"),
    "a far date": (
        "CAST(date_add(DATE'2026-01-01', CAST(s AS INT)) AS TIMESTAMP)",
        "200000000",
        "1",
    ),
    "the first time of all": (
        "date_trunc('YEAR', timestamp_micros(CAST(s AS BIGINT)))",
        "-9223372036854775808",
        "1",
    ),
    "a text of JSON": ("parse_json(s)", "{", "1"),
    "a zone": ("convert_timezone('UTC', s, TIMESTAMP_NTZ'2026-01-01')", "Nope", "UTC"),
    "a place in an array": ("array_insert(array(1), CAST(s AS INT), 2)", "0", "1"),
    "a cast": ("CAST(s AS INT)", "x", "1"),
}
"""An expression on a text `s`, a text at which it fails, and one at which it works."""


PROJECT: Final = """
CREATE SOURCE a USING csv OPTIONS (path 'later') SCHEMA (k INT, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT k, CAST(? AS STRING) AS x FROM a;
"""


@pytest.mark.parametrize("name", FAILING)
def test_an_error_at_a_row_is_told_from_others(spark: SparkSession, name: str) -> None:
    """With one text, whether a task has computed it or Spark's optimizer."""
    expression, bad, good = FAILING[name]
    texts = set()
    for local in (True, False):
        frame = spark.createDataFrame([(good,), (bad,)], "s string")
        frame = frame if local else frame.repartition(2)
        with pytest.raises((PySparkException, Py4JJavaError)) as failed:
            frame.selectExpr(f"to_json(named_struct('x', {expression}))").collect()
        texts.add(data_error_text(failed.value))
    (text,) = texts
    assert text is not None
    assert text.startswith("[")
    assert "\n" not in text
    assert "org.apache" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(FAILING, {"a regular expression", "a format for numbers"}))
@pytest.mark.parametrize("follows", [True, False])
def test_a_view_works_again_when_the_row_is_gone(
    spark: SparkSession, name: str, follows: bool
) -> None:
    """Its contents are an error from the time of the row to that of its retraction."""
    expression, bad, good = FAILING[name]
    with Lab(spark, PROJECT.replace("?", expression), follow_changes=follows) as lab:
        lab.push("a", [(1, good)], at=10)
        lab.advance(20)
        lab.push("a", [(2, bad)], at=25)
        lab.push("a", [(2, bad)], at=35, diff=-1)
        lab.advance(30)
        with pytest.raises(Determinate, match="DATA_ERROR"):
            lab.contents("v")
        lab.advance(40)
        assert [row.k for row in lab.contents("v").collect()] == [1]
        assert [row.k for row in lab.contents("v", 24).collect()] == [1]
        with pytest.raises(Determinate, match="DATA_ERROR"):
            lab.contents("v", 34)
