"""Rows of this process as a frame: all of them, in whatever pieces they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.app.compute.view.view_columns import parse_columns
from shardline.datasource.spark_native.jvm import local_relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "pieces", [[[1], [], [2, 3]], [[], [], [1]], [[1], []], [[], []], [[]], [[1], [2], [], [], [3]]]
)
def test_a_piece_without_rows_is_not_the_end(spark: SparkSession, pieces: list[list[int]]) -> None:
    """Spark takes it for the end; tables that were put together have some."""
    batches = [pa.record_batch({"k": pa.array(rows, pa.int64())}) for rows in pieces]
    found = local_relation(spark, batches, parse_columns("k BIGINT"))
    assert [row.k for row in found.collect()] == [one for rows in pieces for one in rows]
