"""A person on call pauses, resumes and restarts single objects of an application.

Pauses and resumes keep their turn, also where the order is slow to take them.
"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.coordinator.object_control import ObjectControl
from shardline.app.coordinator.objects import Objects
from shardline.app.lane.commands import CreateDataflow, Record
from shardline.app.lane.state import EMPTY_STATE, LaneState, apply
from shardline.datasource.errors import Indeterminate, InvalidUsage
from support.fakes.sites import Site, index, project, source
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

    def offer(self, producer: str, command: LaneCommand, *, wait: bool = True) -> Future[int]:
        assert not wait or producer == "test", "an inbox that is full would keep who asks"
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


def status(application: Application, name: str) -> tuple[str, str]:
    """Phase and status of an object in the relation of objects."""
    assert application.feeds is not None
    rows = application.feeds.relations.rows("objects", object=name)
    return (str(rows[0]["phase"]), str(rows[0]["status"])) if rows else ("", "")


def epoch(application: Application, name: str) -> int:
    return application.runtime.lane.state.objects[name].epoch


def test_a_paused_object_stays_paused_until_it_is_resumed(site: Site) -> None:
    """Over a restart of the application and another definition; its status says so everywhere."""
    with site.application(introspection=True) as application:
        application.apply(project(source(), index()))
        site.wait("the index runs", lambda: status(application, "i")[1] == "running")
        assert application.control.pause("i").changed
        assert application.control.pause("t").changed
        for name in ("i", "t"):
            site.wait(f"{name} is paused", lambda n=name: status(application, n) == ("paused",) * 2)
        assert not application.control.pause("i").changed
        with pytest.raises(InvalidUsage, match="OBJECT_PAUSED"):
            application.control.restart("i")
    with site.application(introspection=True) as application:
        application.apply(project(source(header="true"), index()))
        for name in ("i", "t"):
            site.wait(f"{name} is paused", lambda n=name: status(application, n) == ("paused",) * 2)
        assert application.runtime.lane.state.paused == ("i", "t")
        assert application.control.resume("i").changed
        site.wait("the index runs", lambda: status(application, "i")[1] == "running")
        assert status(application, "t")[1] == "paused"
        assert not application.control.resume("i").changed


def test_a_restart_gives_another_incarnation(site: Site) -> None:
    """What runs is stopped and started, and serves again."""
    with site.application(introspection=True) as application:
        application.apply(project(source(), index()))
        site.wait("the index runs", lambda: status(application, "i")[1] == "running")
        before = epoch(application, "i")
        assert application.control.restart("i").changed
        assert epoch(application, "i") == before + 1

        def runs_again() -> bool:
            assert application.feeds is not None
            row = application.feeds.relations.rows("objects", object="i")[0]
            return bool(row["epoch"] == before + 1 and row["status"] == "running")

        site.wait("another one runs", runs_again)


def test_names_that_are_not_there_are_refused(site: Site) -> None:
    """With the nearest one that is; one that waits for its input says so."""
    with site.application() as application:
        application.apply(project(source(), source("w"), index(), index("j", on="w")))
        site.wait("what can be is there", lambda: "i" in application.running())
        for act in (
            application.control.pause,
            application.control.resume,
            application.control.restart,
        ):
            with pytest.raises(InvalidUsage, match=r"UNKNOWN_OBJECT.*'ii'.*'i'"):
                act("ii")
            with pytest.raises(InvalidUsage, match=r"NOT_CREATED.*'j'"):
                act("j")


def test_a_query_of_what_is_there_does_not_wait_for_a_change(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects that wait are locked while a project is applied, or a drop waits for its end."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())

        def locked(_: Objects) -> dict[str, str]:
            raise AssertionError("it would wait")

        with monkeypatch.context() as patch:
            patch.setattr(Objects, "waiting", locked)
            assert application.sql("SELECT k FROM t").num_rows == 1
            assert application.control.pause("t").changed, "nor does a pause"
        with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
            application.sql("SELECT k FROM tt")
