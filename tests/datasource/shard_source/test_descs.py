"""The end of a micro-batch is chosen from parts and limits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.descs import (
    Limits,
    next_frontier,
    parts_with_news,
    planning_horizon,
)
from shardline.datasource.types.schema import ShardSchema


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
        planned = parts_with_news([state], lower, state.upper)
        lower = (next_frontier(planned, state.upper, limits) if planned else state.upper).time
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
        (Limits(rows=1), [1, 2, 10, 11, 12, 20, 21, 22, 40]),
        (Limits(rows=2), [2, 10, 12, 20, 22, 40]),
        (Limits(size_bytes=1), [1, 2, 3, 11, 12, 13, 21, 22, 23, 40]),
        (Limits(rows=6, parts=1), [10, 20, 40]),
    ],
)
def test_limits(request: pytest.FixtureRequest, limits: Limits, ends: list[int | None]) -> None:
    """Each micro-batch takes as much as fits, and always one step; times without data are free.

    Parts are not read in pieces unless one alone is too much.
    """
    state = shard(request.node.name, (0, 10, 3), (10, 20, 3), (20, 30, 3), (30, 40, 0))
    found = steps(state, limits)

    assert found == ends


@pytest.mark.parametrize(
    "limits",
    [Limits(rows=n) for n in (1, 2, 3, 5, 8, 100)]
    + [Limits(parts=n) for n in (1, 2, 3)]
    + [Limits(size_bytes=1), Limits(size_bytes=5000), Limits(rows=4, parts=2), Limits()],
)
def test_looking_no_further_than_the_horizon_is_enough(
    request: pytest.FixtureRequest, limits: Limits
) -> None:
    """From every time, the end is the same as if the whole backlog had been looked at."""
    batches = [(10 * n, 10 * n + 10, n % 4) for n in range(12)]
    state = shard(request.node.name, *batches)
    for lower in range(120):
        near = planning_horizon([state], lower, state.upper, limits)
        whole, some = (parts_with_news([state], lower, end) for end in (state.upper, near))
        assert bool(whole) == bool(some)
        if whole:
            end = next_frontier(some, near, limits)
            assert end == next_frontier(whole, state.upper, limits), lower


def test_a_finished_shard_ends(request: pytest.FixtureRequest) -> None:
    """The last micro-batch of a finished shard ends at the empty frontier."""
    state = shard(request.node.name, (0, 10, 3))
    client = ShardClient.open(f"memory://descs-{request.node.name}")
    client.writer("in").compare_and_append(None, Frontier(10), EMPTY)
    state = client.state("in")

    assert next_frontier(parts_with_news([state], 0, EMPTY), state.upper, Limits()) == EMPTY
    assert not parts_with_news([state], 10, EMPTY)
