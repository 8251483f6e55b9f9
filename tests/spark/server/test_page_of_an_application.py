"""A real Chromium looks at a real application whose objects freeze before lost parts, and thaw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from shardline.app.coordinator.application import Application
from shardline.app.settings.config import Duration, RuntimeSettings
from support.page.browser import LOOKS, browsing, new_context, pictures_folder
from support.page.screens import headline, node, object_row
from support.spark.isolation import PATIENCE_S, Yard
from support.spark.served import LONG_MS, serving
from support.spark.sinks import parts
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.slow]

# Without maintenance, which might write rows of the part anew before it is read.
SETTINGS = RuntimeSettings(interval_ms=500, restart_pause_max=Duration("4s"), maintenance=False)

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, price INT, note STRING);
CREATE MATERIALIZED VIEW large AS SELECT id, note FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW counts AS
  SELECT price % 7 AS k, count(*) AS n, max(note) AS last FROM orders GROUP BY price % 7;
CREATE INDEX counts_by_k ON counts (k);
CREATE SINK counts_out FROM counts USING parquet OPTIONS (path '${in}/out/counts');
CREATE SINK large_out FROM large USING parquet OPTIONS (path '${in}/out/large');
"""

QUERIES = {
    "large": "SELECT id, note FROM orders WHERE price > 50",
    "counts": "SELECT price % 7, count(*)::BIGINT, max(note) FROM orders GROUP BY price % 7",
}

FREEZING = ("counts", "large_out")
"""A view and a sink: each is stopped while a part comes that it has to read, and that is lost."""


def orders(ids: range) -> str:
    """A file of orders whose rows are too many for a state: they become a part of their own."""
    rows = (f"{i},{i * 7919 % 101},{i * 104_729 % 999_983:x}{i * 15_485_863:x}\n" for i in ids)
    return f"id,price,note\n{''.join(rows)}"


@contextmanager
def taken_away(files: list[Path]) -> Iterator[None]:
    """Files are elsewhere during the block."""
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        yield
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)


def summed(out: Path) -> list[tuple[object, ...]]:
    """The rows that the files of a sink add up to, by DuckDB."""
    with duckdb.connect() as duck:
        written = duck.read_parquet(f"{out}/_upper=*/*.parquet", hive_partitioning=False)
        columns = ", ".join(name for name in written.columns if not name.startswith("_"))
        added = written.aggregate(f"{columns}, sum(_diff) AS copies", columns)
        return sorted(added.filter("copies <> 0").fetchall())


def object_head(page: Page) -> Locator:
    """The head of an object's screen."""
    return page.locator("header.object-head")


def any_of(files: list[Path], folder: str = "") -> re.Pattern[str]:
    """One of the files, if there are several: whichever was met first."""
    return re.compile("|".join(re.escape(f"{folder}{file.name}") for file in files))


def see_verdicts(page: Page, **verdicts: str) -> None:
    """Wait until objects have these verdicts in the table of the first screen."""
    for name, verdict in verdicts.items():
        badge = object_row(page, name).locator(".verdict")
        expect(badge).to_have_text(re.compile(rf"^\s*({verdict})\s*$"), timeout=LONG_MS)


def test_objects_freeze_before_lost_parts_and_thaw(spark: SparkSession, tmp_path: Path) -> None:
    """The page says which part of which shard, and that it is back; nothing is lost or doubled."""
    yard = Yard(tmp_path, {"orders": "id INT, price INT, note STRING"}, QUERIES)
    yard.put("orders", "a", orders(range(2)))
    with (
        browsing() as browser,
        serving(spark, browser, yard, SQL, SETTINGS) as (application, page),
    ):
        expect(headline(page)).to_have_text("All 6 objects are fresh.", timeout=LONG_MS)
        nobody_acts_without_the_token(browser, page)
        for name in FREEZING:
            act(page, name, "Pause")
        see_verdicts(page, **dict.fromkeys(FREEZING, "paused"))
        # Marks are made of what is seen once in a second: a shorter pause would have none.
        until_marked(application, "pause")
        yard.put("orders", "b", orders(range(2, 4_000)))
        yard.until_right("large")
        client = yard.client()
        lost = {
            reader: parts(client, shard)
            for reader, shard in zip(FREEZING, ("orders", "large"), strict=True)
        }
        assert all(lost.values())
        with taken_away([file for files in lost.values() for file in files]):
            for name in FREEZING:
                act(page, name, "Resume")
            the_first_screen_says_what_is_frozen(page, lost)
            the_object_says_which_part(page, lost["counts"])
        the_object_says_that_it_goes_on(page)
        the_first_screen_says_that_all_is_well(page)
        both_are_marked_in_the_time_line(application, page)
        the_page_shows_how_it_was_then(application, page)
    yard.until_right("large", "counts")
    for name in QUERIES:
        wrote = partial(summed, tmp_path / "out" / name)
        wanted = [(*row, 1) for row in yard.expected(name)]
        assert wrote() == wanted, name


def act(page: Page, name: str, what: str) -> None:
    """Do something with an object as a person does: on its screen, confirmed in the dialog."""
    page.get_by_role("link", name="Overview").click()
    object_row(page, name).get_by_role("link", name=name).first.click()
    page.get_by_role("button", name=f"{what}…").click()
    dialog = page.get_by_role("dialog", name=f"{what} {name}?")
    dialog.get_by_role("button", name=what).click()
    expect(dialog).to_have_count(0)
    page.get_by_role("link", name="Overview").click()


