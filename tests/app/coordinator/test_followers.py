"""Two applications over one location: one holds it, the other follows, and is promoted."""

from __future__ import annotations

import json
import os
import platform
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.lane.commands import CreateDataflow as CreateRecord
from shardline.app.lane.commands import DropDataflow, Opened
from shardline.app.project.permission import Permissions
from shardline.app.project.project import CheckedProject
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.compute import (
    AllowWrites,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Schedule,
    SubscribeResponse,
)
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.server.application_server import serve_application
from shardline.app.server.client import run_action
from shardline.app.server.discovery import ApplicationAddress, request_headers
from shardline.app.settings.config import RuntimeSettings
from shardline.app.transport.in_process import InProcessClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, InvalidUsage
from support.fakes.sites import Site, index, project, source


def told(application: Application, relation: str) -> list[dict[str, object]]:
    """Rows of a relation."""
    assert application.feeds is not None
    return application.feeds.relations.rows(relation)


def owned(name: str, *wanted: ObjectDescription) -> CheckedProject:
    """A project that says which one it is."""
    return replace(project(*wanted), identity=ProjectIdentity(name=name, folder=name))


@contextmanager
def overdue(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Application, Application, threading.Event]]:
    """A holder of a source, a follower, and what its take-overs wait for longer than it does."""
    happened = threading.Event()
    real = Application._has_taken_over
    monkeypatch.setattr(
        Application, "_has_taken_over", lambda self: happened.is_set() and real(self)
    )
    with (
        site.application() as first,
        site.application(read_only=True, query_timeout="300ms") as second,
    ):
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in second.running())
        yield first, second, happened


@pytest.mark.slow
def test_a_follower_refuses_what_it_cannot_do(site: Site) -> None:
    """At once and by name; the project that it was started with waits."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in second.running())
        with pytest.raises(InvalidUsage, match="NOTHING_APPLIED"):
            second.allow_writes()
        assert [step.name for step in second.apply(project(source(), index())).steps] == ["i"]
        for act in (
            lambda: second.apply(project(source(), index("k"))),
            lambda: second.drop(["t"]),
            lambda: second.subscribe("SUBSCRIBE t"),
            lambda: second.configure({"index_limit": "1g"}),
        ):
            with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
                act()
        assert list(second.running()) == ["t"]
        assert second.sql("SELECT k FROM t AS OF 5").to_pylist() == [{"k": 1}]


@pytest.mark.slow
def test_a_follower_plans_a_drop_by_what_the_holder_runs_now(site: Site) -> None:
    """And not by what it ran when the follower began."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source(), index()))
        site.wait("both are there", lambda: len(second.running()) == 2)
        second.apply(project(source(), index()))
        with pytest.raises(InvalidUsage, match="STILL_READ"):
            second.plan_drop(["t"])
        first.apply(project(source()))
        site.wait("the index is gone", lambda: list(second.running()) == ["t"])
        assert [one.name for one in second.plan_drop(["t"]).objects] == ["t"]
        with pytest.raises(InvalidUsage, match="'i'"):
            second.plan_drop(["i"])


@pytest.mark.slow
def test_who_holds_the_location_and_who_follows_is_told(site: Site) -> None:
    """By both of them, as the same; a follower is seen for as long as it follows."""
    with site.application(introspection=True) as first:
        first.apply(project(source()))
        controllers = {("controller", "compute"), ("controller", "storage")}

        def connected(application: Application) -> set[tuple[str, str]]:
            rows = told(application, "connections")
            return {(str(row["kind"]), str(row["name"]).split()[0]) for row in rows}

        site.wait("controllers", lambda: connected(first) == controllers)
        with site.application(introspection=True, read_only=True) as second:
            follower = ("follower", "shardline")
            site.wait("it is seen", lambda: connected(first) == {*controllers, follower})
            site.wait("it knows", lambda: bool(told(second, "location")))
            # Commands of what was applied may still be on their way to a worker that is busy.
            site.wait("the lane is empty", lambda: told(first, "location")[0]["queue"] == 0)
            rows = [told(one, "location")[0] for one in (first, second)]
            assert [row["read_only"] for row in rows] == [False, True]
            assert len({(row["holder"], row["epoch"], row["location"]) for row in rows}) == 1
            assert rows[0]["holder"] == f"shardline on {platform.node()}, process {os.getpid()}"
            assert rows[0]["project"] is None
        site.wait("it has gone", lambda: connected(first) == controllers)


