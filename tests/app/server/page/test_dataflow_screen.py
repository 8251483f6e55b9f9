"""The screen of a dataflow in a real browser: which operator takes the most of the time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from shardline.app.introspection.events import Event, Harvested, QueryProgress
from support.page.browser import OpenPage
from support.page.objects import HOSTILE_NAMES
from support.page.world import ServedWorld
from support.profiles import one_of

pytestmark = pytest.mark.browser


def panel(page: Page, title: str) -> Any:
    """A panel by its heading."""
    return page.get_by_role("region", name=title, exact=True)


def sentence(page: Page) -> Any:
    """The sentence about the largest share."""
    return page.locator("header.object-head .why-so")


def table(page: Page) -> Any:
    """All operators, as a table."""
    return panel(page, "All operators")


def micro_batch(world: ServedWorld, name: str, operator: str, took_ms: int) -> Iterator[Event]:
    """A micro-batch of an object in which one operator took nearly all of the time."""
    one = world.life.objects[name]
    assert one.installed is not None
    query_name = f"{name}:{one.installed.global_id}:{one.epoch}"
    query = f"{one.seed:08x}-7c42-4d0e-8a11-000000000000"
    run = f"{one.seed:08x}-4b1d-4f3a-9c55-{one.epoch:012x}"
    yield QueryProgress(
        query=query,
        run=run,
        name=query_name,
        micro_batch=one.micro_batch,
        at_ms=world.clock.now_ms(),
        phases_ms={"triggerExecution": took_ms, "addBatch": took_ms},
    )
    place = next(at for at, found in enumerate(one.plan) if found.name == operator)
    yield Harvested(
        query=query,
        run="",
        name=query_name,
        micro_batch=one.micro_batch,
        took_ms=((place, float(took_ms)),),
    )


def test_it_names_the_operator_with_the_largest_share_and_its_piece_of_sql(
    open_page: OpenPage,
) -> None:
    """Since its start: the third of five operators takes four parts of eight of 69 %."""
    seen = open_page("demo", "/dataflow/delays_by_carrier?time=start")
    expect(sentence(seen.page)).to_have_text(
        re.compile(r"Project carrier, COUNT\(\*\) AS flights.* takes 3[45]\s% of its time since")
    )
    row = table(seen.page).get_by_role("row", name=re.compile("^Project"))
    expect(row).to_contain_text(re.compile(r"3[45]\s%"))
    expect(panel(seen.page, "Project")).to_contain_text("COUNT_IF(delay > 15) AS late")


def test_what_was_slow_in_the_last_minute_is_not_what_was_slow_before(open_page: OpenPage) -> None:
    """Another operator becomes slow while somebody looks; the sums since the start hardly move."""
    seen = open_page("demo", "/dataflow/carrier_ranking?operator=")
    minute = seen.page.get_by_role("button", name="Last minute")
    expect(minute).to_be_visible()
    expect(sentence(seen.page)).to_contain_text("of the time of its steps in the last")
    expect(sentence(seen.page)).to_contain_text("Window")
    seen.world.tell(*micro_batch(seen.world, "carrier_ranking", "Join", 40_000))
    expect(sentence(seen.page)).to_contain_text("Join LEFT JOIN airlines")
    seen.page.get_by_role("button", name="Since its start").click()
    expect(sentence(seen.page)).to_contain_text("since it was started")


def test_rows_and_state_are_those_of_the_relations(open_page: OpenPage) -> None:
    """An idle dataflow, so that they stay: rows in and out of an operator, and what is kept."""
    seen = open_page("stalled", "/dataflow/delays_by_carrier")
    world = seen.world
    (dataflow,) = [
        row["dataflow_id"]
        for row in world.rows("compute_exports")
        if row["export_id"] == "delays_by_carrier"
    ]
    operators = {
        row["name"]: row["id"]
        for row in world.rows("dataflow_operator_dataflows")
        if row["dataflow_id"] == dataflow
    }
    channels = {
        (row["from_operator_id"], row["to_operator_id"]): row["id"]
        for row in world.rows("dataflow_channel_operators")
    }
    counts = {row["channel_id"]: row["received"] for row in world.rows("message_counts")}
    into = counts[channels[operators["Source"], operators["Aggregate"]]]
    out = counts[channels[operators["Aggregate"], operators["Project"]]]
    row = table(seen.page).get_by_role("row", name=re.compile("^Aggregate"))
    cells = row.get_by_role("cell")
    expect(cells.nth(2)).to_have_text(f"{into:,}")
    expect(cells.nth(3)).to_have_text(f"{out:,}")


def test_rows_that_nobody_has_counted_are_none_of_the_sums(open_page: OpenPage) -> None:
    """Of a micro-batch that Spark's plans do not tell of: no 0, and no sum without a word."""
    seen = open_page("stalled", "/dataflow/delays_by_carrier")
    row = table(seen.page).get_by_role("row", name=re.compile("^Aggregate"))
    expect(row.get_by_role("cell").nth(4)).to_have_text("0")
    before, after = unknown_micro_batch(seen.world, "delays_by_carrier")
    cells = row.get_by_role("cell")
    expect(cells.nth(2)).to_contain_text(f"in {before:,} of {after:,} micro-batches")
    expect(cells.nth(3)).to_contain_text(f"in {before:,} of {after:,} micro-batches")
    expect(cells.nth(4)).to_have_text("–")
    edges = seen.page.locator(".operator-graph .edge text")
    expect(edges.first).to_have_text("not all counted")


