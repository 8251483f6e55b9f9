"""Offline repairs are repeated until their outcome is known, and never reported as not done."""

from __future__ import annotations

from itertools import count

import pytest

from shardline.app.coordinator import offline_repairs
from shardline.app.coordinator.offline_repairs import OfflineRepairs
from shardline.app.storage.errors import open_errors
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate, ShardError
from support.fakes.clock import ManualClock, SeededIds

_places = count()

LOST = Indeterminate("the answer was lost", hint="look")
BUSY = Determinate("others were faster", hint="again")


class Scripted:
    """Repairs that end as a script says, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: int | ShardError | None) -> None:
        self.clock = ManualClock()
        place = f"memory://offline-{next(_places)}"
        self.client = ShardClient.open(place, clock=self.clock, ids=SeededIds())
        open_errors(self.client, "in")
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, int]] = []
        self.began_ms = self.clock.elapsed_ms()
        monkeypatch.setattr(offline_repairs, "repair_errors", self.attempt)

    def attempt(self, *_: object, writer: str, number: int) -> int | None:
        self.asked.append((writer, number))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ShardError):
            raise outcome
        return outcome

    def run(self) -> int | None:
        return OfflineRepairs(self.client).repair("in", "retract", 5, [])


def test_a_lost_answer_is_asked_for_again_under_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a pause of about a second each; then the outcome is known."""
    world = Scripted(monkeypatch, LOST, LOST, 3)
    assert world.run() == 3
    assert len(world.asked) == 3
    assert len(set(world.asked)) == 1
    assert 2 * 500 <= world.clock.elapsed_ms() - world.began_ms <= 2 * 1500


def test_an_outcome_that_stays_unknown_is_said_after_five_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is away is not waited for without end."""
    world = Scripted(monkeypatch, *[LOST] * 9)
    with pytest.raises(Indeterminate):
        world.run()
    assert len(world.asked) == 5


def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attempt that was refused did nothing; the one before it may have, or may yet."""
    world = Scripted(monkeypatch, LOST, BUSY)
    with pytest.raises(Indeterminate) as raised:
        world.run()
    assert raised.value.__cause__ is BUSY


def test_a_refusal_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happened, so nothing has to be found out."""
    world = Scripted(monkeypatch, BUSY)
    with pytest.raises(Determinate):
        world.run()
    assert len(world.asked) == 1
