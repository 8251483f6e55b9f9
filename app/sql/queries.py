"""Parses statements of clients: queries at a time, EXPLAIN, and SUBSCRIBE.

Spark has none of these: its `AS OF` belongs to one table, while ours is the one time at which a
query reads all of its objects.

    parse_select("SELECT * FROM flights AS OF 1700000000000") -> SelectRequest(query, inputs, as_of)
    parse_explain("EXPLAIN SELECT * FROM flights")            -> the same, a view's name, or None
    parse_subscribe("SUBSCRIBE TO delays AS OF '2026-11-20'") -> SubscribeRequest(on, …)
    bind("SELECT * FROM flights", {"flights": "_tmp_7"})      -> the query over other names

A time is a number of milliseconds since the epoch, or a date-time as text; one without a zone is
in `zone`. `AS OF` is the last clause and applies to everything that the query reads.

Invariants:
    The query of a `SelectRequest` is the text as written, without its `AS OF`: Spark reads exactly
    that. Errors show the place, as those of a project do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

from sqlglot import Token, TokenType

from shardline.app.sql.problems import InvalidProject, Script, TextProblem
from shardline.app.sql.references import Query, read_query
from shardline.app.sql.tokens import Cursor, statements_of, word_of
from shardline.datasource.option_parser import UnparsableOption, parse_time

__all__ = [
    "SelectRequest",
    "SubscribeRequest",
    "bind",
    "parse_explain",
    "parse_select",
    "parse_subscribe",
]

_FILE: Final = "sql"
_UTC: Final = ZoneInfo("UTC")
_EXPLAIN: Final = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)
_SHOW: Final = re.compile(r"\s*SHOW\b", re.IGNORECASE)
_VIEW: Final = re.compile(
    r"\s*(?:MATERIALIZED\s+)?VIEW\s+(?:(\w+)|`([^`]+)`)\s*;?\s*", re.IGNORECASE
)
_LITERALS: Final = frozenset({TokenType.STRING, TokenType.RAW_STRING, TokenType.NUMBER})


@dataclass(frozen=True, slots=True)
class SelectRequest:
    """A query to answer once.

    Attributes:
        query: The text without `AS OF`.
        inputs: Names that it reads, sorted, in lower case; `introspection.x` for relations.
        as_of: The time at which it reads; None for the latest at which all inputs are settled.
        as_of_date: True if the time is a date-time, and no number.
    """

    query: str
    inputs: tuple[str, ...]
    as_of: int | None = None
    as_of_date: bool = False


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A request to follow an object's changes.

    Attributes:
        on: Name of the object, in lower case.
        snapshot: True if the contents at `as_of` come first.
        as_of: First time; None for now.
        up_to: End of the changes, exclusive; None for no end.
        shard: Id of the shard whose changes go on; "" for that which the object has.
    """

    on: str
    snapshot: bool = True
    as_of: int | None = None
    up_to: int | None = None
    shard: str = ""


def parse_select(text: str, zone: ZoneInfo = _UTC) -> SelectRequest:
    """Parse `SELECT … [AS OF time]`, or any other query.

    Raises:
        InvalidProject: It is no query, or its time is invalid.
    """
    try:
        tokens = _one(text, "write SELECT …")
        end, as_of = _as_of(tokens, text, zone)
        start = tokens[0].start
        query = _query(text[start:end], start)
    except TextProblem as wrong:
        raise InvalidProject([wrong.at(Script(_FILE, text))]) from None
    # A number counts milliseconds in quotes, too.
    is_date = as_of is not None and not tokens[-1].text.strip().isdecimal()
    return SelectRequest(query.text, query.inputs, as_of, is_date)


def parse_explain(text: str, zone: ZoneInfo = _UTC) -> SelectRequest | str | None:
    """Parse `EXPLAIN query`, or `EXPLAIN [MATERIALIZED] VIEW name`.

    Returns:
        The query, or the view's name in lower case; None if the text is no EXPLAIN.

    Raises:
        InvalidProject: No query follows EXPLAIN.
    """
    head = _EXPLAIN.match(text)
    if head is None:
        return None
    view = _VIEW.fullmatch(text, head.end())
    if view is not None:
        return (view[1] or view[2]).lower()
    # Blanks in the place of EXPLAIN, so that offsets of errors are those of the whole text.
    return parse_select(" " * head.end() + text[head.end() :], zone)


