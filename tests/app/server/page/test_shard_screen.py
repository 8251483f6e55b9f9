"""Shards in a real browser: the list, the axis of time, holds, and what is done to a shard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from support.page.browser import OpenPage, Seen
from support.page.made_tools import HOSTILE
from support.page.tools_world import ToolsWorld, made_world
from support.page.world import ServedWorld
from support.profiles import one_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser

WAIT_S = 20.0

OpenShard = Callable[..., Seen]


@pytest.fixture
def open_shard(open_page: OpenPage) -> OpenShard:
    """Opens a shard's screen; the list of all without a name."""

    def open_one(
        name: str = "",
        kind: str = "many",
        query: str = "",
        *,
        token: bool = False,
        look: str = "light",
    ) -> Seen:
        path = f"/shard/{quote(name, safe='')}" if name else "/shard"
        return open_page(ToolsWorld(kind), path + query, look, token=token)

    return open_one


def boxes(page: Page, selector: str) -> list[tuple[float, float]]:
    """Left and right edge of what is drawn, in px, from left to right."""
    found = page.locator(selector).evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    return sorted((left, right) for left, right in found)


def test_all_shards_are_listed_with_size_history_and_holds(open_shard: OpenShard) -> None:
    """The largest first; filtered by name, and the filter is in the address."""
    seen = open_shard()
    page = seen.page
    rows = page.get_by_role("table", name="Shards").get_by_role("row")
    expect(rows).to_have_count(11)
    expect(rows.nth(1)).to_contain_text("flights")
    expect(rows.nth(1)).to_contain_text("30 d")
    cells = rows.nth(1).get_by_role("cell")
    expect(cells.nth(4)).to_have_text("4")
    expect(cells.nth(5)).to_have_text("query 'orders to report' on host-b:812 for 21 d")
    expect(rows.nth(2).get_by_role("cell").nth(5)).to_have_text("nobody")
    # Of thousands each is looked into once in some minutes: what is old must say so.
    aside = page.locator(".screen-head .aside")
    expect(aside).to_have_text(re.compile(r"all looked into within the last \d+\ss"))
    expect(rows.nth(0).get_by_role("columnheader").last).to_have_text("As of")
    expect(rows.nth(1).get_by_role("cell").last).to_have_text(re.compile(r"\d\d:\d\d"))
    page.get_by_label("Filter shards by name").fill("x_")
    expect(rows).to_have_count(3)
    assert seen.address == "/shard?q=x_"
    page.get_by_label("Filter shards by name").fill("no such")
    expect(page.get_by_text("No shard has such a name.")).to_be_visible()


WATCHED = """() => {
  const rows = [...document.querySelectorAll(".shard-table tbody tr")];
  window.written = [];
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const row = target.closest?.("tr") ?? target.parentElement?.closest("tr");
      window.written.push(row ? row.cells[0].textContent.trim() : target.localName);
    }
  }).observe(document.querySelector(".shard-table"), {
    attributes: true, characterData: true, childList: true, subtree: true,
  });
  return rows.map((row) => row.cells[0].textContent.trim());
}"""


def test_the_list_writes_what_has_changed_and_stands_still(open_page: OpenPage) -> None:
    """Holds grow older in each second, and a shard that was looked into is another row."""
    world = ToolsWorld("many")
    tables, looks = world.tables, {"planes": 1, "weather": 1}
    before = tables.made["shards"]

    def shards(now: int) -> Iterator[Mapping[str, Any]]:
        for row in before(now):
            yield {**row, "size": 1, "records": looks.get(row["name"], 0)}

    tables.made["shards"] = shards
    seen = open_page(world, "/shard")
    page, sent = seen.page, list[str]()
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(str(data))))
    page.reload()
    rows = page.locator(".shard-table tbody tr")
    expect(rows).to_have_count(10)
    order = page.evaluate(WATCHED)
    for many in (2, 3):
        looks["planes"] = many
        expect(
            page.get_by_role("row", name="shard planes").get_by_role("cell").nth(6)
        ).to_have_text(str(many))
    written = page.evaluate("window.written")
    assert set(written) == {next(name for name in order if "planes" in name and "_" not in name)}
    assert page.evaluate(WATCHED) == order
    assert any('"shards"' in text for text in sent)
    assert not any("shard_holds" in text for text in sent)


