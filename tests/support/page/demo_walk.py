"""A browser opens the page of a running application by its printed link, and goes through it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from playwright.sync_api import Page, expect

from support.page.browser import Look, browsing, new_context, watch_page

__all__ = ["DemoWalk", "walk_through"]

_LINK: Final = re.compile(r"^page +(http://\S+)$", re.MULTILINE)

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


@dataclass
class DemoWalk:
    """What was seen.

    Attributes:
        text: Of each screen, by its address.
        ranking: Rows that a query of the SQL screen has shown.
        wrong: Errors of the page, and rules of its own that it broke.
    """

    text: dict[str, str] = field(default_factory=dict)
    ranking: str = ""
    wrong: list[str] = field(default_factory=list)


def walk_through(said: str, pictures: Path) -> DemoWalk:
    """Open the page by the link in what a job has printed, and go from screen to screen.

    Args:
        said: What the job has printed.
        pictures: The folder of pictures of what was seen.
    """
    link = _LINK.search(said)
    assert link is not None, said
    walk = DemoWalk()
    with browsing() as browser:
        context = new_context(browser, Look(1280, 1000))
        page = context.new_page()
        watch_page(page, walk.wrong)
        # The code in the link is used up by this visit: the page keeps the token for the next ones.
        page.goto(link[1])
        for path, word in _SCREENS.items():
            if path != "/":
                page.goto(link[1].partition("/#")[0] + path)
            walk.text[path] = _look(page, word)
            name = path.strip("/").replace("/", "-") or "overview"
            pictures.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=pictures / f"demo-{name}.png")
        walk.ranking = _ask(page, link[1].partition("/#")[0])
        page.screenshot(path=pictures / "demo-sql.png")
        context.close()
    return walk


def _look(page: Page, word: str) -> str:
    main = page.locator("main")
    expect(main).to_contain_text(word)
    return main.inner_text()


def _ask(page: Page, url: str) -> str:
    page.goto(f"{url}/sql")
    editor = page.locator(".CodeMirror")
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("SELECT carrier, place FROM carrier_ranking ORDER BY place")
    page.keyboard.press("Control+Enter")
    table = page.locator("main table").first
    expect(table).to_contain_text("place")
    return table.inner_text()
