"""The first screen in a real browser, in every situation that a person may find it in."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from support.page.browser import OpenPage, hide
from support.page.objects import HOSTILE_NAMES
from support.page.screens import headline, node, scrolls_sideways
from support.page.screens import object_row as row
from support.page.world import SITUATIONS, ServedWorld
from support.profiles import one_of, some_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser

WAIT_S = 30.0
CULPRITS = {
    "starting": ("delays_by_carrier", "starting"),
    "catching up": ("flights", "catching up"),
    "backlog": ("flights", "falling behind"),
    "falling behind": ("busiest_planes", "falling behind"),
    "frozen": ("flights", "frozen"),
    "stalled": ("delays_by_carrier", "stalled"),
    "paused": ("weather", "paused"),
    "unreadable": ("flights", "unreadable"),
    "uncreated": ("busiest_planes", "stalled"),
}
"""Object and verdict that the first screen names, by situation."""


def assert_nothing_lies_behind(page: Page, what: str) -> None:
    """The graph, with all of its nodes, ends above what stands in the corners below it.

    Both are measured in one look: a line that comes or goes above them moves both.
    """
    for name in ("#graph", what):
        page.locator(name).wait_for()
    below, top = page.evaluate(
        """what => ["#graph", what].map(name => document.querySelector(name))
            .map((element, at) => element.getBoundingClientRect()[at ? "top" : "bottom"])""",
        what,
    )
    assert below <= top, what


def test_a_graph_whose_layout_did_not_come_is_laid_out_later(open_page: OpenPage) -> None:
    """The application may be started again just then: nobody has to load the page anew."""
    page = open_page("demo").page
    page.route("**/layout.worker.js", lambda route: route.abort(), times=1)
    with page.expect_event("requestfailed", lambda one: one.url.endswith("layout.worker.js")):
        page.reload()
    expect(page.locator("#graph .node").first).to_be_visible(timeout=20_000)


@pytest.mark.parametrize(
    "situation", some_of(CULPRITS, {"backlog", "frozen", "uncreated", "unreadable"})
)
def test_each_verdict_is_in_the_sentence_the_graph_and_the_table(
    open_page: OpenPage, situation: str
) -> None:
    """With the application's own words, by word and shape; no node lies behind a button."""
    seen = open_page(situation)
    assert_nothing_lies_behind(seen.page, ".graph-tools")
    name, verdict = CULPRITS[situation]
    (summary,) = seen.world.rows("verdict_summary")
    answer = str(summary["summary"]).split(" fresh.")[0]
    expect(headline(seen.page)).to_have_text(f"{answer} fresh.")
    expect(seen.page.locator(".headline p").first).to_contain_text(f"{name} is {verdict}")
    expect(node(seen.page, name)).to_have_attribute("aria-label", re.compile(f", {verdict}"))
    badge = row(seen.page, name).locator(".verdict")
    expect(badge).to_have_text(verdict)
    expect(badge.locator("svg.shape")).to_be_visible()
    (known,) = [r for r in seen.world.rows("verdicts") if r["object_id"] == name]
    if known["bad"]:
        beside = seen.page.get_by_role("region", name="Chosen object")
        expect(beside).to_contain_text(str(known["to_do"]).replace("`", ""))
    seen.picture(f"first-{situation}")


NOTHING_CHOSEN = """async rows => {
  const { drawCounts } = await import("/page/parts/chosen.js");
  const { render } = await import("/page/vendor/lit-html/lit-html.js");
  const box = document.createElement("div");
  render(drawCounts(rows), box);
  return box.querySelector("h2").textContent;
}"""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (0, "No object needs a person"),
        (1, "1\u00a0object needs a person"),
        (2, "2\u00a0objects need a person"),
    ],
)
def test_without_a_choice_the_panel_says_how_many_need_a_person(
    open_page: OpenPage, bad: int, words: str
) -> None:
    """Not that none does, because none is chosen."""
    page = open_page("one").page
    rows = [
        {"object_id": f"o{n}", "verdict": "unreadable" if n < bad else "paused", "bad": n < bad}
        for n in range(3)
    ]
    assert page.evaluate(NOTHING_CHOSEN, rows) == words


@pytest.mark.parametrize(
    "situation", some_of(["empty", "one", "quiet", "finished", "idle"], {"empty", "finished"})
)
def test_what_is_well_looks_calm(open_page: OpenPage, situation: str) -> None:
    """One object, none, an idle one and a finished one."""
    seen = open_page(situation)
    (summary,) = seen.world.rows("verdict_summary")
    expect(headline(seen.page)).to_have_text(str(summary["summary"]))
    expect(seen.page.locator(".tone-bad")).to_have_count(0)
    if situation == "empty":
        expect(seen.page.get_by_text("Nothing runs here.")).to_be_visible()
    else:
        expect(node(seen.page, "flights")).to_be_visible()
    seen.picture(f"first-{situation}")


