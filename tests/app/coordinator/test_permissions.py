"""A project replaces shards, or takes over another project's objects, only if that is allowed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as struct_replace

from shardline.app.coordinator.existing_shards import read_existing_shards
from shardline.app.coordinator.objects import Objects
from shardline.app.coordinator.planning import planned
from shardline.app.coordinator.view_explanation import with_view_plans
from shardline.app.lane.log import read_lane
from shardline.app.project.identity import read_identity
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import make_plan
from shardline.app.project.project import CheckedProject
from shardline.app.protocol.objects import ViewDescription
from shardline.app.protocol.project_identity import ProjectIdentity, is_same_project
from shardline.app.settings.config import Duration, RuntimeSettings
from shardline.app.storage.errors import open_errors
from shardline.app.storage.reclock import Origin, Remap
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.sites import SCHEMA, Site, index, project, source

FLIGHTS = ProjectIdentity(folder="/data/flights")
TAXIS = ProjectIdentity(name="taxis", folder="/data/taxis")
REPLACE = Permissions(replace=True)
ADOPT = Permissions(adopt=True)
HOUR_MS = 3_600_000


def of(identity: ProjectIdentity | None, *objects: object) -> CheckedProject:
    return replace(project(*objects), identity=identity)  # type: ignore[arg-type]


# -- whose objects run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("", "/a"), ("", "/a"), True),
        (("", "/a"), ("", "/b"), False),
        (("x", "/a"), ("x", "/b"), True),
        (("x", "/a"), ("y", "/a"), False),
        (("x", "/a"), ("", "/a"), True),
        (("x", "/a"), ("", "/b"), False),
    ],
)
def test_a_project_is_known_by_its_name_or_its_folder(
    one: tuple[str, str], other: tuple[str, str], same: bool
) -> None:
    """A name stays when a folder is moved or cloned; one that is given later changes nothing."""
    first, second = (ProjectIdentity(name=n, folder=f) for n, f in (one, other))
    assert is_same_project(first, second) is same
    assert is_same_project(second, first) is same


def test_the_settings_of_a_project_name_it(tmp_path: Path) -> None:
    """Without them it is its folder; a mistake in them is no other project."""
    assert read_identity(tmp_path) == ProjectIdentity(folder=str(tmp_path))
    file = tmp_path / "project.toml"
    file.write_text('name = "taxis"')
    assert read_identity(tmp_path) == ProjectIdentity(name="taxis", folder=str(tmp_path))
    for text, said in (
        ('nmae = "taxis"', "did you mean 'name'"),
        ("name = 7", "is 7"),
        ("name = taxis", "SETTINGS_UNREADABLE"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidUsage, match=said):
            read_identity(tmp_path)


def test_another_project_is_refused_until_it_adopts(site: Site) -> None:
    """By `plan` and `apply`, here and after a restart; nothing is dropped before, all is after."""
    with site.application() as application:
        application.apply(of(FLIGHTS, source(), index()))
        site.wait("all is there", lambda: len(application.running()) == 2)
        taxis = of(TAXIS, source("u"))
        plan = application.plan(taxis)
        assert plan.owner == "of /data/flights"
        assert [step.act for step in plan.steps] == ["drop", "drop", "create"]
        with pytest.raises(InvalidUsage, match=r"OTHER_PROJECT.*of /data/flights runs here.*adopt"):
            application.apply(taxis, REPLACE)
        assert application.plan(of(FLIGHTS, source(), index())).is_empty
        assert application.plan(of(None, source(), index())).owner == "", "it claims nothing"
    with site.application() as application:
        assert set(application.running()) == {"t", "i"}
        assert planned(site.client(), RuntimeSettings(), taxis).owner == "of /data/flights"
        with pytest.raises(InvalidUsage, match="OTHER_PROJECT"):
            application.apply(taxis)
        application.apply(taxis, ADOPT)
        site.wait("they are gone", lambda: set(application.running()) == {"u"})
        assert read_lane(site.client())[0].project == TAXIS
        moved = ProjectIdentity(name="taxis", folder="/elsewhere")
        application.apply(of(moved, source("u")))
        assert read_lane(site.client())[0].project == moved
        with pytest.raises(InvalidUsage, match="'taxis' of /elsewhere runs here"):
            application.apply(of(FLIGHTS, source()))


def test_no_view_is_planned_where_another_project_runs() -> None:
    """The plan is refused, and each view would take a second of a session: there is none here."""
    view = ViewDescription(name="v", query="SELECT k FROM t", inputs=("t",), schema="k BIGINT")
    taxis = of(TAXIS, source(), view)
    plan = replace(make_plan(taxis.descriptions, {}), owner="of /data/flights")
    session: Any = None
    assert with_view_plans(session, plan, taxis, REPLACE) is plan
    with pytest.raises(KeyError, match="t"):  # the columns of its input, which are asked for first
        with_view_plans(session, plan, taxis, ADOPT)


def test_a_location_without_a_record_is_adopted(site: Site) -> None:
    """An earlier version made none; and where nothing runs, nothing can be taken from anybody."""
    with site.application() as application:
        application.apply(of(None, source()))
        site.wait("it is there", lambda: set(application.running()) == {"t"})
    with site.application() as application:
        application.apply(of(FLIGHTS, source()))
        assert read_lane(site.client())[0].project == FLIGHTS
        application.apply(of(FLIGHTS))
        site.wait("it is gone", lambda: not application.running())
        application.apply(of(TAXIS, source()))
        assert read_lane(site.client())[0].project == TAXIS


# -- shards that are replaced ----------------------------------------------------------------------


def columns(kind: str) -> dict[str, str]:
    fields = [
        {"name": "k", "type": kind, "nullable": True, "metadata": {}},
        {"name": "s", "type": "string", "nullable": True, "metadata": {}},
    ]
    return {"t": json.dumps({"type": "struct", "fields": fields})}


@pytest.mark.parametrize("runs", ["before", "at the start"])
def test_a_source_is_replaced_only_if_that_is_allowed(
    site: Site, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one has stopped, its shard is another one, and it runs again; all else runs on."""
    ran, drop = list[bool](), Objects._drop_shards

    def drop_shards(self: Objects, name: str) -> list[str]:
        ran.append(name in self._runtime.lane.state.objects)
        return drop(self, name)

    monkeypatch.setattr(Objects, "_drop_shards", drop_shards)
    first = of(FLIGHTS, source(), source("u"), index())
    changed = replace(
        of(FLIGHTS, source(path="q"), source("u"), index()), columns=columns("decimal(10,2)")
    )
    site.put([((2, "b"), 3, 1)], 10, "u")
    old = site.client().state("t").shard
    with site.application() as application:
        application.apply(first)
        site.wait("all is there", lambda: len(application.running()) == 3)
        with pytest.raises(InvalidUsage, match=r"REPLACEMENT_REFUSED.*history of 't'"):
            application.apply(changed, ADOPT)
        assert site.client().state("t").shard == old
        assert application.running()["t"] == source().__class__(
            name="t", format="none", retain_ms=3_600_000
        )
        if runs == "before":
            application.apply(changed, REPLACE)
            _check_replaced(site, application, old)
    if runs == "at the start":
        with site.application() as application:
            application.apply(changed, REPLACE)
            _check_replaced(site, application, old)
    assert ran == [False], "nothing wrote it any more"