def nobody_acts_without_the_token(browser: Browser, page: Page) -> None:
    """Who knows the address only is asked for it, and everything goes on."""
    with new_context(browser, LOOKS["light"]) as context:
        context.set_default_timeout(LONG_MS)
        stranger = context.new_page()
        stranger.goto(f"{page.url.partition('?')[0].rstrip('/')}/object/counts")
        stranger.get_by_role("button", name="Pause…").click()
        expect(stranger.get_by_role("textbox", name="Token")).to_be_focused()
        stranger.keyboard.press("Escape")
        expect(stranger.get_by_role("dialog")).to_have_count(0)
    see_verdicts(page, counts="healthy")


def the_first_screen_says_what_is_frozen(page: Page, lost: dict[str, list[Path]]) -> None:
    """In the sentence, the graph and the table, with cause and remedy, and whose parts they are."""
    see_verdicts(page, counts="frozen", large_out="frozen", counts_by_k="waiting")
    # Both go on, but who begins to read them cannot: the audits find that.
    see_verdicts(page, counts_out="waiting", orders="unreadable", large="unreadable")
    expect(headline(page)).to_have_text("0 of 6 objects are fresh.")
    said = page.locator(".headline p").first
    for name, files in lost.items():
        expect(node(page, name)).to_have_attribute("aria-label", re.compile(", frozen"))
        expect(said).to_contain_text(f"{name} is frozen: part ")
        expect(object_row(page, name)).to_contain_text(any_of(files))
    expect(said).to_contain_text("Because of it counts_by_k and counts_out are not fresh.")
    expect(object_row(page, "counts_out")).to_contain_text("counts is frozen")
    beside = page.get_by_role("region", name="Chosen object")
    expect(beside).to_contain_text("put the part back from a backup")
    page.screenshot(path=pictures_folder() / "freezing-first.png")


def the_object_says_which_part(page: Page, files: list[Path]) -> None:
    """By shard and name, with what to do; its screen is gone to by its name in the table."""
    object_row(page, "counts").get_by_role("link", name="counts").first.click()
    expect(object_head(page).locator(".verdict")).to_have_text("frozen")
    expect(object_head(page)).to_contain_text(any_of(files, "orders/part/"))
    expect(object_head(page)).to_contain_text("is not there")
    expect(object_head(page).locator(".remedy")).to_contain_text("Put the part back")
    page.screenshot(path=pictures_folder() / "freezing-object.png")


def the_object_says_that_it_goes_on(page: Page) -> None:
    """By itself, on the screen that is open, with how long it stood."""
    expect(object_head(page).locator(".verdict")).to_have_text("healthy", timeout=LONG_MS)
    history = page.get_by_role("region", name="History", exact=True)
    expect(history).to_contain_text("frozen for")
    page.screenshot(path=pictures_folder() / "freezing-thawed.png")


def the_first_screen_says_that_all_is_well(page: Page) -> None:
    """Also those that waited, and what failed by itself."""
    page.get_by_role("link", name="Overview").click()
    expect(headline(page)).to_have_text("All 6 objects are fresh.", timeout=LONG_MS)


def until_marked(application: Application, *kinds: str) -> None:
    """Of both objects there are events of these kinds."""
    assert application.feeds is not None
    relations = application.feeds.relations

    def marked() -> set[tuple[object, object]]:
        rows = relations.rows("events")
        return {(row["kind"], row["object_id"]) for row in rows if row["object_id"] in FREEZING}

    wanted = {(kind, name) for kind in kinds for name in FREEZING}
    wait_until("all is marked", lambda: marked() >= wanted, PATIENCE_S)


def both_are_marked_in_the_time_line(application: Application, page: Page) -> None:
    """An error and a recovery of each, beside that it was stopped and resumed."""
    until_marked(application, "error", "recovery", "pause", "start")
    legend = page.get_by_role("list", name="Marks that are shown")
    # As many at least: on a busy machine what reads them may be late for a while by itself.
    for kind in ("error", "recovery"):
        expect(legend).to_contain_text(re.compile(rf"{kind}\s*([2-9]|\d\d)"), timeout=LONG_MS)
    page.screenshot(path=pictures_folder() / "freezing-marks.png")


def the_page_shows_how_it_was_then(application: Application, page: Page) -> None:
    """From mark to mark back to the error: the view was frozen, and by now it is not."""
    assert application.feeds is not None
    rows = application.feeds.relations.rows("events")
    marks = {_at_ms(row) for row in rows}
    # Not any error of it: on a busy machine it may have been late before.
    [frozen, *_] = sorted(
        _at_ms(row)
        for row in rows
        if (row["kind"], row["object_id"]) == ("error", "counts")
        and str(row["message"]).startswith("frozen")
    )
    track = page.get_by_role("slider", name="Moment that is looked at")
    passed: list[str] = []
    for _ in range(len(marks) + 1):
        track.press("ArrowLeft")
        # As the page has it: `page.url` may still be an earlier address.
        passed.append(page.evaluate("new URLSearchParams(location.search).get('at')"))
        if passed[-1] == str(frozen):
            break
    assert passed[-1] == str(frozen), passed
    expect(node(page, "counts")).to_have_attribute("aria-label", re.compile(", frozen"))
    expect(headline(page)).not_to_have_text("All 6 objects are fresh.")
    page.screenshot(path=pictures_folder() / "freezing-then.png")
    page.get_by_role("button", name="Now", exact=True).click()
    expect(headline(page)).to_have_text("All 6 objects are fresh.", timeout=LONG_MS)


def _at_ms(row: Mapping[str, object]) -> int:
    return round(datetime.fromisoformat(str(row["occurred_at"])).timestamp() * 1000)
