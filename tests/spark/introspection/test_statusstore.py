"""Spark's own status store, as it answers: executions, what they counted, and plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shardline.app.introspection.spark_plan.status_store import Execution, StatusStore
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0
MANY = 50
"""More than one look asks for at first."""


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Executions of this thread are called `text`."""
    context: Any = spark.sparkContext
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setJobDescription(None)


def filtered(spark: SparkSession) -> int:
    """How many of ten rows a filter with a subquery leaves."""
    return len(spark.range(10).where("id > (SELECT max(id) - 3 FROM range(5))").collect())


def ended(store: StatusStore, first: int, text: str, count: int) -> list[Execution]:
    """Executions with a description, once the store knows that so many have ended."""
    found: list[Execution] = []

    def there() -> bool:
        found[:] = [one for one in store.since(first) if one.description == text]
        return sum(one.ended_ms is not None for one in found) == count

    wait_until(f"{count} executions of '{text}' have ended", there, PATIENCE_S)
    return found


def test_executions_are_found_once_each(spark: SparkSession) -> None:
    """From a number on, however many there are; each also by its number."""
    store = StatusStore(spark)
    with described(spark, "many"):
        assert {filtered(spark) for _ in range(MANY)} == {8}
    found = ended(StatusStore(spark), 0, "many", MANY)
    numbers = [one.number for one in found]
    assert numbers == sorted(set(numbers))
    assert all(one.went_well and one.has_counted for one in found)
    later = store.since(numbers[20])
    assert [one.number for one in later if one.description == "many"] == numbers[20:]
    assert store.since(later[-1].number + 1) == []
    assert store.execution(numbers[3]) == found[3]
    assert store.execution(later[-1].number + 1_000_000) is None


def test_a_plan_tells_rows_and_times(spark: SparkSession) -> None:
    """Those of the nodes that Spark counts, of this very execution."""
    store = StatusStore(spark)
    with described(spark, "counted"):
        assert filtered(spark) == 8
    (execution,) = ended(store, 0, "counted", 1)
    plan = store.plan(execution)
    assert plan is not None
    counted = {(node.name, node.rows) for node in plan.nodes.values()}
    assert counted >= {("Filter", 8), ("Range", 10), ("Range", 5)}
    assert plan.pipelines
    assert len(plan.roots) == 1


def test_a_forgotten_execution_has_no_plan(spark: SparkSession) -> None:
    """Spark keeps so many executions; one of an earlier look may be gone."""
    store = StatusStore(spark)
    with described(spark, "gone"):
        filtered(spark)
    (execution,) = ended(store, 0, "gone", 1)
    gone = msgspec.structs.replace(execution, number=execution.number + 1_000_000)
    assert store.plan(gone) is None
    assert store.plan(msgspec.structs.replace(gone, values=None)) is None
    assert store.plan(execution) is not None


def test_a_failure_is_none_that_went_well(spark: SparkSession) -> None:
    """What it counted is of no use."""
    with described(spark, "failing"), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(3).selectExpr("1 / id").collect()
    (execution,) = ended(StatusStore(spark), 0, "failing", 1)
    assert not execution.went_well
    assert execution.error
