"""`errors NAME` tells a person what the application answers about bad rows."""

from __future__ import annotations

from typing import Any

from shardline.app.cli.bad_rows import bad_row_lines

ROW = {
    "id": "3f9c2a1b",
    "count": 2,
    "since_ms": 1_700_000_000_000,
    "error": "a row cannot be decoded as (id int)",
    "raw": "4,many",
    "key": None,
    "file": "file:/in/a%20b%2520/b.csv",
    "line": 3,
}


def source(**changed: Any) -> dict[str, Any]:
    given = {"source": "s", "live": [], "live_count": 0, "skipped": [], "skipped_count": 0}
    return {**given, **changed}


def said(**answer: Any) -> str:
    given = {"id": "s", "act": "show", "commit": False, "live": 0, "sources": []}
    return "\n".join(bad_row_lines({**given, **answer}))


def test_a_row_is_shown_with_time_place_text_and_reason() -> None:
    """And with what takes it away; skipped ones by themselves."""
    shown = said(live=2, sources=[source(live=[ROW], live_count=2)])
    assert "s: 2 errors; reads fail while there are any" in shown
    assert "3f9c2a1b  2023-11-14 22:13:20 UTC  /in/a b%20/b.csv, line 3 (2 times)" in shown
    assert "4,many" in shown
    assert "cannot be decoded as (id int)" in shown
    assert "`errors s --retract --commit`" in shown
    unknown = {**ROW, "file": None, "line": None, "count": 1}
    shown = said(sources=[source(skipped=[unknown], skipped_count=1)])
    assert "s: 1 row skipped" in shown
    assert "file unknown\n" in shown
    assert shown.endswith("no errors: no bad row of s makes reads of s fail")
    assert "  s3://b/a%20.csv\n" in said(
        sources=[source(skipped=[{**unknown, "file": "s3://b/a%20.csv"}], skipped_count=1)]
    )


def test_of_many_rows_the_newest_are_shown() -> None:
    """And that there are more: of errors, of skipped rows, and of what would be done."""
    older = "\n  … 5 rows that came before\n  3f9c2a1b "
    many = source(live=[ROW], live_count=7)
    assert older in said(live=7, sources=[many])
    assert older in said(sources=[source(skipped=[ROW], skipped_count=7)])
    assert older in said(act="retract", chosen=7, live=7, sources=[many])


def test_a_bad_row_neither_commands_the_terminal_nor_forges_lines() -> None:
    """It may be of an attacker: a text that hides what is above, and says that all is well."""
    bad = {**ROW, "raw": "1,\x1b[2J\n  no errors", "file": "s3://b/\x1b]0;x\x07.csv"}
    lines = said(live=1, sources=[source(live=[bad], live_count=1)]).splitlines()
    assert all(line.isprintable() for line in lines)
    assert "    1,\\x1b[2J\\n  no errors" in lines
    assert not any(line.startswith("  no errors") for line in lines)


def test_a_view_without_bad_rows_may_fail_by_itself() -> None:
    """By a division by zero, say: it must not seem that reads of it work."""
    two = [source(), source(source="t")]
    assert said(id="v", sources=two).splitlines() == [
        "no errors: no bad row of s and t makes reads of v fail",
        "    those of a view's own query are apart, as rows of <view>_errors",
    ]


def test_nothing_is_said_to_be_done_that_is_not() -> None:
    """A dry run says so; what is done says what is left; nothing to do is that."""
    mine = [source(live=[ROW], live_count=2)]
    planned = said(act="skip", chosen=2, sources=mine, live=2)
    assert planned.startswith("skips 2 errors of s\n")
    assert "notes them as skipped" in planned
    assert planned.endswith("dry run: nothing was changed; --commit does it")
    assert "notes" not in said(act="retract", chosen=2, sources=mine, live=2)
    done = said(act="retract", commit=True, chosen=2, retracted=2, live=1)
    assert done == "retracted 2 errors of s; 1 error left"
    assert said(act="retract", commit=True, chosen=2, retracted=None, live=0) == (
        "retracted the errors of s; 0 errors left"
    )
    assert said(act="skip", chosen=0, sources=[source()]) == "nothing to do: s has no errors"