def test_a_list_fits_a_window_of_a_laptop(open_shard: OpenShard) -> None:
    """All columns are within their card, and no number is parted from its unit."""
    page = open_shard().page
    expect(page.locator(".shard-table tbody tr")).to_have_count(10)
    room = page.locator(".table-wrap")
    assert room.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    (kept,) = page.locator(".shard-held .more").all()
    assert kept.evaluate("e => e.getClientRects().length") == 1


def test_a_narrow_list_has_what_matters_most(open_shard: OpenShard) -> None:
    """Name, history and size, and no column beyond the edge: the rest is on a shard's screen."""
    page = open_shard(look="narrow").page
    headers = page.get_by_role("columnheader")
    expect(headers).to_have_text(["Shard", "History", "Size"])
    expect(page.locator(".shard-table tbody tr")).to_have_count(10)
    assert page.locator(".table-wrap").evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def test_a_shard_has_an_axis_on_which_batches_and_holds_stand(open_shard: OpenShard) -> None:
    """Batches side by side in the order of time, and every hold where it reads from."""
    page = open_shard("flights").page
    expect(page.locator(".axis .batch")).to_have_count(17)
    edges = boxes(page, ".axis .batch > rect:first-child")
    for (_, right), (left, _) in pairwise(edges):
        assert right <= left + 0.5
    # The largest hold keeps the since: it stands where the axis begins, behind what was merged.
    first, *_ = boxes(page, ".axis .hold .at")
    strip = boxes(page, ".axis .earlier")[0]
    assert abs((first[0] + first[1]) / 2 - strip[1] - 3) < 2
    assert edges[0][0] == pytest.approx(strip[0], abs=1)
    expect(page.locator(".axis .kept")).to_have_count(1)
    # All of it is seen: nothing of it is cut by what it stands in.
    (box,) = page.locator("section:has(.axis)").evaluate_all(
        "cards => cards.map(card => [card.scrollHeight, card.clientHeight])"
    )
    assert box[0] <= box[1]
    expect(page.locator(".axis .round").first).to_be_in_viewport()


def test_each_spacing_shows_what_it_is_for(open_shard: OpenShard) -> None:
    """By batch, all are wide enough to point at; true to time, a day is as wide as any other."""
    page = open_shard("flights").page
    by_batch = page.get_by_role("button", name="By batch")
    by_time = page.get_by_role("button", name="True to time")
    expect(by_batch).to_have_attribute("aria-pressed", "true")
    assert min(right - left for left, right in boxes(page, ".axis .batch > rect:first-child")) > 8
    by_time.click()
    expect(page).to_have_url(page.url.partition("?")[0] + "?spacing=time")
    # Nine and a half days, against half a day less three hours: what the made batches are. The axis
    # is drawn anew after the address has changed.
    expected = pytest.approx(9.5 * 24 / 9, rel=0.15)

    def is_true_to_time() -> bool:
        edges = boxes(page, ".axis .batch > rect:first-child")
        widths = [right - left for left, right in edges]
        return bool(widths[1] / widths[2] == expected)

    wait_until("the axis is true to time", is_true_to_time, 20)
    page.reload()
    expect(by_time).to_have_attribute("aria-pressed", "true")


def test_what_is_pointed_at_is_told(open_shard: OpenShard) -> None:
    """By pointer, and by the keyboard from one to the next."""
    page = open_shard("flights").page
    readout = page.locator(".readout")
    page.locator(".axis .hold .at").first.hover()
    expect(readout).to_contain_text("Hold query:5b3c, query 'orders to report' on host-b:812")
    expect(readout).to_contain_text("41 d old, heard of 9 d ago")
    expect(readout).to_contain_text("alone it keeps 21 d of history and 121 MiB")
    page.locator(".axis .batch rect").first.hover()
    expect(readout).to_contain_text("Batch of level 8, from before the since to")
    # Nothing of it can be pointed at, to be told UTC: so it says its zone.
    expect(readout).to_have_text(re.compile(r" to .*\d\d:\d\d:\d\d\sCES?T\b"))
    expect(page.locator(".axis .row-name").first).to_have_text(re.compile("^CES?T$"))
    tick = page.locator(".axis .tick-text title").first
    expect(tick).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC$"))
    page.locator(".axis").focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("Batch of level 7, from ")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("Lease ")


