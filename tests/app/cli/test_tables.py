"""Times, sizes and ages are written for people."""

from __future__ import annotations

import pytest

from shardline.app.cli.tables import age, moment, number_or_time, size


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (59_999, "59 s"), (60_000, "1 min"),
        (200_000, "3 min 20 s"), (3_600_000, "1 h"), (90_061_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_an_age_has_two_units_at_most(ms: int, said: str) -> None:
    """Whole units, cut off and not rounded."""
    assert age(ms) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (6_400_000, "6.1 MiB")],
)
def test_a_size_has_a_unit(count: int | None, said: str) -> None:
    """Powers of 1024, and a question mark for what is not known."""
    assert size(count) == said


def test_a_time_is_the_number_and_the_date() -> None:
    """The number is what options take; a time that no calendar reaches is the number alone."""
    assert moment(1_795_000_000_123) == "1795000000123\n2026-11-18 11:06:40.123"
    assert moment(0) == "0"
    assert moment(4_711) == "4711", "a position in an order is no time of 1970"
    assert moment(2**63 - 2) == "9223372036854775806"
    assert moment(None, "finished") == "finished"


def test_the_last_append_of_a_writer_may_be_a_time() -> None:
    """That of a source's ingestion is, and is written as one; others count."""
    assert number_or_time(1_795_000_000_123) == "1795000000123\n2026-11-18 11:06:40.123"
    assert number_or_time(1_234_567) == "1,234,567"
