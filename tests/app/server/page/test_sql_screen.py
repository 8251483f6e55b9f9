"""SQL in a real browser: editing, running, following, cancelling; nothing is rounded or obeyed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from shardline.app.sql.queries import parse_subscribe
from support.page.browser import OpenPage, Seen
from support.page.tools_world import BIG, ROWS, ToolsWorld, made_world
from support.waiting import wait_until

pytestmark = pytest.mark.browser

WAIT_S = 20.0

OpenSql = Callable[..., Seen]


@pytest.fixture
def open_sql(open_page: OpenPage) -> OpenSql:
    """Opens the screen with a statement, which is not run yet."""

    def open_one(
        sql: str = "", *, token: bool = True, kind: str = "many", look: str = "light"
    ) -> Seen:
        path = f"/sql#sql={quote(sql)}" if sql else "/sql"
        seen = open_page(ToolsWorld(kind), path, look, token=token)
        expect(editor(seen.page)).to_be_visible()
        return seen

    return open_one


def editor(page: Page) -> Locator:
    return page.locator(".CodeMirror")


def run(page: Page) -> None:
    page.get_by_role("button", name="Run").click()


def write(page: Page, sql: str) -> None:
    """Put a statement in the place of the present one, by keyboard."""
    editor(page).click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(sql)


def test_rows_are_shown_as_they_are(open_sql: OpenSql) -> None:
    """No integer is rounded, NULL is not text, numbers stand at the right, the time is told."""
    page = open_sql("SELECT * FROM flights").page
    run(page)
    expect(page.get_by_text(re.compile(r"^6\srows in \d"))).to_be_visible()
    first = page.get_by_role("row").nth(1)
    expect(first).to_contain_text(str(BIG))
    number = first.get_by_role("cell").nth(1)
    expect(number).to_have_css("text-align", "right")
    cells = page.locator(".sql-rows td.null")
    expect(cells).to_have_text(["NULL", "NULL", "empty text"])


def test_a_row_with_a_strategy_has_its_other_columns(open_sql: OpenSql) -> None:
    """It is no answer of EXPLAIN, whose only columns are a strategy and its reason."""
    page = open_sql("SELECT * FROM object_details").page
    run(page)
    headers = page.get_by_role("columnheader")
    expect(headers).to_have_text(["object_id", "strategy", "reason", "checkpoint"])
    expect(page.get_by_role("row").nth(1)).to_contain_text("/d/c/u1-1")


def test_a_large_result_is_cut_and_says_so(open_sql: OpenSql) -> None:
    """The rest is there on request."""
    page = open_sql("SELECT * FROM many").page
    run(page)
    expect(page.get_by_text("2,500 rows in")).to_be_visible()
    expect(page.locator(".sql-rows tbody tr")).to_have_count(1_000)
    expect(page.get_by_text("The first 1,000 of 2,500 rows.")).to_be_visible()
    page.get_by_role("button", name="Show 1,000 more").click()
    expect(page.locator(".sql-rows tbody tr")).to_have_count(2_000)
    page.get_by_role("button", name="Show 500 more").click()
    expect(page.locator(".sql-rows tbody tr")).to_have_count(ROWS)


def test_an_error_is_told_in_the_applications_words_and_its_place_is_marked(
    open_sql: OpenSql,
) -> None:
    """Also where EXPLAIN was put before the statement; and the mark goes with the next change."""
    page = open_sql("SELECT *\nFROM flights WHERE wrong = 1").page
    run(page)
    expect(page.get_by_role("alert")).to_contain_text("sql:2:20: no column 'wrong'")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'origin'?")
    expect(page.get_by_role("alert")).to_contain_text("UNRESOLVED_COLUMN")
    expect(page.locator(".sql-wrong")).to_have_text("wrong")
    write(page, "SELEC 1 FROM flights")
    expect(page.locator(".sql-wrong")).to_have_count(0)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("alert")).to_contain_text("SYNTAX")
    expect(page.locator(".sql-wrong")).to_have_text("1")


def test_a_query_is_cancelled_in_the_application_as_well(open_sql: OpenSql) -> None:
    """By its button; and by leaving the screen."""
    seen = open_sql("SELECT slow FROM flights")
    run(seen.page)
    expect(seen.page.get_by_text("Running…")).to_be_visible()
    seen.page.get_by_role("button", name="Cancel").click()
    expect(seen.page.get_by_text("Cancelled after")).to_be_visible()
    wait_until("it is given up", lambda: len(made_world(seen).given_up) == 1, WAIT_S)
    run(seen.page)
    expect(seen.page.get_by_text("Running…")).to_be_visible()
    seen.page.get_by_role("link", name="Lane").click()
    wait_until("it is given up", lambda: len(made_world(seen).given_up) == 2, WAIT_S)


def test_a_subscription_is_live_and_ends_when_it_is_left(open_sql: OpenSql) -> None:
    """Changes with their diff, the contents that they add up to, and nothing runs on behind."""
    seen = open_sql("-- a comment\nSUBSCRIBE TO delays")
    page, world = seen.page, made_world(seen)
    run(page)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.locator(".sql-answer header")).to_contain_text(re.compile(r"complete before\s+\d"))
    expect(page.locator(".sql-rows .gone").first).to_contain_text("−1")
    expect(page.locator(".sql-rows .come").last).to_contain_text(str(BIG))
    page.get_by_text("Contents", exact=True).click()
    # Two copies of one row, and the last of the others.
    expect(page.locator(".sql-rows tbody tr")).to_have_count(2)
    expect(page.locator(".sql-rows tbody tr").first).to_contain_text(f"2AA{BIG}")
    assert world.followed == ["delays"]
    page.get_by_role("link", name="Project").click()
    wait_until("nobody listens", lambda: not world.followed, WAIT_S)


def test_a_subscription_that_ends_says_why(open_sql: OpenSql) -> None:
    """What it has brought stays."""
    page = open_sql("SUBSCRIBE TO ending").page
    run(page)
    expect(page.get_by_text("It has ended by an error: it has failed")).to_be_visible()
    expect(page.locator(".sql-rows tbody tr")).to_have_count(4)


def test_an_application_that_is_gone_is_told_from_a_query_that_failed(open_sql: OpenSql) -> None:
    """A subscription that breaks off does not look as if it had ended."""
    seen = open_sql("SUBSCRIBE TO delays")
    run(seen.page)
    expect(seen.page.get_by_text("Live", exact=True)).to_be_visible()
    seen.world.stop_server()
    expect(seen.page.get_by_role("alert")).to_contain_text("The application does not answer.")


SUBSCRIPTIONS = [
    "SUBSCRIBE TO delays",
    "subscribe delays;",
    "/* one */ SUBSCRIBE -- WITHOUT\n TO `up to`  -- the end",
    "SUBSCRIBE TO delays WITHOUT SNAPSHOT AS OF 1763711000000 UP TO 1763713000000",
    "SUBSCRIBE delays UP TO '2027-01-01 00:00:00' OF SHARD 's0' AS OF '2025-01-01'",
    'SUBSCRIBE to delays up to r"2027-01-01" without snapshot',
]

RESUME = """async statements => {
  const { resumeStatement } = await import("/page/parts/resume_statement.js");
  return statements.map((sql) => resumeStatement(sql, 1763712000000, "s0123"));
}"""


def test_a_subscription_goes_on_behind_its_last_batch(open_page: OpenPage) -> None:
    """Of the same object and shard, to the same end, with what came after the upper alone."""
    page = open_page("one").page
    for before, text in zip(SUBSCRIPTIONS, page.evaluate(RESUME, SUBSCRIPTIONS), strict=True):
        asked = parse_subscribe(before)
        expected = replace(asked, snapshot=False, as_of=1763711999999, shard="s0123")
        assert parse_subscribe(text) == expected, (before, text)


def test_a_subscription_goes_on_from_where_it_was_after_a_loss(open_sql: OpenSql) -> None:
    """Nothing is lost and nothing comes twice, over a new token, and once more after its end."""
    seen = open_sql("SUBSCRIBE TO delays")
    page = seen.page
    run(page)
    changes = page.locator(".sql-rows tbody tr")
    expect(changes.nth(6)).to_be_visible()
    seen.world.stop_server()
    page.evaluate("sessionStorage.clear()")
    go_on = page.get_by_role("button", name="Go on")
    expect(go_on).to_be_visible()
    expect(page.locator(".sql-answer header")).to_contain_text("It has broken off")
    before = changes.count()
    lost = page.get_by_text(re.compile("^Live,")).or_(page.locator(".as-of.lost"))
    expect(lost).to_be_visible()
    seen.picture("sql-broken-off")
    seen.world.start_server()
    expect(page.locator(".as-of .live-dot:not(.off)")).to_be_visible()
    go_on.click()
    page.locator("input[type=password]").fill(seen.world.token)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(go_on).to_have_count(0)
    expect(changes.nth(before + 6)).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Ended by you")).to_be_visible()
    before = changes.count()
    go_on.click()
    expect(changes.nth(before + 2)).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(go_on).to_be_visible()
    come = [int(text) for text in page.locator(".come td:last-child").all_inner_texts()]
    assert come[-1] == BIG
    numbers = come[-2::-1]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    page.get_by_text("Contents", exact=True).click()
    expect(changes).to_have_text([f"2AA{BIG}", f"1UA{numbers[-1]}"])
    seen.picture("sql-gone-on")


def test_a_subscription_of_an_object_that_was_made_again_does_not_go_on(open_sql: OpenSql) -> None:
    """Nothing would take back the rows that are there; they stay, and it says why."""
    seen = open_sql("SUBSCRIBE TO delays")
    page = seen.page
    run(page)
    expect(page.locator(".sql-rows .gone").first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    made_world(seen).shard = "s-another"
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".sql-answer")).to_contain_text("HISTORY_GONE")
    expect(page.get_by_role("button", name="Go on")).to_have_count(0)
    expect(page.locator(".sql-rows .gone").first).to_be_visible()


WIDER = """async lines => {
  const { StatementRun } = await import("/page/parts/statement_run.js");
  const server = { token: "", async *lines() { yield* lines.shift(); } };
  const run = new StatementRun({ server, redraw() {} }, "SUBSCRIBE TO delays");
  await run.go();
  run.goOn();
  while (run.isRunning) await new Promise((done) => setTimeout(done));
  return [run.columns.map(({ name }) => name), [...run.contents.values()], run.error?.code];
}"""


def test_a_subscription_that_goes_on_takes_columns_that_are_new(open_page: OpenPage) -> None:
    """A row of before is the same row with NULL: it goes when that is taken back."""
    updates = [
        [{"_ts": 1, "_diff": 1, "a": 1}, {"_ts": 1, "_diff": 1, "a": 2}],
        [{"_ts": 2, "_diff": -1, "a": 1, "b": None}, {"_ts": 2, "_diff": 1, "a": 1, "b": "x"}],
    ]
    lines = [[{"upper": at, "updates": some}] for at, some in enumerate(updates, 2)]
    found = open_page("one").page.evaluate(WIDER, lines)
    rows = [{"values": [2, None], "copies": 1}, {"values": [1, "x"], "copies": 1}]
    assert found == [["a", "b"], rows, "CUT_OFF"]


def test_a_time_is_put_into_the_statement_and_read_from_it(open_sql: OpenSql) -> None:
    """What is run is what is seen; the field is in the viewer's zone, the statement in UTC."""
    page = open_sql("SELECT * FROM flights AS OF '2026-07-20T12:00:05Z';").page
    field = page.get_by_label("As of, CEST")
    expect(field).to_have_value("2026-07-20T14:00:05")
    field = page.get_by_label("As of")
    field.fill("2026-11-20T12:00:05")
    expect(editor(page)).to_contain_text("SELECT * FROM flights AS OF '2026-11-20T11:00:05Z';")
    expect(page.get_by_label("As of, CET", exact=True)).to_have_value("2026-11-20T12:00:05")
    write(page, "SELECT 1 FROM flights AS OF 1763640005000")
    expect(field).to_have_value("2025-11-20T13:00:05")
    field.fill("")
    expect(editor(page)).to_contain_text("SELECT 1 FROM flights")
    expect(editor(page)).not_to_contain_text("AS OF")


