"""An error of the query at a row is told, whatever a step leaves out or does not find."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from shardline.app.compute.view.maintained_view import View
from shardline.app.protocol.objects import Strategy, errors_shard
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import one_of
from support.spark.views import Bench, Following, contents, no_fence, view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A: Final = pa.schema(
    [("k", pa.int64()), ("j", pa.int64()), ("m", pa.int32()), ("x", pa.int32()), ("s", pa.string())]
)
B: Final = pa.schema([("j", pa.int64()), ("z", pa.int32())])

FAILING: Final = {
    "a filter above a join without partners": (
        "SELECT a.m FROM lonely a JOIN b ON a.j = b.j WHERE 10 div a.k > 1",
        "m INT",
        "lonely",
    ),
    "the condition of a join without partners": (
        "SELECT a.m FROM lonely a JOIN b ON a.j = b.j AND 10 div a.k > 1",
        "m INT",
        "lonely",
    ),
    "a temporal filter above a filter": (
        "SELECT a.k FROM a JOIN b ON a.j = b.j AND a.m > 1 WHERE CAST(a.s AS TIMESTAMP) > now()",
        "k BIGINT",
        "a",
    ),
    "an array that is exploded above a filter": (
        (
            "SELECT k, e FROM (SELECT a.k, sequence(1, 2 div a.x) AS q FROM a "
            "JOIN b ON a.j = b.j AND a.m > 1) LATERAL VIEW explode(q) t AS e"
        ),
        "k BIGINT, e BIGINT",
        "a",
    ),
}
"""Queries that fail at a row of the second time, their columns, and the input that has it."""


@pytest.fixture(scope="module")
def bench(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("row_errors")
    made = Bench(spark, str(folder / "lake"), folder / "checkpoints")
    for name, later in (
        ("a", (0, 1, 0, 0, "bad")),
        ("lonely", (0, 9, 5, 1, "2099-01-01")),
    ):
        table = made.input(name, A)
        table.push(10, ((1, 1, 5, 1, "2099-01-01"), 1))
        table.push(30, (later, 1))
        table.idle(50)
    partner = made.input("b", B)
    partner.push(10, ((1, 1), 1))
    partner.idle(50)
    return made


@pytest.mark.parametrize("strategy", ["incremental", "recompute"])
@pytest.mark.parametrize("name", one_of(4, FAILING))
def test_an_error_at_a_row_is_told(
    spark: SparkSession, bench: Bench, name: str, strategy: Strategy
) -> None:
    """By steps that follow changes as by those that run the query anew, from the same time on."""
    query, columns, given = FAILING[name]
    called = f"{list(FAILING).index(name)}_{strategy}"
    kept = view(f"view_{called}", query, columns, given, "b", strategy=strategy)
    run = View(bench.host, bench.incarnation(kept.name, 10), kept, no_fence, Following())
    session = spark.newSession()
    run.advance(session, Interval(10, 11, starts=True))
    for lower, upper in itertools.pairwise((11, 25, 50)):
        run.advance(session, Interval(lower, upper))
    errors = errors_shard(kept.name)
    assert not contents(bench.client, errors, 29)
    assert contents(bench.client, errors, 35)


def test_bytes_that_are_no_text_are_compared_as_spark_does(
    spark: SparkSession, bench: Bench
) -> None:
    """A constant of them is above all text."""
    table = bench.input("texts", pa.schema([("k", pa.int64()), ("s", pa.string())]))
    table.push(10, ((1, "x"), 1))
    table.push(20, ((2, "\N{GRINNING FACE}"), 1))
    table.idle(50)
    query = "SELECT k FROM texts WHERE s < CAST(X'FF' AS STRING)"
    kept = view("above_all", query, "k BIGINT", "texts", strategy="incremental")
    run = View(bench.host, bench.incarnation(kept.name, 10), kept, no_fence, Following())
    session = spark.newSession()
    run.advance(session, Interval(10, 11, starts=True))
    run.advance(session, Interval(11, 50))
    assert contents(bench.client, kept.name, 25) == {(1,): 1, (2,): 1}
