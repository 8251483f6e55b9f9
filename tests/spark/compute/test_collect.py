"""Results that Spark collects for a query, beside what `collect` of the same frame says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.peek.collect import collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_null_struct_has_no_fields_that_could_be_null(spark: SparkSession, ordered: bool) -> None:
    """PySpark's `toArrow` (4.3) fails for one whose fields never are NULL."""
    frame = spark.range(3).selectExpr(
        "id", "if(id = 1, NULL, named_struct('x', id, 'at', timestamp_seconds(id))) AS s"
    )
    frame = frame.orderBy("id") if ordered else frame
    inside = frame.schema["s"].dataType
    assert [field.nullable for field in inside] == [False, False]  # type: ignore[attr-defined]
    found = collect(frame, 1 << 20, f"null structs, {ordered}")
    assert [(row["id"], row["s"] and row["s"]["x"]) for row in found.to_pylist()] == [
        (row.id, row.s and row.s.x) for row in frame.collect()
    ]
