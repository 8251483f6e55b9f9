"""A real Chromium looks at a served world: fixtures, pictures, and what every page must not do.

    @pytest.mark.browser
    def test_a_frozen_object_is_seen(open_page: OpenPage) -> None:
        seen = open_page("frozen")
        expect(seen.page.get_by_role("heading")).to_contain_text("frozen")
        seen.picture("frozen")

The browser is the one that `CHROMIUM` names, or Debian's: `chromium-headless-shell`, which has no
windows and takes three fifths of the processor time, or `chromium`. Without one these tests are
skipped. A page that throws, or breaks its own policy, fails its test, whatever else that has shown.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from support.page.world import ServedWorld, Situation
from support.tree import ROOT

__all__ = [
    "LOOKS",
    "Look",
    "OpenPage",
    "Seen",
    "browser",
    "browsing",
    "chromium_path",
    "find_barriers",
    "hide",
    "new_context",
    "open_page",
    "pictures_folder",
    "take_pictures",
    "watch_page",
]

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first of these that there is is the browser."""

TIMEOUT_MS: Final = 60_000.0
"""A look waits so long for what it expects: six times what the page itself needs, which knows a
rate after ten seconds of moments, since several runs may share two cores."""


@dataclass(frozen=True, slots=True)
class Look:
    """A window and its colours.

    Attributes:
        width: In CSS pixels; so `height`.
        scheme: light or dark.
    """

    width: int = 1280
    height: int = 860
    scheme: str = "light"


LOOKS: Final[Mapping[str, Look]] = MappingProxyType(
    {
        "light": Look(),
        "dark": Look(scheme="dark"),
        "narrow": Look(360, 780),
        "narrow-dark": Look(360, 780, "dark"),
        "wide": Look(2560, 1300),
    }
)
"""Windows in which pictures are taken."""


def chromium_path() -> str:
    """The browser's program; "" if there is none."""
    named = os.environ.get("CHROMIUM", "")
    return named or next(filter(None, map(shutil.which, _PROGRAMS)), "")


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run a browser."""
    program = chromium_path()
    if not program:
        pytest.skip("no Chromium: install Debian's `chromium`, or name one in CHROMIUM")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield launched
        finally:
            launched.close()


def pictures_folder() -> Path:
    """The folder of pictures: `PICTURES`, or a folder of the clone that is no part of it."""
    return Path(os.environ.get("PICTURES") or ROOT / "dist" / "pictures")


@dataclass
class Seen:
    """A page that is open on a world.

    Attributes:
        page: Of the browser.
        world: What it looks at.
        context: Of the page, for more of them.
        wrong: Errors and broken rules of the page so far; lost connections are none.
    """

    page: Page
    world: ServedWorld
    context: BrowserContext
    wrong: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        """Open another address of the same world."""
        self.page.goto(self.world.url + path)

    @property
    def address(self) -> str:
        """Path and query as the page has them; `page.url` may still be an earlier address."""
        return str(self.page.evaluate("location.pathname + location.search"))

    def picture(self, name: str) -> Path:
        """Take a picture of the whole page into the folder of pictures."""
        return _shoot(self.page, pictures_folder() / f"{name}.png")


OpenPage: TypeAlias = Callable[..., Seen]
"""Opens a page: situation or world, then `path`, `look`, and options of `ServedWorld`."""

_LOST: Final = re.compile(r"ERR_CONNECTION|WebSocket connection|Failed to load resource")
"""What a browser says of an application that does not answer, which tests bring about."""


def watch_page(page: Page, wrong: list[str]) -> None:
    """Append to `wrong` what the page does wrong from now on; lost connections are not."""

    def console(message: ConsoleMessage) -> None:
        if message.type == "error" and not _LOST.search(message.text):
            wrong.append(message.text)

    page.on("console", console)
    page.on("pageerror", lambda error: wrong.append(str(error)))


def hide(page: Page, state: str) -> None:
    """Let the page believe that its window is hidden, or seen: this browser has none."""
    page.evaluate(
        """state => {
          const hidden = {value: state === "hidden", configurable: true};
          Object.defineProperty(document, "hidden", hidden);
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def new_context(browser: Browser, look: Look, **options: Any) -> BrowserContext:
    """A context of a browser with a look; times are those of a zone that is not UTC."""
    context = browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme="dark" if look.scheme == "dark" else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="Europe/Berlin",
        **options,
    )
    context.set_default_timeout(TIMEOUT_MS)
    return context


def take_pictures(
    browser: Browser,
    world: ServedWorld,
    path: str,
    folder: Path,
    looks: Mapping[str, Look] = LOOKS,
) -> Iterator[Path]:
    """Take a picture of one address in each look; yields the files."""
    screen = re.sub(r"[^\w-]+", "-", path).strip("-")[:60] or "first"
    for name, look in looks.items():
        context = new_context(browser, look)
        page = context.new_page()
        page.add_init_script(f"sessionStorage.setItem('shardline-token', {world.token!r})")
        wrong: list[str] = []
        watch_page(page, wrong)
        page.goto(world.url + path)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(2_500)  # as a person would: rates need two moments
        yield _shoot(page, folder / f"{screen}-{name}.png")
        context.close()
        assert wrong == [], f"{path} {name}"


_PUT_TIMELINE: Final = """where => {
  scrollTo(0, 0);
  if (where && document.documentElement.scrollHeight <= innerHeight) return;
  for (const line of document.querySelectorAll(".timeline")) line.style.position = where;
}"""


def _shoot(page: Page, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Where the page ends: at the lower edge of the window it would stand in the middle of a picture
    # of all of the page, over what is there.
    page.evaluate(_PUT_TIMELINE, "static")
    page.screenshot(path=file, full_page=True)
    page.evaluate(_PUT_TIMELINE, "")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module.

    Not of a session: while it runs so does an event loop in the tests' thread, and what comes after
    may want to run one of its own.
    """
    with browsing() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages on worlds; closes both, and fails if a page has thrown or broken its policy."""
    opened: list[Seen] = []
    worlds: list[ServedWorld] = []

    def open_one(
        given: str | Situation | ServedWorld = "demo",
        path: str = "/",
        look: str | Look = "light",
        *,
        token: bool = False,
        **options: Any,
    ) -> Seen:
        world = given if isinstance(given, ServedWorld) else ServedWorld(given, **options)
        if world not in worlds:
            worlds.append(world)
        context = new_context(browser, LOOKS[look] if isinstance(look, str) else look)
        page = context.new_page()
        seen = Seen(page, world, context)
        watch_page(page, seen.wrong)
        if token:
            page.add_init_script(f"sessionStorage.setItem('shardline-token', {world.token!r})")
        opened.append(seen)
        seen.go(path)
        return seen

    yield open_one
    for seen in opened:
        seen.context.close()
    for world in worlds:
        world.close()
    assert [text for seen in opened for text in seen.wrong] == []


_AXE: Final = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"

_RUN_AXE: Final = """async () => (await axe.run()).violations.map(({id, help, nodes}) =>
  `${id}: ${help}: ${nodes.map((n) => `${n.target} ${n.failureSummary}`)}`)"""


def find_barriers(page: Page) -> list[str]:
    """Let axe-core look at a page as it is now; returns what keeps people from using it."""
    # By the debugger: the page's own rules let no script in that is not one of its files.
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": _AXE.read_text(encoding="utf-8")})
    found: list[str] = page.evaluate(_RUN_AXE)
    return found