def test_the_field_for_a_time_stays_inside_of_its_card(open_sql: OpenSql) -> None:
    """Beside the name of its zone, in the narrowest window."""
    page = open_sql("SELECT 1", look="narrow").page
    ends = [
        found.evaluate("e => e.getBoundingClientRect().right")
        for found in (page.get_by_label("As of"), page.locator(".sql-statement"))
    ]
    assert ends[0] < ends[1]


def test_how_a_query_would_be_answered_is_explained(open_sql: OpenSql) -> None:
    """The statement in the editor stays as it is."""
    page = open_sql("SELECT 1 FROM flights").page
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_text("standard avg() and GROUP BY are Spark's")).to_be_visible()
    expect(editor(page)).not_to_contain_text("EXPLAIN")


def test_the_tree_of_a_views_operators_is_a_tree(open_sql: OpenSql) -> None:
    """What is below an operator begins further to the right: blanks are shown."""
    page = open_sql("EXPLAIN VIEW late").page
    run(page)
    below = page.get_by_role("cell", name="flights", exact=True)
    expect(below).to_be_visible()
    # Not by `to_have_text`, which takes blanks away.
    assert below.inner_text() == "  flights"


def test_names_are_completed(open_sql: OpenSql) -> None:
    """Objects, relations, their columns, and words; Enter takes the one that is chosen."""
    page = open_sql().page
    write(page, "SELECT verdict FROM introspection.verd")
    page.keyboard.type("i")
    hints = page.locator(".CodeMirror-hint")
    expect(hints).to_have_text(
        [
            "introspection.verdict_history",
            "introspection.verdict_summary",
            "introspection.verdicts",
        ],
        use_inner_text=True,
    )
    page.keyboard.press("Escape")
    write(page, "SELECT blam FROM introspection.verdicts")
    for _ in range(len(" FROM introspection.verdicts")):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Control+Space")
    expect(editor(page)).to_contain_text("SELECT blame_id FROM")
    write(page, "SELECT * FROM fligh")
    page.keyboard.press("Control+Space")
    expect(editor(page)).to_contain_text("SELECT * FROM flights")


