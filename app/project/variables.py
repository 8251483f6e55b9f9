"""Variables, `${name}`, keep what differs between machines out of a project's files.

    substitute_variables("path '${landing}'", {"landing": "/data/in"}, "sources.sql")
    check_all_used(texts, {"landign": "/data/in"})           refused: no text has it

Invariants:
    In quotes or backticks a value stands for itself: what would end them, or mean something else
    there, such as a backslash, is written so that it does not. Elsewhere it is part of the text.
    The number of lines stays, so that later errors name the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from sqlglot import Token, TokenType

from shardline.app.sql.problems import TextProblem
from shardline.app.sql.tokens import tokens_of
from shardline.datasource.errors import InvalidUsage, unknown_name, unknown_names

__all__ = ["check_all_used", "parse_variables", "substitute_variables"]

_QUOTING: Final = frozenset({TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER})
_VARIABLE: Final = re.compile(r"\$\{([^}\n]*)\}")


def substitute_variables(text: str, values: Mapping[str, str], file: str) -> str:
    """`text` with its variables replaced by their values.

    Args:
        text: The text of a file.
        values: Values by name.
        file: Name of the file, for errors.

    Raises:
        InvalidUsage: A variable has no value, or a raw string cannot hold it; names the file and
            the line.
    """
    tokens = _quoting_tokens(text)

    def value(found: re.Match[str]) -> str:
        name = found[1].strip()
        if name not in values:
            line = text.count("\n", 0, found.start()) + 1
            unknown = unknown_name("variable", name, values)
            raise InvalidUsage(
                f"{file}:{line}: {unknown.detail}",
                code=unknown.code,
                hint=f"{unknown.hint}; --set NAME=VALUE gives it a value",
            )
        around = next((one for one in tokens if one.start < found.start() <= one.end), None)
        written = values[name] if around is None else _quoted(values[name], around, text)
        if written is None:
            line = text.count("\n", 0, found.start()) + 1
            raise InvalidUsage(
                f"{file}:{line}: the value of '{name}' has a quote, which ends a raw string",
                code="INVALID_VARIABLE",
                hint="write the string without the r in front of it",
            )
        return written

    return _VARIABLE.sub(value, text)


def check_all_used(texts: Iterable[str], values: Mapping[str, str]) -> None:
    """Refuse values that no text asks for: their names may be misspelt.

    Args:
        texts: The texts of a project, as they are written.
        values: Values by name.

    Raises:
        InvalidUsage: A variable has a value and is in no text.
    """
    used = {found[1].strip() for text in texts for found in _VARIABLE.finditer(text)}
    unused = [name for name in values if name not in used]
    if unused:
        unknown = unknown_names("variable", unused, used)
        raise InvalidUsage(
            f"{unknown.detail}: no file of the project has {', '.join(map(_written, unused))}",
            code=unknown.code,
            hint=unknown.hint if used else "the files have no variables: leave out --set",
        )


def _written(name: str) -> str:
    return f"${{{name}}}"


def _quoting_tokens(text: str) -> list[Token]:
    """Tokens in quotes or backticks; none of a text that cannot be split, which is said later."""
    try:
        return [token for token in tokens_of(text) if token.token_type in _QUOTING]
    except TextProblem:
        return []


def _quoted(value: str, token: Token, text: str) -> str | None:
    """A value as it is written inside of a token; None if it cannot stand there."""
    mark = text[token.end]
    if token.token_type is TokenType.RAW_STRING:
        return None if mark in value else value
    if token.token_type is TokenType.STRING:
        value = value.replace("\\", "\\\\")
    return value.replace(mark, mark * 2)


def parse_variables(given: list[str]) -> dict[str, str]:
    """Values by name, from arguments of a command line of the form `NAME=VALUE`.

    Raises:
        InvalidUsage: There is no `=`, no name, or a line break in a value.
    """
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name.strip() or "\n" in value:
            raise InvalidUsage(
                f"'{one}' sets no variable", code="INVALID_VARIABLE", hint="write NAME=VALUE"
            )
        found[name.strip()] = value
    return found
