"""Objects from Python become the same values as statements in SQL, with the same checks.

    made_source, made_view, made_index, made_sink -> Reading

Invariants:
    Mistakes that SQL refuses are refused here too, as problems and not by an exception: a project
    shows all of its problems together. Places are in the given text, the query or the columns;
    where there is none, the object's name alone is the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardline.app.project.clauses import ENVELOPES, Clauses, check_key, check_new
from shardline.app.project.statements import (
    ObjectDescription,
    ParsedStatements,
    WrittenObject,
    index_name,
)
from shardline.app.protocol.objects import (
    Envelope,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.settings.durations import parse_duration_ms, parse_retention_ms
from shardline.app.sql.problems import Script, TextProblem, did_you_mean
from shardline.app.sql.references import read_query
from shardline.app.sql.tokens import statements_of
from shardline.app.storage.formats import canonical_format
from shardline.datasource.errors import InvalidUsage

__all__ = ["make_index", "make_sink", "make_source", "make_view"]


def make_source(
    name: str,
    format_name: str,
    *,
    options: Mapping[str, object],
    schema: str,
    envelope: Envelope,
    key: Iterable[str],
    retain: str | int | None,
    comment: str,
) -> ParsedStatements:
    """Make a source; arguments as in `Project.source`."""
    script = Script(f"source {name}", schema)
    key = tuple(key)
    try:
        _check_envelope(name, envelope, key)
        description = SourceDescription(
            name=name.lower(),
            format=canonical_format(format_name),
            options=_texts(options),
            schema=schema,
            envelope=envelope,
            key=key,
            retain_ms=_retain_ms(retain),
        )
    except TextProblem as wrong:
        return _broken(name, script, wrong)
    return _statements_of(description, script, {"columns": 0}, comment)


def make_view(name: str, text: str, retain: str | int | None, comment: str) -> ParsedStatements:
    """Make a view; arguments as in `Project.view`."""
    script = Script(f"view {name}", text)
    start = 0
    try:
        start, text = _one_statement(text)
        query = read_query(text)
        description = ViewDescription(
            name=name.lower(),
            query=text,
            inputs=query.inputs,
            schema="",
            retain_ms=_retain_ms(retain),
        )
    except TextProblem as wrong:
        wrong.offset += start
        return _broken(name, script, wrong)
    return ParsedStatements([WrittenObject(description, script, {"query": start}, query, comment)])


def make_index(on: str, key: Iterable[str], name: str) -> ParsedStatements:
    """Make an index; arguments as in `Project.index`."""
    on, key = on.lower(), tuple(key)
    name = name.lower() or index_name(on, key)
    script = Script(f"index {name}", "")
    try:
        _check_columns(key)
    except TextProblem as wrong:
        return _broken(name, script, wrong)
    return _statements_of(IndexDescription(name=name, on=on, key=key), script)


def make_sink(
    name: str,
    on: str,
    format_name: str,
    *,
    options: Mapping[str, object],
    envelope: Envelope,
    key: Iterable[str],
    snapshot: bool,
) -> ParsedStatements:
    """Make a sink; arguments as in `Project.sink`."""
    script = Script(f"sink {name}", "")
    key = tuple(key)
    try:
        _check_envelope(name, envelope, key)
    except TextProblem as wrong:
        return _broken(name, script, wrong)
    description = SinkDescription(
        name=name.lower(),
        on=on.lower(),
        format=canonical_format(format_name),
        options=_texts(options),
        envelope=envelope,
        key=key,
        snapshot=snapshot,
    )
    return _statements_of(description, script)


def _statements_of(
    description: ObjectDescription,
    script: Script,
    spots: Mapping[str, int] | None = None,
    comment: str = "",
) -> ParsedStatements:
    return ParsedStatements([WrittenObject(description, script, spots or {}, comment=comment)])


def _broken(name: str, script: Script, wrong: TextProblem) -> ParsedStatements:
    return ParsedStatements(problems=[wrong.at(script)], broken={name.lower()})


def _check_envelope(name: str, envelope: str, key: tuple[str, ...]) -> None:
    known = {one: one for one in ENVELOPES}
    if envelope not in known:
        raise TextProblem(0, f"'{envelope}' is no envelope", did_you_mean(envelope, known))
    spots = dict.fromkeys(("ENVELOPE", "KEY"), 0)
    check_key(Clauses(envelope=known[envelope], key=key, spots=spots), 0, name)
    _check_columns(key)


def _check_columns(key: tuple[str, ...]) -> None:
    for place, column in enumerate(key):
        check_new(column, key[:place], 0, "the key")


def _one_statement(text: str) -> tuple[int, str]:
    """Where the only statement of a text begins, and the statement, without what follows it."""
    statements = list(statements_of(text))
    if len(statements) != 1:
        return 0, text  # refused as a query, with the reason
    (tokens,) = statements
    start = tokens[0].start
    return start, text[start : tokens[-1].end + 1]


def _retain_ms(retain: str | int | None) -> int | None:
    if retain is None:
        return None
    try:
        parse = parse_duration_ms if isinstance(retain, int) else parse_retention_ms
        return parse(str(retain))
    except InvalidUsage as error:
        raise TextProblem(0, error.detail, error.hint, error.code) from None


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as texts, as Spark keeps them: booleans in lower case."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