def test_the_statement_is_in_the_address_where_nobody_logs_it(open_sql: OpenSql) -> None:
    """A reload, or a link that was sent, has it again; the request for the page has not."""
    page = open_sql().page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    write(page, "SELECT 'über' AS b")
    expect(page).to_have_url(re.compile(r"/sql#sql=SELECT"))
    page.reload()
    expect(editor(page)).to_contain_text("SELECT 'über' AS b")
    assert not [url for url in asked if "SELECT" in url.partition("#")[0]]


def test_earlier_statements_are_kept_in_this_browser_until_they_are_cleared(
    open_sql: OpenSql,
) -> None:
    """The newest first, each once; choosing one does not run it."""
    page = open_sql("SELECT 1").page
    run(page)
    write(page, "SELECT 2")
    page.keyboard.press("Control+Enter")
    write(page, "SELECT 1")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".statement code")).to_have_text(["SELECT 1", "SELECT 2"])
    page.reload()
    expect(page.locator(".statement code")).to_have_text(["SELECT 1", "SELECT 2"])
    page.get_by_role("button", name="SELECT 2").click()
    expect(editor(page)).to_contain_text("SELECT 2")
    expect(page.get_by_role("heading", name="Result")).to_have_count(0)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".statement")).to_have_count(0)
    assert page.evaluate("localStorage.length") == 0


