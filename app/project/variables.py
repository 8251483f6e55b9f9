"""Variables, `${name}`, keep what differs between machines out of a project's files.

    substituted("path '${landing}'", {"landing": "/data/in"}, "sources.sql")

A value is put into the text with its single quotes doubled, since it mostly stands in a string.

Invariants:
    The number of lines stays, so that later errors name the right one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["parse_variables", "substitute_variables"]

_VARIABLE: Final = re.compile(r"\$\{([^}\n]*)\}")


def substitute_variables(text: str, values: Mapping[str, str], file: str) -> str:
    """`text` with its variables replaced by their values.

    Args:
        text: The text of a file.
        values: Values by name.
        file: Name of the file, for errors.

    Raises:
        InvalidUsage: A variable has no value; names the file and the line.
    """

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
        return values[name].replace("'", "''")

    return _VARIABLE.sub(value, text)


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