def test_an_object_that_freezes_and_thaws_is_seen_to_do_so(open_page: OpenPage) -> None:
    """Those that wait for it name it; nothing has to be loaded again."""
    seen = open_page("demo")
    expect(headline(seen.page)).to_have_text("All 15 objects are fresh.")
    seen.world.become("flights", "frozen")
    expect(node(seen.page, "flights")).to_have_attribute("aria-label", re.compile("frozen"))
    expect(row(seen.page, "ranking_out")).to_contain_text("flights is frozen")
    first = seen.page.get_by_role("table", name="Objects").get_by_role("row").nth(1)
    expect(first).to_contain_text("flights")
    seen.world.become("flights", "well")
    expect(headline(seen.page)).to_have_text("All 15 objects are fresh.")


def test_an_object_that_fails_catches_up_and_recovers(open_page: OpenPage) -> None:
    """Its error, its next start, and then how long it still takes."""
    seen = open_page("demo")
    seen.world.become("flights", "stalled", "the broker said no", "ask it again")
    expect(row(seen.page, "flights")).to_contain_text("the broker said no")
    beside = seen.page.get_by_role("region", name="Chosen object")
    expect(beside).to_contain_text("ask it again")
    expect(beside).to_contain_text("Starts again")
    wait_until("it is late", lambda: lag(seen.world, "flights") > 12_000, WAIT_S)
    seen.world.become("flights", "catching up")
    verdict = row(seen.page, "flights").locator(".verdict")
    expect(verdict).to_have_text(re.compile("catching up|falling behind"))
    expect(verdict).to_have_text("healthy")


def lag(world: ServedWorld, name: str) -> int:
    """How far an object is behind, in ms."""
    return int(next(r["lag"] for r in world.rows("wallclock_lag") if r["object_id"] == name))


def test_choosing_a_node_lights_its_slowest_path(open_page: OpenPage) -> None:
    """Up to the source, with each object's lag; the choice is in the address."""
    seen = open_page("falling behind")
    expect(node(seen.page, "busiest_planes")).to_have_attribute("aria-pressed", "true")
    node(seen.page, "ranking_out").click()
    expect(node(seen.page, "ranking_out")).to_have_attribute("aria-pressed", "true")
    lit = seen.page.locator(".node.lit")
    expect(lit.first).to_have_attribute("data-node", re.compile("flights|airlines"))
    beside = seen.page.get_by_role("region", name="Chosen object")
    expect(beside.get_by_role("heading", level=2)).to_contain_text("ranking_out")
    expect(beside.locator(".path li").last).to_contain_text("ranking_out")
    assert "object=ranking_out" in seen.address
    assert int(seen.page.locator(".edge.lit").count()) == int(lit.count()) - 1
    seen.page.reload()
    expect(node(seen.page, "ranking_out")).to_have_attribute("aria-pressed", "true")


COLUMNS = """nodes => nodes.map(node => {
  const [, kind] = node.ariaLabel.match(/, (source|view|index|sink)(?:, |$)/);
  const {x, width} = node.querySelector(".card").getBoundingClientRect();
  return [kind, x + width / 2];
})"""


@pytest.mark.parametrize(
    "situation", ["demo", "one", "deep", pytest.param("large", marks=pytest.mark.night)]
)
def test_sources_stand_left_and_sinks_right(open_page: OpenPage, situation: str) -> None:
    """All of them, however late their rows are wanted, or early they go out; so do groups."""
    seen = open_page(situation)
    nodes = seen.page.locator(".node")
    expect(nodes.first).to_be_attached()
    places = nodes.evaluate_all(COLUMNS)
    left, right = (pick(x for _, x in places) for pick in (min, max))
    sources = [x for kind, x in places if kind == "source"]
    ends = [x for kind, x in places if kind in {"sink", "index"}]
    assert sources == pytest.approx([left] * len(sources), abs=1), "px"
    assert ends == pytest.approx([right] * len(ends), abs=1), "px"


def test_an_application_that_is_killed_is_said_in_large_letters(open_page: OpenPage) -> None:
    """Old rows stay, with the time that they are of; when it is back the page goes on by itself."""
    seen = open_page("demo")
    expect(headline(seen.page)).to_have_text("All 15 objects are fresh.")
    seen.page.evaluate("window.notReloaded = true")
    seen.world.stop_server()
    said = seen.page.locator(".as-of strong")
    expect(said).to_have_text(re.compile(r"^As of \d\d:\d\d:\d\d\sCES?T, [\d.]+\sm?s ago$"))
    letters = said.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert letters >= 24
    expect(headline(seen.page)).to_have_text("All 15 objects are fresh.")
    expect(row(seen.page, "flights")).to_be_visible()
    seen.picture("first-lost")
    seen.world.become("flights", "frozen")
    seen.world.start_server()
    expect(headline(seen.page)).to_contain_text("5 of 15 objects are fresh.")
    expect(seen.page.locator(".as-of")).to_contain_text("Live")
    assert seen.page.evaluate("window.notReloaded") is True