def test_a_promoted_follower_runs_its_own_project(site: Site) -> None:
    """What is new is made, what the project lacks is dropped, and all else goes on untouched."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source(), index("old"), index("same")))
        site.wait("all is there", lambda: len(second.running()) == 3)
        second.apply(project(source(), index("same"), index("later"), index("new")))
        first.apply(project(source(), index("old"), index("same"), index("later")))
        site.wait("it follows", lambda: "later" in second.running())
        before = {n: known.dataflow for n, known in second.runtime.lane.state.objects.items()}
        second.allow_writes()
        assert second.runtime.lane.state.writes == ("compute", "storage")
        site.wait("it is", lambda: set(second.running()) == {"t", "same", "later", "new"})
        objects = second.runtime.lane.state.objects
        for name in ("t", "same", "later"):
            assert objects[name].dataflow == before[name], name
        site.wait("the first is fenced", lambda: first.lost is not None)
        with pytest.raises(Fenced):
            first.apply(project(source()))
        assert first.not_ready


def test_who_follows_an_object_is_told_that_another_runtime_has_taken_over(site: Site) -> None:
    """Instead of waiting for a runtime that has stopped."""
    with site.application() as first:
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in first.running())
        subscription = first.subscribe("SUBSCRIBE t")
        with site.application(take_over=True):
            site.wait("it has ended", lambda: subscription.ended)
        *_, last = subscription
        assert isinstance(last, SubscribeResponse)
        assert last.error == str(refusal(first))


@pytest.mark.slow
def test_the_histories_of_a_promoted_follower_begin_with_its_promotion(site: Site) -> None:
    """What it has noted as a follower is not what the holder has done."""

    def noted(application: Application) -> set[str]:
        rows = told(application, "status_history") + told(application, "events")
        return {str(row["occurred_at"]) for row in rows}

    with site.application(introspection=True) as first:
        first.apply(project(source()))
        with site.application(introspection=True, read_only=True) as second:
            second.apply(project(source()))
            site.wait("it follows", lambda: bool(told(second, "status_history")))
            before = noted(second)
            second.allow_writes()
            site.wait("they begin anew", lambda: bool(noted(second)) and not noted(second) & before)
            assert {row["object_id"] for row in told(second, "status_history")} == {"t"}
            assert "start" in {row["kind"] for row in told(second, "events")}


def test_a_controller_of_a_follower_gets_what_it_asked_for_after_the_promotion(site: Site) -> None:
    """Also one that nobody reconnects: the runtime keeps what it could not do."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source(), index("old")))
        site.wait("all is there", lambda: len(second.running()) == 2)
        client: Any = InProcessClient(second.runtime.compute, "other", SystemClock())
        created = CreateDataflow(dataflow=index("new"), as_of=5)
        for command in (CreateInstance(), created, Schedule("new"), InitializationComplete()):
            client.send(command)
        client.send(AllowWrites())
        site.wait("it is made", lambda: set(second.running()) == {"t", "new"})


def since_take_over(application: Application, name: str) -> list[type]:
    """What the order says of an object from the last take-over on."""
    records = application.runtime.lane._order.records()
    last = max(one.index for one in records if isinstance(one.command, Opened))
    named = (CreateRecord, DropDataflow)
    commands = [one.command for one in records if one.index > last]
    return [type(one) for one in commands if isinstance(one, named) and one.id == name]


def test_what_the_holder_has_dropped_does_not_come_back_by_a_promotion(site: Site) -> None:
    """The follower ran it, and its own project lacks it: not even for a moment.

    A sink that is made again writes all of its contents a second time.
    """
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source(), index("old"), index("same")))
        site.wait("all is there", lambda: len(second.running()) == 3)
        second.apply(project(source(), index("same")))
        first.apply(project(source(), index("same")))
        site.wait("it follows", lambda: "old" not in second.running())
        second.allow_writes()
        site.wait("it is", lambda: set(second.running()) == {"t", "same"})
        assert since_take_over(second, "old") == []


