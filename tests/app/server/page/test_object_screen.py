"""The screen of one object in a real browser: how it is and why, its rows, and what can be done."""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from shardline.app.introspection.events import Dropped
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relation import AT, NUMBER, REAL, TEXT, Column, Relation, instant
from shardline.app.server.access import Access
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, InvalidUsage
from support.page.browser import OpenPage, Seen
from support.page.objects import HOSTILE_NAMES
from support.page.screens import scrolls_sideways
from support.page.world import ServedWorld
from support.profiles import one_of, some_of
from support.waiting import wait_until

pytestmark = pytest.mark.browser

KEY = "s3cret"


def world_of(situation: str, **options: Any) -> ServedWorld:
    """A world whose token can be typed."""
    made = ServedWorld(situation, access=Access(KEY), **options)
    made.token = KEY
    return made


def headline(page: Page) -> Any:
    """The head of the screen."""
    return page.locator("header.object-head")


def panel(page: Page, title: str) -> Any:
    """A panel by its heading."""
    return page.get_by_role("region", name=title, exact=True)


def token_field(page: Page) -> Any:
    """The field of the frame's form for the token."""
    return page.get_by_role("textbox", name="Token")


SEEN = {
    "a source that is well": ("demo", "flights", "source", "healthy", ""),
    "a sink": ("demo", "planes_out", "sink", "healthy", ""),
    "frozen": ("frozen", "flights", "source", "frozen", "cannot be read: it is not there"),
    "stalled": ("stalled", "delays_by_carrier", "view", "stalled", "Division by zero"),
    "unreadable": ("unreadable", "flights", "source", "unreadable", "Its contents have 3 errors"),
}


@pytest.mark.parametrize("case", some_of(SEEN, {"a sink", "stalled", "unreadable"}))
def test_an_object_says_how_it_is_why_and_what_to_do(open_page: OpenPage, case: str) -> None:
    """In the application's words, whatever its kind."""
    situation, name, kind, verdict, because = SEEN[case]
    seen = open_page(situation, f"/object/{name}")
    head = headline(seen.page)
    expect(head.get_by_role("heading", name=name)).to_be_visible()
    expect(head.locator(".headline-kind")).to_contain_text(kind)
    expect(head.locator(".verdict")).to_have_text(verdict)
    expect(head).to_contain_text(because)
    (row,) = [row for row in seen.world.rows("verdicts") if row["object_id"] == name]
    if row["to_do"]:
        words = re.sub("`", "", row["to_do"])
        expect(head.locator(".remedy")).to_contain_text(words, ignore_case=True)


def test_an_object_that_waits_leads_to_the_one_to_blame(open_page: OpenPage) -> None:
    """By a link, to the screen of that one."""
    seen = open_page("frozen", "/object/very_late")
    head = headline(seen.page)
    expect(head.locator(".verdict")).to_have_text("waiting")
    expect(head).to_contain_text("flights is frozen")
    head.locator(".cause").get_by_role("link", name="flights").click()
    expect(head.get_by_role("heading", name="flights")).to_be_visible()
    expect(head.locator(".verdict")).to_have_text("frozen")


def test_an_object_that_freezes_and_thaws_is_seen_without_a_reload(open_page: OpenPage) -> None:
    """Its verdict, that of those that read it, and the history, which grows."""
    seen = open_page("demo", "/object/flights")
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")
    readers = panel(seen.page, "What it reads, and who reads it")
    expect(readers.get_by_text("healthy")).to_have_count(3)
    seen.world.become("flights", "frozen")
    expect(headline(seen.page).locator(".verdict")).to_have_text("frozen")
    expect(readers.get_by_text("waiting")).to_have_count(3)
    expect(panel(seen.page, "History").locator("li").first).to_contain_text("frozen until now")
    seen.world.become("flights", "well")
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")
    expect(panel(seen.page, "History").locator("li").nth(1)).to_contain_text("frozen for")


def test_an_unknown_name_is_said_to_be_unknown_with_near_ones(open_page: OpenPage) -> None:
    """Nothing of another object is shown under it."""
    seen = open_page("demo", "/object/delays_by_carier")
    heading = seen.page.get_by_role("heading", level=1)
    expect(heading).to_have_text("There is no object delays_by_carier")
    expect(seen.page.get_by_role("button", name="Pause")).to_have_count(0)
    seen.page.get_by_role("link", name="delays_by_carrier").click()
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")


