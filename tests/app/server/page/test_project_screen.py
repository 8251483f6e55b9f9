"""The project in a real browser: what a run of it would change, and by which lines."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import Page, expect

from support.page.browser import OpenPage
from support.page.tools_world import ToolsWorld, made_world
from support.profiles import one_of

pytestmark = pytest.mark.browser


def test_what_a_run_would_change_is_told_what_is_lost_first(open_page: OpenPage) -> None:
    """With the reason, and the lines that go and come."""
    page = open_page(ToolsWorld("many"), "/project").page
    expect(page.get_by_role("status").filter(has_text="A run of")).to_have_text(
        "A run of the project would make 1 anew, drop 1, change 1 and create 1; "
        "3 objects stay as they are."
    )
    expect(page.get_by_role("heading", level=2)).to_have_text(
        ["Made anew", "Dropped", "Changed", "Created", "Unchanged"]
    )
    anew = page.get_by_role("region", name="Made anew")
    expect(anew).to_contain_text("Lost: 1,204 rows, and their history.")
    expect(anew).to_contain_text("views.sql:12")
    expect(page.get_by_text("A run would be refused.")).to_be_visible()
    changed = page.get_by_role("region", name="Changed", exact=True)
    expect(changed.locator(".difference .gone")).to_have_count(1)
    expect(changed.locator(".difference .gone")).to_contain_text("avg(dep_delay)")
    expect(changed.locator(".difference .come")).to_have_count(2)
    expect(changed.locator(".difference .same")).to_have_count(3)
    dropped = page.get_by_role("region", name="Dropped")
    expect(dropped.locator(".difference .gone")).to_have_count(4)
    expect(dropped.locator(".difference .come, .difference .same")).to_have_count(0)


def test_a_project_with_problems_has_each_with_its_place(open_page: OpenPage) -> None:
    """And no changes: nobody knows them."""
    world = ToolsWorld("many")
    world.kind = "broken"
    page = open_page(world, "/project").page
    expect(page.get_by_role("status").filter(has_text="it has 2 problems")).to_be_visible()
    expect(page.locator(".refusal").first).to_contain_text("views.sql:3:8")
    expect(page.locator(".refusal").first).to_contain_text("did you mean 'carrier'?")
    expect(page.locator(".group")).to_have_count(0)


def test_a_project_that_runs_as_it_is_written_says_so(open_page: OpenPage) -> None:
    """In one sentence."""
    page = open_page(ToolsWorld("following"), "/project").page
    expect(page.get_by_text("would change nothing: 1 object stays as it is.")).to_be_visible()


def test_without_a_project_it_is_said_and_asked_again_on_request(open_page: OpenPage) -> None:
    """It may be given one meanwhile."""
    seen = open_page(ToolsWorld("none"), "/project")
    said = "The application has no project. Start it with the folder of one."
    expect(seen.page.get_by_role("status").filter(has_text="no project")).to_have_text(said)
    made_world(seen).kind = "many"
    seen.page.get_by_role("button", name="Compare again").click()
    expect(seen.page.get_by_role("heading", name="Made anew")).to_be_visible()


@pytest.mark.parametrize("look", one_of(2, ["narrow", "light"]))
def test_definitions_are_neither_obeyed_nor_too_wide(open_page: OpenPage, look: str) -> None:
    """A line of ten thousand letters scrolls in its own room."""
    page = open_page(ToolsWorld("hostile"), "/project", look).page
    expect(page.locator(".difference")).to_contain_text("<img src=x")
    assert page.locator("img").count() == 0
    assert page.title() == "Project – Shardline"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def _difference(page: Page, before: list[str], after: list[str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = page.evaluate(
        """async ([before, after]) => {
          const { lineDifference } = await import("/page/parts/line_difference.js");
          return lineDifference(before.join("\\n"), after.join("\\n"));
        }""",
        [before, after],
    )
    return found


def _common(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence, by the definition."""
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return 1 + _common(one[:-1], other[:-1])
    return max(_common(one[:-1], other), _common(one, other[:-1]))


def test_a_difference_is_true_and_as_short_as_it_can_be(open_page: OpenPage) -> None:
    """What stays and goes is the text before, what stays and comes the text after."""
    page = open_page(ToolsWorld("following"), "/project").page
    chance = random.Random(3)
    for _ in range(60):
        before, after = (chance.choices("abc", k=chance.randint(1, 7)) for _ in range(2))
        lines = _difference(page, before, after)
        assert [one["text"] for one in lines if one["kind"] != "come"] == before
        assert [one["text"] for one in lines if one["kind"] != "gone"] == after
        same = sum(one["kind"] == "same" for one in lines)
        assert same == _common(before, after), (before, after, lines)