def test_an_edge_whose_rows_are_not_counted_does_not_stand_still(open_page: OpenPage) -> None:
    """It is drawn as one that nobody knows of; an edge with no rows is dotted."""
    seen = open_page("stalled")
    edge = seen.page.locator(".edge", has_text="flights → delays_by_carrier")
    expect(edge.locator("title")).to_contain_text("0 rows/s")
    expect(edge).to_have_class(re.compile("still"))
    unknown_micro_batch(seen.world, "delays_by_carrier")
    expect(edge.locator("title")).to_contain_text("rows not counted")
    expect(edge).not_to_have_class(re.compile("still"))


def unknown_micro_batch(world: ServedWorld, name: str) -> tuple[int, int]:
    """A micro-batch of which plans tell no rows; how many were told of, and how many there are."""
    before = one_batch(world, name)
    *_, harvested = micro_batch(world, name, "Aggregate", 10)
    world.tell(harvested)
    return before, before + 1


def one_batch(world: ServedWorld, name: str) -> int:
    """In how many micro-batches the rows of an object's first edge were counted."""
    (dataflow,) = [
        row["dataflow_id"] for row in world.rows("compute_exports") if row["export_id"] == name
    ]
    mine = {
        row["id"]
        for row in world.rows("dataflow_operator_dataflows")
        if row["dataflow_id"] == dataflow and row["name"] == "Aggregate"
    }
    (channel,) = [
        row["id"]
        for row in world.rows("dataflow_channel_operators")
        if row["to_operator_id"] in mine
    ]
    (count,) = [r for r in world.rows("message_counts") if r["channel_id"] == channel]
    return int(count["batch_received"])


def test_an_operator_is_chosen_by_keyboard(open_page: OpenPage) -> None:
    """In the graph; what is chosen is in the address, and all of it is shown."""
    seen = open_page("demo", "/dataflow/delays_by_carrier")
    node = seen.page.locator(".operator-graph g.operator", has_text="Aggregate")
    expect(node).to_be_visible()
    node.focus()
    seen.page.keyboard.press("Enter")
    expect(node).to_have_attribute("aria-pressed", "true")
    expect(panel(seen.page, "Aggregate")).to_contain_text("GROUP BY carrier")
    expect(panel(seen.page, "Aggregate")).to_contain_text("A micro-batch took at most")
    expect(seen.page).to_have_url(re.compile(r"operator=\d+"))
    seen.page.reload()
    expect(panel(seen.page, "Aggregate")).to_contain_text("GROUP BY carrier")


def test_a_dataflow_that_has_done_nothing_says_so(open_page: OpenPage) -> None:
    """In the last minute; times since its start are still there to be chosen."""
    seen = open_page("stalled", "/dataflow/delays_by_carrier")
    expect(sentence(seen.page)).to_contain_text("It has done no step in the last")
    seen.page.get_by_role("button", name="Since its start").click()
    expect(sentence(seen.page)).to_contain_text("Project")


def test_one_that_is_not_there_has_no_dataflow(open_page: OpenPage) -> None:
    """Neither one that waits to be created, nor one that nobody knows."""
    seen = open_page("uncreated", "/dataflow/busiest_planes")
    expect(seen.page.get_by_text("It waits to be created, and has no operators")).to_be_visible()
    seen.go("/dataflow/nobody")
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("There is no object nobody")


@pytest.mark.parametrize("look", one_of(3, ["narrow", "light", "dark", "wide", "narrow-dark"]))
def test_a_dataflow_fits_each_window(open_page: OpenPage, look: str) -> None:
    """Pictures are kept to be looked at; those of a hostile name widen nothing either."""
    seen = open_page("demo", "/dataflow/carrier_ranking", look)
    expect(table(seen.page)).to_be_visible()
    assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    seen.picture(f"dataflow-{look}")


def test_a_hostile_name_is_text(open_page: OpenPage) -> None:
    """In the headline, and as the piece of the operators that read and write it."""
    seen = open_page("hostile", f"/dataflow/{quote(HOSTILE_NAMES[1], safe='')}", "narrow")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(HOSTILE_NAMES[1])
    expect(table(seen.page)).to_contain_text(HOSTILE_NAMES[1])
    expect(seen.page.locator(".operator-graph g.operator").first).to_be_visible()
    assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth")