def test_the_time_line_is_not_what_is_pointed_at_on_the_axis(open_shard: OpenShard) -> None:
    """Both stand on one screen, and each has a readout of its own."""
    page = open_shard("flights").page
    marks = page.get_by_role("list", name="Marks that are shown")
    expect(marks.get_by_role("listitem").first).to_be_visible()
    page.locator(".axis .batch rect").first.hover()
    expect(page.locator(".readout")).to_contain_text("Batch of level 8")
    expect(marks).to_be_visible()
    page.locator(".timeline-track .bin").last.hover(force=True)
    expect(page.locator(".readout")).to_contain_text("Batch of level 8")


def test_tables_have_all_that_the_picture_has(open_shard: OpenShard) -> None:
    """Also what the picture leaves out."""
    page = open_shard("flights").page
    batches = page.get_by_role("group", name="Batches, the newest first")
    expect(batches.get_by_role("row")).to_have_count(18)
    expect(batches.get_by_role("row").last).to_contain_text("before the since")
    rounds = page.get_by_role("group", name="Rounds of maintenance")
    expect(rounds.get_by_role("row")).to_have_count(21)
    page.get_by_role("button", name="Show all 120").click()
    expect(rounds.get_by_role("row")).to_have_count(121)
    expect(rounds).to_contain_text("collect: the store does not answer")
    holds = page.get_by_role("region", name="Holds")
    expect(holds.get_by_role("row").nth(1)).to_contain_text("121 MiB")
    expect(holds).to_contain_text("overdue")


def test_an_action_is_shown_first_and_done_when_it_is_confirmed(open_shard: OpenShard) -> None:
    """For the shard, and for a hold; a lease has none, since it ends by itself."""
    seen = open_shard("flights", token=True)
    page, world = seen.page, made_world(seen)
    page.get_by_role("button", name="Compact").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("compact frees 1.2 MiB of flights")
    assert (world.tried, world.done) == ([("compact", "flights")], [])
    dialog.get_by_role("button", name="Compact").click()
    expect(dialog).to_have_count(0)
    assert world.done == [("compact", "flights")]
    expire = page.get_by_role("button", name="Expire")
    expect(expire).to_have_count(2)
    expire.first.click()
    expect(dialog).to_contain_text("expire_hold frees")
    dialog.get_by_role("button", name="Cancel").click()
    assert world.tried[-1] == ("expire_hold", "flights/query:5b3c")
    assert world.done == [("compact", "flights")]


def test_an_action_without_the_token_asks_for_it(open_shard: OpenShard) -> None:
    """And goes on with it."""
    seen = open_shard("flights")
    seen.page.get_by_role("button", name="Sweep").click()
    dialog = seen.page.get_by_role("dialog")
    dialog.locator("input").fill(seen.world.token)
    seen.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("sweep frees")
    assert made_world(seen).done == []


def test_a_shard_that_is_not_there_is_told(open_shard: OpenShard) -> None:
    """So are a location without shards, and a shard without batches."""
    seen = open_shard("no such")
    expect(seen.page.get_by_role("status").filter(has_text="has not looked into")).to_be_visible()
    empty = open_shard(kind="none")
    expect(empty.page.get_by_text("There are no shards in this location yet.")).to_be_visible()
    tables = made_world(seen).tables
    tables.made["shard_batches"] = lambda _now_ms: ()
    seen.go("/shard/weather")
    expect(seen.page.get_by_text("The shard has no batches yet")).to_be_visible()


