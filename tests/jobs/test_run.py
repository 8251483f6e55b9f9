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
from shardline.app.introspection.events import Phase
from shardline.app.introspection.store import Relations
from shardline.commands import COMMANDS
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
            application.lost = "another one runs" if self.looks == 2 else None
            return False

    clock, shown = Counted(), io.StringIO()
    run._follow(application, clock, Console(file=shown))
    assert "delays: stalled: disk full" in shown.getvalue()

    clock, application.lost = Counted(), None
    run._follow(application, clock, Console(file=Full()))
    assert clock.looks == 2
