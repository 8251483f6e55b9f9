"""Numbers, spans and names in words, and rows that are held: the page's modules, in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.page.browser import OpenPage

pytestmark = pytest.mark.browser

_NUMBERS = {"count", "countOf", "size", "span", "late", "percent", "clockInZone"}
"""Words with a number; the time of `clock` may stand below its date."""

WORDS: list[tuple[str, list[Any], str]] = [
    ("count", [None], "–"),
    ("count", [0], "0"),
    ("count", [9_999], "9,999"),
    ("count", [12_345], "12.3k"),
    ("count", [-12_345], "-12.3k"),
    ("count", [233_000_000], "233M"),
    ("countOf", [1, "row"], "1\u00a0row"),
    ("countOf", [12_345, "batch", "batches"], "12.3k\u00a0batches"),
    ("countOf", [None, "blob"], "–"),
    ("size", [None], "–"),
    ("size", [1_023], "1,023\u00a0B"),
    ("size", [1_024], "1\u00a0KiB"),
    ("size", [1_536], "1.5\u00a0KiB"),
    ("size", [64 * 1_024], "64\u00a0KiB"),
    ("size", [5 << 50], "5\u00a0PiB"),
    ("span", [None], "–"),
    ("span", [0], "0\u00a0ms"),
    ("span", [999.4], "999\u00a0ms"),
    ("span", [1_500], "1.5\u00a0s"),
    ("span", [59_600], "1\u00a0min"),
    ("span", [61_000], "1\u00a0min\u00a01\u00a0s"),
    ("span", [3_600_000], "1\u00a0h"),
    ("span", [90_061_000], "1\u00a0d\u00a01\u00a0h"),
    ("span", [86_460_000], "1\u00a0d"),
    ("late", [40], "0.0\u00a0s"),
    ("late", [9_960], "10.0\u00a0s"),
    ("late", [10_000], "10\u00a0s"),
    ("percent", [0], "0\u00a0%"),
    ("percent", [0.042], "4.2\u00a0%"),
    ("percent", [0.42], "42\u00a0%"),
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


LINES = """async cases => {
  const words = await import("/page/words.js");
  const { sayRate } = await import("/page/parts/rates.js");
  const box = document.body.appendChild(document.createElement("div"));
  Object.assign(box.style, { width: "0", overflowWrap: "normal" });
  const texts = cases.map(([name, given]) => words[name](...given));
  texts.push(`${sayRate(3.7)}/s`, "3.7 / s");
  return texts.map((text) => {
    box.textContent = text;
    const range = document.createRange();
    range.selectNodeContents(box);
    return [text, new Set([...range.getClientRects()].map(({ top }) => top)).size];
  });
}"""


ENDS = """async () => {
  await import("/page/parts/chart.js");
  const draw = CanvasRenderingContext2D.prototype.fillText;
  const beyond = new Map();
  CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
    const end = this.textAlign === "center" ? x + this.measureText(text).width / 2 : x;
    beyond.set(text, end - this.canvas.width);
    return draw.call(this, text, x, ...rest);
  };
  const chart = document.createElement("plot-part");
  const size = { width: "600px", height: "150px" };
  Object.assign(chart.style, { position: "fixed", display: "block", ...size });
  document.body.append(chart);
  const at = [...Array(61).keys()].map((second) => 1_768_676_400_000 + second * 1_000);
  const lines = [{ label: "rows", values: at.map(() => 1), colour: "--series-1" }];
  chart.plot = { title: "made", kind: "lines", at, lines, say: String };
  await new Promise(requestAnimationFrame);
  return [...beyond];
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


def test_a_number_and_its_unit_stand_on_one_line(page: Page) -> None:
    """However narrow the place for them is."""
    cases = [[name, given] for name, given, _ in WORDS if name in _NUMBERS]
    *lines, apart = page.evaluate(LINES, cases)
    assert [text for text, number in lines if number > 1] == []
    assert apart == ["3.7 / s", 3], "or lines are not counted"


CLOCKS = """async at => {
  const { clock, clockInZone } = await import("/page/words.js");
  const { labelOf } = await import("/page/parts/zooms.js");
  const { labels, makeAxis } = await import("/page/parts/axis.js");
  const given = { spacing: "batch", left: 0, right: 500, from: at, to: at + 60_001, bounds: [] };
  const [first, last] = labels(makeAxis(given), 7).map(({ text }) => text);
  return [clock(at, at), clockInZone(at, at), labelOf(at, 3_600_000), first, last];
}"""

DRAW_TEXTS = """
  globalThis.drawnTexts = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    drawnTexts.push(text);
    if (/^\\d\\d:\\d\\d/.test(text)) document.documentElement.dataset.drawnTime = text;
    return draw.call(this, text, ...rest);
  };
"""


def test_all_times_have_the_same_clock_in_every_language(open_page: OpenPage) -> None:
    """Where half days are usual, too: what charts draw and what is written can be compared."""
    seen = open_page("demo")
    assert seen.context.browser is not None
    american = seen.context.browser.new_context(locale="en-US", timezone_id="UTC")
    page = american.new_page()
    page.add_init_script(DRAW_TEXTS)
    page.goto(f"{seen.world.url}/object/flights")
    expect(page.locator("html[data-drawn-time]")).to_be_attached()
    expect(page.locator("main time").first).to_be_visible()
    half = re.compile(r"\b[AP]M\b")
    assert not half.search(page.inner_text("body"))
    assert not [text for text in page.evaluate("drawnTexts") if half.search(text)]
    evening = page.evaluate(CLOCKS, 1_768_676_400_000)
    assert evening == ["19:00:00", "19:00:00\u00a0UTC", "19:00", "19:00", "19:01:00.001"]
    midnight = page.evaluate(CLOCKS, 1_768_608_000_000)
    assert midnight[:2] == ["00:00:00", "00:00:00\u00a0UTC"]
    american.close()


def test_the_last_time_of_an_axis_is_whole(page: Page) -> None:
    """The newest moment is at the end of a chart, and half of its label beyond."""
    beyond = dict(page.evaluate(ENDS))
    assert "20:01:00" in beyond, beyond
    assert max(beyond.values()) <= 0, beyond


def test_rows_that_are_held_are_a_multiset(page: Page) -> None:
    """Equal rows are counted; a snapshot takes the place of everything before."""
    a, b = ["a", 1], ["b", None]
    rows = page.evaluate(HELD, [{"snapshot": [a, a, b]}, {"added": [a], "removed": [a, b]}])
    assert rows == [{"name": "a", "lag": 1}] * 2
    rows = page.evaluate(HELD, [{"snapshot": [a, a]}, {"snapshot": [b]}, {"added": [b]}])
    assert rows == [{"name": "b", "lag": None}] * 2
    assert page.evaluate(HELD, [{"snapshot": [a]}, {"removed": [a]}]) == []