def test_the_picture_follows_the_shard(open_shard: OpenShard) -> None:
    """A hold that is gone goes, without a reload."""
    seen = open_shard("flights")
    expect(seen.page.locator(".axis .hold")).to_have_count(4)
    tables = made_world(seen).tables
    before = tables.made["shard_holds"]
    tables.made["shard_holds"] = lambda now: (
        row for row in before(now) if row["name"] != "query:5b3c"
    )
    expect(seen.page.locator(".axis .hold")).to_have_count(3)
    expect(seen.page.locator(".axis .kept")).to_have_count(0)


@pytest.mark.parametrize("look", one_of(2, ["narrow", "light"]))
def test_names_from_data_are_neither_obeyed_nor_too_wide(open_shard: OpenShard, look: str) -> None:
    """In the list and on the shard's own screen."""
    seen = open_shard(kind="hostile", look=look)
    link = seen.page.get_by_role("link", name="<img src=x")
    expect(link).to_be_visible()
    link.click()
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("⟨202E⟩gnp.exe")
    expect(seen.page.locator(".axis .batch")).to_have_count(17)
    assert seen.page.locator("img").count() == 0
    assert seen.page.title() != "1"
    assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    wait_until(
        "it is followed by its whole name",
        lambda: seen.page.evaluate("decodeURIComponent(location.pathname)") == f"/shard/{HOSTILE}",
        WAIT_S,
    )


def test_an_axis_true_to_time_is_labelled_at_midnights_of_the_viewer(
    open_shard: OpenShard,
) -> None:
    """Also behind the night in which the clocks of the viewer's zone are changed."""
    seen = open_shard()
    page = seen.page
    texts = page.evaluate(
        """async () => {
          const { labels, makeAxis } = await import("/page/parts/axis.js");
          const [from, to] = ["2026-10-22T06:00Z", "2026-10-29T06:00Z"].map(Date.parse);
          const given = { spacing: "time", left: 0, right: 500, from, to, bounds: [] };
          return labels(makeAxis(given), 6).map(({ text }) => text);
        }"""
    )
    assert texts == [f"{day} Oct" for day in range(23, 30)]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (1_768_615_920_000, 1_768_615_920_001),
        (1_768_615_920_000, 1_768_615_920_200),
        (1_768_615_920_000, 1_768_616_520_000),
    ],
)
def test_a_short_axis_is_labelled_without_a_walk_through_a_day(
    open_shard: OpenShard, start: int, end: int
) -> None:
    """Of a second: its labels are there, and the zone was not asked for in each millisecond."""
    times, texts, asked = open_shard().page.evaluate(
        """async ([from, to]) => {
          const { labels, makeAxis } = await import("/page/parts/axis.js");
          const offset = Date.prototype.getTimezoneOffset;
          let asked = 0;
          Date.prototype.getTimezoneOffset = function () {
            asked += 1;
            return offset.call(this);
          };
          const given = { spacing: "time", left: 124, right: 790, from, to, bounds: [] };
          const found = labels(makeAxis(given), 6.4);
          Date.prototype.getTimezoneOffset = offset;
          return [found.map((one) => one.time), found.map((one) => one.text), asked];
        }""",
        [start, end],
    )
    assert texts[0] == "03:12"
    assert (times[0], times[-1]) == (start, end)
    assert len({b - a for a, b in pairwise(times)}) == 1
    assert asked < 100


@pytest.mark.parametrize(
    ("start", "end", "texts"),
    [
        (0, 8, [str(time) for time in range(9)]),
        # Nanoseconds since 1970, of which a number of JavaScript has every 256th only.
        (1_764_000_000_000_000_000, 1_764_000_000_000_000_256, ["1764000000000000000"]),
    ],
)
def test_an_axis_of_times_that_are_none_of_a_clock_is_labelled(
    open_shard: OpenShard, start: int, end: int, texts: list[str]
) -> None:
    """With the numbers themselves; also where a number and the next one are the same."""
    found = open_shard().page.evaluate(
        """async ([from, to]) => {
          const { labels, makeAxis } = await import("/page/parts/axis.js");
          const given = { spacing: "time", left: 124, right: 790, from, to, bounds: [] };
          return labels(makeAxis(given), 6.4).map(({ text }) => text);
        }""",
        [start, end],
    )
    assert found[: len(texts)] == texts