def test_hostile_names_and_rows_are_text(open_page: OpenPage) -> None:
    """Nothing of them is run, no direction is turned, and what is long is cut."""
    seen = open_page("hostile")
    expect(headline(seen.page)).to_be_visible()
    expect(seen.page.locator(".headline p").first).to_contain_text(HOSTILE_NAMES[0])
    expect(node(seen.page, HOSTILE_NAMES[0])).to_be_visible()
    # A person's own script in the page would be one of ours: there are no others.
    sources = seen.page.evaluate("[...document.scripts].map(s => new URL(s.src).pathname)")
    assert sources == ["/page/main.js"]
    assert seen.page.locator("img").count() == 0
    text = seen.page.locator("main").inner_text()
    assert not set("\u202e\u202d\u2066\u0000") & set(text)
    assert "⟨202E⟩gnp.exe" in text
    assert "x" * 300 not in text
    assert not scrolls_sideways(seen.page)
    seen.picture("first-hostile")


def test_three_hundred_objects_stay_readable(open_page: OpenPage) -> None:
    """They are folded; what needs a person is not; search opens what it finds."""
    seen = open_page("large")
    expect(headline(seen.page)).to_contain_text("of 300 objects are fresh.")
    expect(node(seen.page, "stock_summary_10")).to_be_visible()
    assert 10 < seen.page.locator(".node").count() <= 60
    assert_nothing_lies_behind(seen.page, ".folds")
    assert_nothing_lies_behind(seen.page, ".graph-tools")
    group = node(seen.page, "fleet source")
    expect(group).to_be_attached()
    seen.page.keyboard.press("/")
    expect(seen.page.locator("dialog input")).to_be_focused()
    seen.page.keyboard.type("fleet_summary_18")
    expect(seen.page.locator("dialog").get_by_role("option")).to_have_count(1)
    seen.page.keyboard.press("Enter")
    expect(node(seen.page, "fleet_summary_18")).to_be_visible()
    expect(node(seen.page, "fleet_summary_18")).to_have_attribute("aria-pressed", "true")
    seen.page.get_by_role("searchbox", name="Filter objects").fill("web_out")
    expect(seen.page.get_by_role("table", name="Objects").get_by_role("row")).to_have_count(7)
    seen.picture("first-large")


@pytest.mark.night
def test_three_hundred_objects_are_folded_by_strategy(open_page: OpenPage) -> None:
    """Which views are recomputed is one choice away; a large group is opened bit by bit."""
    seen = open_page("large well", "/?object=sales_events_00")
    expect(node(seen.page, "sales view")).to_be_visible()
    seen.page.get_by_role("button", name="Strategy").click()
    recomputed = node(seen.page, "recompute view")
    expect(recomputed).to_be_visible()
    expect(node(seen.page, "sales view")).to_have_count(0)
    views = [r for r in seen.world.rows("object_details") if r["strategy"] == "recompute"]
    assert len(views) > 48
    expect(recomputed).to_have_attribute(
        "aria-label", re.compile(rf"^recompute: {len(views)}\u00a0views,")
    )
    expect(node(seen.page, "linear view")).to_be_visible()
    assert "fold=strategy" in seen.address
    seen.picture("first-large-strategy")
    recomputed.dispatch_event("click")  # it may lie below the bar, which stays at the top
    expect(recomputed).to_have_attribute(
        "aria-label", re.compile(rf"^recompute: {len(views) - 48}\u00a0view")
    )
    recomputed.dispatch_event("click")  # it may be out of sight by now, among so many
    expect(recomputed).to_have_count(0)
    expect(seen.page.locator(".node[aria-label*=', view']")).to_have_count(len(views) + 1)
    seen.page.get_by_role("button", name="Fold all").click()
    expect(recomputed).to_be_attached()