def test_an_earlier_statement_is_chosen_once_there_is_an_editor(open_sql: OpenSql) -> None:
    """A click before that would be lost."""
    page = open_sql("SELECT 1").page
    run(page)
    expect(page.locator(".statement")).to_be_enabled()
    held: list[Route] = []
    free = False

    def hold(route: Route) -> None:
        route.continue_() if free else held.append(route)

    page.route(re.compile("codemirror", re.IGNORECASE), hold)
    page.reload(wait_until="commit")
    expect(page.locator(".statement")).to_be_disabled()
    free = True
    for one in held:
        one.continue_()
    expect(page.locator(".statement")).to_be_enabled()


def test_the_editor_comes_when_the_application_is_back(open_sql: OpenSql) -> None:
    """As it says where the editor would be: without a reload."""
    seen = open_sql("SELECT 1")
    page = seen.page
    scripts = re.compile("codemirror/mode/sql")
    page.route(scripts, lambda route: route.abort())
    page.reload()
    expect(
        page.get_by_text("It comes by itself when the application answers again.")
    ).to_be_visible()
    page.evaluate("window.notReloaded = true")
    page.unroute(scripts)
    seen.world.stop_server()
    expect(page.locator(".as-of.lost")).to_be_visible()
    seen.world.start_server()
    expect(editor(page)).to_contain_text("SELECT 1")
    assert page.evaluate("window.notReloaded") is True


def test_without_the_token_it_is_asked_for_and_the_statement_then_runs(open_sql: OpenSql) -> None:
    """Nothing has to be written again."""
    seen = open_sql("SELECT * FROM flights", token=False)
    page = seen.page
    run(page)
    expect(page.get_by_role("alert").filter(has_text="TOKEN_NEEDED")).to_be_visible()
    page.locator("input[type=password]").fill(seen.world.token)
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile(r"^6\srows in"))).to_be_visible()


def test_rows_are_never_taken_as_markup(open_sql: OpenSql) -> None:
    """A long value is cut, and opens; what turns the direction of reading is shown."""
    page = open_sql("SELECT hostile FROM flights").page
    run(page)
    cell = page.locator(".sql-rows td.long summary")
    expect(cell).to_contain_text('<img src=x onerror="document.title=1">⟨202E⟩gnp.exe⟨0000⟩ zzz')
    assert page.locator("img").count() == 0
    assert page.title() == "SQL – Shardline"
    cell.click()
    assert len(page.locator(".sql-rows td.long pre").inner_text()) > 10_000
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0


def test_the_keyboard_is_not_caught_in_the_editor(open_sql: OpenSql) -> None:
    """Tab leaves it, and the statement runs by Ctrl+Enter."""
    page = open_sql("SELECT 1").page
    expect(page.locator(".CodeMirror-focused")).to_be_visible()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text(re.compile(r"^6\srows in"))).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run")).to_be_focused()
