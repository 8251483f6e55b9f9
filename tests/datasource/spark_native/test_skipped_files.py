"""Lists of files ask for what is kept of scans: which of them may have a row."""

from __future__ import annotations

import json

import pyarrow as pa

from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.shard.batch import Part
from shardline.datasource.spark_native.skipped_files import FileStatistics, ScannedParts
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import encode_stats

SCHEMA = ShardSchema.from_arrow(pa.schema([("id", pa.int64())]))


def scanned(*numbers: int) -> ScannedParts:
    """A part with one row for each number."""
    tables = [pa.table({"id": pa.array([number], pa.int64())}) for number in numbers]
    parts = [
        Part("p", 1, 1, 0, encoded_stats=encode_stats(collect_part_stats(table, SCHEMA)))
        for table in tables
    ]
    return ScannedParts(parts, SCHEMA, SCHEMA.record)


def test_digits_say_which_parts_may_have_a_row() -> None:
    """By number; of filters that are not understood by none, and beside others by the others."""
    statistics = FileStatistics()
    one, other = (statistics.add(scanned(*numbers)) for numbers in ((1, 2, 3), (3, 4)))
    above = ["<", ["id"], "3"]
    unknown = ["=", ["_diff"], "1"]
    assert statistics.apply(f"{one} {json.dumps([above])}") == "110"
    assert statistics.apply(f"{other} {json.dumps([above])}") == "00"
    assert statistics.apply(f"{one} {json.dumps([unknown])}") == "111"
    assert statistics.apply(f"{one} {json.dumps([unknown, above])}") == "110"
    assert statistics.apply(f"99 {json.dumps([above])}") is None
    assert statistics.apply(f"{one} nonsense") is None


def test_what_is_forgotten_gives_no_answer() -> None:
    """By its number, or as the oldest of too many parts."""
    statistics = FileStatistics(parts_max=5)
    first, second = (statistics.add(scanned(1, 2)) for _ in range(2))
    assert len(statistics) == 2
    third = statistics.add(scanned(1, 2))
    everything = json.dumps([["<", ["id"], "9"]])
    found = {
        number: statistics.apply(f"{number} {everything}") for number in (first, second, third)
    }
    assert found == {first: None, second: "11", third: "11"}
    statistics.forget([second, first])
    assert statistics.apply(f"{second} {everything}") is None
    assert len(statistics) == 1
    assert statistics.add(scanned(*range(9))) != third
    assert len(statistics) == 0
