"""Settings of a running application, changed from outside: over HTTP and by the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardline.app.compute.peek.answer import PeekRun
from shardline.app.coordinator.application import Application
from shardline.app.protocol.codec import COMPUTE
from shardline.app.server.application_server import serve_application
from shardline.app.server.client import run_action
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.server.relation_client import follow_relation
from shardline.app.settings.config import RuntimeSettings
from shardline.app.sql.queries import SubscribeRequest, parse_subscribe
from shardline.app.transport.websocket_client import connect
from shardline.datasource.errors import InvalidUsage
from shardline.jobs import ask
from shardline.jobs.ask import main, subscribe_text
from shardline.unread_output import UNREAD, ends_when_unread
from support.fakes.sites import Site, index, project, source


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Application, ApplicationAddress]]:
    """An application that answers, with an empty project."""
    site = Site(tmp_path, monkeypatch)
    with (
        site.application(introspection=True) as application,
        serve_application(application, RuntimeSettings(), tmp_path) as where,
    ):
        application.apply(project())
        order = application.runtime.lane
        Site.wait("it is connected", lambda: order.state.settings.get("index_limit") == "512m")
        yield application, where
    site.place.close()


@pytest.mark.server
def test_a_setting_is_changed_until_the_next_start(
    served: tuple[Application, ApplicationAddress],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each that is named, in the order of all that runs; spaces around a name are none of it."""
    application, where = served
    order = application.runtime.lane
    run_action(where, "configure", " index_limit = 1g ")
    Site.wait("the order has it", lambda: order.state.settings["index_limit"] == "1g")
    assert main(["set", "--data", str(tmp_path), "index_limit=2g", "restart_pause=2s"]) == 0
    said = capsys.readouterr().out
    assert "index_limit=2g, until the next start" in said
    assert "restart_pause=2s, until the next start" in said
    wanted = {"index_limit": "2g", "restart_pause": "2s"}
    Site.wait("the order has both", lambda: wanted.items() <= order.state.settings.items())


@pytest.mark.server
# In UTF-8 the last two end in 85 and A0, which are white space in Latin-1.
@pytest.mark.parametrize("token", ["Schlüssel", "ключ", "успех", "voilà"])
def test_a_token_may_have_any_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """Commands and controllers elsewhere send it as the application has it."""
    site = Site(tmp_path, monkeypatch)
    with (
        site.application(introspection=True) as application,
        serve_application(application, RuntimeSettings(token=token), tmp_path) as where,
    ):
        run_action(where, "configure", "index_limit=1g")
        with closing(follow_relation(where, "objects")) as batches:
            assert next(batches)["updates"] == []
        url = f"{where.url.replace('http', 'ws', 1)}/v1/compute"
        with pytest.raises(InvalidUsage, match="UNAUTHORIZED"):
            connect(url, COMPUTE, "5e", token=f"{token}!")
        connect(url, COMPUTE, "5f", token=token).close()
    site.place.close()


@pytest.mark.server
def test_a_query_that_waits_too_long_names_the_object_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three wait: the query for the object, the application for the query, the server for both."""
    # Without Spark the source fails, and a query does not wait for one that fails.
    monkeypatch.setattr(PeekRun, "_check_moving", lambda *_: None)
    site = Site(tmp_path, monkeypatch)
    with (
        site.application(introspection=True, query_timeout="5s") as application,
        serve_application(application, RuntimeSettings(), tmp_path),
    ):
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        now = site.place.client.clock.now_ms()
        query = f"SELECT * FROM t AS OF {now}"  # noqa: S608
        assert main(["sql", "--data", str(tmp_path), query]) == 1
    said = capsys.readouterr().err
    assert f"[NOT_YET_READABLE] shard 't' was not settled at {now}" in said
    site.place.close()


@pytest.mark.server
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("index_limit", "'index_limit' is no setting"),
        ("index_limt=1g", "did you mean 'index_limit'?"),
        ("index_limit=much", "setting 'runtime.index_limit' is 'much'"),
        ("lease=20s", "setting 'lease' is read when an application starts"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    served: tuple[Application, ApplicationAddress],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    said: str,
) -> None:
    """By name, with what to write instead, and nothing has changed."""
    application, where = served
    before = dict(application.runtime.lane.state.settings)
    with pytest.raises(InvalidUsage, match=setting.partition("=")[0]):
        run_action(where, "configure", setting)
    assert main(["set", "--data", str(tmp_path), setting]) == 2
    assert said in capsys.readouterr().err
    assert application.runtime.lane.state.settings == before


@pytest.mark.server
def test_an_object_that_there_is_not_is_not_well(
    served: tuple[Application, ApplicationAddress],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A check that names it must not succeed because of a typing error."""
    del served
    assert main(["status", "--data", str(tmp_path)]) == 0
    assert main(["status", "no_such*", "--data", str(tmp_path)]) == 2
    assert "unknown object 'no_such*'" in capsys.readouterr().err


@pytest.mark.server
def test_a_stranger_changes_nothing(served: tuple[Application, ApplicationAddress]) -> None:
    """Without the token there is no answer but that one is needed."""
    _, where = served
    with pytest.raises(InvalidUsage, match="TOKEN_NEEDED"):
        run_action(
            ApplicationAddress(url=where.url, token="", pid=0), "configure", "index_limit=1g"
        )


