"""Objects that are paused, resumed and restarted by command, with effects under control."""

from __future__ import annotations

import pytest

from shardline.app.execution.observations import Ended
from shardline.app.lane.commands import (
    CreateDataflow,
    DropDataflow,
    PauseDataflow,
    RestartDataflow,
    ResumeDataflow,
)
from support.fakes.stage import Stage, source, view


def test_a_paused_object_stops_and_keeps_what_it_has_until_it_is_resumed() -> None:
    """Nothing of it starts or is cleaned up meanwhile; then its next incarnation begins."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.do(PauseDataflow("v"))
    stage.effects()
    assert stage.phases("v") == ["starting", "running", "stopping", "stopped", "paused"]
    stage.a.settle()
    assert (stage.a.runs(), stage.a.forgotten, stage.phases("v")) == ({}, [], [])
    stage.do(ResumeDataflow("v"))
    stage.effects()
    assert stage.phases("v") == ["starting", "running"]
    resumed = stage.a.lives()["v"]
    assert (resumed.dataflow, resumed.epoch) == (1, 2)


def test_a_pause_is_kept_by_the_next_holder_and_by_another_definition() -> None:
    """A crash starts nothing that is paused, and neither does a change; observers hear of it."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")), PauseDataflow("v"))
    stage.a = stage.runtime()
    stage.a.settle()
    assert stage.phases("v") == ["paused"]
    stage.do(CreateDataflow(description=view("v", "SELECT 2")))
    stage.a.settle()
    assert (stage.a.runs(), stage.phases("v")) == ({}, ["paused"])
    stage.do(ResumeDataflow("v"))
    stage.effects()
    assert stage.a.runs() == {"v": view("v", "SELECT 2")}


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_nothing_is_removed_between_the_two_halves_of_a_replacement(
    *, crashes: bool, follows: bool
) -> None:
    """The successor has the name, its holds and its pause, though a crash comes in between.

    Without a successor a drop that says so removes all, the pause as well.
    """
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")), PauseDataflow("v"))
    stage.do(DropDataflow("v", replaced=True))
    stage.a.settle()
    if crashes:
        stage.a = stage.runtime()
        stage.a.settle()
    assert stage.a.forgotten == []
    if follows:
        stage.do(CreateDataflow(description=view("v", "SELECT 2")), ResumeDataflow("v"))
    else:
        stage.do(DropDataflow("v"))
    stage.a.settle()
    if follows:
        assert (stage.a.runs(), stage.a.forgotten) == ({"v": view("v", "SELECT 2")}, [])
        assert stage.a.lives()["v"].global_id == "u1"
    else:
        assert stage.a.forgotten == ["v"]
        assert (stage.a.lane.state.objects, stage.a.lane.state.paused) == ({}, ())


def test_what_has_come_to_its_end_is_paused_and_resumed_like_all_else() -> None:
    """It runs no more in either case, and observers see which."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.lane.report(Ended(id="v", epoch=1))
    stage.a.settle()
    stage.phases("v")
    stage.do(PauseDataflow("v"))
    stage.a.settle()
    assert stage.phases("v") == ["paused"]
    stage.do(ResumeDataflow("v"))
    stage.effects()
    assert (stage.phases("v"), stage.a.lives()["v"].epoch) == (["starting", "running"], 2)


def test_a_pause_gives_its_place_in_the_queue_of_starts_away() -> None:
    """Resumed, it waits behind those that have waited meanwhile."""
    stage = Stage(hydration_concurrency=1)
    stage.do(*(CreateDataflow(description=view(name)) for name in ("v0", "v1", "v2")))
    stage.effects()
    stage.do(PauseDataflow("v1"))
    stage.effects()
    stage.do(ResumeDataflow("v1"))
    stage.effects()
    stage.a.hydrate("v0")
    stage.a.lane.step()
    stage.effects()
    assert sorted(stage.a.runs()) == ["v0", "v2"]


def test_a_pause_overtakes_a_restart_after_a_failure() -> None:
    """What has failed and is paused before its next start does not come back."""
    stage = Stage(restart_base_ms=1_000)
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    stage.a.fail("s")
    stage.a.lane.step()
    stage.do(PauseDataflow("s"))
    stage.a.settle()
    assert stage.a.runs() == {}
    assert stage.phases("s")[-1] == "paused"


def test_a_follower_pauses_what_its_holder_pauses() -> None:
    """Its own objects stop, and go on when the order says so."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    follower = stage.runtime("follower")
    follower.settle()
    assert follower.runs() == {"v": view("v")}
    stage.do(PauseDataflow("v"))
    follower.settle()
    assert follower.runs() == {}
    stage.do(ResumeDataflow("v"))
    follower.settle()
    assert follower.runs() == {"v": view("v")}


def test_a_restart_that_is_asked_for_does_not_wait_out_the_pause_after_a_failure() -> None:
    """Once: if that incarnation fails as well, the next one waits again."""
    stage = Stage(restart_base_ms=60_000, restart_max_ms=60_000)
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    stage.a.fail("s")
    stage.a.lane.step()
    stage.effects()
    assert stage.a.runs() == {}
    stage.do(RestartDataflow("s"))
    stage.effects()
    assert stage.a.lives()["s"].epoch == 3
    stage.a.fail("s")
    stage.a.lane.step()
    stage.effects()
    stage.a.lane.step()
    assert stage.a.runs() == {}


def test_a_restart_that_is_asked_for_gives_what_runs_another_incarnation() -> None:
    """It is stopped, and started with the next epoch and the same numbers otherwise."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.do(RestartDataflow("v"))
    stage.effects()
    assert stage.phases("v") == [
        "starting",
        "running",
        "stopping",
        "stopped",
        "starting",
        "running",
    ]
    again = stage.a.lives()["v"]
    assert (again.global_id, again.dataflow, again.epoch) == ("u1", 1, 2)
