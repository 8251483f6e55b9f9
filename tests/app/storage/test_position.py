"""Offsets as one number."""

from __future__ import annotations

import pytest

from shardline.app.storage.reporting import position


@pytest.mark.parametrize(
    ("offset", "number"),
    [
        ("7", 7.0),
        ('{"logOffset":7}', 7.0),
        ('{"topic":{"0":5,"1":6}}', 11.0),
        ('{"frontier":"7"}', None),
        ('{"a":1,"b":null}', None),
        ("{}", None),
        ("true", None),
        ("null", None),
        ("not json", None),
        ("", None),
    ],
)
def test_position(offset: str, number: float | None) -> None:
    """Numbers are added up; an offset with anything else in it has no position."""
    assert position(offset) == number
