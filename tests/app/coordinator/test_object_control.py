"""Pauses and resumes keep their turn, also where the order is slow to take them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardline.app.coordinator.object_control import ObjectControl
from shardline.app.lane.commands import CreateDataflow, Record
from shardline.app.lane.state import EMPTY_STATE, LaneState, apply
from shardline.datasource.errors import Indeterminate, InvalidUsage
from support.fakes.stage import view

if TYPE_CHECKING:
    from shardline.app.lane.commands import LaneCommand


class SlowLane:
    """A lane that takes commands in turn, as soon as its store answers."""

    def __init__(self) -> None:
        self.state: LaneState = EMPTY_STATE
        self.answers = True
        self._waiting: list[tuple[LaneCommand, Future[int]]] = []
        self.offer("test", CreateDataflow(description=view("v")))

    def offer(self, producer: str, command: LaneCommand) -> Future[int]:
        position: Future[int] = Future()
        self._waiting.append((command, position))
        while self.answers and self._waiting:
            taken, answer = self._waiting.pop(0)
            index = self.state.next_index
            record = Record(
                index=index, producer=producer, sequence=index, epoch=1, at_ms=0, command=taken
            )
            self.state = apply(self.state, record)
            answer.set_result(index)
        return position


@pytest.fixture
def lane() -> SlowLane:
    return SlowLane()


@pytest.fixture
def control(lane: SlowLane) -> ObjectControl:
    objects = SimpleNamespace(
        check_in_charge=lambda: None, follows=False, running=lambda: lane.state.objects
    )
    return ObjectControl(cast("Any", SimpleNamespace(lane=lane)), cast("Any", objects), 0)


def lose(lane: SlowLane, act: Any) -> None:
    """Ask for something whose outcome is unknown: the store answers too late."""
    lane.answers = False
    with pytest.raises(Indeterminate, match="NOT_RECORDED"):
        act("v")
    lane.answers = True


def test_a_resume_ends_a_pause_that_still_waits(lane: SlowLane, control: ObjectControl) -> None:
    """The pause gets its place after all, and the object runs, as the last word was."""
    lose(lane, control.pause)
    done = control.resume("v")
    assert (lane.state.paused, done.paused, done.changed) == ((), False, True)


def test_a_pause_holds_against_a_resume_that_still_waits(
    lane: SlowLane, control: ObjectControl
) -> None:
    """The other way round: what was acknowledged as paused stays so."""
    control.pause("v")
    lose(lane, control.resume)
    done = control.pause("v")
    assert (lane.state.paused, done.paused, done.changed) == (("v",), True, True)


def test_a_restart_of_what_is_about_to_be_paused_is_refused(
    lane: SlowLane, control: ObjectControl
) -> None:
    """It had no effect: nobody is told that another incarnation runs."""
    lose(lane, control.pause)
    with pytest.raises(InvalidUsage, match="OBJECT_PAUSED"):
        control.restart("v")
    lose(lane, control.resume)
    assert control.restart("v").changed


def test_a_command_without_effect_says_so(control: ObjectControl) -> None:
    """A person who asks twice sees that it was so already."""
    told = [act("v") for act in (control.resume, control.pause, control.pause, control.resume)]
    assert [(one.paused, one.changed) for one in told] == [
        (False, False),
        (True, True),
        (True, False),
        (False, True),
    ]
