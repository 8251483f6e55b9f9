"""Fixtures that the tests of the shard share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.models.shards import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardline.datasource.client import ShardClient


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what stories and golden files say now, to be read before it is committed",
    )
    parser.addoption(
        "--fault-seeds", type=int, default=None, help="seeds of each test of an unreliable wire"
    )
    parser.addoption(
        "--power-cuts", type=int, default=None, help="of a real file system; and all imagined ones"
    )
    parser.addoption(
        "--fuzz-rounds", type=int, default=None, help="damaged values per kind that is fuzzed"
    )


@pytest.fixture
def world() -> Iterator[World]:
    """A store of its own, on a clock that stands still."""
    made = World()
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of `world`."""
    return world.client()
