"""Sections for the pages of Spark's UI: what a query reads, and how text becomes HTML."""

from __future__ import annotations

import logging
from html.parser import HTMLParser

import pytest
from typing_extensions import override

from shardline.datasource.frontier import Frontier
from shardline.datasource.offsets import START, ShardOffset, SnapshotCut
from shardline.datasource.spark_native import query_statistics
from shardline.datasource.spark_native.query_statistics import (
    StatisticsSection,
    StatisticsTable,
    encode_sections,
    metrics_table,
    source_sections,
)

HOSTILE = "<script>alert(1)</script>\"'&\u202e"


def source(offset: ShardOffset, **latest: object) -> dict[str, object]:
    """A source of a progress event, as Spark's JSON has it."""
    return {"endOffset": offset.json(), "latestOffset": latest or None}


def values(section: StatisticsSection) -> dict[str, str]:
    """The metrics of a section, which its first table has."""
    return {name: value for name, value, _ in section.tables[0].rows}


def read_by(*sources: dict[str, object], **names: str) -> list[StatisticsSection]:
    """Sections of a query with these sources, where these names of shards are known."""
    return list(source_sections({"sources": sources}, names))


class Markup(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @override
    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_source_says_how_far_it_is_and_what_it_stands_before() -> None:
    """Of a progress without a look at the shards, only what the offset itself says."""
    offset = ShardOffset(("s1",), "mine", 17, Frontier(42))
    frozen = {"part": "parts/7", "reason": "gone", "since_ms": 1_700_000_000_000}
    told, frozen_one, without = read_by(
        source(offset, upper=50), source(offset, upper=50, frozen=frozen), source(offset)
    )
    numbers = {"frontier": "42", "upper": "50", "behind": "8 ms", "hold": "mine"}
    assert (values(told), told.state) == (numbers, "8 ms behind")
    assert (values(frozen_one), frozen_one.state) == (numbers | {"frozen": "parts/7"}, "frozen")
    assert "since 2023-11-14 22:13:20+00:00." in frozen_one.tables[0].rows[-1][2]
    assert (values(without), without.state) == ({"frontier": "42", "hold": "mine"}, "")


def test_shards_that_are_read_together_have_one_frontier_and_each_its_upper() -> None:
    """By their names, or by the id of one that is not known."""
    offset = ShardOffset(("s1", "s2"), "mine", 17, Frontier(42))
    (found,) = read_by(source(offset, upper=50, uppers={"a": 50, "b": None}), s2="b")
    assert found.title == "reads shards s1, b"
    assert found.tables[1].rows == (("a", "50"), ("b", "empty: all is read"))


def test_a_finished_shard_and_one_whose_snapshot_is_read_have_no_number_in_its_place() -> None:
    """An empty frontier is not 0, and nothing is behind it."""
    ended = ShardOffset(("s1",), "mine", 17, Frontier(None))
    cut = ShardOffset(("s1",), "mine", 17, Frontier(17), SnapshotCut((5,), 3))
    first, second = map(values, read_by(source(ended, upper=None), source(cut, upper=17)))
    assert [one.get("behind") for one in (first, second)] == [None, "0 ms"]
    assert first["upper"] == first["frontier"] == "empty: all is read"
    assert second["snapshot"] == "3"


@pytest.mark.parametrize("end", [None, START.json(), {"logOffset": 3}, "7", {"v": 99}])
def test_sources_of_others_are_left_out(end: object) -> None:
    """So are offsets of a newer version, and one before anything is read."""
    assert read_by({"endOffset": end}) == []
    assert list(source_sections({}, {})) == []


def test_no_text_becomes_markup() -> None:
    """In no place of a section; what is no text, such as a name with any bytes, is no error."""
    table = StatisticsTable(((HOSTILE, HOSTILE),), ((HOSTILE,),))
    text = encode_sections([StatisticsSection(HOSTILE, HOSTILE, HOSTILE, (table,))])
    found = Markup(text)
    assert {tag for tag, _ in found.elements} == {
        *("details", "summary", "strong", "a", "div"),
        *("table", "thead", "tbody", "tr", "th", "td", "sup"),
    }
    link, hint = [attributes for tag, attributes in found.elements if tag == "a"]
    assert link["href"] == hint["title"] == HOSTILE
    assert "".join(found.words).count(HOSTILE) == 4
    assert encode_sections([StatisticsSection("a\udcff", "", "", ())]).isascii()


def test_the_first_section_is_open_and_the_others_are_closed() -> None:
    """Of nothing there is nothing: Spark's page stays as it is."""
    one = StatisticsSection("view a", "", "", (metrics_table([("x", "1", "A number.")]),))
    opened = [
        ["open" in attributes for tag, attributes in Markup(text).elements if tag == "details"]
        for text in (encode_sections([one]), encode_sections([one, one]), encode_sections([]))
    ]
    assert opened == [[True], [True, False], []]
    assert encode_sections([]) == ""


def test_an_error_costs_the_section_and_not_the_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log."""

    def fail(_: object) -> list[StatisticsSection]:
        raise KeyError("no such relation")

    monkeypatch.setattr(query_statistics, "read_map", lambda given: given)
    request = {"run": "r", "name": None}
    with caplog.at_level(logging.WARNING):
        assert query_statistics._Described(fail).apply(request) is None
    assert "without our statistics" in caplog.text
    assert query_statistics._Described(lambda _: []).apply(request) is None
