"""An accessibility checker finds nothing on any screen: light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from shardline.datasource.clock import SystemClock
from support.page.browser import OpenPage, find_barriers
from support.page.tools_world import ToolsWorld
from support.page.world import ServedWorld
from support.profiles import one_of, some_of

pytestmark = pytest.mark.browser


@dataclass(frozen=True, slots=True)
class Case:
    """A screen with something on it.

    Attributes:
        world: Makes what it looks at.
        path: Its address.
        shown: Selector of what is there when all is drawn.
        open: Brings more onto it, if not None.
    """

    world: Callable[[], ServedWorld]
    path: str
    shown: str
    open: Callable[[Page], None] | None = None


def _open_all(page: Page) -> None:
    """Open everything that folds."""
    for summary in page.locator("summary").all()[:12]:
        summary.click()


def _run(page: Page) -> None:
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".sql-answer .rows, .sql-answer .refusal").first).to_be_visible()


def _follow(page: Page) -> None:
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.locator(".sql-rows .gone").first).to_be_visible()


def _broken_project() -> ServedWorld:
    world = ToolsWorld("many")
    world.kind = "broken"
    return world


def _try_compaction(page: Page) -> None:
    page.get_by_role("button", name="Compact…").click()
    expect(page.get_by_role("dialog")).to_contain_text("It would:")


_EARLIER_MS: Final = SystemClock().now_ms() - 5 * 3_600_000

SCREENS: Final = {
    "an object": Case(lambda: ServedWorld("demo"), "/object/flights", "canvas", _open_all),
    "an object on fire": Case(
        lambda: ServedWorld("fire"), "/object/busiest_planes?rows=20", ".sample tbody td"
    ),
    "an object that is unknown": Case(
        lambda: ServedWorld("demo"), "/object/delays_by_carier", ".near a"
    ),
    "an earlier moment": Case(
        lambda: ServedWorld("fire"), f"/object/flights?at={_EARLIER_MS}", "body:has(.as-of.past) h1"
    ),
    "a dataflow": Case(
        lambda: ServedWorld("demo"), "/dataflow/carrier_ranking", ".operator-graph .operator"
    ),
    "shards": Case(lambda: ToolsWorld("many"), "/shard", ".shard-table tbody tr"),
    "no shards": Case(lambda: ToolsWorld("none"), "/shard", ".empty"),
    "a shard": Case(lambda: ToolsWorld("many"), "/shard/flights", "svg.axis"),
    "an earlier moment of a shard": Case(
        lambda: ServedWorld("fire"),
        f"/shard/flights?at={_EARLIER_MS}",
        "body:has(.as-of.past) main tbody tr",
    ),
    "an action": Case(lambda: ToolsWorld("many"), "/shard/flights", "svg.axis", _try_compaction),
    "rows of SQL": Case(
        lambda: ToolsWorld("many"), "/sql#sql=SELECT+*+FROM+flights", ".CodeMirror", _run
    ),
    "a refusal of SQL": Case(
        lambda: ToolsWorld("many"), "/sql#sql=SELECT+wrong+FROM+flights", ".CodeMirror", _run
    ),
    "a subscription": Case(
        lambda: ToolsWorld("many"), "/sql#sql=SUBSCRIBE+TO+delays", ".CodeMirror", _follow
    ),
    "the lane": Case(lambda: ToolsWorld("many"), "/lane", ".commands tbody tr", _open_all),
    "an earlier moment of the lane": Case(
        lambda: ServedWorld("fire"),
        f"/lane?at={_EARLIER_MS}",
        "body:has(.as-of.past) .commands tbody tr",
    ),
    "a lane that is followed": Case(lambda: ToolsWorld("following"), "/lane", ".mode.follows"),
    "a project": Case(lambda: ToolsWorld("many"), "/project", ".difference", _open_all),
    "a project with problems": Case(_broken_project, "/project", ".refusal"),
}

OF_EACH_RUN: Final = {
    "an object on fire", "a dataflow", "an action", "rows of SQL", "the lane", "a project",
}  # fmt: skip
"""One of each screen, with what has the most in it: the action is over the screen of a shard."""


@pytest.mark.parametrize("look", one_of(2, ["light", "narrow"]))
@pytest.mark.parametrize("name", some_of(SCREENS, OF_EACH_RUN))
def test_a_screen_has_no_barriers(open_page: OpenPage, name: str, look: str) -> None:
    """In both schemes of colours; pictures are kept, for whoever changes the page."""
    case = SCREENS[name]
    seen = open_page(case.world(), case.path, look, token=True)
    page = seen.page
    expect(page.locator(case.shown).first).to_be_visible()
    if case.open is not None:
        case.open(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert find_barriers(page) == [], scheme
        seen.picture(f"{name.replace(' ', '-')}-{look}-{scheme}")


@pytest.mark.parametrize(
    ("look", "situation"),
    some_of(
        product(["light", "dark", "narrow", "narrow-dark"], ["demo", "fire"]),
        [("light", "demo"), ("narrow-dark", "fire")],
    ),
)
def test_the_first_screen_has_no_barriers(open_page: OpenPage, situation: str, look: str) -> None:
    """Neither when all is well nor on fire."""
    seen = open_page(situation, look=look)
    expect(seen.page.locator(".verdicts")).to_be_visible()
    if look.startswith("narrow"):
        seen.page.get_by_role("button", name="Show the graph").click()
    expect(seen.page.locator(".node").first).to_be_visible()
    assert find_barriers(seen.page) == []


@pytest.mark.parametrize("look", one_of(2, ["light", "dark"]))
def test_dialogs_and_a_lost_connection_have_no_barriers(open_page: OpenPage, look: str) -> None:
    """Search, keys, token, and the time that old rows are of."""
    seen = open_page("demo", look=look)
    expect(seen.page.locator(".node").first).to_be_visible()
    for key in ("/", "?"):
        seen.page.keyboard.press(key)
        expect(seen.page.get_by_role("dialog")).to_be_visible()
        assert find_barriers(seen.page) == []
        seen.page.keyboard.press("Escape")
        expect(seen.page.get_by_role("dialog")).to_have_count(0)
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    assert find_barriers(seen.page) == []


def test_the_checker_sees_what_is_wrong(open_page: OpenPage) -> None:
    """Or its silence would mean nothing."""
    seen = open_page("one")
    expect(seen.page.locator(".node").first).to_be_visible()
    seen.page.evaluate("document.querySelector('.find').removeAttribute('aria-label')")
    seen.page.evaluate("document.querySelector('.find').replaceChildren()")
    assert [found.split(":")[0] for found in find_barriers(seen.page)] == ["button-name"]
