"""Holds of dataflows: told apart by runtime and definition, and ended when they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardline.app.compute.holds import (
    end_group_hold,
    end_hold,
    end_other_holds,
    end_start_holds,
    end_view_holds,
    group_hold_name,
    hold_name,
    hold_place,
    use_in_group,
)
from shardline.app.coordinator.left_behind import KnownObjects, end_left_behind
from shardline.app.execution import ending_holds
from shardline.app.execution.ending_holds import find_holds
from shardline.app.execution.host import Incarnation
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from support.models.shards import World, schema_of


def incarnation(dataflow: int, epoch: int = 1) -> Incarnation:
    return Incarnation("v", "u1", dataflow, epoch, (1, 1), 0)


def test_a_hold_is_of_a_definition_in_a_runtime(tmp_path: Path) -> None:
    """A restart finds the same hold; another definition or another runtime has another one."""
    name = hold_name(incarnation(1), tmp_path / "one")
    assert name == hold_name(incarnation(1, epoch=9), tmp_path / "one")
    assert name != hold_name(incarnation(2), tmp_path / "one")
    assert name != hold_name(incarnation(1), tmp_path / "two")


def test_holds_end_with_whom_they_belong_to() -> None:
    """A take-over ends the holds of others on the same view, a drop all of them, and no others."""
    world = World()
    client = world.client()
    client.create("in", schema_of())
    names = ["view:v:1:aa", "view:v:1:bb", "view:v:2:aa", "view:w:1:aa", "mine"]

    def held() -> list[str]:
        return sorted(client.state("in").critical)

    for name in names:
        client.hold("in", name)
    end_other_holds(client, "view:v:2:aa", ["in", "absent"], lambda: None)
    assert held() == ["mine", "view:v:2:aa", "view:w:1:aa"]
    client.hold("in", "view:v:1:aa")
    end_hold(client, "view:v:1:aa", ["in"])
    assert held() == ["mine", "view:v:2:aa", "view:w:1:aa"]
    end_view_holds(client, "v", ["in"])
    end_view_holds(client, "v", ["in"])
    assert held() == ["mine", "view:w:1:aa"]


TOKEN = "0123456789abcdef" * 2

ENDS: dict[str, Callable[[ShardClient, Callable[[], None]], None]] = {
    "of the view": lambda client, fence: end_view_holds(client, "v", ["in"], fence),
    "of others": lambda client, fence: end_other_holds(client, "view:v:2:0a1b2c3d", ["in"], fence),
    "of a start": lambda client, fence: end_hold(client, "view:v:1:0a1b2c3d", ["in"], fence),
    "of a subscription": lambda client, fence: end_start_holds(
        client, ["in"], lambda _: True, fence
    ),
    "of a group": lambda client, fence: end_group_hold(
        client, "group:0123abcd:0a1b2c3d", ["in"], fence
    ),
    "of former inputs": lambda client, fence: end_left_behind(
        client, lambda: KnownObjects({"v": {"other"}}, ()), fence, lambda: False
    ),
}


@pytest.mark.parametrize("which", ENDS)
def test_a_hold_that_another_runtime_takes_behind_the_look_stays(which: str) -> None:
    """Whatever ends them: under the same name, and one that was not there before."""
    world = World()
    client, other = world.client(), world.client()
    client.create("in", schema_of())
    taken = ["group:0123abcd:0a1b2c3d", "view:v:1:0a1b2c3d", f"view:t{TOKEN}:0:begin"]
    for name in taken:
        client.hold("in", name)
    looked = list[int]()

    def take_over() -> None:
        """The look is good; behind it another runtime begins with the same objects."""
        looked.append(0)
        for name in (*taken, "view:v:3:4e5f6a7b"):
            other.hold("in", name)

    ENDS[which](client, take_over)
    assert looked
    assert {*taken, "view:v:3:4e5f6a7b"} == set(client.state("in").critical)


def test_what_was_taken_over_since_the_fence_was_looked_at_does_not_end() -> None:
    """A runtime that rests right behind its look wakes up fenced, and its write is refused."""
    world = World()
    client, other = world.client(), world.client()
    client.create("in", schema_of())
    for name in ("view:v:1:aa", "view:v:1:bb"):
        client.hold("in", name)

    def take_over() -> None:
        """The look is good; behind it another runtime begins with the same object."""
        other.hold("in", "view:v:1:aa")
        other.hold("in", "view:v:0:begin")

    end_view_holds(client, "v", ["in"], take_over)
    assert sorted(client.state("in").critical) == ["view:v:0:begin", "view:v:1:aa"]
    before = client.state("in").critical

    def fenced() -> None:
        raise Fenced("another runtime")

    with pytest.raises(Fenced):
        end_view_holds(client, "v", ["in"], fenced)
    assert client.state("in").critical == before


def test_what_a_killed_group_held_goes_with_a_view_of_its_input(tmp_path: Path) -> None:
    """An input with such a hold could never be dropped. One of a group that runs is left alone."""
    world = World()
    client = world.client()
    hold = group_hold_name("group:0123abcd", tmp_path)
    for name in ("in", "other"):
        client.create(name, schema_of())
        client.hold(name, hold)
        client.hold(name, "mine")
    use_in_group(client, ["in"])
    end_view_holds(client, "v", ["in", "other"])
    assert sorted(client.state("in").critical) == [hold, "mine"]
    assert sorted(client.state("other").critical) == ["mine"]
    end_group_hold(client, hold, ["in"], lambda: None)
    assert sorted(client.state("in").critical) == ["mine"]
    client.hold("in", hold)
    end_view_holds(client, "v", ["in"])
    assert sorted(client.state("in").critical) == ["mine"], "no group of this process has it now"


def test_the_hold_of_a_group_that_starts_while_a_view_is_dropped_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread starts it, until right before the holds are read."""
    world = World()
    client = world.client()
    hold = group_hold_name("group:0123abcd", tmp_path)
    for name in ("in", "other"):
        client.create(name, schema_of())
        client.hold(name, hold_name(incarnation(1), tmp_path))

    def read(client: ShardClient, shard: str) -> dict[str, str]:
        if hold not in client.state(shard).critical:
            use_in_group(client, [shard])
            client.hold(shard, hold)
        return find_holds(client, shard)

    monkeypatch.setattr(ending_holds, "find_holds", read)
    end_view_holds(client, "v", ["in", "other"])
    assert [[*client.state(one).critical] for one in ("in", "other")] == [[hold], [hold]]


def test_what_a_fenced_group_held_ends_with_the_take_over(tmp_path: Path) -> None:
    """The former holder may end nothing any more, and the new one has groups of its own."""
    world = World()
    client = world.client()
    client.create("in", schema_of())
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        client.hold("in", group_hold_name("group:0123abcd", place))
    use_in_group(client, ["in"])
    own = f"view:v:2:{hold_place(here)}"
    client.hold("in", own)

    end_other_holds(client, own, ["in"], lambda: None)

    assert sorted(client.state("in").critical) == sorted(
        [group_hold_name("group:0123abcd", here), own]
    )
