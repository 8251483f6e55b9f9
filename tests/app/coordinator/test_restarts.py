"""A restart goes on with what ran, also while its inputs are away, and drops nothing of it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.protocol.objects import SinkDescription, ViewDescription
from shardline.app.storage.sinks.progress import read_progress
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import Frontier
from support.fakes.sites import Site, index, project, source


def lives(application: Application) -> dict[str, tuple[str, int]]:
    """By object: its id, and the record that made it; both are others once it was dropped."""
    objects = application.runtime.lane.state.objects
    return {name: (known.global_id, known.created) for name, known in objects.items()}


def make_anew(site: Site, name: str) -> None:
    """A shard without a time yet, in the place of another one."""
    client = site.client()
    state = client.state(name)
    client.drop(name, despite_holders=[*state.critical, *state.leased])


def test_a_reader_whose_input_begins_anew_runs_on_over_a_restart(site: Site) -> None:
    """It has begun; dropped and made again, a sink would write all contents a second time."""
    site.put([((1, "a"), 1, 1)], 10, "u")
    with site.application() as application:
        application.apply(project(source(), source("u"), index()))
        site.wait("all run", lambda: len(application.running()) == 3)
        before = lives(application)
    make_anew(site, "t")
    with site.application() as application:
        # The last one is there once the controllers have connected and said what is wanted.
        application.apply(project(source(), source("u"), index(), index("last", "u")))
        site.wait("it is reconciled", lambda: "last" in application.running())
        assert application.waiting() == {}
        assert {name: lives(application)[name] for name in before} == before


def test_what_is_changed_runs_on_as_it_was_until_its_new_input_begins(site: Site) -> None:
    """Over a restart, too."""
    wanted = project(source(), source("u"), index("i", "u"), index("last"))
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("both run", lambda: len(application.running()) == 2)
        before = lives(application)
    with site.application() as application:
        application.apply(wanted)
        site.wait("it is reconciled", lambda: "last" in application.running())
        assert application.waiting() == {"i": ""}
        assert lives(application)["i"] == before["i"]
        assert application.running()["i"] == index()
        site.put([((1, "a"), 1, 1)], 10, "u")
        site.wait("it is changed", lambda: application.running()["i"] == index("i", "u"))


def test_holds_on_inputs_that_are_read_no_more_end_at_a_start(site: Site) -> None:
    """A process died between a change and the end of the former holds, which nobody else knows."""
    site.put([((1, "a"), 1, 1)], 10, "u")
    with site.application() as application:
        application.apply(project(source(), source("u"), index("i", "u")))
        site.wait("all run", lambda: len(application.running()) == 3)
    for hold in ("view:i:1:0a1b2c3d", "view:other:1:0a1b2c3d", "mine"):
        site.client().hold("t", hold, since=9)
        site.client().hold("u", hold, since=9)
    with site.application() as application:
        application.apply(project(source(), source("u"), index("i", "u")))
        gone = {"view:i:1:0a1b2c3d", "view:other:1:0a1b2c3d"}
        site.wait("they are gone", lambda: gone.isdisjoint(site.holds("t")))
        assert "mine" in site.holds("t")
        assert "view:i:1:0a1b2c3d" in site.holds("u"), "it reads this one"


def test_a_drop_spares_what_is_called_like_a_shard_of_another_kind(site: Site) -> None:
    """Only sources have a progress shard: beside a view its name is free, and may be a source's."""
    others = ["v_progress", "v_skipped"]
    for name in others:
        site.put([((7, "g"), 1, 1)], 10, name)
    view = ViewDescription(name="v", query="SELECT 1", inputs=("t",), schema="k BIGINT, s STRING")
    with site.application() as application:
        application.apply(project(source(), view, source("v_progress")))
        site.wait("all are there", lambda: len(application.running()) == 3)
        (planned,) = application.plan_drop(["v"]).objects
        assert [shard.name for shard in planned.shards] == ["v"]
        assert application.drop(["v"]) == ["v"]
        assert "v_progress" in application.running()
        client = site.client()
        assert [name for name in ("v", *others) if client.exists(name)] == others


def test_a_drop_that_was_overtaken_by_a_successor_spares_its_rows(site: Site) -> None:
    """The first process rests right behind its look at the fence; the next one runs the source."""
    with site.application() as first, ExitStack() as later:
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in first.running())
        lane = first.runtime.lane
        real = lane.check_fence

        def rest() -> None:
            real()
            lane.check_fence = real  # type: ignore[method-assign]
            second = later.enter_context(site.application(take_over=True))
            second.apply(project(source()))
            site.put([((2, "b"), 10, 1)], 11)

        lane.check_fence = rest  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            first.drop(["t"])
    assert site.client().state("t").upper == Frontier(11)


def test_the_accounts_of_a_sink_that_is_dropped_are_among_what_went(site: Site) -> None:
    """Its end drops them before the drop comes to its shards, and they are gone all the same."""
    sink = SinkDescription(name="out", on="t", format="memory")
    with site.application() as application:
        application.apply(project(source("t"), sink))
        site.wait("all is there", lambda: set(application.running()) == {"t", "out"})
        site.wait("it has noted its input", lambda: read_progress(site.client(), "out"))
        assert application.drop(["out", "out"]) == ["out_progress"]
        assert not site.client().exists("out_progress")
