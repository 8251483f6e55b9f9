"""The definition text writes an object's description as the statement that a project would have.

    write_definition(description)    "CREATE INDEX fast ON delays (carrier)"

Two definitions are compared by people line by line, so each clause has a line, in one order; what
a statement would have by default is left out.

Invariants:
    Read again, the text of a description is that description, but for what the analyzer adds to a
    view (columns, strategy), and a backslash in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import assert_never

from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.sql.references import quote_name

__all__ = ["write_definition"]

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def write_definition(description: ObjectDescription) -> str:
    """The statement that makes an object, over several lines; redact the description before."""
    return "\n  ".join(_lines(description))


def _lines(description: ObjectDescription) -> Iterator[str]:
    name = _name(description.name)
    match description:
        case SourceDescription():
            yield f"CREATE SOURCE {name} USING {_dotted(description.format)}"
            yield from _options(description.options)
            if description.schema:
                yield f"SCHEMA ({description.schema})"
            yield from _envelope(description.envelope, "none", description.key)
            yield from _retention(description.retain_ms)
        case ViewDescription():
            head = [f"CREATE MATERIALIZED VIEW {name}", *_retention(description.retain_ms)]
            yield f"{' '.join(head)} AS"
            yield description.query
        case IndexDescription():
            key = f" ({_names(description.key)})" if description.key else ""
            yield f"CREATE INDEX {name} ON {_name(description.on)}{key}"
        case SinkDescription():
            on, target = _name(description.on), _dotted(description.format)
            yield f"CREATE SINK {name} FROM {on} USING {target}"
            yield from _options(description.options)
            yield from _envelope(description.envelope, "diff", description.key)
            if not description.snapshot:
                yield "WITHOUT SNAPSHOT"
        case _:
            assert_never(description)


def _options(options: dict[str, str]) -> Iterator[str]:
    if options:
        given = ", ".join(f"{_dotted(key)} {_quoted(value)}" for key, value in options.items())
        yield f"OPTIONS ({given})"


def _envelope(envelope: str, default: str, key: Iterable[str]) -> Iterator[str]:
    if envelope != default:
        yield f"ENVELOPE {envelope.upper()}"
    if key:
        yield f"KEY ({_names(key)})"


def _retention(retain_ms: int | None) -> Iterator[str]:
    if retain_ms is None:
        return
    for unit, length in _UNITS:
        count, rest = divmod(retain_ms, length)
        if count and not rest:
            yield f"RETAIN HISTORY '{count} {unit}{'' if count == 1 else 's'}'"
            return
    yield f"RETAIN HISTORY '{retain_ms} ms'"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(_name, names))


def _name(name: str) -> str:
    # An index called `on` would be read as one without a name.
    is_plain = re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII) and name.upper() != "ON"
    return name if is_plain else quote_name(name)


def _dotted(key: str) -> str:
    # A key that is no plain word stands in backticks, as any name does.
    plain = re.fullmatch(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)*", key, re.ASCII)
    return key if plain else quote_name(key)


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
