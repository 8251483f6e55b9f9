"""A definition that is written and read again is the same definition."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardline.app.project.definition_text import write_definition
from shardline.app.project.statements import ObjectDescription, read_statements
from shardline.app.protocol.objects import (
    Envelope,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.sql.problems import Script

NAMES = st.from_regex(r"[a-z_][a-z0-9_ \-.]{0,8}[a-z0-9]", fullmatch=True)
TEXTS = st.text(st.characters(codec="ascii", exclude_characters="\\", categories=("L", "N", "P")))
OPTIONS = st.dictionaries(st.from_regex(r"[a-z][a-z.]{0,6}[a-z]", fullmatch=True), TEXTS)
FORMATS = st.sampled_from(["csv", "kafka", "a.b.c"])
KEYS = st.lists(NAMES, min_size=1, unique_by=str.lower).map(tuple)
RETAIN = st.one_of(st.none(), st.integers(0, 10**12), st.sampled_from([1000, 60_000, 86_400_000]))


def read(text: str) -> ObjectDescription:
    reading = read_statements(Script("a.sql", f"{text};"))
    assert reading.problems == []
    (one,) = reading.written
    return one.description


SOURCES = st.builds(
    SourceDescription,
    name=NAMES,
    format=FORMATS,
    options=OPTIONS,
    schema=st.sampled_from(["", "a INT, `b c` STRING"]),
    retain_ms=RETAIN,
)
SINKS = st.builds(
    SinkDescription,
    name=NAMES,
    on=NAMES,
    format=FORMATS,
    options=OPTIONS,
    envelope=st.sampled_from(["none", "diff"]),
    snapshot=st.booleans(),
)
INDEXES = st.builds(IndexDescription, name=NAMES, on=NAMES, key=KEYS)


@given(st.one_of(SOURCES, SINKS, INDEXES))
@example(IndexDescription(name="on", on="on", key=("on",)))
@example(SourceDescription(name="using", format="csv", key=("key",), envelope="upsert"))
@example(SinkDescription(name="from", on="using", format="csv", options={"options": "x"}))
def test_definitions_are_read_again(one: ObjectDescription) -> None:
    """Names in backticks and quotes in options as well; what is left out is the default."""
    assert read(write_definition(one)) == one


@given(st.one_of(SOURCES, SINKS), KEYS, st.sampled_from(["upsert", "debezium"]))
def test_keys_are_read_again(
    one: SourceDescription | SinkDescription, key: tuple[str, ...], envelope: Envelope
) -> None:
    """With the envelopes that have one."""
    keyed = replace(one, key=key, envelope=envelope)
    assert read(write_definition(keyed)) == keyed


@pytest.mark.parametrize("retain_ms", [None, 7 * 86_400_000, 1500])
def test_views_are_read_again(retain_ms: int | None) -> None:
    """The query word for word; columns and strategy are the analyzer's."""
    view = ViewDescription(
        name="late",
        query="SELECT *\nFROM flights -- all\nWHERE delay > 5",
        inputs=("flights",),
        schema="",
        retain_ms=retain_ms,
    )
    assert read(write_definition(view)) == view


def test_each_clause_has_a_line() -> None:
    """That two definitions are compared by."""
    source = SourceDescription(
        name="planes",
        format="csv",
        options={"path": "it's", "header": "true"},
        schema="tail STRING",
        envelope="upsert",
        key=("tail",),
        retain_ms=3_600_000,
    )
    assert write_definition(source).splitlines() == [
        "CREATE SOURCE planes USING csv",
        "  OPTIONS (path 'it''s', header 'true')",
        "  SCHEMA (tail STRING)",
        "  ENVELOPE UPSERT",
        "  KEY (tail)",
        "  RETAIN HISTORY '1 hour'",
    ]