def test_a_take_over_that_nobody_waits_for_any_more_is_gone_through_with(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first runtime is fenced whenever it happens; the other one has its own project to run."""
    with overdue(site, monkeypatch) as (_, second, happened):
        second.apply(project(source(), index()))
        with pytest.raises(Indeterminate, match="NOT_TAKEN_OVER"):
            second.allow_writes()
        with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
            second.drop(["t"])
        happened.set()
        site.wait("its project runs", lambda: "i" in second.running())
        assert [step.name for step in second.apply(project(source())).steps] == ["i"]


def test_a_project_that_is_refused_after_the_take_over_is_refused_until_one_is_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was found out while nobody waited: to ask again is no consent."""
    with overdue(site, monkeypatch) as (first, second, happened):
        mine = owned("mine", source(), index())
        second.apply(mine)
        first.apply(owned("other", source()))
        with pytest.raises(Indeterminate, match="NOT_TAKEN_OVER"):
            second.allow_writes()
        happened.set()
        site.wait("it is through", lambda: second._objects._promotion is None)
        lengths: list[int] = []
        for _ in range(3):
            with pytest.raises(InvalidUsage, match="OTHER_PROJECT") as error:
                second.allow_writes()
            lengths.append(len(error.traceback))
        # One error that is kept for long, asked for by whoever polls.
        assert lengths == lengths[:1] * 3
        assert list(second.running()) == ["t"]
        second.apply(mine, Permissions(adopt=True))
        second.allow_writes()
        site.wait("its project runs", lambda: "i" in second.running())


@contextmanager
def served_follower(
    site: Site, folder: Path
) -> Iterator[tuple[Application, Application, ApplicationAddress]]:
    """A holder, one that follows it and has the same project, and the address of that one."""
    with (
        site.application() as first,
        site.application(read_only=True, introspection=True) as second,
        serve_application(second, RuntimeSettings(), folder) as where,
    ):
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in second.running())
        second.apply(project(source()))
        yield first, second, where


@pytest.mark.server
def test_what_fails_behind_a_take_over_is_not_told_as_if_nothing_had_happened(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The location is taken over, and the rest is tried again."""

    def fail(_: Application) -> None:
        raise Determinate("no answer")

    monkeypatch.setattr(Application, "_begin_to_write", fail)
    with served_follower(site, tmp_path) as (first, _, where):
        with pytest.raises(Indeterminate, match=r"no answer.*goes on by itself"):
            run_action(where, "allow_writes", "")
        site.wait("the first is fenced", lambda: first.lost is not None)


def take_control(application: Application) -> None:
    """A controller elsewhere pushes the application's own one aside."""
    Site.wait("its own is connected", lambda: not application.runtime.compute.is_vacant)
    client: Any = InProcessClient(application.runtime.compute, "other", SystemClock())
    client.send(CreateInstance())

    def pushed_aside() -> bool:
        return "CONTROLLER_REPLACED" in application.not_ready

    Site.wait("another controller is in charge", pushed_aside)


@pytest.mark.server
def test_a_take_over_that_another_controller_keeps_back_is_not_begun(
    site: Site, tmp_path: Path
) -> None:
    """And is not answered as if it might have been."""
    with served_follower(site, tmp_path) as (first, second, where):
        take_control(second)
        headers = {**request_headers(where), "Content-Type": "application/json"}
        connection = HTTPConnection(where.url.removeprefix("http://"), timeout=30)
        connection.request("POST", "/api/v1/actions/allow_writes", b'{"target": ""}', headers)
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
        connection.close()
        assert (answer.status, error["code"]) == (503, "CONTROLLER_REPLACED")
        assert first.lost is None


def test_a_new_holder_maintains_the_location_whoever_controls_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another controller connects between the take-over and what follows it."""
    begun = threading.Event()
    monkeypatch.setattr(Application, "_begin_to_write", lambda _: begun.set())
    with overdue(site, monkeypatch) as (_, second, happened):
        second.apply(project(source()))
        with pytest.raises(Indeterminate, match="NOT_TAKEN_OVER"):
            second.allow_writes()
        take_control(second)
        happened.set()
        site.wait("it maintains", begun.is_set)
        site.wait("it follows nobody", lambda: not second._objects.follows)


def refusal(application: Application) -> Fenced:
    """The answer of an application that has lost its location."""
    with pytest.raises(Fenced) as refused:
        application.check_in_charge()
    return refused.value


def test_a_promotion_ends_with_the_loss_of_the_location(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away behind the take-over, and when it answers another runtime has it."""
    answers = threading.Event()
    real = Application._begin_to_write

    def begin(self: Application) -> None:
        if not answers.is_set():
            raise Determinate("no answer")
        real(self)

    monkeypatch.setattr(Application, "_begin_to_write", begin)
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in second.running())
        second.apply(project(source(), source("u")))
        with pytest.raises(Determinate, match="no answer"):
            second.allow_writes()
        with site.application(take_over=True):
            site.wait("the second is fenced", lambda: second.lost is not None)
            answers.set()
            second._objects._look()
            with pytest.raises(Fenced):
                second.allow_writes()
            frames = {len(traceback.extract_tb(refusal(second).__traceback__)) for _ in range(5)}
            assert len(frames) == 1, "each answer adds to what the error keeps"
            second._objects._look()
            assert second._objects._promotion is None
            assert not site.client().exists("u")