def test_an_object_that_is_dropped_leaves_its_history(open_page: OpenPage) -> None:
    """While somebody looks at it: the screen turns into that of what is not there."""
    seen = open_page("demo", "/object/planes_out")
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")
    seen.world.life.objects.pop("planes_out")
    seen.world.tell(Dropped(id="planes_out", at_ms=seen.world.clock.now_ms()))
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("There is no object")
    expect(panel(seen.page, "History")).to_contain_text("healthy")
    expect(seen.page.get_by_text("One of its name was dropped")).to_be_visible()
    expect(panel(seen.page, "History")).not_to_contain_text("until now")


def test_an_object_that_waits_to_be_created_is_shown_as_such(open_page: OpenPage) -> None:
    """With its definition and what keeps it; nothing that only a running one has, and no action."""
    seen = open_page("uncreated", "/object/busiest_planes")
    head = headline(seen.page)
    expect(head.get_by_text("not created yet")).to_be_visible()
    expect(head).to_contain_text("It cannot be created: column 'tailnumber' does not exist")
    expect(panel(seen.page, "Definition")).to_contain_text("GROUP BY f.tailnum")
    expect(panel(seen.page, "Freshness")).to_have_count(0)
    expect(seen.page.get_by_role("button", name="Pause")).to_have_count(0)
    seen.world.become("busiest_planes", "well")
    expect(panel(seen.page, "Freshness")).to_be_visible()
    expect(head.get_by_text("not created yet")).to_have_count(0)


# --- contents ------------------------------------------------------------------------------------


def test_rows_are_read_as_of_a_chosen_time_and_are_text(open_page: OpenPage) -> None:
    """One statement for one click, with the name quoted; what was chosen is in the address."""
    seen = open_page(world_of("one"), "/object/flights", token=True)
    rows = panel(seen.page, "Rows")
    rows.get_by_label("As of").fill("2026-01-17T03:12:00")
    with seen.page.expect_request("**/api/v1/sql") as asked:
        rows.get_by_role("button", name="Read rows").click()
    # 03:12 in Berlin, in winter.
    assert asked.value.post_data_json == {
        "query": "SELECT * FROM `flights` LIMIT 20 AS OF 1768615920000"
    }
    body = rows.get_by_role("region", name="Rows that were read")
    expect(body).to_contain_text("<script>alert(1)</script>")
    expect(body).to_contain_text("⟨202E⟩gnp.exe")
    expect(body.get_by_role("cell", name="58665")).to_be_visible()
    expect(rows.locator(".sample-time")).to_have_text("As of 17 Jan 2026, 03:12:00.")
    assert not scrolls_sideways(seen.page)
    expect(seen.page).to_have_url(re.compile(r"rows=20&as_of=1768615920000"))


def test_rows_that_stay_say_when_they_were_read(open_page: OpenPage) -> None:
    """They are not followed: the newest ones of an hour ago must not pass for those of now."""
    seen = open_page(world_of("one"), "/object/flights?rows=20", token=True)
    when = panel(seen.page, "Rows").locator(".sample-time")
    expect(when).to_have_text(
        re.compile(r"^Read (now|[\d.]+\ss ago): the newest contents of then\.$")
    )
    seen.page.evaluate("{ const now = Date.now; Date.now = () => now() + 3_600_000; }")
    expect(when).to_contain_text("Read 1 h")


def test_rows_are_read_on_in_sql(open_page: OpenPage) -> None:
    """The same statement is in the editor there, as of the same time, and was sent to nobody."""
    seen = open_page(world_of("hostile"), f"/object/{quote(HOSTILE_NAMES[5], safe='')}?as_of=7")
    rows = panel(seen.page, "Rows")
    rows.get_by_role("link", name="In SQL").click()
    expect(seen.page.locator(".CodeMirror")).to_contain_text(
        f"SELECT * FROM `{HOSTILE_NAMES[5]}` LIMIT 20 AS OF 7"  # noqa: S608 - it is not run
    )
    assert urlsplit(seen.address).query == ""


def test_errors_lead_to_their_rows_in_sql(open_page: OpenPage) -> None:
    """Quoted, since a name may be anything."""
    seen = open_page("unreadable", "/object/flights")
    panel(seen.page, "Errors").get_by_role("link", name="flights_errors").click()
    expect(seen.page.locator(".CodeMirror")).to_contain_text("SELECT * FROM `flights_errors`")


