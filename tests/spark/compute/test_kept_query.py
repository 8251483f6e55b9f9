"""A view's query is analysed once; each evaluation gives its plan rows, whatever is in the session.

That contents are right at every time is shown by `test_view_oracle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import udf
from pyspark.sql.udtf import UserDefinedTableFunction

from shardline.app.compute.view.called_functions import calls_user_functions
from shardline.app.compute.view.kept_query import KeptQuery
from shardline.datasource.types.schema import ShardSchema
from support.models.shards import World
from support.profiles import one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QUERIES = {
    "join": "SELECT n, count(*) AS c FROM t JOIN u USING (k) GROUP BY n",
    "self_join": "SELECT l.k, r.v FROM t l JOIN t r ON l.k = r.k + 1",
    "cte_twice": "WITH c AS (SELECT k FROM t WHERE v > 1) SELECT * FROM c UNION SELECT k FROM c",
    "window": "SELECT k, rank() OVER (PARTITION BY n ORDER BY v) AS r FROM t JOIN u USING (k)",
    "recursive": "WITH RECURSIVE r(k) AS (SELECT min(k) FROM t UNION ALL "
    "SELECT k + 1 FROM r WHERE k < 5) SELECT r.k, v FROM r LEFT JOIN t ON t.k = r.k",
    "lateral": "SELECT t.k, x.n FROM t, LATERAL (SELECT n FROM u WHERE u.k = t.k) x",
    "subquery": "SELECT k FROM t WHERE v = (SELECT max(v) FROM t) OR k IN (SELECT k FROM u)",
}
FROM_TEXT = {"lateral", "subquery"}
"""Queries that have another one in an expression."""


def inputs(spark: SparkSession, add: int) -> dict[str, DataFrame]:
    rows = [(k, float(k % 3 + add)) for k in range(add, add + 4)]
    names = [(k, "even" if k % 2 == 0 else "odd") for k in range(6)]
    return {
        "t": spark.createDataFrame(rows, "k BIGINT, v DOUBLE"),
        "u": spark.createDataFrame(names, "k BIGINT, n STRING"),
    }


def plainly(spark: SparkSession, query: str, frames: dict[str, DataFrame]) -> list[str]:
    """What Spark says of the text, in a session of its own."""
    session = spark.newSession()
    for name, frame in frames.items():
        session.createDataFrame(frame.collect(), frame.schema).createOrReplaceTempView(name)
    return sorted(map(str, session.sql(query).collect()))


@pytest.mark.parametrize("name", one_of(8, QUERIES))
def test_each_evaluation_has_its_own_rows(spark: SparkSession, name: str) -> None:
    """Of all inputs, in each place where the query reads them."""
    query = KeptQuery(QUERIES[name])
    for add in (0, 1, 3):
        frames = inputs(spark, add)
        found = sorted(map(str, query.evaluate(spark, frames).collect()))
        assert found == plainly(spark, QUERIES[name], frames)
        assert found


def test_functions_of_users_are_known(spark: SparkSession) -> None:
    """Of rows and of tables, wherever they are: who calls one is kept apart from other views."""
    session = spark.newSession()
    session.udf.register("more", udf(lambda n: n + 1, "bigint"))
    session.udtf.register("both", UserDefinedTableFunction(Both, "n BIGINT"))
    session.sql("CREATE TEMPORARY FUNCTION f(n BIGINT) RETURNS BIGINT RETURN n + 1")
    session.sql("CREATE TEMPORARY FUNCTION g(n BIGINT) RETURNS TABLE(m BIGINT) RETURN SELECT n + 1")
    world = World()
    world.client().create("t", ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
    states = [world.client().state("t")]
    for query, calls in {
        "SELECT a + 1 AS b, explode(array(a)) FROM t": False,
        "SELECT more(a) AS b FROM t": True,
        "SELECT a FROM t WHERE more(a) > 1": True,
        "SELECT f(a) AS b FROM t": True,
        "SELECT a FROM t WHERE a IN (SELECT f(a) FROM t)": True,
        "SELECT a, m FROM t, LATERAL g(a)": True,
        "SELECT a, n FROM t, LATERAL both(a)": True,
        "SELECT a FROM t UNION ALL SELECT n FROM t, LATERAL both(a) WHERE n > 1": True,
    }.items():
        assert calls_user_functions(session, query, states) is calls, query
    world.close()


class Both:
    """A table function: a number and the next one."""

    def eval(self, n: int) -> Iterator[tuple[int]]:
        yield (n,)
        yield (n + 1,)


@pytest.mark.parametrize("name", one_of(2, sorted(QUERIES.keys() - FROM_TEXT)))
def test_a_kept_plan_puts_nothing_into_the_session(spark: SparkSession, name: str) -> None:
    """What is there under the name of an input stays, and is not read."""
    query = KeptQuery(QUERIES[name])
    query.evaluate(spark, inputs(spark, 0))
    spark.sql("SELECT 'somebody else' AS owner").createOrReplaceTempView("t")
    try:
        frames = inputs(spark, 1)
        found = sorted(map(str, query.evaluate(spark, frames).collect()))
        assert found == plainly(spark, QUERIES[name], frames)
        assert spark.table("t").collect() == [("somebody else",)]
    finally:
        spark.catalog.dropTempView("t")


def test_an_input_with_other_columns_is_analysed_anew(spark: SparkSession) -> None:
    """A column that comes, one of another type, and one that the query needs and that is gone."""
    query = KeptQuery("SELECT * FROM t WHERE k > 0")
    for columns, row in {
        "k INT": (1,),
        "k INT, more STRING": (2, "new"),
        "k BIGINT NOT NULL, more STRING": (1 << 40, None),
    }.items():
        frame = spark.createDataFrame([row], columns)
        result = query.evaluate(spark, {"t": frame})
        assert (result.collect(), result.schema) == ([row], frame.schema)
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        query.evaluate(spark, {"t": spark.createDataFrame([(1,)], "other INT")})
