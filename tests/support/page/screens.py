"""Names what a person finds on the screens, whichever application they are of."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Locator, Page

__all__ = ["headline", "node", "object_row", "scrolls_sideways"]


def headline(page: Page) -> Locator:
    """The sentence of the whole, on the first screen."""
    return page.get_by_role("heading", level=1)


def node(page: Page, name: str) -> Locator:
    """A node of the graph, by the name of its object or group."""
    return page.locator(f".node[data-node={json.dumps(name)}]")


def object_row(page: Page, name: str) -> Locator:
    """An object's row of the first screen's table."""
    named = re.compile(rf"^(\w+ )?{re.escape(name)}$")  # its kind comes first
    own = page.locator(".cell-object").get_by_role("link", name=named)
    return page.get_by_role("table", name="Objects").get_by_role("row").filter(has=own)


def scrolls_sideways(page: Page) -> bool:
    """True if the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
