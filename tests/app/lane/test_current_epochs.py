"""Whose reports count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.execution.host import Incarnation
from shardline.app.lane.current_epochs import CurrentEpochs
from shardline.app.lane.process_state import PhaseChange
from shardline.app.protocol.objects import ViewDescription

if TYPE_CHECKING:
    from shardline.app.protocol.object_state import Phase

VIEW = ViewDescription(name="v", query="q", inputs=("a",), schema="x INT")
OTHER = ViewDescription(name="v", query="another", inputs=("a",), schema="x INT")


def change(phase: Phase, epoch: int, what: ViewDescription = VIEW) -> PhaseChange:
    life = Incarnation("v", "u1", 1, epoch, (1, 1), 1)
    return PhaseChange("v", "compute", phase, life, what, 0)


@pytest.mark.parametrize("between", ["drop", "definition"])
def test_a_life_of_before_a_drop_never_counts_again(between: str) -> None:
    """Also if the same definition is wanted again: its own end does not bring it back."""
    lives = CurrentEpochs()
    lives.expect(VIEW)
    assert lives.on_phase(change("starting", 3))
    if between == "drop":
        lives.forget("v")
    else:
        lives.expect(OTHER)
    lives.expect(VIEW)
    for phase in ("stopping", "stopped"):
        assert not lives.on_phase(change(phase, 3))
        assert not lives.admits("v", 3)
    assert lives.on_phase(change("starting", 4))
    assert lives.admits("v", 4)


def test_numbers_begin_anew_with_an_object_that_had_gone() -> None:
    """The lane has said that nothing of the former one is left."""
    lives = CurrentEpochs()
    lives.expect(VIEW)
    lives.on_phase(change("starting", 3))
    lives.forget("v")
    lives.on_phase(change("dropped", 3))
    lives.expect(VIEW)
    assert lives.on_phase(change("starting", 1))
    assert lives.admits("v", 1)


def test_numbers_begin_anew_with_an_object_that_is_expected_all_the_time() -> None:
    """A follower names it, and hears that the holder has dropped it and made it again."""
    lives = CurrentEpochs()
    lives.expect(VIEW)
    lives.on_phase(change("starting", 3))
    assert not lives.on_phase(change("dropped", 3))
    assert not lives.admits("v", 3)
    assert lives.on_phase(change("starting", 1))
    assert lives.admits("v", 1)