def _check_replaced(site: Site, application: object, old: str) -> None:
    running = application.running  # type: ignore[attr-defined]
    site.wait("it runs anew", lambda: getattr(running().get("t"), "options", 0) == {"path": "q"})
    state = site.client().state("t")
    assert state.shard != old
    assert state.upper.time == 0, "nothing of the old one is in it"
    assert site.client().state("u").upper.time == 10
    assert application.waiting().get("t") is None  # type: ignore[attr-defined]
    assert set(running()) == {"t", "u", "i"}


@pytest.mark.parametrize("runs", ["before", "not any more"])
def test_a_view_takes_the_name_of_a_source_only_if_that_is_allowed(site: Site, runs: str) -> None:
    """All shards of the source go then: its errors have other columns, its bindings would lie."""
    client = site.client()
    view = ViewDescription(name="t", query="SELECT 1", inputs=(), schema="k BIGINT, s STRING")
    after = replace(project(source("u"), view), columns=columns("long"))
    with site.application() as application:
        application.apply(project(source(), source("u")))
        site.wait("all is there", lambda: len(application.running()) == 2)
        remap = Remap.open(client, "t", Origin("none", 0))
        remap.bind(remap.read(), number=0, offset="{}", files=(), at=1)
        open_errors(client, "t")
        old = {name: client.state(name).shard for name in ("t", "t_errors", "t_progress")}
        if runs == "not any more":
            application.apply(project(source("u")))
            site.wait("it is gone", lambda: len(application.running()) == 1)
        with pytest.raises(InvalidUsage, match=r"REPLACEMENT_REFUSED.*history of 't'"):
            application.apply(after)
        assert {name: client.state(name).shard for name in old} == old
        application.apply(after, REPLACE)
        site.wait("it is a view", lambda: application.running().get("t") == with_hour(view))
        assert client.state("t").shard != old["t"]
        assert client.state("t").upper.time == 0
        assert not client.exists("t_progress")
        # The view may have made its own meanwhile.
        assert not client.exists("t_errors") or client.state("t_errors").shard != old["t_errors"]
        assert application.plan(after).replaced == ()


