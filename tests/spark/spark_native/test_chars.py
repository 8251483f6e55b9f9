"""Columns that a table has as CHAR(n) are padded where Spark pads those of its own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline import datasource
from support.spark.native import collected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SETTINGS = ("spark.sql.readSideCharPadding", "spark.sql.legacy.charVarcharAsString")


@pytest.fixture
def set_padding(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets, for one test, if texts are padded when read, and if CHAR is another word for STRING."""
    before = {name: spark.conf.get(name) or "" for name in SETTINGS}

    def put(*values: str) -> None:
        for name, value in zip(SETTINGS, values, strict=True):
            spark.conf.set(name, value)

    yield put
    put(*before.values())


@pytest.mark.parametrize("padded", [("true", "false"), ("true", "true"), ("false", "false")])
def test_chars_are_padded_as_those_of_tables(
    spark: SparkSession,
    location: str,
    set_padding: Callable[[str, str], None],
    padded: tuple[str, str],
) -> None:
    """As `load` and Spark's own tables do, by either setting; also of parts that tasks fetch."""
    set_padding(*padded)
    spark.sql("""CREATE TABLE chars (id BIGINT, c CHAR(5), v VARCHAR(5), a ARRAY<CHAR(3)>,
        s STRUCT<x: CHAR(2), y: INT>) USING parquet""")
    try:
        table = spark.table("chars")
        # Not by an INSERT, which pads: as other writers leave them.
        rows = [(1, "ab", "ab", ["x"], ("p", 1)), (2, "abcdefg", None, [None], None)]
        written = spark.createDataFrame(rows, table.schema)
        told = spark.sql("DESCRIBE EXTENDED chars").collect()
        [path] = [row.data_type for row in told if row.col_name == "Location"]
        written.write.mode("append").parquet(path)
        spark.sql("REFRESH TABLE chars")
        expected = collected(table)
        found = table.where("c = 'ab'").count()
    finally:
        spark.sql("DROP TABLE chars")

    datasource.save(written, f"{location}/in", options={"inlinePartBytes": 0})
    load = spark.read.format("shard").load(f"{location}/in")
    assert collected(load) == expected
    # A time zone that is not the session's leaves a filtered read to the tasks.
    elsewhere = {"where": "id > 0", "timeZone": "Asia/Tokyo"}
    for by_driver, options in ((0, {}), (0, elsewhere), (100, {})):
        frame = datasource.snapshot(spark, f"{location}/in", by_driver=by_driver, options=options)
        assert collected(frame) == expected
        assert frame.schema == load.schema == table.schema
        assert frame.where("c = 'ab'").count() == found
    feed = datasource.changes(spark, f"{location}/in")
    assert collected(feed.drop("_ts", "_diff")) == expected
