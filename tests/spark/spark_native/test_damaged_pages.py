"""A page whose header is damaged is an error of its part, also where Java names no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.datasource.frames import scala_sequence
from shardline.datasource.java_names import java_class
from support.spark import stored
from support.spark.native import client_at, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXECUTION = "org.apache.spark.sql.execution"

ROWS = 6000
"""As many as a micro-batch has that is read natively."""

BEGIN = 4
"""Offset of the first page: that of the dictionary of the first column."""


def loaded(spark: SparkSession, path: str) -> None:
    spark.read.format("shard").load(path).collect()


def taken(spark: SparkSession, path: str) -> None:
    datasource.snapshot(spark, path).collect()


def streamed(spark: SparkSession, path: str) -> None:
    rows = spark.readStream.format("shard").load(path).writeStream.format("noop")
    rows.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("read", [loaded, taken, streamed])
def test_a_damaged_header_of_a_page_is_an_error_of_its_part(
    spark: SparkSession, location: str, read: Callable[[SparkSession, str], None]
) -> None:
    """One that is none, and one whose page has more bytes than there are: that ends in a buffer."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, pa.table({"s": [f"text {n % 7}" for n in range(ROWS)]}))
    (part,) = [one for batch in client.state("in").trace.batches for one in batch.parts]
    data = stored.read(location, part.key)
    for place, bit in ((0, 1), (3, 8)):
        damaged = bytearray(data)
        damaged[BEGIN + place] ^= bit
        stored.replace(location, part.key, bytes(damaged))
        with pytest.raises(Exception, match=rf"\[CORRUPT_PART\] part '{part.key}' is damaged"):
            read(spark, f"{location}/in")
    stored.replace(location, part.key, data)
    read(spark, f"{location}/in")


def test_an_option_of_parquet_is_no_damage(spark: SparkSession, location: str) -> None:
    """It fails in the driver, in Spark's code for Parquet, whatever else may be damaged."""
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, pa.table({"s": [f"text {n % 7}" for n in range(ROWS)]}))
    (part,) = [one for batch in client.state("in").trace.batches for one in batch.parts]
    frame = spark.read.format("shard").load(f"{location}/in")
    assert frame.count() == ROWS
    damaged = bytearray(stored.read(location, part.key))
    damaged[BEGIN] ^= 1
    stored.replace(location, part.key, bytes(damaged))
    session = spark._jsparkSession
    options = java_class(spark, "java.util.HashMap")()
    options.put("mergeSchema", "x")
    given = java_class(spark, "PythonUtils").toScalaMap(options)
    parquet = java_class(spark, f"{EXECUTION}.datasources.parquet.ParquetFileFormat")()
    with pytest.raises(Exception, match="x") as caught:
        parquet.inferSchema(session, given, scala_sequence(spark, []))
    assert part.key not in str(caught.value)
    with pytest.raises(Exception, match=rf"\[CORRUPT_PART\] part '{part.key}' is damaged"):
        frame.collect()
