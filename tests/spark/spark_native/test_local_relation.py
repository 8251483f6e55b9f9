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


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("prefers_large", [False, True])
def test_offsets_are_those_of_the_batches(
    spark: SparkSession, *, prefers_large: bool, is_large: bool
) -> None:
    """By those of the session's settings the JVM would read memory that is not there."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", str(prefers_large).lower())
    text, binary = (
        (pa.large_string(), pa.large_binary()) if is_large else (pa.string(), pa.binary())
    )
    rows = {
        "s": pa.array(["a", None, "ccc"], text),
        "t": pa.array([["x"], [], ["yy", "z"]], pa.list_(text)),
        "m": pa.array([[(1, b"q")], [], [(2, b"rr")]], pa.map_(pa.int32(), binary)),
    }
    columns = parse_columns("s STRING, t ARRAY<STRING>, m MAP<INT, BINARY>")
    found = local_relation(session, [pa.record_batch(rows)], columns).collect()
    assert [tuple(row) for row in found] == [
        ("a", ["x"], {1: b"q"}),
        (None, [], {}),
        ("ccc", ["yy", "z"], {2: b"rr"}),
    ]
