"""A real Chromium looks at a real application of three hundred objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from shardline.app.coordinator.application import Application
from shardline.app.settings.config import Duration, RuntimeSettings
from support.page.browser import LOOKS, browsing, new_context, pictures_folder, watch_page
from support.page.screens import headline, node, object_row, scrolls_sideways
from support.spark.isolation import Yard, relation
from support.spark.large_project import DEPARTMENTS, LargeProject, large_project
from support.spark.served import LONG_MS, serving
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.slow, pytest.mark.night]

START_S = 1_800
"""For all of them to have their contents, on two cores that are busy with other tests."""

SETTINGS = RuntimeSettings(hydration_patience=Duration("10 min"))

ROWS = 200

EVERY = 12
"""Of the views one in so many is compared: all kinds, layers and departments are among them."""

SEEN: Final = {
    "/object/sales_raw_1": "csv",
    "/object/stock_l3_02": "stock_l2_02",
    "/object/web_by_id_0": "web_l3_00",
    "/object/fleet_out_3": "parquet",
    "/dataflow/billing_l2_05": "billing_l1_05",
    "/shard": "billing_raw_0",
    "/shard/billing_l1_00": "since",
    "/lane": "controller",
    "/project": "Compare again",
}
"""Addresses, one for each kind of object and screen, and what each has to show."""

COUNTED: Final = """() => {
  const rows = [...document.querySelectorAll("main table .verdict")];
  const fresh = rows.filter((row) => /^(healthy|idle)$/.test(row.textContent.trim())).length;
  const [said] = document.querySelector("h1").textContent.match(/^(All )?\\d+/);
  return rows.length === 300 && said === (fresh === 300 ? "All 300" : `${fresh}`);
}"""
"""True if the sentence says as many as the table has: both are of one moment."""


def files(made: LargeProject, yard: Yard) -> None:
    """Put a file into the folder of each source."""
    for number, name in enumerate(made.tables, 3):
        rows = "".join(f"{row},{row * number % 97}\n" for row in range(ROWS))
        yard.put(name, "a", f"id,n\n{rows}")


def hydrated(application: Application) -> int:
    """How many objects have caught up."""
    query = "SELECT count(*) FROM introspection.hydration_statuses WHERE hydrated"
    ((many,),) = relation(application, query)
    assert isinstance(many, int)
    return many


def test_three_hundred_objects_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    """All are there, found, folded, and right; each kind of screen opens, in any window."""
    made = large_project()
    yard = Yard(tmp_path, made.tables, made.queries)
    files(made, yard)
    with (
        browsing() as browser,
        serving(spark, browser, yard, "\n".join(made.statements), SETTINGS) as (application, page),
    ):
        # Not what is fresh: that is whether the machine has time, and not whether it is right.
        wait_until("all have caught up", lambda: hydrated(application) == 300, START_S)
        yard.until_right(*list(made.queries)[::EVERY], patience_s=START_S)
        the_sentence_counts_what_the_table_shows(page)
        the_graph_has_a_group_for_each_department(page)
        search_and_filter_find_one_of_all(page)
        a_query_is_answered(page)
        each_kind_of_screen_opens(page)
        no_window_is_too_narrow(browser, page)


def the_sentence_counts_what_the_table_shows(page: Page) -> None:
    """Each object has its row, and those that are fresh are as many as the sentence says."""
    page.get_by_role("button", name="Show all 300").click()
    expect(page.get_by_role("table", name="Objects").get_by_role("row")).to_have_count(301)
    wait_until("both agree", lambda: bool(page.evaluate(COUNTED)), LONG_MS / 1000)
    expect(headline(page)).to_have_text(
        re.compile(r"^(All 300|\d+ of 300) objects? (is|are) fresh")
    )


def the_graph_has_a_group_for_each_department(page: Page) -> None:
    """For each kind of its objects; one that is opened shows them, and others stay."""
    for department in DEPARTMENTS:
        group = node(page, f"{department} view")
        expect(group).to_have_attribute("aria-label", re.compile(rf"^{department}: \d+\sviews"))
    assert page.locator(".node").count() <= 60
    page.get_by_role("button", name="Fit all of it").click()
    picture(page, "first")
    node(page, "web view").dispatch_event("click")  # it may be out of sight, among so many
    expect(page.locator(".node[data-node^=web_l]").nth(40)).to_be_attached()
    page.get_by_role("button", name="Strategy").click()
    expect(node(page, "incremental view")).to_be_attached()
    picture(page, "strategy")


def search_and_filter_find_one_of_all(page: Page) -> None:
    """By keys alone; what is found is chosen in the graph, and its path lit."""
    page.keyboard.press("/")
    expect(page.locator("dialog input")).to_be_focused()
    page.keyboard.type("fleet_l3_05")
    expect(page.locator("dialog").get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(node(page, "fleet_l3_05")).to_have_attribute("aria-pressed", "true")
    # Its own name, and that of what it is made of, up to a source.
    path = page.get_by_role("region", name="Chosen object").locator(".path li")
    expect(path.first).to_contain_text("fleet_raw_")
    expect(path.last).to_contain_text("fleet_l3_05")
    page.get_by_role("searchbox", name="Filter objects").fill("stock_out")
    expect(page.get_by_role("table", name="Objects").get_by_role("row")).to_have_count(5)
    expect(object_row(page, "stock_out_2")).to_be_visible()
    picture(page, "found")


def a_query_is_answered(page: Page) -> None:
    """While three hundred objects are kept up to date."""
    page.goto(f"{origin(page)}/sql")
    page.locator(".CodeMirror").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("SELECT count(*) AS many FROM sales_raw_0")
    page.keyboard.press("Control+Enter")
    expect(page.locator("main table").first).to_contain_text(str(ROWS), timeout=LONG_MS)
    picture(page, "sql")


def each_kind_of_screen_opens(page: Page) -> None:
    """Of each kind of object, and those of the whole application."""
    for path, word in SEEN.items():
        page.goto(origin(page) + path)
        expect(page.locator("main")).to_contain_text(word, timeout=LONG_MS)
        picture(page, path)


def no_window_is_too_narrow(browser: Browser, page: Page) -> None:
    """The first screen, shards, and two objects: light or dark, from 360 px on."""
    wrong: list[str] = []
    for look in ("dark", "narrow-dark", "narrow", "wide"):
        with new_context(browser, LOOKS[look]) as context:
            context.set_default_timeout(LONG_MS)
            other = context.new_page()
            watch_page(other, wrong)
            for path, word in {
                "/": "fresh",
                "/shard": "Shards",
                **dict(list(SEEN.items())[:2]),
            }.items():
                other.goto(origin(page) + path)
                expect(other.locator("main")).to_contain_text(word, timeout=LONG_MS)
                if path == "/" and not look.startswith("narrow"):
                    expect(node(other, "web view")).to_be_visible()
                assert not scrolls_sideways(other), (look, path)
                picture(other, f"{path}-{look}")
    assert wrong == []


def origin(page: Page) -> str:
    """Where the application is."""
    found: str = page.evaluate("location.origin")
    return found


def picture(page: Page, name: str) -> None:
    """Keep what can be seen."""
    file = re.sub(r"[^\w-]+", "-", name).strip("-") or "overview"
    page.screenshot(path=pictures_folder() / f"many-{file}.png")