def with_hour(view: ViewDescription) -> ViewDescription:
    """As the application's settings complete it."""
    return struct_replace(view, retain_ms=HOUR_MS)


def test_a_runtime_that_was_fenced_replaces_nothing(site: Site) -> None:
    """Its permission was for what it ran: the shard belongs to the one that has taken over."""
    with site.application() as application:
        application.apply(of(FLIGHTS, source()))
        site.wait("it is there", lambda: "t" in application.running())
        old = site.client().state("t").shard
        changed = replace(of(FLIGHTS, source(path="q")), columns=columns("string"))
        with site.application(take_over=True) as second:
            second.apply(of(FLIGHTS, source()))
            with pytest.raises(ShardError, match="FENCED"):
                application._objects._drop_shards("t")
            # It may not have heard of it yet, and then takes the project.
            with suppress(ShardError):
                application.apply(changed, REPLACE)
            site.wait("it knows", lambda: application.lost is not None)
            assert site.client().state("t").shard == old


# -- history that is shortened --------------------------------------------------------------------


def test_a_shard_is_known_from_the_time_of_which_it_has_contents(site: Site) -> None:
    """Its since may be 0 until maintenance first moves it: those times are no history."""
    client = site.client()
    client.create("u", ShardSchema.from_arrow(SCHEMA), retain_ms=HOUR_MS)
    state = client.state("u")
    upper = state.created_ms + 1_000
    client.writer("u").compare_and_append(None, Frontier(0), Frontier(upper))
    found = read_existing_shards(client, {"u": source("u")}, {})["u"]
    assert (found.since, found.first) == (0, state.created_ms)
    assert (found.retain_ms, found.newest) == (HOUR_MS, upper - 1)


def test_a_start_with_another_setting_shortens_nothing_until_it_is_allowed(site: Site) -> None:
    """By `plan` and `apply`; a restart with the old setting is as before."""
    wanted = project(source())
    with site.application() as application:
        application.apply(wanted)
        site.put([((2, "b"), HOUR_MS, 1)], 3 * HOUR_MS)
        site.wait("all is there", lambda: "t" in application.running())
    with site.application() as application:
        assert application.apply(wanted).is_empty
    shorter = RuntimeSettings(retain_history=Duration("5 min"))
    with site.application(retain_history="5 min") as application:
        for plan in (application.plan(wanted), planned(site.client(), shorter, wanted)):
            (lost,) = plan.shortened
            assert (lost.name, lost.since) == ("t", 1)
            assert lost.until == 3 * HOUR_MS - 1 - 5 * 60_000
        with pytest.raises(InvalidUsage, match=r"RETENTION_REFUSED.*history of 't'"):
            application.apply(wanted, Permissions(replace=True))
        assert site.client().state("t").retain_ms == HOUR_MS
        application.apply(wanted, Permissions(shorten=True))
        assert site.client().state("t").retain_ms == 5 * 60_000
        assert application.plan(wanted).shortened == ()
