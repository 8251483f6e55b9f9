"""The frame of every screen in a real browser: keys, search, token, code, and other sites."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect
from typing_extensions import override

from shardline.app.server.access import Access
from support.page.browser import OpenPage
from support.page.objects import HOSTILE_NAMES
from support.page.world import TOKEN, ServedWorld
from support.profiles import one_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser


def focused(page: Page) -> str:
    """The element that has the focus, in words."""
    return str(
        page.evaluate(
            "(document.activeElement.ariaLabel || document.activeElement.textContent).trim()"
        )
    )


def test_everything_is_reached_by_keyboard(open_page: OpenPage) -> None:
    """From the skip link through the bar into the graph, along its edges, and to the table."""
    seen = open_page("demo")
    page = seen.page
    expect(page.get_by_role("button", name=re.compile("^flights, "))).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "To the content"
    expect(page.locator(".skip")).to_be_in_viewport()
    order = []
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(focused(page))
    assert order[:8] == [
        "Shardline",
        "Overview",
        "Shards",
        "SQL",
        "Lane",
        "Project",
        "Find an object",
        "Keys",
    ]
    assert re.match(r"[a-z_…]+, healthy", order[8]), "one node of the graph"
    begun = page.locator(".node:focus")
    expect(begun).to_have_count(1)
    first = begun.get_attribute("data-node")
    page.keyboard.press("ArrowRight")
    expect(page.locator(f".node:focus:not([data-node='{first}'])")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    expect(page.locator(f".node[data-node='{first}']")).to_be_focused()
    page.keyboard.press("Enter")
    chosen = page.locator(".node.chosen")
    expect(chosen).to_be_focused()
    outline = chosen.locator(".card").evaluate("e => getComputedStyle(e).strokeWidth")
    assert float(outline.removesuffix("px")) >= 2
    page.keyboard.press("Tab")
    assert focused(page) == "Larger"


@pytest.mark.parametrize("path", one_of(2, ["/", "/object/flights", "/shard/flights", "/lane"]))
def test_an_address_of_a_time_that_is_none_is_refused_and_drawn(
    open_page: OpenPage, path: str
) -> None:
    """A digit too many, of which there is no date: the application says so, in the page."""
    page = open_page("one", f"{path}?at=17640000000000000").page
    expect(page.locator("main")).to_contain_text("'17640000000000000' is no time")
    expect(page.locator(".as-of")).to_contain_text("As of 17640000000000000")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".as-of")).to_contain_text("Live")


def test_rows_as_of_a_time_that_is_none_are_not_what_stops_an_object(open_page: OpenPage) -> None:
    """The rest of its screen is drawn."""
    page = open_page("one", "/object/flights?as_of=99999999999999999", token=True).page
    expect(page.get_by_role("heading", level=1)).to_contain_text("flights")
    expect(page.locator("input[name=as_of]")).to_have_value("")


@pytest.mark.parametrize("path", ["/nosuch", "/constructor", "/no/<b>such</b>"])
def test_an_address_that_is_none_leads_to_the_overview(open_page: OpenPage, path: str) -> None:
    """With the frame around it, and without rows of the first screen."""
    seen = open_page("one")
    answer = seen.page.goto(seen.world.url + path)
    assert answer is not None
    assert answer.status == 404
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("There is nothing here")
    expect(seen.page.locator("main")).to_contain_text(quote(path))
    expect(seen.page.locator(".as-of")).to_contain_text("Live")
    assert seen.page.title() == "Not here – Shardline"
    seen.picture("nothing-here")
    seen.page.locator("main").get_by_role("link", name="Overview").click()
    expect(seen.page.get_by_role("table", name="Objects")).to_be_visible()


def test_a_page_that_cannot_be_drawn_says_so_until_it_can(open_page: OpenPage) -> None:
    """What stood there before does not pass for the present."""
    seen = open_page("one")
    expect(seen.page.locator(".as-of")).to_contain_text("Live")
    seen.page.evaluate(
        """async () => {
          const { screen } = await import("/page/screens/overview.js");
          window.draw = screen.draw;
          screen.draw = () => { throw new RangeError("made"); };
        }"""
    )
    expect(seen.page.get_by_role("alert")).to_contain_text("cannot be drawn: RangeError: made")
    expect(seen.page.locator(".as-of")).to_have_count(0)
    seen.page.evaluate(
        """async () => {
          (await import("/page/screens/overview.js")).screen.draw = window.draw;
        }"""
    )
    expect(seen.page.locator(".as-of")).to_contain_text("Live")
    assert seen.wrong
    assert set(seen.wrong) == {"made"}
    seen.wrong.clear()


def test_a_screen_that_comes_late_does_not_take_the_place_of_the_next(open_page: OpenPage) -> None:
    """Its script may be slow: who has gone on meanwhile stays where he is."""
    seen = open_page("demo")
    expect(seen.page.locator(".verdicts")).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    seen.page.route("**/page/screens/sql.js", hold)
    with seen.page.expect_request("**/page/screens/sql.js"):
        seen.page.get_by_role("navigation").get_by_role("link", name="SQL").click()
    lane = seen.page.get_by_role("navigation").get_by_role("link", name="Lane")
    lane.click()
    expect(seen.page.get_by_role("heading", level=1, name="Lane")).to_be_visible()
    with seen.page.expect_response("**/page/screens/sql.js"):
        held[0].continue_()
    seen.page.evaluate("import('/page/screens/sql.js')")
    expect(seen.page.get_by_role("heading", level=1, name="Lane")).to_be_visible()
    assert seen.page.title() == "Lane – Shardline"
    expect(lane).to_have_attribute("aria-current", "page")


def test_a_screen_that_did_not_come_comes_when_the_application_is_back(
    open_page: OpenPage,
) -> None:
    """As the line above it says: without a reload."""
    seen = open_page("demo")
    expect(seen.page.locator(".verdicts")).to_be_visible()
    seen.page.evaluate("window.notReloaded = true")
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    seen.page.get_by_role("navigation").get_by_role("link", name="Lane").click()
    expect(seen.page.locator("main")).to_contain_text("This screen could not be loaded.")
    expect(seen.page.locator("main")).to_contain_text("When it answers this screen comes by itself")
    seen.picture("frame-no-screen")
    seen.world.start_server()
    expect(seen.page.get_by_role("heading", level=1, name="Lane")).to_be_visible()
    assert seen.page.evaluate("window.notReloaded") is True


@pytest.mark.parametrize("path", ["/lane", "/shard?at=1"])
def test_a_screen_that_did_not_come_comes_without_a_new_connection(
    open_page: OpenPage, path: str
) -> None:
    """Nothing is followed at an earlier moment, nor before the first screen."""
    seen = open_page("one")
    screens = re.compile(r"/page/screens/(lane|shard)\.js")
    seen.page.route(screens, lambda route: route.abort())
    seen.go(path)
    expect(seen.page.locator("main")).to_contain_text("This screen could not be loaded.")
    seen.page.evaluate("window.notReloaded = true")
    seen.page.unroute(screens)
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    assert seen.page.evaluate("window.notReloaded") is True


def test_no_screen_turns_the_direction_of_a_name(open_page: OpenPage) -> None:
    """Where ever it stands: each shows it by its code."""
    name = quote(HOSTILE_NAMES[4], safe="")
    seen = open_page("hostile", f"/object/{name}")
    expect(seen.page.get_by_role("region", name="Freshness")).to_contain_text("⟨202E⟩gnp.exe")
    for path in (f"/object/{name}", f"/dataflow/{name}", "/shard", "/lane", "/"):
        seen.go(path)
        expect(seen.page.locator("h1")).to_be_visible()
        expect(seen.page.locator(".as-of .live-dot:not(.off)")).to_be_visible()
        assert not set("\u202e\u0000") & set(seen.page.locator("main").inner_text()), path


def test_the_list_of_keys_opens_and_closes(open_page: OpenPage) -> None:
    """At `?`, and what is typed into a field is no key."""
    seen = open_page("demo")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    seen.page.keyboard.press("?")
    keys = seen.page.get_by_role("dialog")
    expect(keys).to_contain_text("find an object")
    seen.picture("frame-keys")
    seen.page.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    seen.page.get_by_role("searchbox", name="Filter objects").fill("a/b?")
    expect(keys).to_have_count(0)


def test_a_key_right_after_a_dialog_is_closed_is_not_lost(open_page: OpenPage) -> None:
    """It is typed into no field that is gone, and the element's late event takes nothing back."""
    seen = open_page("demo")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    seen.page.keyboard.press("/")
    expect(seen.page.get_by_role("combobox")).to_be_focused()
    seen.page.evaluate(
        """() => {
            const dialog = document.querySelector("dialog");
            window.closed = new Promise((done) => dialog.addEventListener("close", done));
            dialog.requestClose();
            const key = new KeyboardEvent("keydown", { key: "?", bubbles: true });
            document.activeElement.dispatchEvent(key);
        }"""
    )
    seen.page.evaluate("window.closed")
    expect(seen.page.get_by_role("dialog")).to_contain_text("find an object")


