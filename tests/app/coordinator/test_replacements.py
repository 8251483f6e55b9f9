"""An object of another kind, or one with a new shard, comes once the former one is gone."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from shardline.app.lane.commands import command_kind
from shardline.app.lane.log import LaneLog
from shardline.app.protocol.objects import SinkDescription, ViewDescription
from shardline.app.storage.sinks.progress import _prepare
from shardline.datasource.errors import Determinate
from support.fakes.sites import Site, index, project, source

if TYPE_CHECKING:
    from shardline.app.coordinator.application import Application
    from shardline.app.project.statements import ObjectDescription

KINDS: dict[str, ObjectDescription] = {
    "source": source("x"),
    "view": ViewDescription(name="x", query="SELECT 1", inputs=("t",), schema="k BIGINT, s STRING"),
    "index": index("x", "t"),
    "sink": SinkDescription(name="x", on="t", format="parquet", options={"path": "/nowhere"}),
}
HELD = {"sink": "sink:x", "view": "view:x:7:0a1b2c3d"}
"""What one that runs keeps on its input."""


def is_there(application: Application, kind: str) -> bool:
    return type(application.running().get("x")) is type(KINDS[kind])


def commands(application: Application) -> list[str]:
    """What the order has of the object, without failures, and drops that only take a place."""
    records = application.runtime.lane._order.records()
    of_it = [r.command for r in records if getattr(r.command, "id", "") == "x"]
    of_it = [one for one in of_it if not getattr(one, "if_unfollowed", False)]
    return [kind for one in of_it if (kind := command_kind(one)) != "suspend_and_restart"]


def asked(application: Application) -> list[str]:
    """The controllers that are asked for an object of the name."""
    storage, compute = application._objects._storage, application._objects._compute
    named = {"storage": "x" in storage.desired(), "compute": "x" in compute.desired()}
    return [name for name, is_named in named.items() if is_named]


@pytest.mark.parametrize("runs", ["before", "at a start"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("sink", "index"),
        ("index", "sink"),
        ("sink", "source"),
        ("view", "index"),
        ("view", "sink"),
        ("sink", "view"),
    ],
)
def test_nothing_is_left_of_an_object_of_another_kind(
    site: Site, before: str, after: str, runs: str
) -> None:
    """It is gone before the other one is made: neither its holds nor its accounts outlive it."""
    client, accounts = site.client(), ""
    with site.application() as first:
        first.apply(project(source(), KINDS[before]))
        site.wait("the first one is there", lambda: is_there(first, before))
        held = HELD.get(before, "of somebody else")
        client.hold("t", held, since=5)
        if before == "sink":
            _prepare(client, "x_progress")
            accounts = client.state("x_progress").shard
        if runs == "before":
            check_change(site, first, after)
    if runs == "at a start":
        with site.application() as second:
            check_change(site, second, after)
    assert (held in site.holds()) == (before not in HELD)
    # Of a source that has begun there are bindings of that name.
    there = client.exists("x_progress")
    assert not there or client.state("x_progress").shard != accounts


def check_change(site: Site, application: Application, after: str) -> None:
    application.apply(project(source(), KINDS[after]))
    site.wait("the other one is there", lambda: is_there(application, after))
    assert commands(application)[-3:] == ["drop_dataflow", "dropped", "create_dataflow"]
    controller = "storage" if after in {"sink", "source"} else "compute"
    assert asked(application) == [controller]
    assert application.waiting() == {}
    # Nothing is left to do, for whoever connects.
    assert application.apply(project(source(), KINDS[after])).steps == ()


def hold_back(store: pytest.MonkeyPatch) -> None:
    """Nothing is recorded any more."""

    def refuse(_self: object, _attempt: object) -> None:
        raise Determinate("no answer")

    store.setattr(LaneLog, "_commit", refuse)


def test_an_object_of_another_kind_that_is_on_its_way_to_the_lane_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a project that is applied again, of which nobody was asked for anything yet."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("it has connected", lambda: "t" in application.running())
        with monkeypatch.context() as store:
            hold_back(store)
            application.apply(project(source(), KINDS["sink"]))
            for _ in range(2):
                application.apply(project(source(), KINDS["index"]))
                assert list(application.waiting()) == ["x"]
                assert asked(application) == []
        site.wait("it is there", lambda: is_there(application, "index"))
        assert commands(application)[-3:] == ["drop_dataflow", "dropped", "create_dataflow"]


def test_a_creation_on_its_way_to_the_lane_is_not_taken_for_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source that it makes would bind offsets of its own in the shard that was made anew."""
    client = site.client()
    fields = [
        {"name": name, "type": form, "nullable": True, "metadata": {}}
        for name, form in (("k", "long"), ("s", "string"))
    ]
    columns = {"x": json.dumps({"type": "struct", "fields": fields})}
    keyed = replace(source("x"), key=("k",), envelope="upsert")
    with site.application() as application:
        application.apply(project(source()))
        site.wait("it has connected", lambda: "t" in application.running())
        with monkeypatch.context() as store:
            hold_back(store)
            application.apply(project(source(), source("x")))
            former = client.state("x").shard
            changed = dataclasses.replace(project(source(), keyed), columns=columns)
            assert [one.name for one in application.apply(changed).replaced] == ["x"]
            application._objects._look()
            assert client.state("x").shard == former
            assert list(application.waiting()) == ["x"]
        site.wait("it is made", lambda: "x" in application.running())
        site.wait("it is the other one", lambda: application.waiting() == {})
        assert client.state("x").key == ("k",)
        assert asked(application) == ["storage"]
        made = [c for c in commands(application) if c in {"create_dataflow", "dropped"}]
        assert made == ["create_dataflow", "dropped", "create_dataflow"]
