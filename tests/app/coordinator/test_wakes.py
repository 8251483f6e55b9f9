"""The coordinator is woken by what it waits for, and by nothing that it does not wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.app.coordinator import objects
from shardline.app.coordinator.wakes import Wakes
from shardline.app.execution.observations import Progress
from support.fakes.sites import Site, index, project, source

FIRST = [((1, "a"), 1, 1)]
HOUR_MS = 3_600_000.0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # Without a signal nothing happens before these tests end.
    for pause in ("_RETRY_MS", "_UNREPORTED_MS", "_IDLE_MS"):
        monkeypatch.setattr(objects, pause, HOUR_MS)
    found = Site(tmp_path, monkeypatch)
    yield found
    found.place.close()


def test_progress_of_an_awaited_input_wakes() -> None:
    """Of any other object it does not."""
    wakes = Wakes()
    wakes.await_inputs(frozenset({"orders"}))
    wakes.on_progress("flights")
    assert not wakes.creation.is_set()
    wakes.on_progress("orders")
    assert wakes.creation.is_set()
    assert not wakes.lane.is_set()


def test_what_waits_is_created_when_its_input_begins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input's progress is the only signal: the lane's are left out."""
    with site.application() as application:
        application.apply(project(source("late"), index("i", on="late")))
        site.wait("the source is in order", lambda: "late" in application.running())
        monkeypatch.setattr(Wakes, "on_lane", lambda _: None)
        assert application.waiting() == {"i": ""}
        site.put(FIRST, 10, "late")
        application.runtime.report(Progress(id="late", epoch=1, write=10))
        site.wait("the index is in order", lambda: "i" in application.running())
        assert application.waiting() == {}


def test_a_drop_ends_when_the_lane_says_so(site: Site) -> None:
    """Not at the next look, which would be in an hour."""
    with site.application() as application:
        application.apply(project(source("t")))
        site.wait("the source is in order", lambda: "t" in application.running())
        assert application.drop(["t"])[-1] == "t"
