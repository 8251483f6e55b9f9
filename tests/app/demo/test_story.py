"""The main job's story, as far as it needs no Spark: `--stay`."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from shardline.app.demo import story
from shardline.datasource.errors import Fenced
from shardline.jobs.demo import main
from support.fakes.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # the log file of each run


class Waits(ManualClock):
    """Something happens at a wait."""

    def __init__(self, happens: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._happens = happens
        self.count = 0

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.count += 1
        self._happens.get(self.count, lambda: None)()
        return super().wait(signal, timeout_ms)


def stayer(clock: Waits) -> Any:
    said: list[str] = []
    return SimpleNamespace(
        said=said,
        say=said.append,
        clock=clock,
        where=SimpleNamespace(page_link=lambda: "http://127.0.0.1:7/#t"),
        application=SimpleNamespace(lost=None),
    )


def test_it_stays_and_says_where_until_the_application_is_lost() -> None:
    """With the page's address; a takeover by another process is an error and no silence."""
    reason = Fenced("another runtime has the lane")

    def lose() -> None:
        cast.application.lost = reason

    clock = Waits({3: lose})
    cast = stayer(clock)
    with pytest.raises(Fenced) as ended:
        story._stay(cast)
    assert ended.value is reason
    assert clock.count == 3
    assert cast.said == ["Still running; http://127.0.0.1:7/#t; Ctrl-C stops it."]


def test_ctrl_c_ends_it() -> None:
    """Like any other moment of the job."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    cast = stayer(Waits({2: interrupt}))
    with pytest.raises(KeyboardInterrupt):
        story._stay(cast)


@pytest.mark.parametrize("given", [[], ["--stay"]])
def test_the_option_reaches_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """And the status is that of the check."""
    asked: list[bool] = []

    def told(*_: object, fresh: bool, stay: bool) -> bool:
        asked.append(stay)
        return not fresh

    monkeypatch.setattr(story, "run_demo", told)
    assert main([*given, "--data", str(tmp_path / "data")]) == 0
    assert main([*given, "--fresh", "--data", str(tmp_path / "data")]) == 1
    assert asked == [bool(given)] * 2