def test_throughput_is_that_of_now(open_page: OpenPage) -> None:
    """At an earlier moment nobody knows it: that of the present is not shown in its place."""
    seen = open_page("demo", "/object/flights")
    figures = headline(seen.page).locator(".figures")
    expect(figures).to_contain_text(re.compile(r"rows/s\s*last \d\d\ss"))
    counted = panel(seen.page, "Throughput")
    expect(counted).to_contain_text(re.compile(r"Throughput\s*last \d\d\ss"))
    seen.go(f"/object/flights?at={seen.page.evaluate('Date.now()') - 5_000}")
    expect(seen.page.get_by_text("As of ").first).to_be_visible()
    expect(headline(seen.page)).to_contain_text("healthy")
    expect(figures).not_to_contain_text("rows/s")


def test_a_time_in_the_hour_that_comes_twice_stays_what_it_is(open_page: OpenPage) -> None:
    """The field shows 02:30 for both; rows that are read again are of the same time."""
    second = 1_792_891_800_000  # 2026-10-25, 02:30 CET, an hour after 02:30 CEST
    seen = open_page(world_of("one"), f"/object/flights?as_of={second}", token=True)
    rows = panel(seen.page, "Rows")
    expect(rows.get_by_label(re.compile("As of"))).to_have_value(re.compile("^2026-10-25T02:30"))
    rows.get_by_role("button", name="Read rows").click()
    expect(seen.page).to_have_url(re.compile(rf"[?&]as_of={second}\b"))
    expect(seen.page).to_have_url(re.compile(r"[?&]rows="))


def test_a_refused_read_is_told_in_the_applications_words(open_page: OpenPage) -> None:
    """With its hint; the form stays."""
    seen = open_page(world_of("one"), "/object/flights", token=True)
    seen.page.route(
        "**/api/v1/sql",
        lambda route: route.fulfill(
            status=400,
            json={"error": {"code": "TIME_GONE", "message": "that is gone", "hint": "go later"}},
        ),
    )
    rows = panel(seen.page, "Rows")
    rows.get_by_role("button", name="Read rows").click()
    expect(rows.get_by_role("alert")).to_contain_text("that is gone")
    expect(rows.get_by_role("alert")).to_contain_text("go later")


def test_without_the_token_nothing_that_needs_it_is_asked(open_page: OpenPage) -> None:
    """The page says what needs it, and offers to enter it."""
    world = world_of("one")
    seen = open_page(world, "/object/flights?rows=20")
    posts: list[str] = []
    seen.page.on("request", lambda one: posts.append(one.url) if one.method == "POST" else None)
    rows = panel(seen.page, "Rows")
    expect(rows).to_contain_text("Reading rows needs the application's token")
    rows.get_by_role("button", name="Enter the token").click()
    expect(token_field(seen.page)).to_be_focused()
    assert posts == []


def test_lag_is_drawn_and_stands_beside_as_a_table(open_page: OpenPage) -> None:
    """The table has the values of the relation, newest first, below the present one."""
    seen = open_page("demo", "/object/flights?range=24h")
    freshness = panel(seen.page, "Freshness")
    expect(freshness.locator("canvas")).to_be_visible()
    freshness.get_by_text("as a table").click()
    body = freshness.locator("tbody")
    expect(body.locator("tr")).to_have_count(120)  # the newest; the first is that of this moment

    def recorded() -> list[str]:
        rows = seen.world.rows("wallclock_lag_history")
        lags = {row["occurred_at"]: row["lag"] for row in rows if row["object_id"] == "flights"}
        newest = [lags[at] for at in sorted(lags, reverse=True)[:5]]
        return [
            f"{lag}\u00a0ms" if lag < 1000 else f"{round(lag / 1000 + 1e-9, 1):g}\u00a0s"
            for lag in newest
        ]

    # A minute may end in between: then there is one more row on one side for a moment.
    wait_until(
        "the table has what is recorded",
        lambda: body.locator("tr td").all_inner_texts()[1:6] == recorded(),
        20,
    )


