"""Appends to states are known as they would be read: the next look need not read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.app.compute.view import found_rows
from shardline.app.compute.view.found_rows import FoundRows
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.shared_changes import read_changes
from shardline.datasource.client import ShardClient
from shardline.datasource.rows.updates import consolidate
from shardline.datasource.spark_native.time_interval import Interval
from shardline.datasource.state import ShardState
from support.spark.views import Bench, Following, no_fence, view

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERY = """
    SELECT s, b, flag, tiny, day, at, local, price, pair, count(*) AS n, sum(price) AS total,
           max(at) AS latest, min(day) AS first, sum(tiny) AS tinies
    FROM (SELECT concat('s', k) AS s, CAST(concat('b', k) AS BINARY) AS b, k % 2 = 0 AS flag,
                 CAST(k AS TINYINT) AS tiny, DATE'2020-01-01' + CAST(k AS INT) AS day,
                 timestamp_millis(k * 1000 + 1) AS at,
                 CAST(timestamp_millis(k) AS TIMESTAMP_NTZ) AS local,
                 CAST(k AS DECIMAL(20, 3)) / 7 AS price, struct(k AS x, 'p' AS y) AS pair FROM t)
    GROUP BY s, b, flag, tiny, day, at, local, price, pair
"""
SCHEMA = (
    "s STRING, b BINARY, flag BOOLEAN, tiny TINYINT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "price DECIMAL(23, 6), pair STRUCT<x: BIGINT, y: STRING>, n BIGINT, total DECIMAL(33, 6), "
    "latest TIMESTAMP, first DATE, tinies BIGINT"
)


def test_a_states_change_is_known_as_it_would_be_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every type that a key or an accumulator may have, rows and columns alike."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    known: list[tuple[ShardState, int, pa.Table]] = []
    note = FoundRows.note_appended

    def noted(self: FoundRows, state: ShardState, upper: int, rows: pa.Table) -> None:
        known.append((state, upper, rows))
        note(self, state, upper, rows)

    read_again: list[str] = []

    def read(
        client: ShardClient, state: ShardState, lower: int, upper: int | None
    ) -> pa.Table | None:
        read_again.append(state.name)
        return read_changes(client, state, lower, upper)

    monkeypatch.setattr(FoundRows, "note_appended", noted)
    monkeypatch.setattr(found_rows, "read_changes", read)
    kept = view("typed", QUERY, SCHEMA, "t", strategy="incremental")
    run = View(bench.host, bench.incarnation("typed", 10), kept, no_fence, Following())
    session = spark.newSession()
    table.append([(10, (k,), 1) for k in range(8)], 11)
    run.advance(session, Interval(10, 11, starts=True))
    for time in range(11, 17):
        changes: list[tuple[int, tuple[Any, ...], int]] = [
            (time, (k,), 1) for k in (time % 3, time)
        ]
        table.append([*changes, (time, (time - 10,), -1)], time + 1)
        run.advance(session, Interval(time, time + 1))
    assert len(known) >= 4
    # A step that lost a greatest value has made the group anew: its rows are read.
    assert len(read_again) + len(known) == 6
    for state, upper, rows in known:
        there = read_changes(bench.client, state, state.upper.time or 0, upper)
        assert there is not None
        assert rows.schema == there.schema
        assert consolidate(rows) == consolidate(there)
