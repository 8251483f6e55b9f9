"""The runtime reports its lane in rows that everybody on the machine may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from shardline.app.execution.host import Incarnation
from shardline.app.introspection import feeds as feeds_module
from shardline.app.introspection.events import RuntimeSeen
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.verdicts.situation import Judgement
from shardline.app.lane.commands import CreateDataflow, LaneCommand, Record, UpdateConfiguration
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneState, apply
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.installation import program_version
from support.fakes.clock import ManualClock
from support.models.shards import World
from support.waiting import wait_until

PATIENCE_S = 20
JAAS = "org.x.PlainLoginModule required username='me' password='hunter2';"


def test_no_secret_is_in_the_history_of_commands() -> None:
    """The row of a command that makes a source has its options, and none of its secrets."""
    world = World()
    observing = RuntimeFeeds(world.client(), world.clock)
    source = SourceDescription(
        name="k",
        format="kafka",
        options={
            "kafka.sasl.jaas.config": JAAS,
            "s3.secret.key": "topsecret",
            "kafka.bootstrap.servers": "host:9092",
        },
    )
    commands: list[LaneCommand] = [
        CreateDataflow(description=source),
        UpdateConfiguration({"x.password": "hunter3"}),
    ]
    for index, command in enumerate(commands):
        record = Record(
            index=index, producer="storage", sequence=index, epoch=1, at_ms=0, command=command
        )
        observing.on_record(record, LaneState())
    observing.sink.step()
    rows = observing.relations.rows("command_history")
    created, configured = (str(row["command"]) for row in rows)
    said = [str(row["says"]) for row in rows]
    observing.stop()
    assert said[0] == "Created or changed the source: kafka"
    assert said[1].startswith("Set x.password = ")
    assert "host:9092" in created
    assert "username='me'" in created
    assert "x.password" in configured
    for secret in ("hunter2", "topsecret", "hunter3"):
        assert secret not in "".join([created, configured, *said])


def test_errors_do_not_move_while_their_object_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of them is refused like one of the object itself, and says whose they are."""
    world = World()
    feeds = RuntimeFeeds(world.client(), world.clock)
    paused = Judgement("paused", because="by you", to_do="resume it", lasts=True)
    known = {"flights": paused, "fast": Judgement("healthy")}
    monkeypatch.setattr(feeds, "judgement", known.get)
    assert feeds.find_blockage("flights") == ("it is paused: by you", "resume it")
    assert feeds.find_blockage("flights_errors") == ("'flights' is paused: by you", "resume it")
    assert feeds.find_blockage("fast_errors") is feeds.find_blockage("else") is None


@pytest.mark.parametrize(
    "url",
    ["s3://key:hunter2@bucket/x", "s3://bucket/x?secret_key=hunter2&region=eu"],
)
def test_no_secret_of_the_location_is_told(url: str) -> None:
    """Everybody on the machine may read where the application is."""
    client: Any = SimpleNamespace(location=SimpleNamespace(url=url, id="l1"))
    feeds = RuntimeFeeds(client, ManualClock())
    feeds.describe_process(Path("data"), Path("data/checkpoints"))
    feeds.sink.put(
        RuntimeSeen(
            at_ms=1,
            project="",
            holder="",
            held_since_ms=None,
            epoch=1,
            read_only=False,
            queue=0,
            controllers=(),
        )
    )
    feeds.sink.step()
    (row,) = feeds.relations.rows("location")
    feeds.stop()
    assert str(row["location"]).startswith("s3://")
    assert "(secret)" in str(row["location"])
    assert "hunter2" not in str(row)
    assert row["version"] == program_version()


class SparkPages:
    """Stands in for `show_statistics`; what is shown on Spark's pages, and for how long."""

    def __init__(self) -> None:
        self.shown: list[object] = []
        self.hidden: list[object] = []

    def show(self, session: object, _describe: object) -> Callable[[], None]:
        self.shown.append(session)
        return lambda: self.hidden.append(session)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> SparkPages:
    made = SparkPages()
    monkeypatch.setattr(feeds_module, "show_statistics", made.show)
    return made


def session(address: str | None) -> Any:
    """A session that has no SQL, and a UI at an address, if it has one."""
    return SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=address))


def test_metrics_are_on_sparks_pages_until_the_application_ends(pages: SparkPages) -> None:
    """Only where Spark has pages."""
    world = World()
    feeds = RuntimeFeeds(world.client(), world.clock)
    with_ui = session("http://127.0.0.1:4040")
    for one in (session(None), with_ui):
        feeds.attach(one)
    wait_until("it is shown", lambda: with_ui in pages.shown, PATIENCE_S)
    assert pages.hidden == []
    feeds.stop()
    assert (pages.shown, pages.hidden) == ([with_ui], [with_ui])


def test_what_is_shown_after_the_end_is_hidden_at_once(pages: SparkPages) -> None:
    """The thread that shows it may be slower than a short application."""
    world = World()
    feeds = RuntimeFeeds(world.client(), world.clock)
    feeds.stop()
    late = session("http://127.0.0.1:4040")
    feeds.attach(late)
    wait_until("it is hidden", lambda: pages.hidden == [late], PATIENCE_S)


def test_an_application_goes_on_without_sparks_pages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If another Spark's are not as expected; the log says why."""

    def refuse(*_: object) -> None:
        raise Py4JError("no such class")

    monkeypatch.setattr(feeds_module, "show_statistics", refuse)
    world = World()
    feeds = RuntimeFeeds(world.client(), world.clock)
    feeds.attach(session("http://127.0.0.1:4040"))
    wait_until("it is logged", lambda: "without the metrics of objects" in caplog.text, PATIENCE_S)
    assert "no such class" in caplog.text
    feeds.stop()


def test_an_object_whose_start_has_failed_says_why() -> None:
    """Nothing of it ran that could report its error: only the lane knows it."""
    world = World()
    observing = RuntimeFeeds(world.client(), world.clock)
    view = ViewDescription(name="v", query="SELECT nope() AS n", schema="n BIGINT", inputs=())
    command = CreateDataflow(description=view)
    record = Record(index=0, producer="compute", sequence=0, epoch=1, at_ms=0, command=command)
    state = apply(LaneState(), record)
    observing.on_record(record, state)
    life = Incarnation("v", state.objects["v"].global_id, dataflow=1, epoch=1, operators=(1, 1))
    begun = PhaseChange("v", "compute", "starting", life, view, at_ms=0)
    error = "no function `nope` — hint: register it"
    for change in (
        begun,
        replace(begun, phase="stopped", error=error, failures=1),
        replace(begun, phase="suspended", failures=1),
    ):
        observing.on_phase(change)
    observing.sink.step()
    (row,) = observing.relations.rows("objects")
    observing.stop()
    assert (row["status"], row["error"]) == ("stalled", "no function `nope`")
    assert row["hint"] == "register it"
