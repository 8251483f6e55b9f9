"""The page stays where it is: nothing moves by itself, and nothing is beyond a window's edge."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from support.page.browser import Look, OpenPage
from support.page.tools_world import ToolsWorld
from support.page.world import ServedWorld
from support.profiles import one_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser

_WATCH: Final = """() => {
  window.moved = 0;
  new PerformanceObserver((list) => {
    for (const { value } of list.getEntries()) window.moved += value;
  }).observe({ type: "layout-shift" });
}"""

_WIDTH: Final = "e => e.getBoundingClientRect().width"

_WAIT_S: Final = 20.0
"""Waits look from here, each time anew: `wait_for_function` looks again from within the page, whose
policy refuses to evaluate a string. It fails at once where the first look comes too early."""

_BEYOND: Final = "document.documentElement.scrollWidth - innerWidth"


_STILL: Final = 0.001
"""Share of the window that is moved, times how far: numbers that end at the right are set anew."""


@pytest.mark.parametrize("path", one_of(3, ["/", "/object/flights", "/dataflow/carrier_ranking"]))
def test_nothing_moves_when_numbers_change(open_page: OpenPage, path: str) -> None:
    """Not even when the connection is lost: Chromium itself counts what has been moved."""
    seen = open_page("demo", path)
    live = seen.page.locator(".as-of time")
    expect(live).to_be_visible()
    expect(seen.page.locator("h1")).to_be_visible()
    seen.page.wait_for_load_state("networkidle")
    shown = live.inner_text()
    # What is asked for once has come by the next second but one.
    for _ in range(2):
        expect(live).not_to_have_text(shown)
        shown = live.inner_text()
    seen.page.evaluate(_WATCH)
    for _ in range(2):
        expect(live).not_to_have_text(shown)
        shown = live.inner_text()
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    assert seen.page.evaluate("window.moved") < _STILL


def test_what_is_moved_is_counted(open_page: OpenPage) -> None:
    """Or that nothing was would mean nothing."""
    seen = open_page("one")
    expect(seen.page.locator(".verdicts")).to_be_visible()
    seen.page.evaluate(_WATCH)
    seen.page.evaluate("document.querySelector('main').style.paddingTop = '40px'")
    shown = f"window.moved > {_STILL}"
    wait_until("it is counted", lambda: bool(seen.page.evaluate(shown)), _WAIT_S)


@pytest.mark.parametrize("width", one_of(2, [360, 3840]))
def test_each_screen_fits_the_smallest_and_the_largest_window(
    open_page: OpenPage, width: int
) -> None:
    """From a phone to 4k nothing is moved sideways to be read."""
    world = ServedWorld("fire")
    seen = open_page(world, "/", Look(width, 2000), token=True)
    paths = ("/", "/object/busiest_planes", "/dataflow/carrier_ranking", "/shard", "/shard/flights")
    for path in (*paths, "/sql", "/lane", "/project"):
        seen.go(path)
        expect(seen.page.locator("main")).not_to_be_empty()
        expect(seen.page.locator(".as-of .live-dot:not(.off)")).to_be_visible()
        assert seen.page.evaluate(_BEYOND) <= 0, path


_TITLED: Final = """table => {
  const room = table.parentElement;
  const shown = (e) => e.getBoundingClientRect().right <= innerWidth;
  const cells = [...table.querySelectorAll("tbody tr:first-child [data-column]")];
  return {
    beyond: room.scrollWidth - room.clientWidth,
    named: cells.filter(shown).map((e) => e.dataset.column),
    heads: [...table.querySelectorAll("thead th")].map((e) => e.textContent.trim()),
  };
}"""


def test_a_narrow_window_has_all_columns_of_a_table(open_page: OpenPage) -> None:
    """Each cell with its column's name: at the edge of a phone nothing tells that there is more."""
    fire, tools = ServedWorld("fire"), ToolsWorld("many")
    for world, path, number in (
        (tools, "/shard/flights", 3),
        (fire, "/shard/flights", 3),
        (fire, "/object/flights", 1),
        (fire, "/dataflow/carrier_ranking", 1),
    ):
        tables = open_page(world, path, Look(400, 2000)).page.locator("table.titled")
        expect(tables).to_have_count(number)
        for table in tables.all():
            found = table.evaluate(_TITLED)
            assert found["beyond"] <= 0, path
            # What a row is about may need no name.
            assert found["named"] in (found["heads"], found["heads"][1:]), path


def test_motion_is_for_those_who_want_it(open_page: OpenPage) -> None:
    """By the system's setting."""
    page = open_page("one").page
    button = page.get_by_role("button", name="Keys", exact=True)
    expect(button).to_be_visible()
    lasts = "e => getComputedStyle(e).transitionDuration"
    assert set(str(button.evaluate(lasts)).split(", ")) == {"0s"}
    page.emulate_media(reduced_motion="no-preference")
    assert "0.12s" in button.evaluate(lasts)


def test_times_are_the_viewers_and_in_utc_on_hover(open_page: OpenPage) -> None:
    """The browser's zone is Berlin's: an hour or two ahead."""
    page = open_page("demo", "/object/flights").page
    since = page.locator(".headline-says time, .object-head time, main time").first
    expect(since).to_be_visible()
    told = str(since.get_attribute("title"))
    (utc,) = re.findall(r"(\d\d):\d\d:\d\d\.\d{3} UTC", told)
    at = str(since.get_attribute("datetime"))
    assert at[11:13] == utc
    local = page.evaluate("at => new Date(at).getHours()", at)
    assert (local - int(utc)) % 24 in (1, 2)
    assert re.match(rf"(since )?.*{local:02}:", since.inner_text() + told)


def test_what_cannot_be_pointed_at_says_its_zone(open_page: OpenPage) -> None:
    """The readouts of charts, and the line above all: an hour of Berlin is one of UTC elsewhere."""
    seen = open_page("demo", "/object/flights")
    page, now_ms = seen.page, seen.world.clock.now_ms()
    zone = datetime.fromtimestamp(now_ms / 1000, ZoneInfo("Europe/Berlin")).tzname()
    says = re.compile(rf"\d\d:\d\d:\d\d\s{zone}\b")
    readout = page.locator(".chart-readout").filter(has_text=re.compile(r"\d\d:\d\d"))
    expect(readout.first).to_have_text(says)
    expect(page.locator(".as-of time").locator("..")).to_have_text(says)


def test_the_graph_is_zoomed_by_buttons_and_by_keys(open_page: OpenPage) -> None:
    """And all of it is in sight again with one of them."""
    page = open_page("demo").page
    flights = page.locator(".node[data-node=flights]")
    expect(flights).to_be_visible()
    whole = flights.evaluate(_WIDTH)

    def wait_for_width(least: float, most: float) -> None:
        wait_until(
            f"its share of the whole is {least} to {most}",
            lambda: least < flights.evaluate(_WIDTH) / whole < most,
            _WAIT_S,
        )

    page.get_by_role("button", name="Larger").click()
    wait_for_width(1.1, 10)
    flights.focus()
    page.keyboard.press("0")
    wait_for_width(1 - 1 / whole, 1 + 1 / whole)
    page.keyboard.press("-")
    wait_for_width(0.1, 0.9)
    page.get_by_role("button", name="Fit all of it").click()
    wait_for_width(1 - 1 / whole, 1 + 1 / whole)