def test_search_finds_an_object_by_a_part_of_its_name(open_page: OpenPage) -> None:
    """By keyboard alone; on the first screen it is shown in the graph."""
    seen = open_page("demo")
    page = seen.page
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("/")
    options = page.get_by_role("option")
    expect(options).to_have_count(15)
    page.keyboard.type("rank")
    expect(options).to_have_count(3)
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    seen.picture("frame-search")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    name = seen.address.partition("object=")[2]
    assert "rank" in name
    expect(page.locator(".node.chosen")).to_have_attribute("data-node", name)


@pytest.mark.parametrize("path", ["/", "/lane"])
def test_search_has_the_verdicts_of_now(open_page: OpenPage, path: str) -> None:
    """Those that the screen follows, or as asked for whenever it is opened."""
    seen = open_page("one", path=path)
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    seen.page.keyboard.press("/")
    flights = seen.page.get_by_role("option", name="flights").first
    expect(flights).to_contain_text("healthy")
    seen.page.keyboard.press("Escape")
    seen.world.become("flights", "frozen")
    wait_until("it is frozen", lambda: seen.world.verdict("flights") == "frozen", 30)
    seen.page.keyboard.press("/")
    expect(flights).to_contain_text("frozen")


def test_search_finds_what_there_was_at_the_moment_that_is_looked_at(open_page: OpenPage) -> None:
    """With the verdicts of then, also where the screen follows none."""
    seen = open_page("demo")
    error = next(row for row in seen.world.rows("events") if row["kind"] == "error")
    at = round(datetime.fromisoformat(str(error["occurred_at"])).timestamp() * 1000)
    name = str(error["object_id"])
    assert seen.world.verdict(name) == "healthy"
    seen.go(f"/shard?at={at}")
    expect(seen.page.locator(".as-of.past")).to_be_visible()
    seen.page.keyboard.press("/")
    expect(seen.page.get_by_role("combobox")).to_be_focused()
    seen.page.keyboard.type(name)
    said = str(error["message"]).partition(":")[0]
    expect(seen.page.get_by_role("option").first).to_contain_text(said)


