"""A view belongs to the group that waits for all that it reads."""

from __future__ import annotations

from shardline.app.compute.group.group_registry import home_of


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
