"""Numbers, spans and names in words, and rows that are held: the page's modules, in a browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from support.page.browser import OpenPage

pytestmark = pytest.mark.browser

WORDS: list[tuple[str, list[Any], str]] = [
    ("count", [None], "–"),
    ("count", [0], "0"),
    ("count", [9_999], "9,999"),
    ("count", [12_345], "12.3k"),
    ("count", [-12_345], "-12.3k"),
    ("count", [233_000_000], "233M"),
    ("size", [None], "–"),
    ("size", [1_023], "1,023 B"),
    ("size", [1_024], "1 KiB"),
    ("size", [1_536], "1.5 KiB"),
    ("size", [64 * 1_024], "64 KiB"),
    ("size", [5 << 50], "5 PiB"),
    ("span", [None], "–"),
    ("span", [0], "0 ms"),
    ("span", [999.4], "999 ms"),
    ("span", [1_500], "1.5 s"),
    ("span", [59_600], "1 min"),
    ("span", [61_000], "1 min 1 s"),
    ("span", [3_600_000], "1 h"),
    ("span", [90_061_000], "1 d 1 h"),
    ("span", [86_460_000], "1 d"),
    ("late", [40], "0.0 s"),
    ("late", [9_960], "10.0 s"),
    ("late", [10_000], "10 s"),
    ("percent", [0], "0 %"),
    ("percent", [0.042], "4.2 %"),
    ("percent", [0.42], "42 %"),
    ("clock", [1_768_615_920_000, 1_768_615_980_000], "03:12:00"),
    ("clock", [1_768_615_920_000, 1_768_715_920_000], "17 Jan 2026, 03:12:00"),
    ("clockInZone", [1_768_615_920_000, 1_768_615_980_000], "03:12:00\u00a0CET"),
    ("clockInZone", [9e15], "9000000000000000"),
    ("zone", [1_784_000_000_000], "CEST"),
    ("utc", [0], "1970-01-01 00:00:00.000 UTC"),
    ("visible", ["a\u202eb\x00"], "a⟨202E⟩b⟨0000⟩"),
    ("visible", ["abcdef", 3], "abc…"),
    ("visible", ["👩‍🚀"], "👩⟨200D⟩🚀"),
    ("visibleLines", ["a\r\n\tb\u202e"], "a\n\tb⟨202E⟩"),
]

HELD = """async changes => {
  const { apply, rowsOf } = await import("/page/store.js");
  const held = { columns: ["name", "lag"], counted: new Map(), rows: undefined };
  for (const change of changes) apply(held, change);
  return rowsOf(held);
}"""


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page that has loaded."""
    return open_page("one").page


def test_words_are_those_that_people_read(page: Page) -> None:
    """With units, in few digits, and nothing that cannot be seen."""
    said = page.evaluate(
        """async cases => {
          const words = await import("/page/words.js");
          return cases.map(([name, given]) => words[name](...given));
        }""",
        [[name, given] for name, given, _ in WORDS],
    )
    found = [(name, given, text) for (name, given, _), text in zip(WORDS, said, strict=True)]
    assert found == WORDS


def test_rows_that_are_held_are_a_multiset(page: Page) -> None:
    """Equal rows are counted; a snapshot takes the place of everything before."""
    a, b = ["a", 1], ["b", None]
    rows = page.evaluate(HELD, [{"snapshot": [a, a, b]}, {"added": [a], "removed": [a, b]}])
    assert rows == [{"name": "a", "lag": 1}] * 2
    rows = page.evaluate(HELD, [{"snapshot": [a, a]}, {"snapshot": [b]}, {"added": [b]}])
    assert rows == [{"name": "b", "lag": None}] * 2
    assert page.evaluate(HELD, [{"snapshot": [a]}, {"removed": [a]}]) == []
