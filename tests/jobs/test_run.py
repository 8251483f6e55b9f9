"""`run` follows its application on a terminal that may be gone; `plan` has a help of its own."""

from __future__ import annotations

import errno
import io
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from typing_extensions import override

from shardline.app.execution.observations import Failed
from shardline.app.execution.spark_errors import print_job_error
from shardline.app.introspection.events import Phase
from shardline.app.introspection.store import Relations
from shardline.app.project.plan import Plan, plan_json
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.settings.config import load
from shardline.commands import COMMANDS
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, Fenced, InvalidUsage
from shardline.installation import PROGRAM
from shardline.jobs import run
from support.fakes.clock import ManualClock
from support.fakes.introspection import DELAYS, FLIGHTS, World


class Full(io.StringIO):
    """A file on a disk that is full."""

    @override
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("command", "runs"), [("run", True), ("plan", False)])
def test_the_help_of_a_command_is_its_own(
    command: str, runs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are one program; `plan` listens nowhere and takes nothing over."""
    with pytest.raises(SystemExit, match=r"^0$"):
        run.main([*COMMANDS[command].arguments, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {PROGRAM} {command} [")
    assert ("--listen" in text, "--take-over" in text, "--plan" in text) == (runs,) * 3
    assert "--allow-replace" in text
    assert "--allow-shorten" in text


def test_a_project_that_is_sent_to_a_running_application_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` ends at once then, which is not the end of what was to be started."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.sql").write_text("-- nothing")
    location = ShardClient.open(str(tmp_path / "shards")).location.id
    where = ApplicationAddress(url="http://x", token="", pid=77, location=location)
    monkeypatch.setattr("shardline.app.server.discovery.find", lambda _: where)
    monkeypatch.setattr("shardline.app.server.client.answers", lambda _: True)
    answer = {"plan": plan_json(Plan((), ("orders",), {}, {}))}
    monkeypatch.setattr("shardline.app.server.client.send_project", lambda *_, **__: answer)
    assert run.main([str(tmp_path / "project"), "--data", str(tmp_path)]) == 0
    assert "1 unchanged" in (shown := capsys.readouterr().out)
    assert "the application that runs here (process 77) has taken it" in shown


def test_a_variable_that_no_file_has_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `plan`, too; nothing else would tell a name that is misspelt."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.sql").write_text("-- ${landing}")
    given = [str(tmp_path / "project"), "--data", str(tmp_path), "--set", "landing=in"]
    for command in ([], ["--plan"]):
        assert run.main([*command, *given, "--set", "ladning=in"]) == 2
        assert "did you mean 'landing'?" in capsys.readouterr().err


def test_an_application_outlives_the_file_that_its_lines_go_to() -> None:
    """They are for people; relations have the same."""
    world = World()
    world.run(FLIGHTS)
    world.run(DELAYS)
    now_ms = world.clock.now_ms()
    world.tell(
        Failed(id="delays", epoch=1, error="disk full", hint="make room"),
        Phase(id="delays", epoch=1, phase="suspended", at_ms=now_ms),
    )
    application: Any = SimpleNamespace(
        lost=None, feeds=SimpleNamespace(relations=Relations(world.sink))
    )

    class Counted(ManualClock):
        looks = 0

        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            self.looks += 1
            application.lost = Fenced("another one runs") if self.looks == 2 else None
            return False

    clock, shown = Counted(), io.StringIO()
    run._follow(application, clock, Console(file=shown))
    assert "delays: stalled: disk full" in shown.getvalue()
    assert "stopped: [FENCED] another one runs" in shown.getvalue()

    clock, application.lost = Counted(), None
    run._follow(application, clock, Console(file=Full()))
    assert clock.looks == 2


def test_a_lane_that_has_failed_is_no_orderly_end(capsys: pytest.CaptureFixture[str]) -> None:
    """All is stopped as after a takeover, but nothing runs elsewhere: status 1, with the reason."""
    application: Any = SimpleNamespace(lost=None, feeds=None)

    class Failing(ManualClock):
        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            application.lost = Corrupt("the lane has no record 7", code="LANE_GAP")
            return False

    with pytest.raises(Corrupt) as failed:
        run._follow(application, Failing(), Console(file=io.StringIO()))
    assert print_job_error(failed.value) == 1
    assert capsys.readouterr().err == "error: [LANE_GAP] the lane has no record 7\n"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What takes the location; everything before it succeeds."""
    names = {
        "coordinator.application.Application": (made := Mock()),
        "coordinator.planning.planned": Mock(),
        "project.project.Project.load": Mock(),
        "project.permission.find_refusal": Mock(return_value=None),
    }
    for name, stand_in in names.items():
        monkeypatch.setattr(f"shardline.app.{name}", stand_in)
    return made


def serve(tmp_path: Path, *words: str, **settings: object) -> Mock:
    """Serve a project as `run` does; what starts Spark."""
    capture = Mock()
    options = ["p", f"--data={tmp_path}", f"--location={tmp_path / 'shards'}", *words]
    given = run._parser(plans=False).parse_args(options)
    overrides = run._overrides(given)
    overrides["runtime"] = {**overrides["runtime"], **settings}
    try:
        run._serve(given, load(None, overrides), Console(file=io.StringIO()), capture)
    except InvalidUsage as error:
        capture.refused = error.code
    return capture


@pytest.mark.server
def test_a_start_that_cannot_listen_pushes_nobody_aside(tmp_path: Path, taken: Mock) -> None:
    """The other runtime would have ended, and nothing would run."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        assert serve(tmp_path, "--take-over", "--listen", where).refused == "ADDRESS_TAKEN"
    assert not taken.called


def test_a_start_without_introspection_is_refused_before_spark(tmp_path: Path, taken: Mock) -> None:
    """It would have nothing to answer with."""
    started = serve(tmp_path, introspection=False)
    assert started.refused == "NO_INTROSPECTION"
    assert not started.start_spark.called
    assert not taken.called
