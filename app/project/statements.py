"""Reads the statements of a project: each becomes an object, with the place of each piece.

    CREATE SOURCE name USING format [OPTIONS (k 'v', …)] [SCHEMA (columns)]
        [ENVELOPE NONE | DIFF | UPSERT | DEBEZIUM] [KEY (a, b)] [RETAIN HISTORY '7 days']
        [COMMENT '…']
    CREATE MATERIALIZED VIEW name [RETAIN HISTORY '7 days'] [COMMENT '…'] AS query
    CREATE INDEX [name] ON object [(columns)]
    CREATE SINK name FROM object USING format [OPTIONS (…)] [ENVELOPE …] [KEY (…)]
        [WITHOUT SNAPSHOT]

Clauses come in any order. Statements end with `;`. Names are kept in lower case, also those in
backticks: Spark's catalog does the same with tables and views, and compares without case. Columns
keep their spelling.

There is no DROP and no ALTER: a project states the objects that are to exist, and `plan` finds the
difference to those that run.

Invariants:
    A statement that is not understood hides no other one: reading goes on after its `;`.
    A view's query and a source's columns are text of the script, at the offset in `spots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from shardline.app.project.clauses import check_key, names_in_parentheses, read_clauses
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    inputs_of,
)
from shardline.app.sql.problems import Place, Problem, Script, TextProblem, did_you_mean
from shardline.app.sql.references import Query, read_query
from shardline.app.sql.tokens import Cursor, statements_of

__all__ = [
    "ObjectDescription",
    "ParsedStatements",
    "WrittenObject",
    "index_name",
    "kind_of",
    "read_statements",
]

ObjectDescription: TypeAlias = (
    SourceDescription | ViewDescription | IndexDescription | SinkDescription
)
"""The description of an object of a project."""

_KINDS: Final = ("SOURCE", "MATERIALIZED VIEW", "INDEX", "SINK")
_SOURCE: Final = ("USING", "OPTIONS", "SCHEMA", "ENVELOPE", "KEY", "RETAIN", "COMMENT")
_VIEW: Final = ("RETAIN", "COMMENT")
_SINK: Final = ("USING", "OPTIONS", "ENVELOPE", "KEY", "WITHOUT")


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """An object as the user wrote it, before Spark has checked it.

    Attributes:
        description: Its description; that of a view has the query as written, and no columns or
            strategy yet.
        script: The text that it is written in.
        spots: Offsets in the script, by piece: `name`, `on`, `format`, `columns`, `query`,
            `key NAME`, `option name`, and each clause by its first word.
        query: A view's query with its references; None for other objects.
        comment: Its comment; "" if there is none.
    """

    description: ObjectDescription
    script: Script
    spots: Mapping[str, int] = field(default_factory=dict)
    query: Query | None = None
    comment: str = ""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.description.name

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of its inputs."""
        return inputs_of(self.description)

    def place(self, piece: str = "name", shift: int = 0) -> Place:
        """The place `shift` characters into `piece`, or into the name if the piece is missing."""
        return self.script.place(self.spots.get(piece, self.spots.get("name", 0)) + shift)

    def problem(self, piece: str, code: str, message: str, hint: str, shift: int = 0) -> Problem:
        """A problem with a piece of it."""
        return Problem(self.place(piece, shift), code, message, hint)


@dataclass(slots=True)
class ParsedStatements:
    """The objects and problems found in a project's texts.

    Attributes:
        written: The objects, in the order of the text.
        problems: Problems of statements that are not understood.
        broken: Names of sources and views whose statements are not understood: to read them is no
            further problem.
    """

    written: list[WrittenObject] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


def kind_of(description: ObjectDescription) -> str:
    """The kind of an object in a word: source, view, index or sink."""
    match description:
        case SourceDescription():
            return "source"
        case ViewDescription():
            return "view"
        case IndexDescription():
            return "index"
        case SinkDescription():
            return "sink"


def index_name(on: str, key: Iterable[str]) -> str:
    """The name of an index without one: the same for the same index, at each start."""
    return "_".join((on, *(column.lower() for column in key), "idx"))


def read_statements(script: Script) -> ParsedStatements:
    """Read all statements of `script`: their objects, and the problems of those that fail."""
    reading = ParsedStatements()
    try:
        statements = list(statements_of(script.text))
    except TextProblem as wrong:
        return ParsedStatements(problems=[wrong.at(script)])
    for tokens in statements:
        try:
            reading.written.append(_statement(Cursor(script.text, tokens), script))
        except TextProblem as wrong:
            reading.problems.append(wrong.at(script))
            reading.broken.update(_intended_name(Cursor(script.text, tokens)))
    return reading