def test_enter_takes_what_was_typed_before_it(open_page: OpenPage) -> None:
    """Also if it comes before the list was drawn again: never what half a name has found."""
    seen = open_page("demo")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    seen.page.keyboard.press("/")
    expect(seen.page.get_by_role("option")).to_have_count(15)
    seen.page.get_by_role("combobox").evaluate(
        """(input) => {
            input.value = "rank";
            input.dispatchEvent(new InputEvent("input", { bubbles: true }));
            for (const key of ["ArrowDown", "ArrowDown", "Enter"])
                input.dispatchEvent(
                    new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        }"""
    )
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    assert seen.address.partition("object=")[2] == "carrier_ranking_by_carrier"


def test_a_printed_link_gives_the_token_once(open_page: OpenPage) -> None:
    """It is gone from the address at once; a second use says what has happened."""
    seen = open_page("demo", path="/healthz")
    link = f"/#code={seen.world.codes.issue()}"
    seen.go(link)
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    assert "code" not in seen.page.url
    assert seen.page.evaluate("sessionStorage.getItem('shardline-token')") == TOKEN
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    again = open_page(seen.world, path=link)
    expect(again.page.get_by_role("dialog")).to_contain_text("this code was used already")
    assert "code" not in again.page.url
    again.picture("frame-code-used")


def test_a_printed_link_is_taken_by_a_page_that_is_open(open_page: OpenPage) -> None:
    """It differs in what stands behind `#` only, so that the browser loads nothing anew."""
    seen = open_page("demo")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    seen.page.evaluate("window.isSamePage = true")
    seen.go(f"/#code={seen.world.codes.issue()}")
    kept = "sessionStorage.getItem('shardline-token')"
    wait_until("it is taken", lambda: seen.page.evaluate(kept) == TOKEN, 20)
    assert "code" not in seen.page.url
    assert seen.page.evaluate("window.isSamePage")
    seen.go("/#code=unknown")
    expect(seen.page.get_by_role("dialog")).to_contain_text("code")
    assert "unknown" not in seen.page.url