def test_an_earlier_moment_is_asked_for_once_and_offers_no_action(open_page: OpenPage) -> None:
    """What is known of then is shown; of what has no history nothing is said or asked."""
    known = {
        "verdicts": [
            {"object_id": "flights", "type": "source", "verdict": "stalled", "tone": "bad"}
        ],
        "objects": [{"id": "flights", "type": "source", "phase": "running"}],
        "wallclock_lag": [{"object_id": "flights", "lag": 61_000}],
    }
    asked: list[str] = []

    def then(route: Route) -> None:
        relation = urlsplit(route.request.url).path.rpartition("/")[2]
        asked.append(relation)
        gone = {"code": "BEFORE_HISTORY", "message": f"{relation} begins later", "hint": ""}
        if relation in known:
            route.fulfill(json={"rows": known[relation]})
        else:
            route.fulfill(status=400, json={"error": gone})

    seen = open_page("demo", "/object/flights")
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")
    seen.page.route("**/api/v1/relations/*as_of=1700000000000*", then)
    seen.go("/object/flights?at=1700000000000")
    expect(headline(seen.page).locator(".verdict")).to_have_text("stalled")
    expect(headline(seen.page)).to_contain_text("1 min 1 s")
    readers = panel(seen.page, "What it reads, and who reads it")
    expect(readers).to_have_text(re.compile("object_dependencies begins later"))
    expect(seen.page.get_by_role("button", name="Pause")).to_have_count(0)
    expect(panel(seen.page, "Throughput")).to_have_count(0)
    assert len(asked) == len(set(asked))
    assert "source_statistics" not in asked


# --- what other relations add --------------------------------------------------------------------


def _phases(facts: Facts, now_ms: int) -> Any:
    for one in facts.objects:
        for batch in (7, 8):
            for phase, took in (("latestOffset", 100), ("addBatch", 300)):
                yield one, batch, instant(now_ms), 400, phase, took


def _percentiles(facts: Facts, _now_ms: int) -> Any:
    for one in facts.objects:
        yield one, 60, 1_500, 2_500, 7_000, 61_000


def _distribution(facts: Facts, _now_ms: int) -> Any:
    for one in facts.objects:
        yield from ((one, 1_000, 0.5), (one, 60_000, 0.0))


def _details(facts: Facts, _now_ms: int) -> Any:
    schema = '[{"name": "carrier", "type": "string"}, {"name": "<b>n</b>", "type": "bigint"}]'
    for one in facts.objects:
        ui = "javascript:alert(1)" if one == "planes" else "http://127.0.0.1:4040/x"
        yield one, "recompute", "it has a window function", schema, f"/checkpoints/{one}", ui


def _columns(*names: str) -> tuple[Column, ...]:
    kinds = {"batch": NUMBER, "started_at": AT, "share": REAL, "object_id": TEXT, "phase": TEXT}
    texts = dict.fromkeys(("strategy", "reason", "schema", "checkpoint", "spark_ui"), TEXT)
    known = kinds | texts
    return tuple(Column(name, known.get(name, NUMBER), "made") for name in names)


MADE = (
    Relation(
        "step_phases",
        "made",
        _columns("object_id", "batch", "started_at", "took", "phase", "elapsed"),
        _phases,
        "object_id",
    ),
    Relation(
        "wallclock_lag_percentiles",
        "made",
        _columns("object_id", "minutes", "p50", "p90", "p99", "max"),
        _percentiles,
        "object_id",
    ),
    Relation(
        "wallclock_lag_distribution",
        "made",
        _columns("object_id", "lag", "share"),
        _distribution,
        "object_id",
    ),
    Relation(
        "object_details",
        "made",
        _columns("object_id", "strategy", "reason", "schema", "checkpoint", "spark_ui"),
        _details,
        "object_id",
    ),
)


def detailed(situation: str) -> ServedWorld:
    """A world whose application tells phases of micro-batches, percentiles, and more of objects."""
    world = world_of(situation)
    relations = world.life.relations
    relations.declared = {**relations.declared, **{one.name: one for one in MADE}}
    return world


