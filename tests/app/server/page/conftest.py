"""For tests of the page: a browser, and what it opens."""

from __future__ import annotations

from playwright.sync_api import expect

from support.page.browser import TIMEOUT_MS, browser, open_page

__all__ = ["browser", "open_page"]

expect.set_options(timeout=TIMEOUT_MS)
"""Playwright's own are five seconds. No look has a time of its own, which could only be less."""
