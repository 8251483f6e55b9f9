"""Defaults of a source of Kafka: the whole topic, and committed rows only."""

from __future__ import annotations

import pytest

from shardline.app.storage.kafka import with_defaults

PLACE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def test_a_source_begins_at_the_start_and_reads_what_is_committed() -> None:
    """Spark's own defaults are the end of the topic, and every row."""
    assert with_defaults(PLACE) == {
        **PLACE,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("STARTINGOFFSETS", '{"t": {"0": 5}}'),
        ("startingTimestamp", "1700000000000"),
        ("startingOffsetsByTimestamp", '{"t": {"0": 1700000000000}}'),
    ],
)
def test_a_beginning_that_is_given_stands(name: str, value: str) -> None:
    """Nothing beside it: of two of these options Spark prefers one."""
    found = with_defaults({**PLACE, name: value})
    assert found == {**PLACE, name: value, "kafka.isolation.level": "read_committed"}


def test_an_isolation_that_is_given_stands() -> None:
    """In any case of its name, as Spark reads it."""
    given = {**PLACE, "Kafka.Isolation.Level": "read_uncommitted"}
    assert with_defaults(given) == {**given, "startingOffsets": "earliest"}
