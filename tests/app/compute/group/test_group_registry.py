"""A view belongs to the group that waits for all that it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardline.app.compute.group import group_registry
from shardline.app.compute.group.group_registry import GroupRegistry, home_of
from shardline.app.compute.group.view_group import ViewGroup
from shardline.app.compute.holds import end_group_hold, group_hold_name
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import Fenced
from support.models.shards import World, schema_of, table


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
                end_group_hold(client, "group:x", self.inputs, lambda: None)

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


@pytest.mark.parametrize("fenced", [False, True])
def test_a_group_that_ends_after_another_runtime_has_taken_over_leaves_it_what_it_has(
    tmp_path: Path, fenced: bool
) -> None:
    """From the same folder it has the same hold, and the same checkpoint."""
    world = World()
    client = world.client()
    client.create("x", schema_of())

    def check_fence() -> None:
        if fenced:
            raise Fenced("another runtime")

    host: Any = SimpleNamespace(client=client, checkpoints=tmp_path, check_fence=check_fence)
    group = ViewGroup(host, ("x",), 1)
    client.hold("x", group_hold_name(group.name, tmp_path))
    checkpoint = tmp_path / f"{group.name.replace(':', '-')}-1"
    checkpoint.mkdir()
    group.stop()
    assert (bool(client.state("x").critical), checkpoint.exists()) == (fenced, fenced)
    world.close()


class Group:
    """A group without a streaming query, which nothing of a view ever reaches."""

    def __init__(self, _: object, inputs: tuple[str, ...], number: int) -> None:
        self.inputs, self.number = inputs, number

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing runs."""

    def is_active(self) -> bool:
        return True

    def catch_up(self, _: object) -> None:
        raise RuntimeError("no step can be taken")

    def remove(self, _: object) -> None:
        """It never had it."""


class Member:
    """A view that can always leave its own streaming query."""

    name, inputs, is_stopped = "v", ("x",), False

    def __init__(self) -> None:
        self.has_left = False
        self.began = threading.Event()

    def leave_own_query(self, _: object) -> bool:
        self.has_left = True
        return True

    def start_own_query(self) -> None:
        self.began.set()


def test_a_view_that_cannot_be_brought_in_goes_on_by_its_own_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that never steps would look like one that has nothing to do."""
    monkeypatch.setattr(group_registry, "ViewGroup", Group)
    world = World()
    groups = GroupRegistry(cast("Any", SimpleNamespace(client=world.client())))
    member = Member()
    groups.ask_to_join(cast("Any", member))
    assert member.began.wait(30)
    assert (member.has_left, groups.group_of("v")) == (True, None)
    world.close()


def test_a_view_that_was_stopped_before_it_is_let_in_leaves_its_place_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch may take minutes: the view is stopped meanwhile, and started again."""
    world = World()
    groups = GroupRegistry(cast("Any", SimpleNamespace(client=world.client())))
    group = ViewGroup(cast("Any", SimpleNamespace(checkpoints=tmp_path)), ("x",), 1)
    monkeypatch.setattr(group, "catch_up", lambda _: None)
    stopped, started = cast("Any", Member()), cast("Any", Member())

    @contextmanager
    def let_in() -> Iterator[None]:
        """A lock that was another's until the view was stopped and started again."""
        monkeypatch.setattr(group, "_step_lock", threading.Lock())
        groups.remove(stopped)
        groups._members["v"] = started, group
        groups._add(started, group)
        yield

    groups._members["v"] = stopped, group
    monkeypatch.setattr(group, "_step_lock", let_in())
    groups._add(stopped, group)
    assert group._members == {"v": started}
    group.remove(stopped)
    assert group._members == {"v": started}
    group.remove(started)
    assert group._members == {}
    world.close()


@pytest.mark.parametrize("refused", ["view-groups-1", "view-groups-enter-1"])
def test_a_registry_without_threads_is_none(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """It is said at once, to the view that starts: later nobody could be told, or would ask again.

    Where there is a registry, what is asked for later needs no thread to be started.
    """
    monkeypatch.setattr(group_registry, "ViewGroup", Group)
    world = World()
    host: Any = SimpleNamespace(client=world.client())
    start = BackgroundThread.start

    def refuse(thread: BackgroundThread) -> None:
        if refused in {thread.name, "all"}:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(BackgroundThread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        group_registry.get_groups(host)
    refused = ""
    groups, member = group_registry.get_groups(host), Member()
    refused = "all"
    groups.ask_to_join(cast("Any", member))
    assert member.began.wait(30)
    world.close()
