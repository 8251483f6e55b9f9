"""The benchmark's command line chooses groups."""

from __future__ import annotations

import re

import pytest

from bench.__main__ import chosen
from bench.pages import FOLLOWED
from shardline.datasource.errors import InvalidUsage
from support.tree import ROOT


def test_without_a_name_everything_is_measured() -> None:
    """An empty `--only` is no name."""
    assert chosen([""]) == chosen([])
    assert {"write", "floor", "append"} <= set(chosen([]))


def test_source_is_everything_about_the_format() -> None:
    """And nothing of the bare log."""
    groups = chosen(["source"])
    assert {"read", "stream", "floor", "visible", "waiting", "queries", "planning"} <= set(groups)
    assert not {"append", "contend", "open"} & set(groups)


def test_whole_applications_are_measured_only_when_they_are_named() -> None:
    """They run for minutes; `runtime` stands for all of them."""
    assert chosen(["runtime"]) == ("fresh", "rest", "many", "watched", "pages", "demo")
    assert not set(chosen(["runtime"])) & set(chosen([]))


def test_what_is_measured_of_pages_is_what_the_first_screen_follows() -> None:
    """But for what it follows only where somebody has folded the graph by strategy."""
    screen = (ROOT / "app/server/page/screens/overview.js").read_text(encoding="utf-8")
    followed = set(re.findall(r'relation: "(\w+)"', screen))
    assert followed - {"object_details"} == set(FOLLOWED)


def test_a_group_that_is_named_twice_is_measured_once() -> None:
    """In the order of the table, however they were named."""
    assert chosen(["open", " read ", "open"]) == ("read", "open")


def test_an_unknown_group_is_refused() -> None:
    """With the one that was probably meant."""
    with pytest.raises(InvalidUsage, match="floor"):
        chosen(["flor"])
