"""The rows of a shard that have one key are estimated from the statistics of its parts."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from shardline.app.compute.view.fan_out import ShardFanOut
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema

SCHEMA = pa.schema(
    [("id", pa.int64()), ("nation", pa.int32()), ("day", pa.date32()), ("name", pa.string())]
)

HALF = 10_000


@pytest.fixture(scope="module")
def client() -> ShardClient:
    """A shard of as many ids, 5 nations and 10 days, in two parts that are no inline ones."""
    found = ShardClient.open("memory://fan-out")
    found.create("people", ShardSchema.from_arrow(SCHEMA))
    found.create("empty", ShardSchema.from_arrow(SCHEMA))
    handle = found.writer("people")
    for time in (0, 1):
        places = range(HALF * time, HALF * (time + 1))
        table = pa.table(
            {
                "id": pa.array(places, pa.int64()),
                "nation": pa.array([place % 5 for place in places], pa.int32()),
                "day": pa.array([date(2026, 1, 1 + place % 10) for place in places]),
                "name": pa.array([f"name {place}" for place in places]),
                "_ts": pa.array([time] * HALF, pa.int64()),
                "_diff": pa.array([1] * HALF, pa.int64()),
            }
        )
        handle.compare_and_append(table, Frontier(time), Frontier(time + 1))
    return found


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [
        ("people", ["id"], 1.0),
        ("people", ["nation"], 2 * HALF / 5),
        ("people", ["day"], 2 * HALF / 10),
        ("people", ["nation", "day"], 2 * HALF / 50),
        ("people", ["nation", "id"], 1.0),
        ("people", ["name"], (2 * HALF) ** 0.5),  # nothing is known of texts: the root
        ("people", [], 2 * HALF),
        ("empty", ["id"], 1.0),
        ("a state of the view", ["k1"], 1.0),
    ],
)
def test_rows_of_one_key(client: ShardClient, name: str, columns: list[str], rows: float) -> None:
    assert ShardFanOut(client, ["people", "empty"])(name, columns) == rows