def _intended_name(cursor: Cursor) -> set[str]:
    """The name that a statement which is not understood most likely creates, or nothing."""
    if cursor.accept("CREATE", "SOURCE") or cursor.accept("CREATE", "MATERIALIZED", "VIEW"):
        try:
            return {cursor.name("it").lower()}
        except TextProblem:
            pass
    return set()


def _statement(cursor: Cursor, script: Script) -> WrittenObject:
    if not cursor.accept("CREATE"):
        raise cursor.wrong(
            f"{cursor.written} starts no statement of a project",
            "a project says what is to exist: CREATE "
            + ", ".join(_KINDS)
            + "; what is no longer there is dropped",
        )
    if cursor.accept("OR", "REPLACE"):
        raise cursor.wrong("OR REPLACE is not needed", "leave it out: `run` applies differences")
    if cursor.accept("SOURCE"):
        return _source(cursor, script)
    if cursor.accept("MATERIALIZED", "VIEW"):
        return _view(cursor, script)
    if cursor.accept("INDEX"):
        return _index(cursor, script)
    if cursor.accept("SINK"):
        return _sink(cursor, script)
    hint = did_you_mean(cursor.word, _KINDS)
    if cursor.word in {"VIEW", "TABLE", "MATERIALIZED"}:
        hint = "write CREATE MATERIALIZED VIEW name AS SELECT …"
    raise cursor.wrong(f"{cursor.written} is nothing that a project can create", hint)


def _name(cursor: Cursor, what: str) -> str:
    if cursor.accept("IF", "NOT", "EXISTS"):
        raise cursor.wrong("IF NOT EXISTS is not needed", "leave it out: `run` applies differences")
    return cursor.name(what).lower()


def _source(cursor: Cursor, script: Script) -> WrittenObject:
    spots = {"name": cursor.offset}
    name = _name(cursor, "the source")
    clauses = read_clauses(cursor, "source", _SOURCE)
    if "USING" not in clauses.spots:
        raise cursor.wrong(
            f"source '{name}' has no format", "write USING and a format: csv, kafka, counter, …"
        )
    description = SourceDescription(
        name=name,
        format=clauses.format,
        options=clauses.options,
        schema=clauses.schema,
        envelope=clauses.envelope or "none",
        key=clauses.key,
        retain_ms=clauses.retain_ms,
    )
    check_key(clauses, spots["name"], name)
    return WrittenObject(description, script, spots | clauses.spots, comment=clauses.comment)


def _view(cursor: Cursor, script: Script) -> WrittenObject:
    spots = {"name": cursor.offset}
    name = _name(cursor, "the view")
    clauses = read_clauses(cursor, "view", _VIEW, until="AS")
    cursor.expect("AS", f"CREATE MATERIALIZED VIEW {name} AS SELECT …")
    spots["query"] = cursor.offset
    text = script.text[cursor.offset : cursor.end]
    try:
        query = read_query(text)
    except TextProblem as wrong:
        wrong.offset += spots["query"]
        raise
    description = ViewDescription(
        name=name, query=text, inputs=query.inputs, schema="", retain_ms=clauses.retain_ms
    )
    return WrittenObject(description, script, spots | clauses.spots, query, clauses.comment)


def _index(cursor: Cursor, script: Script) -> WrittenObject:
    spots = {"name": cursor.offset}
    name = "" if cursor.accept("ON") else _name(cursor, "the index")
    if name:
        cursor.expect("ON", f"CREATE INDEX {name} ON object (columns)")
    spots["on"] = cursor.offset
    on = cursor.name("what is indexed").lower()
    key: dict[str, int] = {}
    if not cursor.is_done:
        key = names_in_parentheses(cursor, "the index")
    if not cursor.is_done:
        raise cursor.wrong(
            f"expected the end of the index, found {cursor.written}", "end the statement with ;"
        )
    if not name:
        name = index_name(on, key)
        spots["name"] = spots["on"]
    spots |= {f"key {column}": offset for column, offset in key.items()}
    return WrittenObject(IndexDescription(name=name, on=on, key=tuple(key)), script, spots)


def _sink(cursor: Cursor, script: Script) -> WrittenObject:
    spots = {"name": cursor.offset}
    name = _name(cursor, "the sink")
    cursor.expect("FROM", f"CREATE SINK {name} FROM object USING format")
    spots["on"] = cursor.offset
    on = cursor.name("what goes out").lower()
    clauses = read_clauses(cursor, "sink", _SINK)
    if "USING" not in clauses.spots:
        raise cursor.wrong(
            f"sink '{name}' has no format", "write USING and a format: parquet, shard, kafka, …"
        )
    description = SinkDescription(
        name=name,
        on=on,
        format=clauses.format,
        options=clauses.options,
        envelope=clauses.envelope or "diff",
        key=clauses.key,
        snapshot=clauses.snapshot,
    )
    check_key(clauses, spots["name"], name)
    return WrittenObject(description, script, spots | clauses.spots)
