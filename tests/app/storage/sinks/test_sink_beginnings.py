"""A new sink that could not begin at once begins all the same, or says why not; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from shardline.app.execution.live_errors import EMPTY_CATALOG
from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage import sink_query
from shardline.app.storage.sink_holds import hold_name
from shardline.app.storage.sink_query import _SinkRun
from shardline.app.storage.sinks import open_target
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.stalls import SinkStalled
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.types.schema import ShardSchema
from support.spark.sinks import SCHEMA, Input, host_of, life

COPY = SinkDescription(name="out", on="in", format="shard", options={"shard": "copy"})
CHANGES = replace(COPY, snapshot=False)


class World:
    """An input `in` that keeps little history by itself, and a sink that reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.client = ShardClient.open(str(folder / "lake"))
        self.input = Input(self.client)
        self.client.set_retention("in", 5)
        self.folder = folder
        self.begun: list[tuple[int, Frontier | None]] = []
        self.refused = False
        real = open_target.open_target

        def opened(*given: Any) -> Any:
            if self.refused:
                raise InvalidUsage("it is somebody else's", code="TARGET_TAKEN")
            return real(*given)

        def query_from(_: _SinkRun, as_of: int, committed: Frontier | None, *__: object) -> None:
            self.begun.append((as_of, committed))

        monkeypatch.setattr(sink_query, "open_target", opened)
        monkeypatch.setattr(_SinkRun, "_query_from", query_from)

    def passes(self, *times: int) -> None:
        """The input changes, and forgets all that nobody holds."""
        for time in times:
            self.input.step(time, (time, "a", 1))
        Maintainer(self.client).round()

    def start(self, sink: SinkDescription, as_of: int, *, refused: bool = False) -> None:
        self.refused = refused
        host = host_of(cast("Any", None), self.client.location.url, self.folder)
        run = _SinkRun(host, life(as_of=as_of), sink, EMPTY_CATALOG)
        with run._times:
            if not refused:
                run._begin()
                return
            with pytest.raises(InvalidUsage, match="TARGET_TAKEN"):
                run._begin()

    def held(self) -> int | None:
        hold = self.client.state("in").critical.get(hold_name("out"))
        return None if hold is None else hold.since


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def test_contents_of_a_later_time_are_as_good_a_beginning(world: World) -> None:
    """The folder could not be written for longer than the input keeps history: it begins there."""
    world.passes(10)
    world.start(COPY, 10, refused=True)
    world.passes(20, 30)
    since = world.client.state("in").since.time
    assert since is not None
    assert since > 10
    world.start(COPY, 10)
    assert world.begun == [(since, None)]
    assert world.held() == since


def test_changes_are_kept_while_their_target_is_refused(world: World) -> None:
    """From the first start on; a later one begins where the first one was to."""
    world.passes(10)
    world.start(CHANGES, 10, refused=True)
    world.passes(20, 30)
    world.start(CHANGES, 10, refused=True)
    world.passes(40)
    world.start(CHANGES, 10)
    assert world.begun == [(10, Frontier(11))]


def test_changes_that_are_gone_are_said_to_be(world: World) -> None:
    """It had no hold before its first start: what is missing is for a person to know."""
    world.passes(10)
    world.passes(20, 30)
    for _ in range(2):
        with pytest.raises(SinkStalled, match=r"HISTORY_GONE.*changes after 10") as raised:
            world.start(CHANGES, 10)
        assert "drop the sink and create it again" in (raised.value.hint or "")
        assert world.held() is None
    world.start(CHANGES, 30)
    assert world.begun == [(30, Frontier(31))]


def test_what_is_kept_for_a_new_target_is_enough_for_one_of_an_earlier_life(world: World) -> None:
    """The sink was dropped and created again; its target goes on where it is."""
    world.client.set_retention("in", 3_600_000)
    for time in (10, 20):
        world.input.step(time, (time, "a", 1))
    world.client.create("copy", ShardSchema.from_arrow(SCHEMA))
    writer = world.client.writer("copy", f"app:sink:out:{fingerprint(CHANGES)}")
    writer.compare_and_append(
        None, Frontier(0), Frontier(11), sequence=Interval(0, Frontier(11)).number
    )
    world.start(CHANGES, 20, refused=True)
    world.start(CHANGES, 20)
    assert world.begun == [(10, Frontier(11))]


def test_nothing_is_held_that_the_accounts_cannot_say(world: World) -> None:
    """Those of the definition before stay, while the target refuses one of another input."""
    before = replace(CHANGES, on="before")
    Input(world.client, "before")
    SinkProgress.open(world.client, before).record(Interval(0, Frontier(5)), 0)
    world.passes(10)
    world.start(CHANGES, 10, refused=True)
    assert world.held() is None
    assert SinkProgress.open(world.client, before).committed == Frontier(5)