def with_times(since: int, upper: int) -> ToolsWorld:
    """A world whose shard "flights" has other times, and two batches between them."""
    world = ToolsWorld("many")
    tables = world.tables
    before = dict(tables.made)

    def shards(now: int) -> Iterator[Mapping[str, Any]]:
        for row in before["shards"](now):
            is_it = row["name"] == "flights"
            yield {**row, "since": since, "upper": upper, "batches": 2} if is_it else row

    def batches(now: int) -> Iterator[Mapping[str, Any]]:
        (first, *_) = before["shard_batches"](now)
        for lower, end in pairwise([since, (since + upper) // 2, upper]):
            yield {**first, "shard": "flights", "since": lower, "lower": lower, "upper": end}

    def holds(now: int) -> Iterator[Mapping[str, Any]]:
        for row in before["shard_holds"](now):
            if row["shard"] == "flights":
                yield {**row, "since": since, "gain": (upper - since) // 2}

    tables.made |= {"shards": shards, "shard_batches": batches, "shard_holds": holds}
    return world


def test_a_shard_of_times_beyond_every_date_is_drawn(open_page: OpenPage) -> None:
    """Of nanoseconds, which only its writers know to be some: with the numbers themselves."""
    world = with_times(1_764_000_000_000_000_000, 1_764_000_000_000_001_024)
    page = open_page(world, "/shard/flights").page
    expect(page.get_by_role("heading", level=1)).to_have_text("flights")
    expect(page.locator(".tile").first).to_contain_text("1,764,000,000,000,000,000")
    expect(page.locator(".axis .batch")).to_have_count(2)


def test_times_beyond_the_numbers_of_a_browser_keep_their_digits(open_page: OpenPage) -> None:
    """In all that is followed: a number of JavaScript would have other last digits."""
    world = with_times(1_764_000_000_000_000_123, 1_764_000_000_000_000_323)
    page = open_page(world, "/shard/flights").page
    expect(page.locator(".tile").nth(0)).to_contain_text("1,764,000,000,000,000,123")
    expect(page.locator(".tile").nth(1)).to_contain_text("1,764,000,000,000,000,323")
    batches = page.get_by_role("group", name="Batches, the newest first").get_by_role("row")
    expect(batches.nth(1).get_by_role("cell").first).to_have_text("1,764,000,000,000,000,323")
    expect(batches.nth(2).get_by_role("rowheader")).to_have_text("1,764,000,000,000,000,123")
    expect(batches.nth(2).get_by_role("cell").first).to_have_text("1,764,000,000,000,000,223")
    expect(page.locator(".axis .batch")).to_have_count(2)
    page.locator(".axis .batch rect").last.hover()
    expect(page.locator(".readout")).to_contain_text("1,764,000,000,000,000,223")
    page.get_by_role("link", name="Shards").first.click()
    row = page.get_by_role("row", name="shard flights")
    expect(row).to_contain_text("1,764,000,000,000,000,323")


def test_of_an_earlier_moment_what_was_done_is_told(open_page: OpenPage) -> None:
    """Of one shard and of all; what has no history is said to have none, and is not asked for."""
    world = ServedWorld("demo")
    at = world.clock.now_ms() - 5 * 3_600_000
    seen = open_page(world, f"/shard/storms?at={at}")
    known = [r for r in world.rows("maintenance") if r["shard"] == "storms"]
    moment = datetime.fromtimestamp(at / 1000, UTC)
    then = [r for r in known if datetime.fromisoformat(str(r["occurred_at"])) <= moment]
    assert 0 < len(then) < len(known)
    rounds = seen.page.get_by_role("region", name="Maintenance")
    expect(rounds.locator("h2 + .more")).to_have_text(str(len(then)))
    expect(seen.page.get_by_text("no history is kept of what shards were made of")).to_be_visible()
    seen.page.get_by_role("link", name="Shards").last.click()
    expect(rounds.get_by_role("link", name="storms").first).to_be_visible()
    assert f"/shard?at={at}" in seen.address
