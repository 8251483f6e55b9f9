"""No query of a client runs methods of Java or commands of the machine."""

# ruff: noqa: S608 - queries of tests, put together from their own words

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from shardline.app.sql.outside_calls import refuse_outside_calls
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CALL = "('java.lang.System', 'setProperty', 'shardline.called', 'yes')"
JAVA = [
    f"SELECT reflect{CALL}",
    f"SELECT `Java_Method` /* c */ {CALL} AS x FROM f",
    f"SELECT try_reflect{CALL} || 'a' AS x FROM f",
    f"SELECT a FROM f WHERE (SELECT reflect{CALL}) = 'a'",
    f"SELECT a FROM f WHERE EXISTS (SELECT 1 WHERE reflect{CALL} = f.a)",
    f"SELECT a FROM f WHERE a IN (SELECT reflect{CALL})",
    f"SELECT * FROM (SELECT count(*) AS n FROM f), LATERAL (SELECT reflect{CALL} AS x)",
    f"WITH c AS (SELECT reflect{CALL} AS x) SELECT count(*) AS n FROM c",
    f"SELECT * FROM f ORDER BY reflect{CALL} LIMIT 1",
    f"SELECT transform(array(a), x -> reflect{CALL}) AS x FROM f",
    f"FROM f |> EXTEND reflect{CALL} AS x",
]
EVALUATED = [
    f"SELECT * FROM range(reflect{CALL})",
    f"SELECT * FROM VALUES (reflect{CALL}) AS t(a)",
    f"SELECT * FROM f LIMIT reflect{CALL}",
]
MACHINE = [
    "SELECT TRANSFORM(a) USING 'touch {made}' AS (y STRING) FROM f",
    "FROM f SELECT TRANSFORM(a) USING 'touch {made}' AS (y STRING)",
    "SELECT (SELECT min(y) FROM (SELECT TRANSFORM(a) USING 'touch {made}' AS (y STRING) FROM f))",
    "SELECT 1 WHERE 'a' IN (SELECT TRANSFORM(a) USING 'touch {made}' AS (y STRING) FROM f)",
]


@pytest.fixture(autouse=True)
def table(spark: SparkSession) -> Iterator[None]:
    spark.sql("SELECT 'a' AS a").createOrReplaceTempView("f")
    yield
    spark.catalog.dropTempView("f")


def was_called(spark: SparkSession) -> bool:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.java.lang.System.getProperty("shardline.called") is not None


@pytest.mark.parametrize("query", [*JAVA, *MACHINE])
def test_such_calls_are_refused_and_not_run(
    spark: SparkSession, tmp_path: Path, query: str
) -> None:
    """In columns, conditions, subqueries of each kind, and behind other names of the function."""
    made = tmp_path / "made"
    frame = spark.sql(query.format(made=made))
    with pytest.raises(InvalidUsage, match="FUNCTION_REFUSED"):
        refuse_outside_calls(frame._jdf.queryExecution().analyzed())
    assert not was_called(spark)
    assert not made.exists()


@pytest.mark.parametrize("query", EVALUATED)
def test_what_spark_evaluates_to_analyse_a_query_has_no_such_call(
    spark: SparkSession, query: str
) -> None:
    """Spark itself refuses it there, unevaluated: the check of the plan would come too late."""
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.sql(query)
    assert not was_called(spark)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT rand() AS r, uuid() AS u FROM f",
        "SELECT transform(array(a), x -> x || 'b') AS x FROM f WHERE a IN (SELECT a FROM f)",
        "SELECT 'reflect(1)' AS reflect",
    ],
)
def test_other_queries_are_taken(spark: SparkSession, query: str) -> None:
    """Those that differ by row, and those that only look like it."""
    frame = spark.sql(query)
    refuse_outside_calls(frame._jdf.queryExecution().analyzed())
