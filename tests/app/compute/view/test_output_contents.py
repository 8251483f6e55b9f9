"""The contents of a small output are read once, and known from then on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.compute.view import output_contents
from shardline.app.compute.view.output_contents import OutputContents, correct_in_memory
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.spark_native.small_results import ROWS_MAX
from shardline.datasource.types.schema import ShardSchema
from support.models.shards import World

ROWS = pa.schema([("who", pa.string()), ("total", pa.float64())])


@pytest.fixture
def client() -> Iterator[ShardClient]:
    world = World()
    made = world.client()
    made.create("totals", ShardSchema.from_arrow(ROWS))
    yield made
    world.close()


def table(*rows: tuple[str | None, float, int]) -> pa.Table:
    """Rows with diffs."""
    who, total, diff = ([row[place] for row in rows] for place in range(3))
    columns = ROWS.append(pa.field("_diff", pa.int64(), nullable=False))
    return pa.table({"who": who, "total": total, "_diff": diff}, columns)


def put(client: ShardClient, lower: int, upper: int, *rows: tuple[str | None, float, int]) -> None:
    updates = table(*rows).append_column("_ts", pa.array([lower] * len(rows), pa.int64()))
    found = client.writer("totals").compare_and_append(updates, Frontier(lower), Frontier(upper))
    assert isinstance(found, Appended), found


def plain(found: pa.Table | None) -> list[tuple[Any, ...]]:
    assert found is not None
    return sorted(
        tuple(row.values()) for row in found.select(["who", "total", "_diff"]).to_pylist()
    )


def test_contents_are_the_sum_of_all_updates_before_the_upper(client: ShardClient) -> None:
    """Rows that were taken back are gone; one that was taken back too often is still told."""
    put(client, 0, 10, ("ann", 1.0, 1), ("bob", 2.0, 2))
    put(client, 10, 20, ("ann", 1.0, -1), ("cyn", 3.0, -1))
    assert plain(OutputContents(client, "totals").at(20)) == [("bob", 2.0, 2), ("cyn", 3.0, -1)]
    assert plain(OutputContents(client, "totals").at(10)) == [("ann", 1.0, 1), ("bob", 2.0, 2)]


def test_what_is_known_is_not_read_and_follows_the_upper(client: ShardClient) -> None:
    """After an append of nothing, too; at any other upper the shard is asked again."""
    put(client, 0, 10, ("ann", 1.0, 1))
    contents = OutputContents(client, "totals")
    client.state("totals")
    contents.become(10, table(("known", 7.0, 1)))
    contents.moved(9, 11)
    assert plain(contents.at(10)) == [("known", 7.0, 1)]
    contents.moved(10, 20)
    assert plain(contents.at(20)) == [("known", 7.0, 1)]
    put(client, 10, 30, ("bob", 2.0, 1))
    assert plain(contents.at(30)) == [("ann", 1.0, 1), ("bob", 2.0, 1)]


def test_a_shard_that_was_made_anew_is_asked_again(client: ShardClient) -> None:
    """What was known was of another one, though its upper be the same."""
    put(client, 0, 10, ("ann", 1.0, 1))
    contents = OutputContents(client, "totals")
    assert plain(contents.at(10)) == [("ann", 1.0, 1)]
    client.drop("totals")
    client.create("totals", ShardSchema.from_arrow(ROWS))
    put(client, 0, 10, ("new", 2.0, 1))
    assert plain(contents.at(10)) == [("new", 2.0, 1)]


def test_what_is_not_small_is_left_to_spark(client: ShardClient) -> None:
    """It is known from the descriptions of the parts, before anything is read."""
    put(client, 0, 10, *[(str(n), float(n), 1) for n in range(ROWS_MAX + 1)])
    contents = OutputContents(client, "totals")
    assert contents.at(10) is None


def test_a_few_large_rows_are_left_to_spark(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them would be in memory before it is known that they are not kept."""
    put(client, 0, 10, ("a", 1.0, 1), ("b", 2.0, 1))
    [state] = client.readable("totals")
    size = sum(part.size_bytes for batch in state.trace.batches for part in batch.parts)
    monkeypatch.setattr(output_contents, "contents_of", None)
    monkeypatch.setattr(output_contents, "BYTES_MAX", size - 1)
    assert OutputContents(client, "totals").at(10) is None


def test_a_correction_tells_rows_apart_as_shards_do() -> None:
    """Zeros of both signs are two values, NaN is one; what stays the same costs nothing."""
    held = table(("a", 0.0, 1), ("b", float("nan"), 1), ("c", 1.0, 3), (None, 1.0, 1))
    desired = table(("a", -0.0, 1), ("b", float("nan"), 1), ("c", 1.0, 1), ("d", 5.0, 2))
    found = correct_in_memory(desired, held)
    assert sorted(map(str, found.to_pylist())) == sorted(
        map(
            str,
            [
                {"who": "a", "total": 0.0, "_diff": -1},
                {"who": "a", "total": -0.0, "_diff": 1},
                {"who": "c", "total": 1.0, "_diff": -2},
                {"who": None, "total": 1.0, "_diff": -1},
                {"who": "d", "total": 5.0, "_diff": 2},
            ],
        )
    )