def test_of_many_edges_those_of_a_node_have_their_rows(open_page: OpenPage) -> None:
    """All at once would cover each other: those of the node that is pointed at, or chosen."""
    seen = open_page("large well", "/?open=stock+view&open=web+view")
    edges = seen.page.locator(".edge")
    moving = edges.filter(has_text=re.compile(r"_\d+ → .*: [\d.,k]+\srows/s")).filter(
        has_not_text=re.compile(r": 0\srows/s")
    )
    expect(moving.first).to_be_attached()
    assert edges.count() > 40
    assert not "".join(edges.locator("text").all_text_contents()).strip()
    title = str(moving.first.locator("title").text_content())
    start = title.partition(" → ")[0]
    label = edges.filter(has_text=title.rpartition(":")[0]).locator("text")
    # Among so many it may be out of sight.
    node(seen.page, start).dispatch_event("pointerenter")
    expect(label).to_have_text(re.compile(r"^[\d.,k]+/s$"))
    node(seen.page, start).dispatch_event("pointerleave")
    expect(label).to_have_text("")
    node(seen.page, start).dispatch_event("click")
    expect(node(seen.page, start)).to_have_attribute("aria-pressed", "true")
    expect(label).to_have_text(re.compile(r"^[\d.,k]+/s$"))


def test_edges_have_the_rows_a_second_of_now(open_page: OpenPage) -> None:
    """The same number is in the list for those who listen.

    At an earlier moment nobody knows it: that of the present is not shown in its place.
    """
    seen = open_page("demo")
    edge = seen.page.locator(".edge", has_text="flights → very_late").locator("text")
    expect(edge).to_have_text(re.compile(r"^[\d.,k]+/s$"))
    listed = seen.page.get_by_role("list", name="The graph as a list")
    expect(listed).to_contain_text(re.compile(r"very_late, view, .*reads flights \(.*\srows a sec"))
    seen.page.get_by_role("button", name="Previous mark").click()
    expect(seen.page.get_by_text("As of ").first).to_be_visible()
    expect(edge).to_have_text("")


def test_a_drag_that_ends_without_a_click_takes_none_away(open_page: OpenPage) -> None:
    """The button may be released outside of the window: then the next click counts."""
    seen = open_page("demo")
    expect(node(seen.page, "flights")).to_be_visible()
    box = seen.page.locator("#graph").bounding_box()
    assert box is not None
    seen.page.mouse.move(box["x"] + 5, box["y"] + 5)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 25, box["y"] + 5)
    seen.page.evaluate("window.dispatchEvent(new PointerEvent('pointerup'))")
    seen.page.evaluate("new Promise(done => setTimeout(done))")
    node(seen.page, "flights").dispatch_event("click")
    expect(node(seen.page, "flights")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("look", one_of(2, ["narrow", "narrow-dark"]))
def test_a_narrow_window_has_all_of_it(open_page: OpenPage, look: str) -> None:
    """The table comes second, the graph is one tap away, and nothing goes beyond the edge."""
    seen = open_page("fire", look=look)
    expect(row(seen.page, "flights")).to_be_visible()
    expect(seen.page.locator("#graph")).to_have_count(0)
    assert not scrolls_sideways(seen.page)
    seen.picture(f"first-{look}")
    seen.page.get_by_role("button", name="Show the graph").click()
    expect(node(seen.page, "flights")).to_be_visible()
    assert not scrolls_sideways(seen.page)
    seen.picture(f"first-{look}-graph")


def test_columns_are_sorted_by_what_is_asked_for(open_page: OpenPage) -> None:
    """Numbers as numbers, largest first; once more turns it round."""
    seen = open_page("demo")
    table = seen.page.get_by_role("table", name="Objects")
    sizes = {r["object_id"]: r["records"] for r in seen.world.rows("verdicts") if r["records"]}
    button = table.get_by_role("button", name="Rows")
    button.click()
    expect(table.get_by_role("columnheader", name="Rows")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(table.get_by_role("row").nth(1)).to_contain_text(max(sizes, key=lambda n: sizes[n]))
    button.click()
    expect(table.get_by_role("columnheader", name="Rows")).to_have_attribute(
        "aria-sort", "ascending"
    )
    expect(table.get_by_role("row").nth(1)).to_contain_text(min(sizes, key=lambda n: sizes[n]))


def test_a_page_that_nobody_looks_at_costs_nothing(open_page: OpenPage) -> None:
    """The publisher has no follower then, and the page catches up when it is looked at."""
    seen = open_page("demo")
    expect(headline(seen.page)).to_have_text("All 15 objects are fresh.")
    assert seen.world.publisher.is_running
    hide(seen.page, "hidden")
    wait_until("nobody follows", lambda: not seen.world.publisher.is_running, WAIT_S)
    seen.world.become("flights", "frozen")
    hide(seen.page, "visible")
    expect(headline(seen.page)).to_contain_text("5 of 15")


@pytest.mark.night
def test_every_situation_is_looked_at_in_every_look(open_page: OpenPage) -> None:
    """Pictures are kept, for whoever changes the page."""
    for situation in ("demo", "fire"):
        world = ServedWorld(SITUATIONS[situation])
        for look in ("light", "dark", "wide"):
            seen = open_page(world, look=look)
            expect(node(seen.page, "flights")).to_be_visible()
            assert seen.picture(f"first-{situation}-{look}").stat().st_size > 10_000
