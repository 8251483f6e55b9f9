"""Serves a real application in the session of the tests, with its page open in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from playwright.sync_api import Browser, Page, expect

from shardline.app.coordinator.application import Application
from shardline.app.server.application_server import serve_application
from shardline.app.settings.config import RuntimeSettings
from support.page.browser import LOOKS, new_context, pictures_folder, watch_page
from support.spark.isolation import PATIENCE_S, Yard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LONG_MS", "serving"]

LONG_MS: Final = 3 * PATIENCE_S * 1000.0
"""For what a page shows once Spark has done it."""


@contextmanager
def serving(
    spark: SparkSession, browser: Browser, yard: Yard, text: str, settings: RuntimeSettings
) -> Iterator[tuple[Application, Page]]:
    """An application with a project applied, and its page, which was opened by a printed link.

    The browser must be one of `browsing`, which sets how long is waited for what is expected.

    Fails at the end if the page has thrown, or has broken a rule of its own.
    """
    wrong: list[str] = []
    data = yard.folder / "data"
    data.mkdir()
    pictures_folder().mkdir(parents=True, exist_ok=True)
    with (
        Application(spark, yard.client(), settings, data=data) as application,
        serve_application(application, settings, data) as served,
        new_context(browser, LOOKS["light"]) as context,
    ):
        # What the page does by itself waits for the machine as well, which Spark has to itself.
        context.set_default_timeout(LONG_MS)
        expect.set_options(timeout=LONG_MS)
        page = context.new_page()
        watch_page(page, wrong)
        page.goto(served.page_link())
        application.apply(yard.project(text).check(spark))
        yield application, page
    assert wrong == []
