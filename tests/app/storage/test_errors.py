"""Errors as data: what is live, and how it is taken back by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.storage.errors import (
    ERRORS,
    SETTLE_RETRIES,
    live_count,
    live_errors,
    open_errors,
    open_skipped,
    retract_errors,
)
from shardline.app.storage.reclock import BoundOffsets, Origin, Remap
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock, SeededIds
from support.profiles import examples

_numbers = count()


class World:
    """A source of which three micro-batches are bound and committed, with errors."""

    def __init__(self, *raws: str) -> None:
        place = f"memory://errors-{next(_numbers)}"
        self.client = ShardClient.open(place, clock=ManualClock(), ids=SeededIds())
        self.remap = Remap.open(self.client, "in", Origin("csv", 0))
        self.client.create("in", ShardSchema.from_arrow(pa.schema([("k", pa.int64())])))
        self.errors = self.client.writer(open_errors(self.client, "in"))
        self.bound = BoundOffsets()
        for number in range(3):
            self.bind(number)
            mine = raws if number == 1 else ()
            self.append(10 * number, *mine)

    def bind(self, number: int) -> None:
        after = self.remap.bind(
            self.remap.read(), number=number, offset="o", files=(), at=10 * number
        )
        assert after is not None
        self.bound = after

    def append(self, at: int, *raws: str) -> None:
        upper = self.errors.upper()
        assert upper.time is not None
        assert upper.time <= at, "somebody stands in the way of a micro-batch"
        self.errors.compare_and_append(table(*raws), upper, Frontier(at + 1))


def table(*raws: str) -> pa.Table:
    return pa.Table.from_pylist([{"error": "bad", "raw": raw} for raw in raws], ERRORS)


def test_the_shards_of_a_source_are_no_transactions() -> None:
    """Their times are those of bindings, from the moment on that they are there."""
    client = ShardClient.open("memory://errors-fresh", clock=ManualClock(), ids=SeededIds())
    Remap.open(client, "in", Origin("csv", 0))
    for shard in ("in_progress", open_errors(client, "in"), open_skipped(client, "in")):
        assert client.state(shard).times_by == "source in"


def raws(found: pa.Table) -> list[str]:
    return sorted(found.column("raw").to_pylist())


def test_all_go_and_the_source_goes_on() -> None:
    """After a retraction there is nothing, the past keeps it, and the next commit fits."""
    world = World("a", "a", "b")
    assert raws(live_errors(world.client, "in")) == ["a", "a", "b"]
    assert retract_errors(world.client, "in") == 3
    assert live_errors(world.client, "in").num_rows == 0
    assert retract_errors(world.client, "in") == 0
    with world.client.reader("in_errors") as reader:
        assert raws(reader.snapshot(15)) == ["a", "a", "b"]
    world.bind(3)
    world.append(30, "c")
    assert raws(live_errors(world.client, "in")) == ["c"]


@pytest.mark.slow
@given(
    there=st.lists(st.sampled_from("abc"), max_size=6),
    asked=st.lists(st.sampled_from("abcd"), max_size=6),
)
@examples()
def test_some_go(there: list[str], asked: list[str]) -> None:
    """Each is retracted as often as both ask for it and have it; the count follows."""
    world = World(*there)
    left = list(there)
    for raw in asked:
        if raw in left:
            left.remove(raw)
    assert retract_errors(world.client, "in", table(*asked)) == len(there) - len(left)
    assert raws(live_errors(world.client, "in")) == sorted(left)
    assert live_count(world.client.state("in_errors")) == len(left)


def test_it_waits_for_a_micro_batch_that_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """While errors of a binding may still come, no time is taken away from them."""
    few = replace(SETTLE_RETRIES, attempts_max=3)
    monkeypatch.setattr("shardline.app.storage.errors.SETTLE_RETRIES", few)
    world = World("a")
    world.bind(3)
    with pytest.raises(Determinate, match="CONTENTION"):
        retract_errors(world.client, "in")
    world.append(30)
    assert retract_errors(world.client, "in") == 1


def test_a_source_that_is_not_there() -> None:
    """The name is said."""
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        retract_errors(World().client, "inn")
