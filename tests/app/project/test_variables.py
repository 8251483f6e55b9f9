"""`${name}` in a project's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.project.statements import read_statements
from shardline.app.project.variables import (
    check_all_used,
    parse_variables,
    substitute_variables,
)
from shardline.app.protocol.objects import SourceDescription
from shardline.app.sql.problems import Script
from shardline.datasource.errors import InvalidUsage


def test_values_take_the_place_of_variables() -> None:
    """As often as they stand there; a quote in a value does not end the string it stands in."""
    text = "path '${in}/a'\n, other '${ in }', out '${out}'"
    assert substitute_variables(text, {"in": "/x", "out": "it's"}, "f") == (
        "path '/x/a'\n, other '/x', out 'it''s'"
    )


@pytest.mark.parametrize("mark", ["'", '"'])
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("\\'\"`n$"))
)
def test_a_value_in_quotes_is_itself(mark: str, value: str) -> None:
    """Passwords and patterns have backslashes and quotes; what stands behind is not swallowed."""
    text = f"CREATE SOURCE a USING kafka OPTIONS (x {mark}<${{v}}>{mark}, y 'z')"
    reading = read_statements(Script("f", substitute_variables(text, {"v": value}, "f")))
    assert reading.problems == []
    (one,) = reading.written
    assert isinstance(one.description, SourceDescription)
    assert one.description.options == {"x": f"<{value}>", "y": "z"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT 1 AS `a${v}b`", "SELECT 1 AS `a\\'``\"b`"),
        ("SELECT ${v} -- ${v}", "SELECT \\'`\" -- \\'`\""),
        ("SELECT '' ${v} ''", "SELECT '' \\'`\" ''"),
        ("SELECT r\"'\", 'it''s ${v}'", "SELECT r\"'\", 'it''s \\\\''`\"'"),
    ],
)
def test_a_value_is_written_as_its_place_asks(text: str, written: str) -> None:
    """In backticks only they are doubled; outside of quotes, and in comments, nothing is."""
    assert substitute_variables(text, {"v": "\\'`\""}, "f") == written


def test_a_raw_string_takes_what_it_can_hold() -> None:
    """A backslash is one there, and a quote cannot be written."""
    assert substitute_variables("r'${v}'", {"v": 'a\\b"'}, "f") == "r'a\\b\"'"
    with pytest.raises(InvalidUsage, match=r"INVALID_VARIABLE.*f:2.*'v' has a quote"):
        substitute_variables("a,\nr'${v}'", {"v": "it's"}, "f")


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"in": "1", "landing": "2"}, ""),
        ({}, ""),
        ({"landign": "2"}, r"UNKNOWN_VARIABLE.*has \$\{landign\}.*did you mean 'landing'\?"),
        ({"in": "1", "xx": "", "yyy": ""}, r"'xx', 'yyy': no file .* \$\{xx\}, \$\{yyy\}.*known"),
    ],
)
def test_a_value_that_no_file_asks_for_is_refused(values: dict[str, str], message: str) -> None:
    """Who has misspelt a name would take the value for set."""
    texts = ["path '${ in }/a'", "-- ${landing}\nSELECT 1"]
    if message:
        with pytest.raises(InvalidUsage, match=message):
            check_all_used(texts, values)
    else:
        check_all_used(texts, values)


def test_a_project_without_variables_takes_none() -> None:
    """There is no name that could have been meant."""
    with pytest.raises(InvalidUsage, match="the files have no variables: leave out --set"):
        check_all_used(["SELECT 1"], {"a": "1"})
