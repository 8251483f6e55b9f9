"""Reads the clauses of our own statements: in any order, each at most once.

All kinds of statements share their clauses, and every mistake in them is refused with its place: a
misspelt clause that was ignored would leave a default that nobody asked for.

    clauses = read_clauses(cursor, "source", ("USING", "OPTIONS", …))
    clauses.envelope, clauses.key, clauses.retain_ms …

Invariants:
    A clause that is not there leaves its default; one that is there twice is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from sqlglot import TokenType

from shardline.app.protocol.objects import Envelope
from shardline.app.settings.durations import parse_retention_ms
from shardline.app.sql.problems import TextProblem, did_you_mean
from shardline.app.sql.tokens import Cursor
from shardline.app.storage.formats import canonical_format
from shardline.datasource.errors import InvalidUsage

__all__ = [
    "ENVELOPES",
    "Clauses",
    "check_key",
    "check_new",
    "names_in_parentheses",
    "read_clauses",
]

ENVELOPES: Final[tuple[Envelope, ...]] = get_args(Envelope)


@dataclass(slots=True)
class Clauses:
    """The values of one statement's clauses; defaults where a clause is missing.

    Attributes:
        format: Name of the format (`USING`).
        options: Options of the format (`OPTIONS`).
        schema: Columns in DDL (`SCHEMA`); "" for those of the format.
        envelope: Meaning of a row (`ENVELOPE`); None for the statement's default.
        key: Columns that identify a row (`KEY`).
        retain_ms: How far back contents stay readable, in ms (`RETAIN HISTORY`).
        comment: A text for people (`COMMENT`).
        snapshot: False for `WITHOUT SNAPSHOT`.
        spots: Offset of each clause by its first word, of each key column by `key NAME`, and of
            each option by `option name`, in lower case.
    """

    format: str = ""
    options: dict[str, str] = field(default_factory=dict)
    schema: str = ""
    envelope: Envelope | None = None
    key: tuple[str, ...] = ()
    retain_ms: int | None = None
    comment: str = ""
    snapshot: bool = True
    spots: dict[str, int] = field(default_factory=dict)


_MISPLACED: Final = {
    ("", "CREATE"): "close the statement before it with ;",
    ("", "."): "a name has one part: there are no schemas",
    ("source", "("): "columns stand in SCHEMA (name TYPE, …)",
    ("source", "FROM"): "the format stands behind USING",
    ("source", "LOCATION"): "the folder is an option: OPTIONS (path '…')",
    ("sink", "LOCATION"): "the folder is an option: OPTIONS (path '…')",
    ("view", "("): "columns get their names in the query: SELECT a AS x",
}
"""Hints for a word that starts no clause, by the kind of the statement; "" is for all kinds."""


def read_clauses(cursor: Cursor, what: str, known: Sequence[str], until: str = "") -> Clauses:
    """Read the clauses up to the end of the statement, or up to the word `until`.

    Args:
        cursor: Stands at the first clause.
        what: Kind of the statement, for errors: "source", "sink", "view".
        known: First words of the clauses that the statement may have.
        until: A word at which they end, if not with the statement; it is not stepped over.

    Raises:
        TextProblem: A word is no clause, a clause comes twice, or its value is invalid.
    """
    clauses = Clauses()
    while not cursor.is_done and not (until and cursor.word == until):
        offset = cursor.offset
        words = (*known, until) if until else known
        if cursor.word not in known:
            met = cursor.written[1:-1].upper()
            hint = _MISPLACED.get((what, met)) or _MISPLACED.get(("", met))
            raise cursor.wrong(
                f"{cursor.written} starts no clause of a {what}",
                hint or did_you_mean(cursor.word, words),
            )
        word = cursor.word
        cursor.skip()
        if word in clauses.spots:
            raise TextProblem(offset, f"{word} stands there twice", "leave one of them out")
        clauses.spots[word] = offset
        _READERS[word](cursor, clauses)
    return clauses


def names_in_parentheses(cursor: Cursor, what: str) -> dict[str, int]:
    """Read the names of `(a, b)`, each with its offset; at least one, and all different.

    Raises:
        TextProblem: It is not of this form, or two names are equal without case.
    """
    cursor.open(what)
    names: dict[str, int] = {}
    while True:
        offset = cursor.offset
        name = cursor.name(f"a column of {what}")
        check_new(name, names, offset, what)
        names[name] = offset
        if cursor.symbol(TokenType.R_PAREN):
            return names
        if not cursor.symbol(TokenType.COMMA):
            raise cursor.wrong(
                f"expected , or ) in {what}, found {cursor.written}",
                "name columns alone: what is computed, or has an order, is for the query of a view",
            )


def check_new(name: str, known: Iterable[str], offset: int, what: str) -> None:
    """Refuse a column that is among those before it.

    Raises:
        TextProblem: They have one of its name, in any case.
    """
    if name.lower() in {other.lower() for other in known}:
        raise TextProblem(offset, f"column '{name}' stands in {what} twice", "name it once")


def check_key(clauses: Clauses, offset: int, name: str) -> None:
    """Refuse an upsert without a key, and a key for an envelope that has none.

    Args:
        clauses: Clauses of a source or sink.
        offset: Place of its name in the text.
        name: Its name.

    Raises:
        TextProblem: Envelope and key do not go together.
    """
    if clauses.envelope == "upsert" and not clauses.key:
        raise TextProblem(
            clauses.spots.get("ENVELOPE", offset),
            f"'{name}' has the envelope UPSERT and no key",
            "write KEY (columns): those that say which row a row replaces",
        )
    if clauses.key and clauses.envelope not in {"upsert", "debezium"}:
        raise TextProblem(
            clauses.spots["KEY"],
            f"'{name}' has a key and an envelope that has no use for it",
            "add ENVELOPE UPSERT or ENVELOPE DEBEZIUM, or leave out KEY",
        )


def _using(cursor: Cursor, clauses: Clauses) -> None:
    clauses.spots["format"] = cursor.offset
    clauses.format = canonical_format(cursor.dotted("the format"))


def _options(cursor: Cursor, clauses: Clauses) -> None:
    cursor.open("OPTIONS")
    if cursor.symbol(TokenType.R_PAREN):
        return
    known: set[str] = set()
    while True:
        offset = cursor.offset
        key = cursor.dotted("an option")
        if key.lower() in known:
            raise TextProblem(
                offset, f"option '{key}' stands there twice", "Spark ignores its case"
            )
        known.add(key.lower())
        clauses.spots[f"option {key.lower()}"] = offset
        cursor.symbol(TokenType.EQ)
        clauses.options[key] = cursor.literal(f"the value of option '{key}'")
        if cursor.symbol(TokenType.R_PAREN):
            return
        if not cursor.symbol(TokenType.COMMA):
            raise cursor.wrong(
                f"expected , or ) in OPTIONS, found {cursor.written}",
                "write OPTIONS (name 'value', name 'value')",
            )


def _schema(cursor: Cursor, clauses: Clauses) -> None:
    start, end = cursor.enclosed("SCHEMA")
    clauses.spots["columns"] = start
    clauses.schema = cursor.text[start:end]
    if not clauses.schema:
        raise TextProblem(start, "SCHEMA has no column", "write SCHEMA (name TYPE, …)")


def _envelope(cursor: Cursor, clauses: Clauses) -> None:
    words = {envelope.upper(): envelope for envelope in ENVELOPES}
    clauses.envelope = words[cursor.one_of("envelope", words)]


def _key(cursor: Cursor, clauses: Clauses) -> None:
    names = names_in_parentheses(cursor, "KEY")
    for name, offset in names.items():
        if "," in name or name != name.strip():
            # A shard is told its key as one text, in which commas part the columns.
            raise TextProblem(
                offset,
                f"'{name}' cannot be a column of a key: it has a comma, or a blank at an end",
                "give the column another name",
            )
    clauses.key = tuple(names)
    clauses.spots |= {f"key {name}": offset for name, offset in names.items()}


def _retain(cursor: Cursor, clauses: Clauses) -> None:
    cursor.expect("HISTORY", "RETAIN HISTORY '7 days'")
    cursor.accept("FOR")
    offset = cursor.offset
    text = cursor.string("a duration")
    try:
        clauses.retain_ms = parse_retention_ms(text)
    except InvalidUsage as error:
        raise TextProblem(offset, error.detail, error.hint, error.code) from None


def _comment(cursor: Cursor, clauses: Clauses) -> None:
    clauses.comment = cursor.string("the comment")


def _without(cursor: Cursor, clauses: Clauses) -> None:
    cursor.expect("SNAPSHOT", "WITHOUT SNAPSHOT")
    clauses.snapshot = False


_READERS: Final[dict[str, Callable[[Cursor, Clauses], None]]] = {
    "USING": _using,
    "OPTIONS": _options,
    "SCHEMA": _schema,
    "ENVELOPE": _envelope,
    "KEY": _key,
    "RETAIN": _retain,
    "COMMENT": _comment,
    "WITHOUT": _without,
}