def test_where_reading_needs_the_token_the_page_asks_for_it(open_page: OpenPage) -> None:
    """A wrong one is refused in words; the right one stays for as long as the tab."""
    seen = open_page("demo", access=Access(TOKEN, "elsewhere"))
    page = seen.page
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The application's token")
    seen.picture("frame-token")
    page.get_by_label("Token", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("this is not the application's token")
    page.get_by_label("Token", exact=True).fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("All 15 objects are fresh.")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Previous mark")).to_be_enabled()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("All 15 objects are fresh.")


def test_an_earlier_moment_is_asked_for_again_with_the_token(open_page: OpenPage) -> None:
    """A link to a moment was sent to somebody whose page has no token yet."""
    world = ServedWorld("demo", access=Access(TOKEN, "elsewhere"))
    page = open_page(world, f"/object/flights?at={world.clock.now_ms() - 3_600_000}").page
    page.get_by_label("Token", exact=True).fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("flights")
    expect(page.locator("main")).not_to_contain_text("token")


def test_a_late_refusal_does_not_ask_for_the_token_that_was_given_meanwhile(
    open_page: OpenPage,
) -> None:
    """What was asked before it was there is refused after; the form would come back."""
    world = ServedWorld("demo", access=Access(TOKEN, "elsewhere"))
    seen = open_page(world, f"/object/flights?at={world.clock.now_ms() - 3_600_000}")
    page, held = seen.page, list[Route]()
    field = page.get_by_label("Token", exact=True)
    expect(field).to_be_visible()

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/v1/relations", hold)
    page.evaluate(
        """async () => {
          const { Server } = await import("/page/server.js");
          window.late = new Server(() => 0);
          window.answered = window.late.get("/api/v1/relations").catch(({ code }) => code);
        }"""
    )
    field.fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    [route] = held
    route.continue_()
    assert page.evaluate("window.answered") == "TOKEN_NEEDED"
    assert page.evaluate("window.late.needsToken") is False


def test_an_earlier_moment_is_asked_for_again_when_the_application_is_back(
    open_page: OpenPage,
) -> None:
    """Nothing is followed then, so that no connection tells of it."""
    world = ServedWorld("demo")
    seen = open_page(world)
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    world.stop_server()
    at = world.clock.now_ms() - 3_600_000
    seen.page.evaluate(
        """url => {
          history.pushState(null, "", url);
          dispatchEvent(new PopStateEvent("popstate"));
        }""",
        f"/?at={at}",
    )
    expect(seen.page.locator("main")).to_contain_text("does not answer")
    world.start_server()
    expect(seen.page.locator("main")).not_to_contain_text("does not answer")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()


class _OtherSite(BaseHTTPRequestHandler):
    """Serves an empty page of another origin."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title>")

    @override
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def other_site() -> Iterator[str]:
    """Address of another site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OtherSite)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_site_gets_nothing_through_a_visitors_browser(
    open_page: OpenPage, other_site: str
) -> None:
    """Neither by requests, nor by a socket, nor by putting the page into a frame of its own."""
    seen = open_page("demo", path="/healthz")
    page = seen.context.new_page()
    page.goto(other_site)
    code = seen.world.codes.issue()
    tried = page.evaluate(
        """async ([url, code, token]) => {
          const slow = () => new Promise((done) => setTimeout(done, 5_000, "no answer"));
          const attempt = (path, options) => Promise.race([slow(), fetch(url + path, options).then(
            async (a) => `read: ${await a.text()}`, () => "refused")]);
          const json = {method: "POST", headers: {"content-type": "application/json"}};
          const socket = new WebSocket(url.replace("http", "ws") + "/api/v1/subscriptions",
            "shardline-relations-v1");
          const connected = new Promise((done) => {
            socket.onopen = () => done("open");
            socket.onerror = () => done("refused");
          });
          return {
            read: await attempt("/api/v1/relations/verdicts"),
            act: await attempt("/api/v1/actions/pause", {...json, body: '{"target": "flights"}'}),
            plain: await attempt("/api/v1/session", {method: "POST", body: `{"code": "${code}"}`}),
            socket: await Promise.race([slow(), connected]),
          };
        }""",
        [seen.world.url, code, TOKEN],
    )
    assert tried == dict.fromkeys(("read", "act", "plain", "socket"), "refused")
    assert seen.world.acted == []
    assert seen.world.codes.redeem(code) == TOKEN
    page.set_content(f'<iframe src="{seen.world.url}/"></iframe>')
    framed = page.frames[-1]
    framed.wait_for_load_state()
    assert "Shardline" not in framed.content()


def test_the_page_lets_nothing_be_run_that_is_not_its_own(open_page: OpenPage) -> None:
    """The browser itself refuses strings as markup, inline scripts, and what other sites have."""
    seen = open_page("demo")
    expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
    tried = seen.page.evaluate(
        """async () => {
          const refused = (act) => { try { act(); return false; } catch { return true; } };
          const script = document.createElement("script");
          return {
            markup: refused(() => (document.body.innerHTML = "<b>x</b>")),
            source: refused(() => (script.src = "/page/main.js")),
            policy: refused(() => trustedTypes.createPolicy("mine", {})),
            other: await fetch("https://example.org/").then(() => false, () => true),
          };
        }"""
    )
    assert json.dumps(tried) == json.dumps(dict.fromkeys(tried, True))
    seen.wrong.clear()
