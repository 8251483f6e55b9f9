"""`run` follows its application on a terminal that may be gone; `plan` has a help of its own."""

from __future__ import annotations

import errno
import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typing_extensions import override

from shardline.app.execution.observations import Failed
from shardline.app.execution.spark_errors import print_job_error
from shardline.app.introspection.events import Phase
from shardline.app.introspection.store import Relations
from shardline.commands import COMMANDS
from shardline.datasource.errors import Corrupt, Fenced
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
        lost=None, observing=SimpleNamespace(relations=Relations(world.sink))
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
    application: Any = SimpleNamespace(lost=None, observing=None)

    class Failing(ManualClock):
        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            application.lost = Corrupt("the lane has no record 7", code="LANE_GAP")
            return False

    with pytest.raises(Corrupt) as failed:
        run._follow(application, Failing(), Console(file=io.StringIO()))
    assert print_job_error(failed.value) == 1
    assert capsys.readouterr().err == "error: [LANE_GAP] the lane has no record 7\n"
