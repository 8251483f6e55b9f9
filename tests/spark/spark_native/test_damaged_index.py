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

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 120_000
RANGE = 100_001


def loaded(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("shard").load(path)


def changed(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("shard").option("readChangeFeed", "true").load(path)


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

    # Without the look Spark misses rows, and tells nobody.
    for module in (load_plans, scan):
        monkeypatch.setattr(module, "is_intact", lambda *_: True)
    stored.replace(location, part.key, damaged)
    assert found() < RANGE
