"""Bindings: appended once, in order, and read back as they were."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.storage.reclock import (
    EMPTY_SNAPSHOT,
    BoundOffsets,
    Origin,
    Remap,
    SourceFile,
    next_time,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock, SeededIds

ORIGIN = Origin("csv", 5)


def opened(name: str = "flights") -> Remap:
    return Remap.open(client(), name, ORIGIN)


_numbers = count()


def client() -> ShardClient:
    place = f"memory://bindings-{next(_numbers)}"
    return ShardClient.open(place, clock=ManualClock(), ids=SeededIds())


@given(
    upper=st.integers(0, 1 << 45), now_ms=st.integers(0, 1 << 45), interval_ms=st.integers(1, 9999)
)
def test_times_are_the_least_multiples(upper: int, now_ms: int, interval_ms: int) -> None:
    """A time is a multiple of the interval, in neither's past, and no smaller one is."""
    time = next_time(upper, now_ms, interval_ms)
    assert time % interval_ms == 0
    assert max(upper, now_ms) <= time < max(upper, now_ms) + interval_ms


@pytest.mark.slow
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from("abcd"))), max_size=8))
def test_what_was_bound_is_read(steps: list[tuple[int, set[str]]]) -> None:
    """After any sequence of bindings: the last two of them, all files, and nothing else."""
    remap, bound = opened(), BoundOffsets()
    model: list[tuple[int, int, str]] = []
    for number, (gap, names) in enumerate(steps):
        at = bound.upper + gap
        files = [SourceFile(name, f"line {name}") for name in names]
        after = remap.bind(bound, number=number, offset=f"o{number}", files=files, at=at)
        assert after is not None
        bound = after
        model.append((number, at, f"o{number}"))
    found = remap.read()
    assert found == bound
    kept = [(b.number, b.time, b.offset) for b in (found.before, found.last) if b is not None]
    assert kept == model[-2:]
    assert {file.name for file in found.files} == set().union(*(names for _, names in steps))


def test_the_offset_at_a_time_is_in_the_history() -> None:
    """The contents at a time tell how far the source had been read then."""
    owner = client()
    remap = Remap.open(owner, "flights", ORIGIN)
    bound = BoundOffsets()
    for number, at in enumerate((10, 20, 30)):
        bound = (
            remap.bind(bound, number=number, offset=str(number), files=(), at=at) or BoundOffsets()
        )
    with owner.reader("flights_progress") as reader:
        newest = [
            max((row["micro_batch"] for row in reader.snapshot(at).to_pylist()), default=None)
            for at in (9, 10, 19, 20, 30)
        ]
    assert newest == [None, 0, 0, 1, 2]


def test_two_writers_cannot_bind_past_each_other() -> None:
    """Whoever does not know the newest binding, or the newest upper, is told so."""
    owner = client()
    one, other = (Remap.open(owner, "flights", ORIGIN) for _ in range(2))
    bound = one.bind(BoundOffsets(), number=EMPTY_SNAPSHOT, offset=None, files=(), at=10)
    assert bound is not None
    assert other.bind(BoundOffsets(), number=0, offset="x", files=(), at=20) is None
    assert other.advance(BoundOffsets(), 5) is None
    advanced = other.advance(other.read(), 40)
    assert advanced is not None
    assert one.bind(bound, number=0, offset="x", files=(), at=20) is None
    assert one.read() == advanced


def test_the_first_origin_counts() -> None:
    """Time zero is that of the first start; another format is refused by name."""
    owner = client()
    Remap.open(owner, "flights", Origin("csv", 5, "schema"))
    assert Remap.open(owner, "flights", Origin("csv", 9)).origin == Origin("csv", 5, "schema")
    with pytest.raises(InvalidUsage, match=r"FORMAT_CHANGED.*'csv'.*'json'"):
        Remap.open(owner, "flights", Origin("json", 5))
