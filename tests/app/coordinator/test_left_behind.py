"""Leavings of objects that are gone or are of another kind now are ended, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardline.app.coordinator.left_behind import KnownObjects, end_left_behind
from shardline.app.protocol.objects import (
    SinkDescription,
    SourceDescription,
    ViewDescription,
    progress_shard,
)
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress, read_progress
from shardline.app.storage.source_holds import hold_name
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import current_schema
from support.fakes.reads import Place
from support.fakes.sites import SCHEMA, Site, project, source

PLACE = "0a1b2c3d"
TOKEN = "0123456789abcdef" * 2
VIEW = ViewDescription(name="v", query="SELECT 1", inputs=("a",), schema="k BIGINT, s STRING")
SINK = SinkDescription(name="out", on="a", format="memory")
THERE = KnownObjects.of(
    [{"a": SourceDescription(name="a", format="rate"), "v": VIEW}, {"out": SINK, "v": VIEW}]
)


@pytest.fixture
def client() -> Iterator[ShardClient]:
    """The inputs `a` and `b` have begun."""
    place = Place()
    for name in "ab":
        place.put(name, [((1, "x"), 5, 1)], 10, SCHEMA)
    yield place.client
    place.close()


def held(client: ShardClient, name: str) -> set[str]:
    return {*client.state(name).critical}


def sweep(client: ShardClient, there: KnownObjects = THERE) -> None:
    end_left_behind(client, lambda: there, lambda: None, lambda: False)


def test_holds_end_with_the_kind_of_their_object(client: ShardClient) -> None:
    """An object of another kind has the name, or none has; what is not of an object stays."""
    kept = {
        f"view:v:1:{PLACE}",
        "view:v:0:begin",
        "sink:out",
        f"view:t{TOKEN}:0:begin",
        f"view:t{TOKEN}:3:{PLACE}",
        f"group:0123abcd:{PLACE}",
        "query:5b3c",
        hold_name("a", client.location.id),
        hold_name("gone", client.location.id),
        hold_name("gone", f"l{TOKEN}"),
    }
    left = {
        "sink:v",
        "sink:gone",
        f"view:out:1:{PLACE}",
        f"view:a:1:{PLACE}",
        f"view:gone:2:{PLACE}",
        "view:gone:0:begin",
    }
    for hold in kept | left:
        client.hold("a", hold)
    for hold in (f"view:v:1:{PLACE}", "sink:out", "sink:gone"):
        client.hold("b", hold)
    sweep(client)
    assert held(client, "a") == kept
    # A sink may hold errors of whatever its input is made of: its own start lets go of these.
    assert held(client, "b") == {"sink:out"}


def accounts(client: ShardClient, sink: str) -> SinkProgress:
    progress = SinkProgress.open(client, SinkDescription(name=sink, on="a", format="memory"))
    progress.record(Interval(0, Frontier(9)), 1)
    return progress


def test_accounts_of_a_sink_that_is_gone_are_dropped(client: ShardClient) -> None:
    """Another sink of its name would go on where it was, and leave out what is before that."""
    for sink in ("out", "v", "gone"):
        accounts(client, sink)
    columns = current_schema(client.state(progress_shard("out")))
    client.create("copy_progress", columns)
    accounts(client, "own")
    named = {progress_shard("own"): VIEW}
    sweep(client, KnownObjects.of([{"out": SINK, "v": VIEW}, named]))
    there = [sink for sink in ("out", "v", "gone") if read_progress(client, sink) is not None]
    assert there == ["out"]
    assert client.exists("copy_progress")
    assert client.exists(progress_shard("own"))


def test_what_changes_behind_the_look_stays(client: ShardClient) -> None:
    """Objects of these names are made right then: what they have taken over is theirs."""
    for shard in "ab":
        client.hold(shard, f"view:gone:1:{PLACE}")
    progress = accounts(client, "gone")
    asked: list[str] = []

    def known() -> KnownObjects:
        asked.append("now")
        client.hold("b", f"view:gone:1:{PLACE}")
        progress.record(Interval(9, Frontier(12)), 1)
        return KnownObjects.of([])

    end_left_behind(client, known, lambda: None, lambda: False)
    assert asked == ["now"]
    assert (held(client, "a"), held(client, "b")) == (set(), {f"view:gone:1:{PLACE}"})
    assert read_progress(client, "gone") is not None


def test_a_runtime_that_was_fenced_ends_nothing(client: ShardClient) -> None:
    """Its successor may have objects of these names."""
    client.hold("a", "sink:gone")
    accounts(client, "gone")

    def fenced() -> None:
        raise Fenced("another runtime has taken over")

    end_left_behind(client, lambda: KnownObjects.of([]), fenced, lambda: False)
    assert held(client, "a") == {"sink:gone"}
    assert read_progress(client, "gone") is not None


def test_an_application_ends_what_is_left_once_it_knows_what_is_to_be(site: Site) -> None:
    """By its lane alone it does not know that: the lane may be lost, and the sinks still wanted."""
    client = site.client()
    for hold in ("sink:gone", "sink:out"):
        client.hold("t", hold)
    with site.application() as application:
        application._objects._look()
        assert site.holds() == ["sink:gone", "sink:out"]
        out = SinkDescription(name="out", on="t", format="memory")
        application.apply(project(source(), out))
        site.wait("one is gone", lambda: "sink:gone" not in site.holds())
        assert "sink:out" in site.holds()
