"""A drop takes the shards of an object's own kind, and never one of another object."""

from __future__ import annotations

from shardline.app.project.dropping import find_droppable, owned_shards
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    STATES_MAX,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)

STATES = [f"v_state_{number}" for number in range(1, STATES_MAX + 1)]


def of_kind(kind: str, name: str) -> ObjectDescription:
    """An object of a kind."""
    match kind:
        case "source":
            return SourceDescription(name=name, format="rate")
        case "view":
            return ViewDescription(name=name, query="SELECT 1", inputs=(), schema="a INT")
        case "index":
            return IndexDescription(name=name, on="s")
        case _:
            return SinkDescription(name=name, on="s", format="shard", options={"shard": name})


def test_each_kind_takes_its_own() -> None:
    """A sink's target stays, also where it is called like the sink."""
    expected = {
        "source": ["v_skipped", "v_errors", "v_progress", "v"],
        "view": [*STATES, "v_errors", "v"],
        "index": [],
        "sink": ["v_progress"],
    }
    for kind, shards in expected.items():
        assert list(owned_shards("v", {"v": of_kind(kind, "v")})) == shards, kind


def test_what_the_project_has_lost_takes_all_but_shards_of_others() -> None:
    """Nobody knows its kind any more."""
    known = {"v_progress": of_kind("source", "v_progress"), "w": of_kind("view", "w")}
    assert list(owned_shards("v", known)) == [*STATES, "v_skipped", "v_errors", "v"]
    assert list(owned_shards("w", {"w_errors": of_kind("view", "w_errors")}))[-1] == "w"


def test_droppable_is_every_object_and_no_shard_beside_one() -> None:
    """A shard called like one that its neighbour's kind does not have is an object of its own."""
    running = {"v": of_kind("view", "v"), "s": of_kind("source", "s")}
    shards = ["v", "v_errors", "v_state_1", "v_progress", "s", "s_progress", "lost", "lost_errors"]
    assert find_droppable(running, [*shards, "_lane"]) == ["lost", "s", "v", "v_progress"]
