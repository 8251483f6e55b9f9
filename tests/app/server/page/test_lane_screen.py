"""The lane in a real browser: who holds the location, who is connected, and what was asked for."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from playwright.sync_api import expect

from shardline.app.introspection.events import Recorded
from support.page.browser import OpenPage
from support.page.tools_world import ToolsWorld, made_world
from support.page.world import ServedWorld
from support.profiles import one_of

pytestmark = pytest.mark.browser

HOUR = 3_600_000


def commands_until(world: ServedWorld, at_ms: int) -> list[int]:
    """Positions of the commands that had been asked for at a moment, by their own times."""
    return [
        row["index"]
        for row in world.rows("command_history")
        if datetime.fromisoformat(str(row["occurred_at"])).timestamp() * 1000 <= at_ms
    ]


def test_the_holder_and_everybody_who_is_connected_are_told(open_page: OpenPage) -> None:
    """With the reads that are under way, each with the objects that it reads."""
    page = open_page(ToolsWorld("many"), "/lane").page
    holder = page.get_by_role("region", name="The location")
    expect(holder).to_contain_text("This process holds the location.")
    expect(holder).to_contain_text("process 4711 on host-a")
    expect(page.get_by_role("button", name="Allow writes")).to_have_count(0)
    connections = page.get_by_role("region", name="Connections")
    expect(connections.get_by_role("row")).to_have_count(9)
    expect(connections).to_contain_text("host-c:7781")
    reads = page.get_by_role("region", name="Reads under way")
    expect(reads.get_by_role("row").nth(2)).to_contain_text("flights, airlines")


def test_commands_are_told_in_words_the_newest_first(open_page: OpenPage) -> None:
    """All of a command is there on request; the filter finds by object, kind and text."""
    page = open_page(ToolsWorld("many"), "/lane").page
    rows = page.locator(".commands tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first).to_contain_text("307")
    expect(rows.first).to_contain_text("Stopped by a failure, and started again: [DIVIDE_BY_ZERO]")
    page.get_by_role("button", name="Show all 308").click()
    expect(rows).to_have_count(308)
    expect(rows.last).to_contain_text("Process 4711 on host-a has taken the location")
    page.get_by_label("Filter commands").fill("index_limit")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Set index_limit = 1g")
    rows.locator("summary").click()
    expect(rows.locator("pre")).to_contain_text('"update_configuration"')


def test_a_narrow_window_has_all_of_each_row(open_page: OpenPage) -> None:
    """Nothing of it has to be looked for beyond the edge."""
    seen = open_page(ToolsWorld("many"), "/lane", "narrow")
    expect(seen.page.locator(".commands tbody tr")).to_have_count(30)
    for name, cells in (("Commands", 5), ("Connections", 4), ("Reads under way", 3)):
        row = seen.page.get_by_role("table", name=name).get_by_role("row").nth(1)
        edges = row.locator("th, td").evaluate_all(
            "cells => cells.map(cell => cell.getBoundingClientRect().right)"
        )
        assert len(edges) == cells
        assert max(edges) <= 360, name
    seen.picture("lane-narrow")


def test_a_follower_says_that_it_writes_nothing_and_can_be_promoted(open_page: OpenPage) -> None:
    """What that does is told before it is done."""
    seen = open_page(ToolsWorld("following"), "/lane", token=True)
    page, world = seen.page, made_world(seen)
    expect(page.get_by_text("Read-only.")).to_be_visible()
    page.get_by_role("button", name="Allow writes").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("fenced out")
    assert world.done == []
    dialog.get_by_role("button", name="Allow writes").click()
    expect(page.get_by_text("Writes are allowed.")).to_be_visible()
    assert world.done == [("allow_writes", "")]


def test_an_empty_lane_says_so(open_page: OpenPage) -> None:
    """Nothing is left blank."""
    page = open_page(ToolsWorld("none"), "/lane").page
    for text in (
        "Nobody holds the location yet",
        "Nobody is connected.",
        "Nobody reads at the moment.",
        "Nothing was asked for yet.",
    ):
        expect(page.get_by_text(text)).to_be_visible()


@pytest.mark.parametrize("look", one_of(2, ["narrow", "light"]))
def test_names_from_data_are_neither_obeyed_nor_too_wide(open_page: OpenPage, look: str) -> None:
    """Ten thousand letters in every field."""
    page = open_page(ToolsWorld("hostile"), "/lane", look).page
    expect(page.get_by_text("⟨202E⟩gnp.exe").first).to_be_visible()
    expect(page.locator(".commands tbody tr")).to_have_count(30)
    assert page.locator("img").count() == 0
    assert page.title() == "Lane – Shardline"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_as_of_a_moment_the_lane_has_the_commands_of_then(open_page: OpenPage) -> None:
    """And who held the location; what has no history is said to have none, and not asked for."""
    world = ServedWorld("demo")
    now = world.clock.now_ms()
    seen = open_page(world, "/lane")
    page = seen.page
    expect(page.get_by_role("region", name="Connections")).to_be_visible()
    expect(page.get_by_role("slider", name="Moment that is looked at")).to_be_visible()
    rows, holder = (
        page.locator(".commands tbody tr"),
        page.get_by_role("region", name="The location"),
    )
    expect(rows.first).to_contain_text("Resumed")
    asked: list[str] = []
    page.on("request", lambda one: asked.extend(re.findall(r"/relations/(\w+)[^#]*as_of", one.url)))
    for at, host in (
        (now - 20 * HOUR, "host-a, process 4711"),
        (now - HOUR, "host-b, process 812"),
    ):
        seen.go(f"/lane?at={at}")
        expect(page.locator(".as-of.past")).to_be_visible()
        expect(holder).to_contain_text(f"shardline on {host}")
        expect(holder).to_contain_text("flights")
        until = commands_until(world, at)
        assert 10 < len(until) < len(world.rows("command_history"))
        numbers = rows.locator("td.number").all_inner_texts()
        assert list(map(int, numbers)) == sorted(until, reverse=True)
        expect(page.get_by_text("no history is kept of who was connected")).to_be_visible()
        expect(page.get_by_role("region", name="Connections")).to_have_count(0)
        seen.picture(f"lane-as-of-{host[:6]}")
    assert set(asked) == {"location", "command_history"}
    rows.get_by_role("link").first.click()
    expect(page.locator(".as-of.past")).to_be_visible()
    page.get_by_role("navigation").get_by_role("link", name="Lane").click()
    expect(rows.first).to_be_visible()
    assert seen.address == f"/lane?at={now - HOUR}"
    page.get_by_role("button", name="Back to now").click()
    expect(rows.first).to_contain_text("Resumed")
    expect(page.get_by_role("region", name="Connections")).to_be_visible()


def test_a_moment_before_what_is_kept_is_refused_in_the_page(open_page: OpenPage) -> None:
    """In the words that every other screen has, with the first moment that is known."""
    world = ServedWorld("demo")
    first = datetime.fromisoformat(str(world.rows("command_history")[0]["occurred_at"]))
    known = round(first.timestamp() * 1000)
    seen = open_page(world, f"/lane?at={known - HOUR}")
    alert = seen.page.get_by_role("alert")
    expect(alert).to_contain_text("the history of relation 'command_history' begins at")
    expect(alert).to_contain_text(f"as_of={known} is the first moment that is known")
    expect(seen.page.locator(".commands")).to_have_count(0)
    expect(seen.page.get_by_text("the commands are known")).to_have_count(0)
    seen.picture("lane-before-history")
    seen.go(f"/lane?at={known}")
    expect(seen.page.locator(".commands tbody tr")).to_have_count(1)


def test_a_holder_that_no_command_names_is_not_known(open_page: OpenPage) -> None:
    """The take-over of a year ago is not among the newest thousand commands."""
    world = ServedWorld("fresh")
    at = world.clock.now_ms() - HOUR
    paused = Recorded(
        index=70_000, producer="page", at_ms=at, kind="pause_dataflow", object_id="flights"
    )
    world.tell(paused)
    page = open_page(world, f"/lane?at={at + 1_000}").page
    expect(page.get_by_text("Who held the location then is not known")).to_be_visible()
    expect(page.locator(".commands tbody tr")).to_have_count(1)
