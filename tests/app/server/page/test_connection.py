"""The page says of when its rows are: those of an earlier moment never pass for those of now."""

from __future__ import annotations

import re
from typing import Final

import pytest
from playwright.sync_api import Page, Route, expect

from support.page.browser import OpenPage, hide
from support.waiting import wait_until

pytestmark = pytest.mark.browser

_SWALLOW: Final = """() => {
  window.WebSocket = class { static OPEN = 1; readyState = 0; send() {} close() {} };
}"""
"""From now on a connection is neither made nor refused."""

_LIVE: Final = ".as-of .live-dot:not(.off)"


def goes_on(page: Page) -> None:
    """Wait until moments arrive."""
    expect(page.locator(_LIVE)).to_be_visible()
    shown = page.locator(".as-of time").inner_text()
    expect(page.locator(".as-of time")).not_to_have_text(shown)


def test_what_is_seen_first_after_a_while_has_its_age(open_page: OpenPage) -> None:
    """The network may swallow what the page sends: it is not live before the first moment."""
    page = open_page("demo").page
    goes_on(page)
    page.evaluate(_SWALLOW)
    hide(page, "hidden")
    hide(page, "visible")
    strip = page.locator(".as-of")
    expect(strip).to_have_text(
        re.compile(r"^\s*As of \d\d:\d\d:\d\d\sCES?T, [\d.]+\sm?s ago\. Connecting…")
    )
    expect(page.locator(_LIVE)).to_have_count(0)
    expect(page.locator(".as-of.lost")).to_be_visible()


def test_a_viewers_clock_that_is_wrong_changes_no_age(open_page: OpenPage) -> None:
    """How long nothing has come is counted here, and not from the application's time."""
    page = open_page("demo").page
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000;")
    page.reload()
    goes_on(page)
    page.evaluate(_SWALLOW)
    hide(page, "hidden")
    hide(page, "visible")
    expect(page.locator(".as-of")).to_have_text(re.compile(r", [\d.]+\sm?s ago\. Connecting…"))


def test_a_page_goes_on_without_the_token_that_an_action_has_needed(open_page: OpenPage) -> None:
    """After a start of the application the tab has an old one, and reading needs none."""
    page = open_page("demo", "/object/weather").page
    goes_on(page)
    page.evaluate("sessionStorage.setItem('shardline-token', 'of the run before')")
    page.get_by_role("button", name="Restart…").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    hide(page, "hidden")
    hide(page, "visible")
    expect(page.locator(_LIVE)).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    goes_on(page)


def test_a_page_connects_again_whatever_becomes_of_its_question(open_page: OpenPage) -> None:
    """It asks why the connection was lost; over one that is silently gone none comes."""
    seen = open_page("demo")
    goes_on(seen.page)
    asked: list[Route] = []

    def keep(route: Route) -> None:
        asked.append(route)

    seen.page.route("**/api/v1/relations", keep)
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    wait_until("it has asked", lambda: bool(seen.page.title() and asked), 20)
    seen.world.start_server()
    goes_on(seen.page)


def test_a_relation_that_is_refused_has_no_rows_and_is_asked_for_again(
    open_page: OpenPage,
) -> None:
    """An application that was rolled back does not know it; the next one may."""
    found = open_page("demo").page.evaluate(
        """async () => {
          const { Store } = await import("/page/store.js");
          const asked = [];
          const follow = (_id, _selection, follower) => asked.push(follower);
          const server = { changes: 1, follow, unfollow() {} };
          const store = new Store(server, () => {});
          const one = { relation: "shard_batches" };
          const seen = [];
          const look = () => {
            store.follow([one], undefined);
            seen.push([asked.length, store.rows(one)?.[0].a, store.error(one)?.code]);
          };
          const tell = (text) => {
            asked.at(-1).begun(["a"]);
            asked.at(-1).changed({ snapshot: [[text]] }, 1);
          };
          look();
          tell("old");
          look();
          asked[0].refused({ code: "UNKNOWN_RELATION" });
          look();
          server.changes = 2;
          look();
          tell("new");
          look();
          return seen;
        }"""
    )
    assert found == [
        [1, None, None],
        [1, "old", None],
        [1, None, "UNKNOWN_RELATION"],
        [2, None, "UNKNOWN_RELATION"],
        [2, "new", None],
    ]


def test_a_rate_of_the_last_minute_is_not_of_the_hour_before(open_page: OpenPage) -> None:
    """A page that was hidden has moments of then and of now, and none between."""
    found = open_page("one").page.evaluate(
        """async () => {
          const { Rates } = await import("/page/parts/rates.js");
          const rates = new Rates();
          const growths = [];
          const noted = [[1_000, 0], [2_000, 10], [3_602_000, 36_000], [3_603_000, 36_010]];
          for (const [at, value] of noted) {
            rates.note("rows", value, at);
            growths.push(rates.growth("rows") ?? null);
          }
          return growths;
        }"""
    )
    assert found == [None, {"grown": 10, "ms": 1_000}, None, {"grown": 10, "ms": 1_000}]


def test_a_rate_begins_anew_when_the_clock_of_the_application_is_set_back(
    open_page: OpenPage,
) -> None:
    """From a moment before it to one after it no time is known."""
    found = open_page("one").page.evaluate(
        """async () => {
          const { Rates } = await import("/page/parts/rates.js");
          const rates = new Rates();
          const growths = [];
          for (const [at, value] of [[9_000, 0], [10_000, 10], [5_000, 20], [6_000, 30]]) {
            rates.note("rows", value, at);
            growths.push(rates.growth("rows") ?? null);
          }
          return growths;
        }"""
    )
    assert found == [None, {"grown": 10, "ms": 1_000}, None, {"grown": 10, "ms": 1_000}]


def test_a_machine_that_has_slept_does_not_show_the_past_as_now(open_page: OpenPage) -> None:
    """Its clock has gone on, its timers have not: until a moment comes the page is not live."""
    page = open_page("demo").page
    told = page.evaluate(
        """async () => {
          const { Server } = await import("/page/server.js");
          const server = new Server(() => {});
          const moment = () => server._moment({ mark: "1", at: Date.now(), changes: [] });
          const now = Date.now;
          moment();
          const told = [server.connected];
          Date.now = () => now() + 3_600_000;
          told.push(server.connected);
          moment();
          told.push(server.connected);
          Date.now = now;
          return told;
        }"""
    )
    assert told == [True, False, True]


def test_on_a_telephone_a_lost_connection_is_said_to_its_end(open_page: OpenPage) -> None:
    """The time, and that nothing answers: both within the strip, which is as high as before."""
    seen = open_page("demo", look="narrow")
    goes_on(seen.page)
    strip = seen.page.locator(".as-of-inside")
    height = strip.evaluate("e => e.clientHeight")
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    outer = strip.bounding_box()
    assert outer is not None
    for text in (re.compile(r"^As of .* ago$"), "The application does not answer."):
        inner = strip.get_by_text(text).bounding_box()
        assert inner is not None
        assert inner["width"] > 0
        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
        assert outer["y"] <= inner["y"]
        assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]
    assert strip.evaluate("e => e.clientHeight") == height
    seen.picture("connection-lost")
