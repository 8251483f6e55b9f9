"""Settings of a running application, changed from outside: over HTTP and by the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.server.application_server import serve_application
from shardline.app.server.client import run_action
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.errors import InvalidUsage
from shardline.jobs.ask import main
from support.fakes.sites import Site, project


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
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("index_limit", "'index_limit' is no setting"),
        ("index_limt=1g", "did you mean 'index_limit'?"),
        ("index_limit=much", "setting 'runtime.index_limit' is 'much'"),
        ("lease=20s", "unknown changeable setting 'lease'"),
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
def test_a_stranger_changes_nothing(served: tuple[Application, ApplicationAddress]) -> None:
    """Without the token there is no answer but that one is needed."""
    _, where = served
    with pytest.raises(InvalidUsage, match="TOKEN_NEEDED"):
        run_action(
            ApplicationAddress(url=where.url, token="", pid=0), "configure", "index_limit=1g"
        )
