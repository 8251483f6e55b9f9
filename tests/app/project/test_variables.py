"""`${name}` in a project's files."""

from __future__ import annotations

import pytest

from shardline.app.project.variables import parse_variables, substitute_variables
from shardline.datasource.errors import InvalidUsage


def test_values_take_the_place_of_variables() -> None:
    """As often as they stand there; a quote in a value does not end the string it stands in."""
    text = "path '${in}/a'\n, other '${ in }', out '${out}'"
    assert substitute_variables(text, {"in": "/x", "out": "it's"}, "f") == (
        "path '/x/a'\n, other '/x', out 'it''s'"
    )


def test_a_variable_without_a_value_is_named_with_its_line() -> None:
    """And with the nearest one that has a value."""
    with pytest.raises(InvalidUsage, match=r"sources.sql:3.*landin.*landing"):
        substitute_variables("a\nb\n'${landin}'", {"landing": "/x"}, "sources.sql")


def test_a_command_line_gives_names_and_values() -> None:
    """Only the first equals sign separates."""
    assert parse_variables(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for wrong in ("a", "=b", "a=b\nc"):
        with pytest.raises(InvalidUsage, match="NAME=VALUE"):
            parse_variables([wrong])
