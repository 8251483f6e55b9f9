"""The time line in a real browser: looking back, from mark to mark, and back to now."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from itertools import cycle
from typing import Any

import pytest
from playwright.sync_api import Locator, Response, Route, expect

from shardline.app.introspection.events import Remembered
from support.page.browser import OpenPage, Seen, find_barriers
from support.page.screens import node
from support.page.world import ServedWorld, Situation
from support.profiles import one_of, some_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser

MINUTE, HOUR = 60_000, 3_600_000


def at_ms(row: dict[str, Any]) -> int:
    """When an event was."""
    return round(datetime.fromisoformat(str(row["occurred_at"])).timestamp() * 1000)


def events(world: ServedWorld, *kinds: str) -> list[dict[str, Any]]:
    return [row for row in world.rows("events") if not kinds or row["kind"] in kinds]


def test_days_of_a_time_line_begin_at_midnight_all_through(open_page: OpenPage) -> None:
    """Also those before a night in which the clocks are set: that day has 25 hours."""
    days = open_page("demo").page.evaluate(
        """async () => {
          const { ticksOf } = await import("/page/parts/marks.js");
          const to = Date.parse("2026-11-10T12:00:00+01:00");
          const DAY = 86400000;
          const ticks = ticksOf(to - 30 * DAY, to, 5 * DAY);
          return ticks.map((at) => new Date(at).toString().slice(4, 21));
        }"""
    )
    assert days == [
        f"{day} 2026 00:00" for day in ("Oct 16", "Oct 21", "Oct 26", "Oct 31", "Nov 05", "Nov 10")
    ]


def track(seen: Seen) -> Locator:
    return seen.page.get_by_role("slider", name="Moment that is looked at")


def chosen(seen: Seen) -> int | None:
    """The moment in the address."""
    _, _, text = seen.address.partition("at=")
    return int(text) if text else None


def click_at(seen: Seen, ms: int, span: int) -> None:
    """Click on the time line where a moment is."""
    box = track(seen).bounding_box()
    assert box is not None
    now = seen.page.evaluate("Date.now()")
    place = track(seen).evaluate("e => getComputedStyle(e).paddingLeft")
    inside = box["width"] - 2 * float(place.removesuffix("px"))
    x = float(place.removesuffix("px")) + inside * (1 - (now - ms) / span)
    track(seen).click(position={"x": x, "y": 20})


def test_a_moment_before_an_error_is_looked_at(open_page: OpenPage) -> None:
    """A click on the line shows all as it was; the mark itself shows what has gone wrong."""
    seen = open_page("demo")
    error, *_ = events(seen.world, "error")
    name, when = str(error["object_id"]), at_ms(error)
    expect(seen.page.get_by_text("All 15 objects are fresh.").first).to_be_visible()
    click_at(seen, when - 45 * MINUTE, 24 * HOUR)
    expect(seen.page.get_by_text("As of ").first).to_contain_text(", 16 h")
    before = chosen(seen)
    assert before is not None
    assert abs(before - (when - 45 * MINUTE)) < 5 * MINUTE
    expect(seen.page.get_by_text("All 15 objects are fresh.").first).to_be_visible()
    click_at(seen, when, 24 * HOUR)
    assert chosen(seen) == when
    expect(seen.page.get_by_text("14 of 15 objects are fresh.").first).to_be_visible()
    expect(seen.page.locator(".timeline-said")).to_contain_text(name)
    expect(track(seen)).to_have_attribute("aria-valuetext", re.compile(name))
    seen.picture("timeline-error")
    seen.page.get_by_role("button", name="Now", exact=True).click()
    expect(seen.page.get_by_text("As of ")).to_have_count(0)
    assert chosen(seen) is None


def test_one_goes_from_mark_to_mark_by_the_keyboard_alone(open_page: OpenPage) -> None:
    """Each mark once, to the first one and back to now; nothing else on the page moves."""
    seen = open_page("demo")
    moments = sorted({at_ms(row) for row in events(seen.world)})
    expect(seen.page.get_by_role("button", name="Previous mark")).to_be_enabled()
    for _ in range(60):
        if seen.page.evaluate("document.activeElement.getAttribute('role')") == "slider":
            break
        seen.page.keyboard.press("Tab")
    expect(track(seen)).to_be_focused()
    for moment in moments[:-4:-1]:
        seen.page.keyboard.press("ArrowLeft")
        assert chosen(seen) == moment
    seen.page.keyboard.press("ArrowRight")
    assert chosen(seen) == moments[-2]
    seen.page.keyboard.press("Home")
    assert chosen(seen) == moments[0]
    seen.page.keyboard.press("Shift+ArrowRight")
    assert chosen(seen) == moments[0] + 24 * MINUTE
    seen.page.keyboard.press("-")
    expect(seen.page.get_by_role("button", name="30 d")).to_have_attribute("aria-pressed", "true")
    seen.page.keyboard.press("+")
    seen.page.keyboard.press("+")
    expect(seen.page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    seen.page.keyboard.press("End")
    assert chosen(seen) is None
    expect(track(seen)).to_have_attribute("aria-valuetext", "Now")


def test_keys_that_come_faster_than_frames_all_count(open_page: OpenPage) -> None:
    """Each goes on from what the one before it has done, drawn or not."""
    seen = open_page("demo")
    moments = sorted({at_ms(row) for row in events(seen.world)})
    expect(seen.page.get_by_role("button", name="Previous mark")).to_be_enabled()
    press = """(track, keys) => {
      for (const key of keys)
        track.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    }"""
    track(seen).evaluate(press, ["+", "+"])
    expect(seen.page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    track(seen).evaluate(press, ["ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight"])
    assert chosen(seen) == moments[-2]


@pytest.mark.parametrize("way", ["key", "button", "click"])
def test_the_newest_mark_is_gone_to_in_the_second_in_which_it_was_made(
    open_page: OpenPage, way: str
) -> None:
    """It is a moment, and not the present: else nothing would happen until the second is over."""
    world = ServedWorld(Situation("one", seconds=1, hours=24))
    newest = world.clock.now_ms() + HOUR
    rounds = ((newest, ("flights", 90.0, 2, None, None, ())),)
    world.tell(Remembered(relation="maintenance", rows=rounds))
    seen = open_page(world)
    back = seen.page.get_by_role("button", name="Previous mark")
    expect(back).to_be_enabled()
    # The page's clock stands, ahead of that of the application: the mark stays as new as it is.
    seen.page.evaluate("now => { Date.now = () => now; }", newest + 500)
    expect(track(seen)).to_have_attribute("aria-valuenow", str(newest + 500))
    if way == "key":
        track(seen).press("ArrowLeft")
    elif way == "button":
        back.click()
    else:
        click_at(seen, newest, 24 * HOUR)
    assert chosen(seen) == newest


def test_a_moment_that_is_not_known_says_since_when_it_is(open_page: OpenPage) -> None:
    """The answer of the application has the first moment; the line is still there."""
    seen = open_page("one")
    first = at_ms(events(seen.world)[0])
    answer = seen.page.request.get(
        f"{seen.world.url}/api/v1/relations/verdicts?as_of={first - 30 * 24 * HOUR}"
    )
    assert answer.json()["error"]["code"] == "BEFORE_HISTORY"
    seen.go(f"/?at={first - 30 * 24 * HOUR}")
    expect(seen.page.get_by_text("As of ").first).to_contain_text(re.compile(r"3[01]\sd"))
    expect(track(seen)).to_be_visible()
    seen.page.get_by_role("button", name="Next mark").click()
    assert chosen(seen) == first


def test_nothing_comes_after_a_moment_before_the_marks_are_there(open_page: OpenPage) -> None:
    """The present least of all: who steps on from a moment wants the mark behind it."""
    world = ServedWorld(Situation("one", seconds=1, hours=24))
    first = at_ms(events(world)[0])
    seen = open_page(world, path="/healthz")
    held: list[Route] = []
    seen.page.route("**/api/v1/relations/events", lambda route: held.append(route))  # noqa: PLW0108
    seen.go(f"/?at={first}")
    expect(track(seen)).to_be_visible()
    expect(seen.page.get_by_role("button", name="Now", exact=True)).to_be_enabled()
    expect(seen.page.get_by_role("button", name="Next mark")).to_be_disabled()
    track(seen).press("ArrowRight")
    assert chosen(seen) == first
    for one in held:
        one.continue_()
    seen.page.get_by_role("button", name="Next mark").click()
    assert chosen(seen) not in {first, None}


_EVENTS = "**/api/v1/relations/events*"


def test_marks_that_could_not_be_read_are_said_to_be_missing(open_page: OpenPage) -> None:
    """And are asked for with the next connection: a line without marks is no quiet day."""
    seen = open_page("demo", path="/healthz")
    seen.page.route(_EVENTS, lambda route: route.abort())
    seen.go("/")
    said = seen.page.locator(".timeline-said")
    expect(said).to_contain_text("No marks yet The application does not answer.")
    expect(seen.page.get_by_text("All 15 objects are fresh.").first).to_be_visible()
    seen.page.unroute(_EVENTS)
    seen.world.stop_server()
    expect(seen.page.locator(".as-of.lost")).to_be_visible()
    seen.world.start_server()
    expect(seen.page.get_by_role("button", name="Previous mark")).to_be_enabled()
    expect(said).not_to_contain_text("No marks yet")


def test_marks_are_asked_for_again_in_a_while_after_a_failure(open_page: OpenPage) -> None:
    """At a moment of the past there is no connection that could come back."""
    world = ServedWorld(Situation("one", seconds=1, hours=24))
    seen = open_page(world, path="/healthz")
    seen.page.route(_EVENTS, lambda route: route.abort())
    seen.go(f"/?at={at_ms(events(world)[0])}")
    expect(seen.page.locator(".timeline-said")).to_contain_text("No marks yet")
    seen.page.unroute(_EVENTS)
    seen.page.evaluate("{ const now = Date.now; Date.now = () => now() + 31_000; }")
    expect(seen.page.get_by_role("button", name="Next mark")).to_be_enabled()
    seen.page.route(_EVENTS, lambda route: route.abort())
    seen.page.evaluate("{ const now = Date.now; Date.now = () => now() + 31_000; }")
    expect(seen.page.locator(".timeline-said")).to_contain_text("Marks as of ")
    expect(seen.page.get_by_role("button", name="Next mark")).to_be_enabled()


def test_only_new_events_are_asked_for_again(open_page: OpenPage) -> None:
    """Each is shown once: also one that becomes known late, and one beside the newest."""
    seen = open_page(ServedWorld(Situation("one", seconds=1, hours=0)), path="/healthz")
    asked: list[Response] = []
    now = seen.world.clock.now_ms()
    rows = [
        (now - 5 * HOUR + at * MINUTE, ("flights", "source", verdict, "disk full", ""))
        for at in range(60)
        for verdict in (("stalled", "healthy")[at % 2],)
    ]
    seen.world.tell(Remembered(relation="verdict_history", rows=tuple(rows)))

    def note(answer: Response) -> None:
        if "/relations/events" in answer.url:
            asked.append(answer)

    seen.page.on("response", note)
    seen.go("/")
    legend = seen.page.get_by_role("list", name="Marks that are shown")

    screens = cycle(["Shards", "Overview"])

    def shown() -> None:
        """As many as there are, of each kind, on the next screen: it asks at once."""
        seen.page.get_by_role("link", name=next(screens)).click()
        for kind, many in Counter(str(row["kind"]) for row in events(seen.world)).items():
            expect(legend.get_by_role("listitem").filter(has_text=kind)).to_have_text(
                f"{kind} {many}"
            )

    def ways() -> list[str]:
        return ["newer" if "from=" in answer.url else "all" for answer in asked]

    expect(legend).to_contain_text("error")
    expect(seen.page.get_by_text("Live, ")).to_be_visible()
    with seen.page.expect_response(_EVENTS):
        shown()
    asked.clear()
    before = len(events(seen.world))
    newest = at_ms(events(seen.world)[-1])
    # At the very moment of the newest, and after it.
    rounds = tuple(
        (newest + at, ("flights", 90.0, merges, None, None, ()))
        for at, merges in ((0, 1), (0, 2), (1, 1))
    )
    seen.world.tell(Remembered(relation="maintenance", rows=rounds))
    assert len(events(seen.world)) == before + 3
    shown()
    assert ways() == ["newer"]
    assert 3 <= len(asked[0].json()["rows"]) < 10
    # Long before: all are asked for.
    asked.clear()
    late = (now - 4 * HOUR, ("airlines", 90.0, 2, None, None, ()))
    seen.world.tell(Remembered(relation="maintenance", rows=(late,)))
    assert len(events(seen.world)) == before + 4
    shown()
    assert ways() == ["newer", "all"]
    # They are held by now.
    asked.clear()
    with seen.page.expect_response(_EVENTS):
        shown()
    assert ways() == ["newer"]


def test_the_slowest_path_of_then_is_lit(open_page: OpenPage) -> None:
    """Of an earlier moment as well: choosing a node says who was to blame."""
    world = ServedWorld(Situation("demo", seconds=1, hours=2))
    seen = open_page(world, path="/healthz")
    at = world.clock.now_ms() - HOUR
    (slowest,) = [
        row["slowest_local_input_id"]
        for row in world.life.relations.rows("materialization_lag", as_of=at)
        if row["object_id"] == "delays_by_carrier"
    ]
    seen.go(f"/?at={at}&object=delays_by_carrier")
    expect(node(seen.page, str(slowest))).to_have_class(re.compile("lit"))
    expect(node(seen.page, "delays_by_carrier")).to_have_class(re.compile("lit"))


def test_every_kind_has_a_word_and_a_shape(open_page: OpenPage) -> None:
    """By which those tell them apart who do not see the colours."""
    world = ServedWorld("demo")
    world.become("flights", "paused")
    now = world.clock.now_ms()
    rows = (
        (now - 3 * HOUR, ("start", ())),
        (now - 2 * HOUR, ("end", ())),
        (now - HOUR, ("start", tuple(world.life.objects))),
    )
    old = ("old", "view", "created", "compute", "u9", 1, "SELECT 1", "view", (), None, None)
    gone = (
        (now - 50 * MINUTE, old),
        (now - 40 * MINUTE, ("old", "view", "dropped", *(None,) * 8)),
    )
    asked = ((now - 30 * MINUTE, ("restart", "flights", "done", None)),)
    world.tell(
        Remembered(relation="action_history", rows=asked),
        Remembered(relation="run_history", rows=rows),
        Remembered(relation="definition_history", rows=gone),
    )
    # The page asks for marks when it is opened, and again after half a minute only: longer than
    # this test waits for any of them.
    wait_until("the pause is a mark", lambda: bool(events(world, "pause")), 30)
    seen = open_page(world)
    kinds = {str(row["kind"]) for row in events(world)}
    assert kinds == {
        "start", "error", "recovery", "definition", "maintenance", "action", "drop", "pause"
    }  # fmt: skip
    legend = seen.page.get_by_role("list", name="Marks that are shown")
    shapes = set()
    for kind in kinds:
        one = legend.get_by_role("listitem").filter(has_text=kind)
        expect(one).to_be_visible()
        shapes.add(one.locator("svg").inner_html())
    assert len(shapes) == len(kinds)
    seen.picture("timeline-kinds")


def test_a_mark_has_its_time_in_utc(open_page: OpenPage) -> None:
    """As every time of the page: where it is pointed at."""
    track = open_page("demo").page.locator(".timeline-track")
    expect(track.locator(".mark").first).to_be_attached()
    in_utc = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC$")
    for one in (".mark", ".tick"):
        assert in_utc.match(str(track.locator(f"{one} > title").first.text_content()))


def test_what_stands_together_is_told_by_its_sums(open_page: OpenPage) -> None:
    """The mark that matters most in words, of the others how many there are of each kind."""
    world = ServedWorld(Situation("one", seconds=1, hours=0))
    at = world.clock.now_ms() - 6 * HOUR
    rounds = tuple((at + n, ("flights", 90.0, 2, None, None, ())) for n in range(5))
    verdicts = (
        (at, ("flights", "source", "stalled", "disk full", "")),
        (at + 5, ("flights", "source", "healthy", "", "")),
    )
    world.tell(
        Remembered(relation="maintenance", rows=rounds),
        Remembered(relation="verdict_history", rows=verdicts),
    )
    seen = open_page(world)
    said = seen.page.locator(".timeline-said")
    expect(said).not_to_be_empty()
    seen.page.locator(".timeline-track .bin").first.locator(".mark-error").hover(force=True)
    expect(said).to_contain_text("stalled: disk full; and 1 recovery, 5 rounds of maintenance")


@pytest.mark.parametrize(
    ("age", "shown"),
    [(MINUTE, "10 min"), (20 * MINUTE, "1 h"), (5 * HOUR, "6 h"), (72 * HOUR, "1 d")],
)
def test_a_short_past_fills_the_line(open_page: OpenPage, age: int, shown: str) -> None:
    """An hour after the start all marks would stand at the edge of a day."""
    world = ServedWorld(Situation("one", seconds=1, hours=0))
    row = (world.clock.now_ms() - age, ("flights", "source", "stalled", "disk full", ""))
    world.tell(Remembered(relation="verdict_history", rows=(row,)))
    seen = open_page(world)
    zooms = seen.page.get_by_role("group", name="Time that is shown")
    expect(zooms.locator("[aria-pressed=true]")).to_have_text(shown)


def test_a_mark_of_a_clock_that_is_ahead_is_to_come(open_page: OpenPage) -> None:
    """The browser's clock is not the application's: no span is less than nothing."""
    world = ServedWorld(Situation("one", seconds=1, hours=0))
    at = world.clock.now_ms() + 2 * HOUR + 30_000
    row = (at, ("flights", "source", "stalled", "disk full", ""))
    world.tell(Remembered(relation="verdict_history", rows=(row,)))
    seen = open_page(world)
    expect(seen.page.locator(".timeline-said")).to_contain_text("in 2 h")


def test_ten_thousand_marks_stay_few_on_the_screen(open_page: OpenPage) -> None:
    """Those that would overlap are one."""
    world = ServedWorld("one")
    now = world.clock.now_ms()
    rows = tuple(
        (
            now - 24 * HOUR + number * 8_000,
            ("flights", "source", ("stalled", "healthy")[number % 2], "disk full", ""),
        )
        for number in range(9_900)
    )
    world.tell(Remembered(relation="verdict_history", rows=rows))
    seen = open_page(world)
    expect(seen.page.locator(".timeline-legend")).to_contain_text("error 4")
    marks = seen.page.locator(".timeline-track .bin").count()
    assert 50 < marks < 110


@pytest.mark.parametrize("look", one_of(4, ["narrow", "light", "dark", "narrow-dark"]))
def test_the_line_fits_every_window(open_page: OpenPage, look: str) -> None:
    """Nothing reaches beyond the window, nothing is hidden behind the line."""
    seen = open_page("fire", look=look)
    expect(seen.page.locator(".timeline-said")).not_to_be_empty()
    seen.page.keyboard.press("End")
    wide = seen.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    overlap = seen.page.evaluate(
        """() => {
          scrollTo(0, document.body.scrollHeight);
          const last = document.querySelector("main").lastElementChild.getBoundingClientRect();
          return last.bottom - document.querySelector(".timeline").getBoundingClientRect().top;
        }"""
    )
    assert overlap <= 0
    over = seen.page.evaluate(
        """() => {
          const box = (name) => document.querySelector(name).getBoundingClientRect();
          return box(".timeline-said").bottom - box(".timeline-track").top;
        }"""
    )
    assert over <= 0, "the words stand over the marks"
    seen.picture(f"timeline-{look}")
    error, *_ = events(seen.world, "error")
    seen.go(f"/?at={at_ms(error)}")
    strip = seen.page.locator(".as-of.past strong")
    expect(strip).to_be_visible()
    cut = strip.evaluate("e => e.getBoundingClientRect().right - innerWidth")
    assert cut <= 0
    seen.picture(f"timeline-past-{look}")


@pytest.mark.parametrize("look", some_of(["light", "dark", "narrow"], ["dark"]))
def test_a_moment_of_the_past_is_for_everybody(open_page: OpenPage, look: str) -> None:
    """The accessibility checker finds nothing, neither now nor as of an error."""
    seen = open_page("demo", look=look)
    expect(seen.page.locator(".timeline-said")).not_to_be_empty()
    assert find_barriers(seen.page) == []
    error, *_ = events(seen.world, "error")
    seen.go(f"/?at={at_ms(error)}")
    expect(seen.page.get_by_text("14 of 15 objects are fresh.").first).to_be_visible()
    assert find_barriers(seen.page) == []
