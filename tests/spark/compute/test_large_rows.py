"""A few large rows are never all in the driver: their bytes are counted before they are there."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.app.compute.view import shared_changes
from shardline.app.compute.view.maintained_view import View
from shardline.datasource.frames import BYTES_MAX, collect_few
from shardline.datasource.spark_native import arrow_fallback, frames, small_results
from shardline.datasource.spark_native.time_interval import Interval
from support.spark.views import Bench, Following, contents, no_fence, view

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardline.app.protocol.objects import Strategy

pytestmark = pytest.mark.spark

LARGE = 3 << 20
"""Bytes of one row; a few of them are more than may be collected."""


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each result that has come into this process."""
    found: list[int] = []
    real: Callable[..., pa.Table] = small_results.to_arrow

    def noted(*given: Any) -> pa.Table:
        table = real(*given)
        found.append(table.nbytes)
        return table

    monkeypatch.setattr(small_results, "to_arrow", noted)
    return found


def test_rows_that_may_be_large_are_counted_first(
    spark: SparkSession, collected: list[int]
) -> None:
    """Whether they are too many, too large, or few; and nothing of them stays in Spark's cache."""
    inside: Any = spark.sparkContext._jsc
    before = inside.getPersistentRDDs().size()
    texts = "concat(id, repeat('x', 1000)) AS t"
    few = collect_few(spark.range(3).selectExpr("id", texts), 3, 10_000, may_be_large=True)
    assert few is not None
    assert few.to_pylist() == [{"id": n, "t": f"{n}{'x' * 1000}"} for n in range(3)]
    none = collect_few(spark.range(0).selectExpr(texts), 3, 10_000, may_be_large=True)
    assert none is not None
    assert none.num_rows == 0
    del collected[:]
    assert collect_few(spark.range(4).selectExpr(texts), 3, 10_000, may_be_large=True) is None
    large = spark.range(11).selectExpr(texts)
    assert collect_few(large, 100, 10_000, may_be_large=True) is None
    assert not collected
    assert inside.getPersistentRDDs().size() == before


@pytest.mark.parametrize(
    ("strategy", "query"),
    [
        ("recompute", "SELECT k, max(x) AS x FROM t GROUP BY k"),
        ("recompute", "SELECT k, x FROM t"),
        ("incremental", "SELECT k, max(x) AS x FROM t GROUP BY k"),
        ("linear", "SELECT k, x FROM t"),
    ],
)
def test_a_step_that_gives_large_rows(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collected: list[int],
    *,
    strategy: Strategy,
    query: str,
) -> None:
    """After small ones, which are known in memory; and small ones again."""

    def fetched(session: SparkSession, partitions: Any, schema: Any) -> Any:
        found = sum(planned.part.size_bytes for one in partitions for planned in one.parts)
        collected.append(found)
        return arrow_fallback.fetch_in_driver(session, partitions, schema)

    monkeypatch.setattr(frames, "fetch_in_driver", fetched)
    # Of changes this process reads more by choice.
    monkeypatch.setattr(shared_changes, "_PARTS_BYTES_MAX", BYTES_MAX)
    chance = random.Random(7)
    rows = [(k, chance.randbytes(LARGE // 2).hex()) for k in range(12)]
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64()), ("x", pa.string())]))
    table.push(10, *[((k, "small"), 1) for k in range(20, 23)], until=20)
    kept = view("large", query, "k BIGINT, x STRING", "t", strategy=strategy)
    run = View(bench.host, bench.incarnation("large", 10), kept, no_fence, Following())
    session = spark.newSession()
    run.advance(session, Interval(10, 20, starts=True))
    table.push(20, *[(row, 1) for row in rows], until=30)
    run.advance(session, Interval(20, 30))
    assert contents(bench.client, "large", 29) == Counter(table.at(29))
    table.push(30, *[(row, -1) for row in rows], ((23, "small"), 1), until=40)
    run.advance(session, Interval(30, 40))
    assert contents(bench.client, "large", 39) == Counter(table.at(39))
    assert max(collected) <= BYTES_MAX
