"""Requests to a store are counted, and pass through unchanged."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import Determinate
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.metered import Metered
from shardline.datasource.stores.objects import EXISTS, Objects
from shardline.datasource.stores.retry import Retrying
from support.fakes.clock import ManualClock, SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.stores.location import OperationStatistics
    from support.processes.places import Place


def _statistics(metered: Metered) -> dict[str, OperationStatistics]:
    return {each.operation: each for each in metered.statistics().operations}


def test_calls_bytes_errors_and_latencies_are_counted(memory_place: Place) -> None:
    """Per operation; unknown outcomes are errors, and refusals are conflicts."""
    clock = ManualClock()
    faulty = Faulty(memory_place.objects(clock), clock=clock, ids=SeededIds(), slow_ms=70)
    metered = Metered(faulty, clock)

    faulty.fail("create", Fault.SLOW, Fault.AFTER)
    metered.create("a", b"123")
    metered.create("b", b"1234")
    assert metered.create("b", b"1") is EXISTS
    metered.put("c", memoryview(b"12345"))
    faulty.fail("get", Fault.BEFORE)
    with pytest.raises(Determinate):
        metered.get("a")
    assert metered.get("a", 1) == b"23"
    assert metered.get_many(["b", "c", "d"]) == [b"1234", b"12345", None]
    assert [entry.key for entry in metered.entries("")] == ["a", "b", "c"]

    found = _statistics(metered)
    create = found["create"]
    assert (create.calls, create.errors, create.conflicts, create.bytes) == (3, 1, 1, 8)
    assert (create.elapsed_ms, create.elapsed_ms_max) == (70, 70)
    assert (found["put"].calls, found["put"].bytes) == (1, 5)
    assert (found["get"].calls, found["get"].errors, found["get"].bytes) == (5, 1, 11)
    assert (found["list"].calls, found["delete"].calls) == (1, 0)


class Telling(Faulty):
    """A store that tells its time."""

    @override
    def latest_ms(self) -> float:
        return 7.0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner, clock, _: Metered(inner, clock),
        lambda inner, clock, ids: Retrying(inner, clock=clock, ids=ids),
        lambda inner, clock, ids: Faulty(inner, clock=clock, ids=ids),
    ],
    ids=["metered", "retrying", "faulty"],
)
def test_the_time_of_the_store_passes_through(
    memory_place: Place, wrap: Callable[[Objects, ManualClock, SeededIds], Objects]
) -> None:
    """A wrapper that told none would take the age of what was observed for less than it is."""
    clock, ids = ManualClock(), SeededIds()
    inner = Telling(memory_place.objects(clock), clock=clock, ids=ids)
    assert wrap(inner, clock, ids).latest_ms() == 7.0


def test_a_snapshot_does_not_move(memory_place: Place) -> None:
    """Statistics are values: what was read stays what it was."""
    metered = Metered(memory_place.objects(), ManualClock())
    before = metered.statistics()
    metered.put("a", b"x")

    assert before != metered.statistics()
    assert before == Metered(memory_place.objects(), ManualClock()).statistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.operations = ()  # type: ignore[misc]


def test_each_attempt_of_a_repeated_call_is_counted(memory_place: Place) -> None:
    """Below the retries every request is one that is paid for."""
    clock, ids = ManualClock(), SeededIds()
    faulty = Faulty(memory_place.objects(), clock=clock, ids=ids)
    metered = Metered(faulty, clock)
    faulty.fail("get", Fault.BEFORE, Fault.BEFORE)

    assert Retrying(metered, clock=clock, ids=ids).get("a") is None
    assert (_statistics(metered)["get"].calls, _statistics(metered)["get"].errors) == (3, 2)
    # The pauses grow: 50 ms and then 150 ms, give or take a half.
    assert 100 <= clock.elapsed_ms() <= 300


def test_patience_is_bounded(memory_place: Place) -> None:
    """The last error comes through as it was, after the attempts that were allowed."""
    clock, ids = ManualClock(), SeededIds()
    faulty = Faulty(memory_place.objects(), clock=clock, ids=ids)
    faulty.fail("get", *[Fault.BEFORE] * 50)

    with pytest.raises(Determinate, match="injected"):
        Retrying(faulty, clock=clock, ids=ids, attempts_max=4).get("a")
    assert faulty.injected() == {Fault.BEFORE: 4}
