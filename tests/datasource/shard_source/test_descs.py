"""How the end of a micro-batch is chosen."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datasource.client import ShardClient
from datasource.frontier import EMPTY, Frontier
from datasource.schema import ShardSchema
from datasource.settings import ShardSettings
from datasource.shard_source.descs import Limits, has_news, next_frontier
from datasource.state import ShardState


def shard(name: str, *batches: tuple[int, int, int]) -> ShardState:
    """A shard with a batch `[lower, upper)` of so many rows for each of `batches`."""
    client = ShardClient.open(
        f"memory://descs-{name}", settings=ShardSettings(validate=True, inline_part_bytes=0)
    )
    empty = pa.table({"id": pa.array([], pa.int64())})
    client.create("in", ShardSchema.from_arrow(empty.schema))
    writer = client.writer("in")
    for lower, upper, rows in batches:
        times = pa.array([lower + n % (upper - lower) for n in range(rows)], pa.int64())
        table = pa.table({"id": pa.array(range(rows), pa.int64()), "_ts": times}) if rows else None
        writer.compare_and_append(table, Frontier(lower), Frontier(upper))
    return client.state("in")


def steps(state: ShardState, limits: Limits) -> list[int | None]:
    """The ends of all micro-batches until the upper."""
    ends: list[int | None] = []
    lower: int | None = 0
    while lower is not None and Frontier(lower) < state.upper:
        lower = next_frontier(state, lower, state.upper, limits).time
        ends.append(lower)
    return ends


def test_without_limits_everything_is_read(request: pytest.FixtureRequest) -> None:
    """One micro-batch reads up to the upper."""
    state = shard(request.node.name, (0, 10, 3), (10, 20, 3), (20, 30, 0))

    assert steps(state, Limits()) == [30]


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        (Limits(parts=1), [10, 20, 40]),
        (Limits(parts=2), [20, 40]),
        (Limits(rows=3), [10, 20, 40]),
        (Limits(rows=6), [20, 40]),
        (Limits(rows=1), [10, 20, 40]),
        (Limits(size_bytes=1), [10, 20, 40]),
        (Limits(rows=6, parts=1), [10, 20, 40]),
    ],
)
def test_limits(request: pytest.FixtureRequest, limits: Limits, ends: list[int | None]) -> None:
    """Each micro-batch takes as much as fits, and always one step; times without data are free."""
    state = shard(request.node.name, (0, 10, 3), (10, 20, 3), (20, 30, 3), (30, 40, 0))
    found = steps(state, limits)

    assert found == ends


def test_a_finished_shard_ends(request: pytest.FixtureRequest) -> None:
    """The last micro-batch of a finished shard ends at the empty frontier."""
    state = shard(request.node.name, (0, 10, 3))
    client = ShardClient.open(f"memory://descs-{request.node.name}")
    client.writer("in").compare_and_append(None, Frontier(10), EMPTY)
    state = client.state("in")

    assert next_frontier(state, 0, state.upper, Limits()) == EMPTY
    assert not has_news(state, 10, EMPTY)
    assert has_news(state, 0, EMPTY)
