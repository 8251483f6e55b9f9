"""Objects from Python become the same values as statements in SQL, with the same checks.

    made_source, made_view, made_index, made_sink -> Reading

Invariants:
    Mistakes that SQL refuses are refused here too, as problems and not by an exception: a project
    shows all of its problems together. Places are in the given text, the query or the columns;
    where there is none, the object's name alone is the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardline.app.project.clauses import ENVELOPES, Clauses, check_key
from shardline.app.project.statements import Kept, Reading, Written, index_name
from shardline.app.protocol.objects import (
    Envelope,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.settings.durations import duration_ms
from shardline.app.sql.problems import Script, Wrong, did_you_mean
from shardline.app.sql.references import read_query
from shardline.app.storage.formats import spelt
from shardline.datasource.errors import InvalidUsage

__all__ = ["made_index", "made_sink", "made_source", "made_view"]


def made_source(
    name: str,
    format_name: str,
    *,
    options: Mapping[str, object],
    schema: str,
    envelope: Envelope,
    key: Iterable[str],
    retain: str | int | None,
    comment: str,
) -> Reading:
    """Make a source; arguments as in `Project.source`."""
    script = Script(f"source {name}", schema)
    key = tuple(key)
    try:
        _check_envelope(name, envelope, key)
        description = SourceDescription(
            name=name.lower(),
            format=spelt(format_name),
            options=_texts(options),
            schema=schema,
            envelope=envelope,
            key=key,
            retain_ms=_retain_ms(retain),
        )
    except Wrong as wrong:
        return _broken(name, script, wrong)
    return _made(description, script, {"columns": 0}, comment)


def made_view(name: str, text: str, retain: str | int | None, comment: str) -> Reading:
    """Make a view; arguments as in `Project.view`."""
    script = Script(f"view {name}", text)
    try:
        query = read_query(text)
        description = ViewDescription(
            name=name.lower(),
            query=text,
            inputs=query.inputs,
            schema="",
            retain_ms=_retain_ms(retain),
        )
    except Wrong as wrong:
        return _broken(name, script, wrong)
    return Reading([Written(description, script, {"query": 0}, query, comment)])


def made_index(on: str, key: Iterable[str], name: str) -> Reading:
    """Make an index; arguments as in `Project.index`."""
    on, key = on.lower(), tuple(key)
    name = name.lower() or index_name(on, key)
    return _made(IndexDescription(name=name, on=on, key=key), Script(f"index {name}", ""))


def made_sink(
    name: str,
    on: str,
    format_name: str,
    *,
    options: Mapping[str, object],
    envelope: Envelope,
    key: Iterable[str],
    snapshot: bool,
) -> Reading:
    """Make a sink; arguments as in `Project.sink`."""
    script = Script(f"sink {name}", "")
    key = tuple(key)
    try:
        _check_envelope(name, envelope, key)
    except Wrong as wrong:
        return _broken(name, script, wrong)
    description = SinkDescription(
        name=name.lower(),
        on=on.lower(),
        format=spelt(format_name),
        options=_texts(options),
        envelope=envelope,
        key=key,
        snapshot=snapshot,
    )
    return _made(description, script)


def _made(
    description: Kept, script: Script, spots: Mapping[str, int] | None = None, comment: str = ""
) -> Reading:
    return Reading([Written(description, script, spots or {}, comment=comment)])


def _broken(name: str, script: Script, wrong: Wrong) -> Reading:
    return Reading(problems=[wrong.at(script)], broken={name.lower()})


def _check_envelope(name: str, envelope: str, key: tuple[str, ...]) -> None:
    known = {one: one for one in ENVELOPES}
    if envelope not in known:
        raise Wrong(0, f"'{envelope}' is no envelope", did_you_mean(envelope, known))
    spots = dict.fromkeys(("ENVELOPE", "KEY"), 0)
    check_key(Clauses(envelope=known[envelope], key=key, spots=spots), 0, name)


def _retain_ms(retain: str | int | None) -> int | None:
    if retain is None or isinstance(retain, int):
        return retain
    try:
        return duration_ms(retain)
    except InvalidUsage as error:
        raise Wrong(0, error.detail, error.hint, error.code) from None


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as texts, as Spark keeps them: booleans in lower case."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