@pytest.mark.server
def test_a_client_that_means_another_location_changes_nothing(
    served: tuple[Application, ApplicationAddress],
) -> None:
    """It has the file of an application that was killed, whose token and port were the same."""
    application, where = served
    assert where.location == application.location_id != ""
    before = dict(application.runtime.lane.state.settings)
    with pytest.raises(InvalidUsage, match="NOT_RUNNING"):
        run_action(replace(where, location="another"), "configure", "index_limit=1g")
    assert application.runtime.lane.state.settings == before


# -- drop ------------------------------------------------------------------------------------------


@pytest.fixture
def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Site, Application, Callable[..., int]]]:
    """An application with a source, an index on it, and what a former project has left."""
    site = Site(tmp_path, monkeypatch)
    site.put([((1, "a"), 1, 1), ((2, "b"), 2, 1)], 60_000)
    for left in ("old", "old_progress", "t_errors"):
        site.put([], 5, left)
    with (
        site.application(introspection=True) as application,
        serve_application(application, RuntimeSettings(), tmp_path),
    ):
        application.apply(project(source(), index()))
        Site.wait("all is there", lambda: len(application.running()) == 2)
        # It fails for want of Spark, and has its bindings before.
        Site.wait("the source was started", lambda: site.client().exists("t_progress"))

        def drop(*words: str) -> int:
            return main(["drop", "--data", str(tmp_path), *words])

        yield site, application, drop
    site.place.close()


@pytest.mark.server
def test_a_drop_is_shown_first_and_done_when_asked(
    running: tuple[Site, Application, Callable[..., int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes, its rows and its history; status 1 until it is done, as of `admin`."""
    site, application, drop = running
    assert drop("t", "i") == 1
    said = capsys.readouterr().out
    for part in ("these 2 objects go for good", "source t", "t_errors", "index i", "none"):
        assert part in said
    assert [line.split()[1] for line in said.splitlines() if line.split()[:1] == ["t"]] == ["2"]
    assert "1970-01-01 00:01:00" in said, "up to here it can be read"
    assert "nothing was dropped; with --commit it is" in said
    assert set(application.running()) == {"t", "i"}
    assert site.client().exists("t")

    assert drop("t", "i", "--commit") == 0
    assert "dropped; shards: t_errors, t_progress, t" in capsys.readouterr().out
    assert application.running() == {}
    assert not site.client().exists("t")

    assert drop("old", "--commit") == 0
    said = capsys.readouterr().out
    assert "old (runs no more)" in said
    assert "shards: old_progress, old" in said


@pytest.mark.server
@pytest.mark.parametrize("commit", [[], ["--commit"]])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("ole", "did you mean 'old'?"),
        ("t_errors", "known names: i, old, t\n"),
        ("old_progress", "unknown object 'old_progress'"),
        ("_lane", "known names: i, old, t\n"),
        ("t", "'i' reads 't'"),
        ("_lane t t_errors", "unknown objects '_lane', 't_errors' — hint: known names: i, old, t"),
    ],
)
def test_only_objects_are_dropped(
    running: tuple[Site, Application, Callable[..., int]],
    capsys: pytest.CaptureFixture[str],
    names: str,
    said: str,
    commit: list[str],
) -> None:
    """Each is known once; a shard that belongs to one, or to the runtime, is none."""
    site, application, drop = running
    before = [n for n in site.client().shards() if site.client().exists(n)]
    assert drop(*names.split(), *commit) == 2
    assert said in capsys.readouterr().err
    assert [n for n in site.client().shards() if site.client().exists(n)] == before
    assert application.lost is None


NEXT = "orders WITHOUT SNAPSHOT AS OF 5 OF SHARD s1"
BETWEEN = ["orders", "as", "of", "1970-01-01 00:00:01", "up", "to", "'9000'"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (NEXT.split(), SubscribeRequest("orders", snapshot=False, as_of=5, shard="s1")),
        (BETWEEN, SubscribeRequest("orders", as_of=1000, up_to=9000)),
        (["TO", "orders", "AS", "OF", "5;"], SubscribeRequest("orders", as_of=5)),
        (["orders AS OF '1970-01-01 00:00:01'"], SubscribeRequest("orders", as_of=1000)),
    ],
)
def test_times_and_ids_of_a_subscription_need_the_quotes_of_the_shell_only(
    words: list[str], asked: SubscribeRequest
) -> None:
    """Each word is as the shell passes it: without the quotes in which a user has put it."""
    assert parse_subscribe(f"SUBSCRIBE {subscribe_text(words)}") == asked


def test_a_subscription_ends_when_its_reader_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `| head` does."""
    batches = iter([{"upper": n, "rows": []} for n in range(100_000)])
    monkeypatch.setattr(ask, "application_address", lambda _: None)
    monkeypatch.setattr(ask, "follow_subscription", lambda *_: batches)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr("sys.stdout", pipe)
        with pytest.raises(SystemExit) as end, ends_when_unread():
            main(["subscribe", "--data", str(tmp_path), "v"])
    assert end.value.code == UNREAD
    assert next(batches, None) is not None, "it has ended at once"