def test_what_the_holder_makes_in_its_last_moment_is_not_made_anew(site: Site) -> None:
    """It is recorded after the follower has said what runs, and before the take-over."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source(), index("same")))
        site.wait("all is there", lambda: len(second.running()) == 2)
        second.apply(project(source(), index("same"), index("both")))
        compute = second._objects._compute
        real = compute.allow_writes

        def allow_writes() -> None:
            first.apply(project(source(), index("same"), index("both")))
            site.wait("it is recorded", lambda: "both" in first.running())
            real()

        compute.allow_writes = allow_writes  # type: ignore[method-assign]
        second.allow_writes()
        site.wait("it is", lambda: set(second.running()) == {"t", "same", "both"})
        assert DropDataflow not in since_take_over(second, "both")


def test_a_promoted_follower_does_not_bring_an_older_project_back(site: Site) -> None:
    """Whatever it was allowed to lose; who asks is told, and may apply it all the same."""
    older = project(source(), index("old"), index("same"))
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(older)
        site.wait("all is there", lambda: len(second.running()) == 3)
        allowed = Permissions(replace=True, shorten=True, adopt=True)
        second.apply(project(source(), index("same"), index("mine")), allowed)
        newer = {"t", "old", "same", "newer"}
        first.apply(project(source(), index("old"), index("same"), index("newer")))
        site.wait("it follows", lambda: second.running().keys() == newer)
        for _ in range(2):
            with pytest.raises(InvalidUsage, match=r"PROJECT_OVERTAKEN.*'newer' was made"):
                second.allow_writes()
        assert not second.follows
        site.wait("the first is fenced", lambda: first.lost is not None)
        second._objects._look()
        assert second.running().keys() == newer
        assert since_take_over(second, "newer") == []
        second.apply(older)
        second.allow_writes()
        site.wait("it is dropped", lambda: second.running().keys() == {"t", "old", "same"})


@pytest.mark.slow
def test_a_follower_leaves_it_to_the_one_it_follows(site: Site) -> None:
    """Neither pauses nor repairs are its to record."""
    with site.application() as first, site.application(read_only=True) as second:
        first.apply(project(source()))
        site.wait("the source is there", lambda: "t" in second.running())
        for act in (
            lambda: second.control.pause("t"),
            lambda: second.repairs.repair("t", "retract", 1, ()),
        ):
            with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
                act()


@pytest.mark.slow
def test_only_the_holder_maintains_its_location(site: Site) -> None:
    """By default, and until another one has taken the location over."""
    with site.application(maintenance=True) as first:
        keeper = first._maintainer
        assert keeper is not None
        assert "t" in keeper.round()
        with site.application(maintenance=True, take_over=True) as second:
            site.wait("the first knows", lambda: first.lost is not None)
            assert keeper.round() == {}
            successor = second._maintainer
            assert successor is not None
            assert "t" in successor.round()