def test_phases_percentiles_and_details_are_shown_where_they_are_told(open_page: OpenPage) -> None:
    """Shares of the time by phase; percentiles with units; strategy, columns, checkpoint."""
    seen = open_page(detailed("demo"), "/object/carrier_ranking")
    steps = panel(seen.page, "Steps by phase")
    expect(steps.get_by_role("row", name=re.compile("addBatch"))).to_contain_text("600 ms 75 %")
    expect(steps).to_contain_text("no. 8, 400 ms")
    shares = panel(seen.page, "How often it is how late")
    expect(shares.get_by_role("row", name=re.compile("^1 h"))).to_have_text(
        re.compile(r"1\sh\s*1.5\ss\s*2.5\ss\s*7\ss\s*1\smin\s1\ss")
    )
    kept = panel(seen.page, "How it is kept up to date")
    expect(kept).to_contain_text("Because it has a window function.")
    expect(panel(seen.page, "Columns")).to_contain_text("<b>n</b>")
    spark = panel(seen.page, "In Spark")
    expect(spark).to_contain_text("/checkpoints/carrier_ranking")
    expect(spark.get_by_role("link")).to_have_attribute("href", "http://127.0.0.1:4040/x")


def test_few_minutes_are_no_distribution(open_page: OpenPage) -> None:
    """Of an application that has just been started there is a lag or two."""
    seen = open_page(detailed("fresh"), "/object/flights")
    distribution = panel(seen.page, "How often it is how late")
    expect(distribution).to_contain_text("There are too few minutes for a distribution.")


def test_each_operator_says_whether_it_stands_in_the_way(open_page: OpenPage) -> None:
    """Of a view that is recomputed: which pieces of its query need it, and which would not."""
    seen = open_page("demo", "/object/carrier_ranking")
    steps = panel(seen.page, "How it is kept up to date").get_by_role("listitem")
    join = steps.filter(has_text="LEFT JOIN airlines")
    expect(join).to_contain_text(re.compile(r"carrier\s+incremental"))
    expect(steps.filter(has_text="Window")).to_contain_text(
        re.compile(r"recompute\s+a window function")
    )
    expect(steps.filter(has_text="Correction")).to_contain_text("what the output holds")
    expect(steps.filter(has_text="Persist").locator(".tag")).to_have_count(0)
    seen.go("/object/very_late")
    expect(steps.filter(has_text="Filter").locator(".tag")).to_have_text("linear")


def test_an_address_of_data_is_followed_only_if_it_is_one_of_the_web(open_page: OpenPage) -> None:
    """What a relation has is never run."""
    seen = open_page(detailed("demo"), "/object/planes")
    spark = panel(seen.page, "In Spark")
    expect(spark).to_contain_text("/checkpoints/planes")
    expect(spark.get_by_role("link")).to_have_count(0)


# --- actions -------------------------------------------------------------------------------------


def test_an_action_is_done_when_it_is_confirmed_and_not_before(open_page: OpenPage) -> None:
    """The dialog says what happens; cancelling does nothing."""
    world = world_of("demo")
    seen = open_page(world, "/object/weather", token=True)
    pause = seen.page.get_by_role("button", name="Pause…")
    pause.click()
    dialog = seen.page.get_by_role("dialog", name="Pause weather?")
    expect(dialog).to_contain_text("until somebody resumes it")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert world.acted == []
    pause.click()
    dialog.get_by_role("button", name="Pause").click()
    expect(headline(seen.page).locator(".verdict")).to_have_text("paused")
    assert world.acted == [("pause", "weather")]
    seen.page.get_by_role("button", name="Resume…").click()
    seen.page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(headline(seen.page).locator(".verdict")).to_have_text("healthy")
    assert world.acted == [("pause", "weather"), ("resume", "weather")]


def test_an_action_without_the_token_asks_for_it_and_does_nothing(open_page: OpenPage) -> None:
    """Nor is a wrong one taken for the right one."""
    world = world_of("demo")
    seen = open_page(world, "/object/weather")
    seen.page.get_by_role("button", name="Restart…").click()
    expect(token_field(seen.page)).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    seen.page.evaluate("sessionStorage.setItem('shardline-token', 'another')")
    seen.page.get_by_role("button", name="Restart…").click()
    seen.page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(token_field(seen.page)).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    expect(headline(seen.page)).to_be_visible()
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    assert world.acted == []


def test_a_refused_action_is_told_with_its_hint(open_page: OpenPage) -> None:
    """In the application's words, in the dialog."""

    def refuse(_target: str) -> object:
        raise InvalidUsage("'weather' is busy", code="BUSY", hint="wait a while")

    world = world_of("demo", more=lambda _: {"actions": {"restart": refuse}})
    seen = open_page(world, "/object/weather", token=True)
    seen.page.get_by_role("button", name="Restart…").click()
    dialog = seen.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Restart").click()
    expect(dialog.get_by_role("alert")).to_contain_text("'weather' is busy")
    expect(dialog.get_by_role("alert")).to_contain_text("wait a while")
    expect(dialog.get_by_role("alert")).not_to_contain_text("not known whether")


