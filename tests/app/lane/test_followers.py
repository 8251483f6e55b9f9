"""A follower runs what the holder's order says, records nothing, and is promoted without a stop."""

from __future__ import annotations

import pytest

from shardline.app.lane.commands import AllowWrites, CreateDataflow, DropDataflow
from shardline.app.protocol.objects import SubscribeDescription
from shardline.datasource.errors import Fenced, InvalidUsage
from support.fakes.stage import Stage, view


def test_a_follower_runs_the_same_and_is_promoted_without_a_stop() -> None:
    """It hydrates beside the holder, may not write nor record, and goes on when it is promoted."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")), AllowWrites("compute"))
    stage.effects()
    second = stage.runtime("follower")
    second.settle(rounds=2)
    assert second.runs() == {"v": view("v")}
    assert not second.hosts["compute"].writes.is_set()
    refused = second.lane.offer("compute", DropDataflow("v"))
    same = second.lane.offer("compute", CreateDataflow(description=view("v")))
    second.settle(rounds=1)
    with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
        refused.result()
    assert same.result() == len(stage.order.records) - 1
    before = second.lives()
    second.lane.offer("compute", AllowWrites("compute"))
    second.settle(rounds=3)
    assert second.hosts["compute"].writes.is_set()
    assert second.lives() == before
    stage.a.settle(rounds=3)
    assert isinstance(stage.a.end, Fenced)
    assert stage.a.runs() == {}


def test_a_follower_starts_no_subscription_of_the_holder() -> None:
    """It serves a connection of the holder, and is dropped, and removed, when it is promoted."""
    stage = Stage()
    stage.do(
        CreateDataflow(description=view("v")),
        CreateDataflow(description=SubscribeDescription(name="t", on="v"), as_of=1),
    )
    stage.effects()
    assert set(stage.a.runs()) == {"v", "t"}
    second = stage.runtime("follower")
    second.settle(rounds=3)
    assert set(second.runs()) == {"v"}
    second.lane.offer("compute", AllowWrites("compute"))
    second.settle(rounds=4)
    assert set(second.runs()) == set(second.lane.state.objects) == {"v"}
    assert second.forgotten == ["t"], "the former holder may have left its holds"
    mine = CreateDataflow(description=SubscribeDescription(name="u", on="v"), as_of=1)
    second.lane.offer("compute", mine)
    second.settle(rounds=2)
    assert set(second.runs()) == {"v", "u"}


def test_a_follower_removes_nothing() -> None:
    """What a dropped object leaves is the holder's to remove; a follower waits for its word."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    second = stage.runtime("follower")
    second.settle(rounds=2)
    stage.do(DropDataflow("v"))
    second.settle(rounds=2)
    assert second.runs() == {}
    assert second.forgotten == []
    stage.effects()
    second.settle(rounds=1)
    assert stage.a.forgotten == ["v"]
    assert second.lane.state.objects == {}


def test_a_follower_that_still_stops_what_the_holder_has_dropped_goes_on() -> None:
    """The holder's drop is done before the follower sees it, or before its own stop is done."""
    for seen_first in (False, True):
        stage = Stage()
        stage.do(CreateDataflow(description=view("v")))
        stage.effects()
        second = stage.runtime("follower")
        second.settle(rounds=2)
        stage.do(DropDataflow("v"))
        if seen_first:
            second.lane.step()
        stage.effects()
        assert stage.a.lane.state.objects == {}
        second.lane.step()
        assert set(second.runs()) == {"v"}, "its stop has not begun"
        second.settle(rounds=2)
        assert second.runs() == {}
        stage.do(CreateDataflow(description=view("v")))
        second.settle(rounds=2)
        assert set(second.runs()) == {"v"}
        assert second.end is None
