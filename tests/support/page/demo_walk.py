"""A browser opens the page of the main job by its printed link, and stays in its troubles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urljoin

from playwright.sync_api import Browser, Locator, expect

from support.page.browser import Look, new_context, watch_page
from support.waiting import wait_until

__all__ = ["DemoWalk", "Visitor"]

_LINK: Final = re.compile(r"^page +(http://\S+)$", re.MULTILINE)

_LONG_MS: Final = 120_000.0
"""For what Spark takes its time for, on cores that are busy."""

_SCREENS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/": "carrier_ranking",
        "/object/carrier_ranking": "mean_arr_delay",
        "/dataflow/carrier_ranking": "airlines",
        "/shard": "flights",
        "/shard/flights": "since",
        "/lane": "controller",
        "/project": "carrier_ranking",
    }
)
"""Addresses, and a word of the demo that each has to show."""


_QUERIES: Final = 5
"""Queries whose page in Spark's UI is looked at."""

_FRESH: Final = re.compile(r"^All 10 objects are fresh\.")


@dataclass
class DemoWalk:
    """What was seen.

    Attributes:
        text: Of each screen, by its address.
        ranking: Rows that a query of the SQL screen has shown.
        in_spark: Spark's own page of the query of one object.
        metrics_in_spark: What it says of the object.
        queries: The queries that run, as Spark lists them.
        sections_in_spark: On Spark's page of some of them, the titles of our sections.
        troubles: Of each object that was in trouble, its row of the table.
        sentence: Of the whole, when it was.
        marks: Kind and object of each mark of the time line, once it was over.
        lost: What the page has said when its application was gone; `lost_px` is how large.
        kept: The sentence of the whole that still stood then.
        back: What it said when it was there again, without a reload.
        wrong: Errors of the page, and rules of its own that it broke.
    """

    text: dict[str, str] = field(default_factory=dict)
    ranking: str = ""
    in_spark: str = ""
    metrics_in_spark: str = ""
    queries: str = ""
    sections_in_spark: dict[str, list[str]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    sentence: str = ""
    marks: set[tuple[str, str]] = field(default_factory=set)
    lost: str = ""
    lost_px: float = 0.0
    kept: str = ""
    back: str = ""
    wrong: list[str] = field(default_factory=list)


class Visitor:
    """Somebody who looks at the main job, and does not reload what is open.

    Attributes:
        walk: What was seen so far.
    """

    def __init__(self, browser: Browser, pictures: Path) -> None:
        """Open a window; pictures of what is seen in it go into a folder.

        The browser must be one of `browsing`, which sets how long is waited for what is expected.
        """
        self.walk = DemoWalk()
        self._pictures = pictures
        pictures.mkdir(parents=True, exist_ok=True)
        context = new_context(browser, Look(1280, 1000))
        # For whatever is waited for: each screen, and each answer, may wait for what Spark does.
        context.set_default_timeout(_LONG_MS)
        expect.set_options(timeout=_LONG_MS)
        self._page = context.new_page()
        watch_page(self._page, self.walk.wrong)

    def walk_through(self, said: str) -> None:
        """Open the page by the link in what a job has printed, and go from screen to screen."""
        url = self.open(said)
        for path, word in _SCREENS.items():
            if path != "/":
                self._page.goto(url + path)
            main = self._page.locator("main")
            expect(main).to_contain_text(word)
            self.walk.text[path] = main.inner_text()
            self._shoot(path.strip("/").replace("/", "-") or "overview")
        self._page.goto(f"{url}/sql")
        self._page.locator(".CodeMirror").click()
        self._page.keyboard.press("Control+A")
        self._page.keyboard.insert_text("SELECT carrier, place FROM carrier_ranking ORDER BY place")
        self._page.keyboard.press("Control+Enter")
        table = self._page.locator("main table").first
        expect(table).to_contain_text("place")
        self.walk.ranking = table.inner_text()
        self._shoot("sql")

    def look_into_spark(self) -> None:
        """Go from an object's page to its query in Spark's own UI, and back."""
        self._page.goto(self._page.url.partition("/sql")[0] + "/object/carrier_ranking")
        link = self._page.get_by_role("link", name="its streaming query")
        address = link.get_attribute("href")
        assert address is not None
        # Of another origin: it opens in a window of its own, whose faults are not the page's.
        with self._page.context.expect_page() as opened:
            link.click()
        spark = opened.value
        # Its heading comes first, and what is below it may take a moment.
        spark.wait_for_load_state("load")
        expect(spark.locator("body")).to_contain_text("Streaming Query Statistics")
        self.walk.in_spark = spark.locator("body").inner_text()
        section = spark.locator("details.shardline", has_text="view carrier_ranking")
        expect(section).to_have_attribute("open", "")  # the only view of its group
        self.walk.metrics_in_spark = section.inner_text()
        spark.screenshot(path=self._pictures / "demo-in-spark.png")
        section.get_by_role("link", name="its page").click()
        expect(spark.locator("main")).to_contain_text("carrier_ranking")
        spark.go_back()
        spark.wait_for_load_state("load")
        spark.goto(address.partition("/statistics")[0])
        self.walk.queries = spark.locator("body").inner_text()
        # Not of what has ended: a query that was begun anew has the name of its earlier run.
        active = spark.locator("#aggregated-activeQueries")
        links = active.locator("a[href*='/statistics/?id=']").all()
        # Some of them: the job goes on meanwhile.
        for at in sorted({str(link.get_attribute("href")) for link in links})[:_QUERIES]:
            spark.goto(urljoin(address, at))
            titles = spark.locator("details.shardline > summary").all_inner_texts()
            named = re.search(r"^Name: (.+)$", spark.locator("body").inner_text(), re.MULTILINE)
            assert named is not None, at
            self.walk.sections_in_spark[named[1]] = titles
        spark.close()

    def open(self, said: str) -> str:
        """Open the first screen by the printed link; returns the address without its code."""
        link = _LINK.search(said)
        assert link is not None, said
        # The code in the link is used up by this visit: the page keeps the token for the next ones.
        self._page.goto(link[1])
        expect(self._row("carrier_ranking")).to_be_visible()
        return link[1].partition("/#")[0]

    def see_trouble(self, **verdicts: str) -> None:
        """Wait on the first screen until each of these objects has its verdict."""
        self._page.get_by_role("link", name="Overview").click()
        for name, verdict in verdicts.items():
            expect(self._row(name).locator(".verdict")).to_have_text(verdict)
        self.walk.troubles = {name: self._row(name).inner_text() for name in verdicts}
        self.walk.sentence = self._heading().inner_text()
        self._shoot("trouble")

    def see_recovery(self, *names: str) -> None:
        """Wait until these objects, and with them all others, are well again."""
        for name in names:
            verdict = self._row(name).locator(".verdict")
            expect(verdict).to_have_text(re.compile("healthy|idle"))
        expect(self._heading()).to_have_text(_FRESH)
        for name in names:
            # Others may have had their troubles, while all of them started.
            recovered = partial(self._has_recovered, name)
            wait_until(f"the recovery of {name} is a mark", recovered, 120)
        legend = self._page.get_by_role("list", name="Marks that are shown")
        expect(legend).to_contain_text("recovery")
        self._shoot("recovered")

    def _has_recovered(self, name: str) -> bool:
        answer = self._page.request.get(urljoin(self._page.url, "/api/v1/relations/events"))
        self.walk.marks = {(row["kind"], row["object_id"]) for row in answer.json()["rows"]}
        return ("recovery", name) in self.walk.marks

    def stay(self) -> None:
        """Note that what is open now must not be loaded anew."""
        self._page.evaluate("window.notReloaded = true")

    def see_loss(self) -> None:
        """Wait until the page says that its application is gone."""
        said = self._page.locator(".as-of.lost strong")
        expect(said).to_be_visible()
        self.walk.lost = self._page.locator(".as-of.lost").inner_text()
        self.walk.lost_px = said.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
        self.walk.kept = self._heading().inner_text()
        self._shoot("lost")

    def see_return(self) -> None:
        """Wait until the page goes on by itself."""
        live = self._page.locator(".as-of:not(.lost) .live-dot:not(.off)")
        expect(live).to_be_visible()
        expect(self._row("flights")).to_be_visible()
        assert self._page.evaluate("window.notReloaded") is True
        self.walk.back = self._page.locator(".as-of").inner_text()
        self._shoot("back")

    def _heading(self) -> Locator:
        return self._page.get_by_role("heading", level=1)

    def _row(self, name: str) -> Locator:
        own = self._page.locator(".cell-object").get_by_role(
            "link", name=re.compile(rf"^(\w+ )?{name}$")
        )
        return self._page.get_by_role("table", name="Objects").get_by_role("row").filter(has=own)

    def _shoot(self, name: str) -> None:
        self._page.screenshot(path=self._pictures / f"demo-{name}.png")
