"""A view belongs to the group that waits for all that it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from shardline.app.compute.group import group_registry
from shardline.app.compute.group.group_registry import GroupRegistry, home_of
from shardline.app.compute.holds import end_group_hold
from support.models.shards import World, schema_of, table

if TYPE_CHECKING:
    import pytest


def test_a_view_is_at_home_where_all_that_it_reads_is_waited_for() -> None:
    """In the group of a view that it reads, or else in one of its own inputs."""
    members = {"a": ("x",), "b": ("x",), "c": ("x", "y"), "d": ("y",)}
    assert home_of(("x",), {}) == ("x",)
    assert home_of(("y", "x"), {}) == ("x", "y")
    assert home_of(("a", "b"), members) == ("x",)
    assert home_of(("a", "x"), members) == ("x",)
    assert home_of(("c", "x"), members) == ("x", "y")
    assert home_of(("a", "c"), members) == ("a", "c"), "neither group waits for the other's"
    assert home_of(("a", "d"), members) == ("a", "d")
    assert home_of(("a", "z"), members) == ("a", "z")
    assert home_of(("a",), {}) == ("a",), "a view that is in no group is an input like any other"


def test_a_group_that_has_ended_leaves_the_hold_of_the_next_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of the same inputs have one name for their hold: who ends is followed, not joined."""
    world = World()
    client = world.client()
    client.create("x", schema_of())
    client.writer("x").append_now(table((1, "a")))

    class Group:
        """A group whose streaming query takes its hold as it starts, and may end by itself."""

        def __init__(self, _: object, inputs: tuple[str, ...], number: int) -> None:
            self.inputs, self.number, self.runs, self.stopped = inputs, number, False, False

        def start(self) -> None:
            self.runs = True
            client.hold("x", "group:x")

        def is_active(self) -> bool:
            return self.runs

        def stop(self) -> None:
            if not self.stopped:
                self.runs, self.stopped = False, True
                end_group_hold(client, "group:x", self.inputs)

    monkeypatch.setattr(group_registry, "ViewGroup", Group)
    groups = GroupRegistry(cast("Any", SimpleNamespace(client=client)))
    first = cast("Any", groups._started(("x",)))
    first.runs = False
    second = cast("Any", groups._started(("x",)))
    assert (first.stopped, second.stopped, second.is_active()) == (True, False, True)
    assert "group:x" in client.state("x").critical
    groups._end_if_empty(first)
    assert "group:x" in client.state("x").critical
    groups._end_if_empty(second)
    assert client.state("x").critical == {}
    world.close()