def test_an_action_without_an_answer_is_not_taken_for_undone(open_page: OpenPage) -> None:
    """The application goes while it is asked: nobody knows what it has done."""
    world = world_of("demo")
    seen = open_page(world, "/object/weather", token=True)
    seen.page.get_by_role("button", name="Restart…").click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    world.stop_server()
    dialog.get_by_role("button", name="Restart").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not known whether it was done")


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    one_of(
        3,
        [
            (ValueError("unforeseen"), True),
            (Fenced("another one has taken over"), True),
            (Indeterminate("it may be there"), True),
            (Determinate("the store is away"), False),
            (InvalidUsage("'weather' is busy"), False),
        ],
    ),
)
def test_an_action_that_may_have_been_done_is_not_told_as_refused(
    open_page: OpenPage, error: Exception, is_unknown: bool
) -> None:
    """Of what fails in the middle nobody knows; the application says of which errors that is so."""

    def fail(_target: str) -> object:
        raise error

    world = world_of("demo", more=lambda _: {"actions": {"restart": fail}})
    page = open_page(world, "/object/weather", token=True).page
    page.get_by_role("button", name="Restart…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Restart").click()
    alert = dialog.get_by_role("alert")
    expect(alert).to_be_visible()
    assert ("not known whether it was done" in alert.inner_text()) is is_unknown


def test_actions_work_by_keyboard_alone(open_page: OpenPage) -> None:
    """The focus goes into the dialog, and back to where it was."""
    world = world_of("demo")
    seen = open_page(world, "/object/weather", token=True)
    restart = seen.page.get_by_role("button", name="Restart…")
    expect(restart).to_be_visible()
    for _ in range(30):
        seen.page.keyboard.press("Tab")
        if restart.evaluate("(one) => one === document.activeElement"):
            break
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("dialog")).to_be_visible()
    seen.page.keyboard.press("Escape")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    expect(restart).to_be_focused()
    assert world.acted == []
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("button", name="Cancel")).to_be_focused()
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    expect(headline(seen.page).get_by_text("It is being restarted.")).to_be_visible()
    assert world.acted == [("restart", "weather")]


# --- hostile, narrow, dark -----------------------------------------------------------------------


@pytest.mark.parametrize("place", one_of(3, range(len(HOSTILE_NAMES))))
def test_a_hostile_name_is_text(open_page: OpenPage, place: int) -> None:
    """It is found by its address, shown as it is, obeyed nowhere, and widens nothing."""
    name = HOSTILE_NAMES[place]
    seen = open_page("hostile", f"/object/{quote(name, safe='')}", "narrow")
    heading = seen.page.get_by_role("heading", level=1)
    shown = re.sub("[\x00-\x1f\u202e]", lambda c: f"⟨{ord(c[0]):04X}⟩", name)
    expect(heading).to_have_text(f"{shown[:200]}…" if len(shown) > 200 else shown)
    expect(panel(seen.page, "Definition")).to_be_visible()
    assert not scrolls_sideways(seen.page)


@pytest.mark.parametrize(
    ("look", "name"),
    one_of(5, product(["narrow", "narrow-dark", "dark", "wide"], ["flights", "busiest_planes"])),
)
def test_an_object_on_fire_fits_each_window(open_page: OpenPage, look: str, name: str) -> None:
    """Nothing is wider than the window, or than its panel; pictures are kept to be looked at."""
    seen: Seen = open_page(detailed("fire"), f"/object/{name}?rows=20", look, token=True)
    expect(panel(seen.page, "Rows").get_by_role("cell", name="58665")).to_be_visible()
    assert not scrolls_sideways(seen.page)
    wide = """panels => panels.flatMap(one => [...one.querySelectorAll("table:not(.scroll *)")]
      .filter(table => table.getBoundingClientRect().right > one.getBoundingClientRect().right)
      .map(() => one.innerText.split("\\n")[0]))"""
    assert seen.page.locator(".panel").evaluate_all(wide) == []
    seen.picture(f"object-{name}-{look}")
