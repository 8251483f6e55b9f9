"""Bad rows of an application's objects are shown, read as tables and taken away, once each."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
import pytest

from shardline.app.coordinator.application import Application
from shardline.app.coordinator.offline_repairs import OfflineRepairs
from shardline.app.server.errors_route import ErrorsRequest, answer_errors
from shardline.app.storage.errors import ERRORS, open_errors
from shardline.app.storage.reclock import Origin, Remap
from shardline.app.storage.repair import repair_errors
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frontier import Frontier
from support.fakes.sites import Site, index, project, source


def with_errors(site: Site, *raws: str) -> None:
    """Errors of `t`, as its ingestion would write them."""
    client = site.client()
    remap = Remap.open(client, "t", Origin("csv", 0))
    bound = remap.bind(remap.read(), number=0, offset="o", files=(), at=9)
    assert bound is not None
    name = open_errors(client, "t")
    client.set_retention(name, 3_600_000)
    rows = pa.Table.from_pylist([{"error": "bad", "raw": raw} for raw in raws], ERRORS)
    client.writer(name).compare_and_append(rows, Frontier(0), Frontier(10))


def ask(application: Application, **asked: Any) -> dict[str, Any]:
    return answer_errors(application.repairs, ErrorsRequest(**asked))


def test_errors_are_shown_and_taken_away(site: Site) -> None:
    """First what would be done, and only what was shown; of all that is made of the source."""
    with_errors(site, "x,y", "x,y", "z")
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("the index is there", lambda: "i" in application.running())
        shown = ask(application, id="i")
        assert (shown["live"], [one["source"] for one in shown["sources"]]) == (3, ["t"])
        one = next(row["id"] for row in shown["sources"][0]["live"] if row["raw"] == "z")
        planned = ask(application, id="t", act="skip", errors=[one])
        assert (planned["chosen"], "retracted" in planned) == (1, False)
        assert ask(application, id="t")["live"] == 3, "a dry run changes nothing"
        done = ask(application, id="t", act="skip", errors=[one], commit=True)
        assert (done["retracted"], done["live"]) == (1, 2)
        assert done["sources"][0]["skipped_count"] == 1
        done = ask(application, id="t", act="retract", commit=True)
        assert (done["retracted"], done["live"]) == (2, 0)
        assert application.runtime.lane.state.repairs == {}
        with pytest.raises(InvalidUsage, match="NO_SOURCE"):
            ask(application, id="i", act="retract")
        with pytest.raises(InvalidUsage, match=f"UNKNOWN_ERROR.*errors '{one}', 'another'"):
            ask(application, id="t", act="retract", errors=[one, "another"])
        with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
            ask(application, id="tt")


def test_a_repair_after_which_nothing_can_be_shown_may_have_been_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away for the look at what is left: no reason to take it away once more."""
    with_errors(site, "x", "y")
    offline = OfflineRepairs(site.client())
    show, repair = OfflineRepairs.show, OfflineRepairs.repair

    def lose(*_: object) -> NoReturn:
        raise Determinate("the store is away", code="STORE_SILENT")

    def repair_and_lose(repairs: OfflineRepairs, *asked: Any) -> int | None:
        done = repair(repairs, *asked)
        monkeypatch.setattr(OfflineRepairs, "show", lose)
        return done

    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
    monkeypatch.setattr(OfflineRepairs, "repair", repair_and_lose)
    with pytest.raises(Indeterminate, match=r"STORE_SILENT.*not known.*repair of 't'.*again"):
        answer_errors(offline, ErrorsRequest(id="t", act="retract", commit=True))
    monkeypatch.setattr(OfflineRepairs, "show", show)
    assert answer_errors(offline, ErrorsRequest(id="t"))["live"] == 0


def test_errors_can_be_read_as_a_table(site: Site) -> None:
    """At the time of their source, also while reads of the source fail because of them."""
    with_errors(site, "x,y", "z")
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with pytest.raises(Exception, match="INPUT_HAS_ERRORS"):
            application.sql("SELECT k FROM t")
        found = application.sql("SELECT raw, file FROM t_errors")
        assert sorted(found.to_pylist(), key=str) == [
            {"raw": "x,y", "file": None},
            {"raw": "z", "file": None},
        ]
        ask(application, id="t", act="retract", commit=True)
        site.put([], 11 + 1)
        assert application.sql("SELECT raw FROM t_errors AS OF 9").num_rows == 2
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_OBJECT.*'other_errors'"):
            application.sql("SELECT raw FROM other_errors")


def test_errors_are_read_as_of_the_newest_time_of_their_source(site: Site) -> None:
    """An error that came before the question is in the answer."""
    with_errors(site, "x")
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        assert application.sql("SELECT raw FROM t_errors").num_rows == 1
        more = pa.Table.from_pylist([{"error": "bad", "raw": "y"}], ERRORS)
        site.client().writer("t_errors").compare_and_append(more, Frontier(10), Frontier(21))
        site.put([], 21)
        assert application.sql("SELECT raw FROM t_errors").num_rows == 2


def test_errors_are_taken_away_where_nothing_runs(site: Site) -> None:
    """By the same answers; the next start goes on after it, with numbers of its own."""
    with_errors(site, "x", "y")
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("the index is there", lambda: "i" in application.running())
    offline = OfflineRepairs(site.client())
    shown = answer_errors(offline, ErrorsRequest(id="i"))
    assert (shown["live"], [one["source"] for one in shown["sources"]]) == (2, ["t"])
    one = next(row["id"] for row in shown["sources"][0]["live"] if row["raw"] == "y")
    asked = ErrorsRequest(id="t", act="skip", errors=[one], commit=True)
    done = answer_errors(offline, asked)
    assert (done["retracted"], done["live"]) == (1, 1)
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
        offline.show("tt")
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("the source is there", lambda: "t" in application.running())
        done = ask(application, id="t", act="retract", commit=True)
        assert (done["retracted"], done["live"]) == (1, 0)
        assert done["sources"][0]["skipped_count"] == 1
        assert "t_skipped" in application.drop(["i", "t"])
        assert not site.client().exists("t_skipped")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_repair_that_a_crash_interrupts_is_done_once(
    site: Site, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next start: whether its append had happened or not, and though errors came since."""
    with_errors(site, "x", "y")
    real = repair_errors
    cut: list[int] = []

    def dies(*given: Any, **named: Any) -> Any:
        if when == "after":
            real(*given, **named)
        cut.append(1)
        raise OSError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr("shardline.app.coordinator.error_repairs.repair_errors", dies)
        with site.application(query_timeout="100ms") as application:
            application.apply(project(source()))
            site.wait("the source is there", lambda: "t" in application.running())
            with pytest.raises(Exception, match="REPAIR_PENDING"):
                ask(application, id="t", act="retract", commit=True)
            assert len(application.runtime.lane.state.repairs) == 1
    assert cut
    handle = site.client().writer("t_errors")
    upper = handle.upper()
    assert upper.time is not None
    more = pa.Table.from_pylist([{"error": "bad", "raw": "x"}], ERRORS)
    handle.compare_and_append(more, upper, Frontier(upper.time + 5))
    with site.application() as application:
        application.apply(project(source()))
        site.wait("it is done", lambda: not application.runtime.lane.state.repairs)
        assert ask(application, id="t")["live"] == 1