def parse_subscribe(text: str, zone: ZoneInfo = _UTC) -> SubscribeRequest:
    """Parse `SUBSCRIBE [TO] object` and its clauses, in any order.

    `WITHOUT SNAPSHOT`, `AS OF time`, `UP TO time`, and `OF SHARD 'id'`.

    Raises:
        InvalidProject: It is not of this form, or `UP TO` is not later than `AS OF`.
    """
    try:
        return _subscribed(Cursor(text, _one(text, "write SUBSCRIBE TO object")), zone)
    except TextProblem as wrong:
        raise InvalidProject([wrong.at(Script(_FILE, text))]) from None


def bind(query: str, names: Mapping[str, str]) -> str:
    """The query over other names; see `references.Query.bind`.

    Args:
        query: The text, as in a `SelectRequest` or a view's description.
        names: The temporary view to read instead, by the object's name in lower case.

    Raises:
        InvalidProject: It is no query.
    """
    try:
        return read_query(query).bind(names).text
    except TextProblem as wrong:
        raise InvalidProject([wrong.at(Script(_FILE, query))]) from None


def _one(text: str, hint: str) -> list[Token]:
    statements = list(statements_of(text))
    if not statements:
        raise TextProblem(0, "there is no statement", hint)
    if len(statements) > 1:
        raise TextProblem(statements[1][0].start, "expected one statement, found several", hint)
    return statements[0]


def _query(text: str, base: int) -> Query:
    try:
        return read_query(text)
    except TextProblem as wrong:
        wrong.offset += base
        if _SHOW.match(text):
            wrong.hint = "objects: `status`, or SELECT * FROM introspection.objects"
        raise


def _as_of(tokens: list[Token], text: str, zone: ZoneInfo) -> tuple[int, int | None]:
    """Offset of the query's end, and the time of an `AS OF` that follows it."""
    words = [word_of(token, text) for token in tokens[-3:-1]]
    if words != ["AS", "OF"] or tokens[-1].token_type not in _LITERALS:
        return tokens[-1].end + 1, None
    if len(tokens) < 5 or word_of(tokens[-4], text) in {"TIMESTAMP", "VERSION"}:  # noqa: PLR2004
        raise TextProblem(
            tokens[max(len(tokens) - 4, 0)].start,
            "an object has times, and no versions",
            "write SELECT … FROM object AS OF time",
        )
    return tokens[-4].end + 1, _time(tokens[-1].text, tokens[-1].start, zone)


def _subscribed(cursor: Cursor, zone: ZoneInfo) -> SubscribeRequest:
    cursor.expect("SUBSCRIBE", "SUBSCRIBE TO object")
    cursor.accept("TO")
    on = cursor.name("what is followed").lower()
    snapshot, shard = True, ""
    times: dict[str, int] = {}
    while not cursor.is_done:
        offset, word = cursor.offset, cursor.word
        if word == "WITHOUT" and snapshot:
            cursor.expect("WITHOUT SNAPSHOT", "WITHOUT SNAPSHOT")
            snapshot = False
        elif word in {"AS", "UP"} and word not in times:
            cursor.expect("AS OF" if word == "AS" else "UP TO", "AS OF time UP TO time")
            at = cursor.offset
            times[word] = _time(cursor.literal("a time"), at, zone)
        elif word == "OF" and not shard:
            cursor.expect("OF SHARD", "OF SHARD 'id'")
            shard = cursor.literal("the id of a shard")
        else:
            raise TextProblem(
                offset,
                f"{cursor.written} is not expected here",
                "write SUBSCRIBE TO object [WITHOUT SNAPSHOT] [AS OF time] [UP TO time] "
                "[OF SHARD 'id']",
            )
        if word == "UP" or "UP" in times:
            _check_order(times, offset)
    return SubscribeRequest(on, snapshot, times.get("AS"), times.get("UP"), shard)


def _check_order(times: Mapping[str, int], offset: int) -> None:
    if "AS" in times and times["UP"] <= times["AS"]:
        raise TextProblem(
            offset,
            f"UP TO {times['UP']} is not behind AS OF {times['AS']}: there is nothing to send",
            "UP TO is exclusive; give a later time",
        )


def _time(text: str, offset: int, zone: ZoneInfo) -> int:
    try:
        return parse_time(text.strip(), lambda: zone)
    except UnparsableOption as hint:
        raise TextProblem(offset, f"'{text}' is no time", f"write {hint}") from None
