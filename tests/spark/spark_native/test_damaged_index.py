"""A damaged index of pages loses no row: the part is an error, whatever reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.datasource.parts.part_file import footer_bytes
from shardline.datasource.spark_native import load_plans, scan
from support.spark import stored
from support.spark.native import client_at, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 120_000
RANGE = 100_001


def loaded(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("shard").load(path)


def changed(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("shard").option("readChangeFeed", "true").load(path)


def begin_of_index(spark: SparkSession, file: Path) -> int:
    """Where the indexes of a file's columns begin, as Spark's reader finds them."""
    with stored.opened_by_spark(spark, file) as reader:
        chunks = [one for block in reader.getFooter().getBlocks() for one in block.getColumns()]
        found: list[int] = [one.getColumnIndexReference().getOffset() for one in chunks]
        found += [one.getOffsetIndexReference().getOffset() for one in chunks]
        return min(found)


@pytest.mark.parametrize("by_spark", [True, False])
def test_the_end_of_a_part_begins_with_its_index(
    spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    """So its checksum is of all that follows the pages, with columns of every encoding."""
    client = client_at(f"{tmp_path}", inline_part_bytes=0, row_group_rows=400)
    rows = (
        "id",
        "id % 3 AS few",
        "string(id) AS s",
        "array(id, 7) AS l",
        "named_struct('x', id) AS t",
    )
    frame = spark.range(0, 1000, 1, 1).selectExpr(*rows)
    if by_spark:
        datasource.save(frame, f"{tmp_path}/in")
    else:
        put(client, "in", 1, frame.toArrow())
    (part,) = [one for batch in client.state("in").trace.batches for one in batch.parts]
    file = tmp_path / part.key
    assert part.footer is not None
    assert file.stat().st_size - part.footer.size_bytes == begin_of_index(spark, file)


def with_wrong_bounds(data: bytes, end: int) -> bytes:
    """A part's file whose index says of all pages of numbers that these are far larger."""
    wrong = bytearray(data)
    for at in range(len(data) - end, len(data) - footer_bytes(data) - 8):
        if 255 < int.from_bytes(data[at : at + 8], "little") < ROWS:
            wrong[at + 5] ^= 1
    assert wrong != data
    return bytes(wrong)


@pytest.mark.parametrize("read", [loaded, changed, datasource.snapshot])
def test_rows_of_a_page_do_not_vanish(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[SparkSession, str], DataFrame],
) -> None:
    """The bounds of a page tell a filter to leave it out, and they have no checksum in the file."""
    location = str(tmp_path_factory.mktemp("lake"))
    client = client_at(location, inline_part_bytes=0, compact_inline_bytes=0)
    put(client, "in", 1, pa.table({"a": range(ROWS)}))
    (part,) = [one for batch in client.state("in").trace.batches for one in batch.parts]
    assert part.footer is not None
    data = stored.read(location, part.key)
    damaged = with_wrong_bounds(data, part.footer.size_bytes)

    def found() -> int:
        return read(spark, f"{location}/in").where("a BETWEEN 10000 AND 110000").count()

    stored.replace(location, part.key, damaged)
    with pytest.raises(Exception, match=r"CORRUPT_PART"):
        found()
    stored.replace(location, part.key, data)
    assert found() == RANGE

    # Without the look when it is planned there is that of each task; without both Spark misses
    # rows, and tells nobody.
    for module in (load_plans, scan):
        monkeypatch.setattr(module, "is_intact", lambda *_: True)
    stored.replace(location, part.key, damaged)
    with pytest.raises(Exception, match=r"CORRUPT_PART"):
        found()
    monkeypatch.setattr(scan, "seen_file", lambda *_: "")
    assert found() < RANGE
