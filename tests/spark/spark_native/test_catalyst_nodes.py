"""Questions about plans are answered as Spark's own methods do, and few calls are made for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import Py4JJavaError
from pyspark.sql.types import StringType

from shardline.datasource.clock import SystemClock
from shardline.datasource.frames import (
    children_of,
    is_plan,
    is_whole,
    kind_of,
    number_of,
    numbers_of,
    numbers_read,
    operator_kinds,
    read_sequence,
    scala_sequence,
    settings_of,
    type_of,
)
from shardline.datasource.java_names import java_class
from shardline.datasource.waiting import poll_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]

QUERIES = [
    "SELECT 1",
    "SELECT id + 1 AS a, count(*) AS n FROM range(9) WHERE id > 3 GROUP BY 1 HAVING n > 0",
    "SELECT * FROM range(3) AS l JOIN range(4) AS r ON l.id = r.id AND l.id < 2",
    "SELECT id IN (SELECT id FROM range(2)), upper('x') FROM range(3) ORDER BY id LIMIT 2",
    "SELECT sum(id) OVER (PARTITION BY id % 2 ORDER BY id) FROM range(3) UNION SELECT 4",
    "SELECT explode(array(id, 2)), CASE WHEN id > 1 THEN 'a' END FROM range(3)",
]


def analysed(spark: SparkSession, query: str) -> Any:
    """The plan of a query."""
    return spark.sql(query)._jdf.queryExecution().analyzed()


def one_by_one(sequence: Any) -> list[Any]:
    """The elements of a sequence, by a call for each."""
    return [sequence.apply(place) for place in range(sequence.size())]


def nodes(plan: Any) -> Iterator[Any]:
    """All operators and expressions of a plan, by Spark's own methods."""
    yield plan
    if ".plans.logical." in plan.getClass().getName():
        for expression in one_by_one(plan.expressions()):
            yield from nodes(expression)
    for child in one_by_one(plan.children()):
        yield from nodes(child)


def texts(sequence: list[Any]) -> list[str]:
    """Nodes as Spark shows them."""
    return [str(one.toString()) for one in sequence]


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_sparks_own_methods(spark: SparkSession, query: str) -> None:
    """Of every operator and expression of queries of many kinds."""
    plan = analysed(spark, query)
    for node in nodes(plan):
        assert kind_of(node) == node.getClass().getSimpleName()
        assert is_plan(node) == (".plans.logical." in node.getClass().getName())
        assert texts(children_of(node)) == texts(one_by_one(node.children()))
        read = one_by_one(node.references().toSeq())
        assert numbers_read(node) == [one.exprId().id() for one in read]
    columns = one_by_one(plan.output())
    assert texts(read_sequence(plan.output())) == texts(columns)
    assert [type_of(one) for one in columns] == [one.dataType for one in spark.sql(query).schema]
    numbers = [one.exprId().id() for one in columns]
    assert numbers_of(plan.output()) == numbers == [number_of(one) for one in columns]
    operators = (one for one in nodes(plan) if is_plan(one))
    assert operator_kinds(plan) == {one.getClass().getSimpleName() for one in operators}


def test_a_plan_is_whole_if_each_operator_finds_what_it_refers_to(spark: SparkSession) -> None:
    """One that misses a column below it is not, nor is one that is not resolved."""
    plan = analysed(spark, "SELECT a FROM (SELECT id AS a FROM range(3)) WHERE a > 1")
    assert is_whole(plan)
    leaf = plan
    while children_of(leaf):
        leaf = children_of(leaf)[0]
    # The filter's column is made by a projection that is no longer there.
    dangling = plan.withNewChildren(scala_sequence(spark, [leaf]))
    assert dangling.resolved()
    assert not is_whole(dangling)
    above = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Distinct")(dangling)
    assert not is_whole(above)
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan("SELECT nope FROM nowhere")
    assert not is_whole(parsed)


def test_the_type_of_a_column_has_its_collation(spark: SparkSession) -> None:
    """Which is no part of the JSON of the type alone."""
    (column,) = read_sequence(analysed(spark, "SELECT 'x' COLLATE UNICODE_CI").output())
    assert type_of(column) == StringType("UNICODE_CI")
    assert type_of(column) != StringType()


def test_a_sequence_of_texts_or_numbers_is_read_and_made(spark: SparkSession) -> None:
    """They are values of Python, which have no name in the JVM; with nodes among them, too."""
    node = analysed(spark, "SELECT 1")
    mixed = scala_sequence(spark, ["a", 7, node])
    first, second, third = read_sequence(mixed)
    assert (first, second, kind_of(third)) == ("a", 7, "Project")
    assert read_sequence(scala_sequence(spark, [])) == []
    made = scala_sequence(spark, [node, node])
    assert made.size() == 2
    assert made.apply(1).equals(node)


def test_columns_that_are_not_resolved_are_read_with_the_others(spark: SparkSession) -> None:
    """They have no number, and to ask for it is an error."""
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan("SELECT nope, 1 AS a FROM t")
    nope, one = read_sequence(parsed.projectList())
    assert (kind_of(nope), kind_of(one)) == ("UnresolvedAttribute", "Alias")
    assert number_of(one) == one.exprId().id()
    with pytest.raises(Py4JJavaError, match="UnresolvedException"):
        number_of(nope)


def test_an_error_of_spark_stays_one(spark: SparkSession) -> None:
    """As that of any other call."""
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan("SELECT nope FROM nowhere")
    with pytest.raises(Py4JJavaError, match="UnresolvedException"):
        numbers_of(parsed.output())


def test_what_is_set_is_read_as_pyspark_does(spark: SparkSession) -> None:
    """Names and values, with all that JSON must not change."""
    session = spark.newSession()
    session.conf.set("spark.shardline.test", 'a "quoted" \\ text\n\u00e4\u20ac')
    assert settings_of(session) == session.conf.getAll


def test_objects_that_python_gives_up_are_released_many_at_a_time(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None stays in the gateway, and none of them takes a call of its own."""
    plan = analysed(spark, QUERIES[1])
    kind_of(plan)  # from here on they are released together
    alone: list[str] = []
    monkeypatch.setattr(
        JavaClient,
        "garbage_collect_object",
        lambda client, name, enqueue=True: (
            client.finalizer_deque.appendleft((client, name)) if enqueue else alone.append(name)
        ),
    )
    kept = plan.children()
    given_up = [plan.children() for _ in range(300)]
    names = [one._target_id for one in given_up]
    own: Any = spark.sparkContext._gateway
    gateway = own.java_gateway_server.getGateway()
    assert gateway.getObject(names[-1]) is not None
    given_up.clear()
    poll_until(
        lambda: all(gateway.getObject(one) is None for one in names) or None,
        SystemClock(),
        threading.Event(),
        poll_ms=100,
        timeout_ms=60_000,
    )
    assert [one for one in names if gateway.getObject(one) is not None] == []
    assert gateway.getObject(kept._target_id) is not None
    assert alone == []
