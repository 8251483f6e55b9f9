"""Start holds of subscriptions that never begin: none stays for as long as the application runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from shardline.app.controller.compute import ComputeController
from shardline.app.coordinator.start_holds import StartHolds
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Corrupt, Determinate, Indeterminate, ShardError
from shardline.datasource.since_hold import SinceHandle
from support.fakes.reads import Place

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    found.close()


def never() -> NoReturn:
    raise AssertionError("nothing connects")


def sweep(holds: StartHolds, compute: ComputeController) -> None:
    holds.sweep((), compute.knows, lambda: None)


def started(place: Place) -> tuple[StartHolds, ComputeController]:
    """Behind the sweep of a start, over an input `t` that has begun."""
    place.put("t", [((1,), 5, 1)], 10, SCHEMA)
    holds = StartHolds(place.client)
    compute = ComputeController(never, SystemClock(), SystemIds(), hold=holds.hold)
    sweep(holds, compute)
    return holds, compute


def test_a_hold_of_unknown_outcome_is_swept_and_others_stay(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a subscription is used once: no later attempt takes the hold over."""
    holds, compute = started(place)
    assert not holds.has_left
    hold = place.client.hold

    def lose_the_answer(*args: Any, **given: Any) -> None:
        hold(*args, **given)
        raise Indeterminate("the store did not answer")

    with monkeypatch.context() as patched:
        patched.setattr(place.client, "hold", lose_the_answer)
        with pytest.raises(Indeterminate):
            compute.subscribe("t", 6)
    compute.subscribe("t", 6)
    place.client.hold("t", "report")
    assert len(place.client.state("t").critical) == 3
    assert holds.has_left
    sweep(holds, compute)
    assert not holds.has_left
    left = place.client.state("t").critical
    assert len(left) == 2
    assert "report" in left
    compute.stop()


def test_a_hold_that_could_not_be_given_up_is_swept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription ends while the store is away, and no runtime has begun it."""
    holds, compute = started(place)
    subscription = compute.subscribe("t", 6)

    def fail(_: SinceHandle) -> None:
        raise Determinate("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(SinceHandle, "expire", fail)
        compute._unsubscribe(subscription)
    assert len(place.client.state("t").critical) == 1
    assert holds.has_left
    sweep(holds, compute)
    assert not place.client.state("t").critical
    compute.stop()


@pytest.mark.parametrize("error", [Indeterminate("no answer"), Corrupt("damaged")])
def test_a_store_that_does_not_answer_is_asked_again_and_damage_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: ShardError
) -> None:
    """At the first start, too; and it is waited for once, not once for each shard."""
    for name in "abc":
        place.put(name, [((1,), 5, 1)], 10, SCHEMA)
    holds = StartHolds(place.client)
    compute = ComputeController(never, SystemClock(), SystemIds(), hold=holds.hold)
    asked: list[str] = []

    def fail(_client: object, shards: list[str], *_: object) -> None:
        asked.extend(shards)
        raise error

    monkeypatch.setattr("shardline.app.coordinator.start_holds.end_start_holds", fail)
    sweep(holds, compute)
    if isinstance(error, Corrupt):
        assert (asked, holds.has_left) == (["a", "b", "c"], False)
        return
    assert (asked, holds.has_left) == (["a"], True)
    monkeypatch.setattr(
        "shardline.app.coordinator.start_holds.end_start_holds",
        lambda _client, shards, *_: asked.extend(shards),
    )
    sweep(holds, compute)
    assert (asked, holds.has_left) == (["a", "a", "b", "c"], False)
