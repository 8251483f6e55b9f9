"""Durations in settings and on command lines are written as in the options of `format("shard")`."""

from __future__ import annotations

from collections.abc import Callable

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.option_parser import (
    UnparsableOption,
    parse_duration,
    parse_retention,
)

__all__ = ["parse_duration_ms", "parse_retention_ms"]


def parse_duration_ms(text: str, *others: str) -> int:
    """Parse `7d`, `36h`, `90min`, `10s`, `500` or `'7 days'` to milliseconds.

    Args:
        text: The duration.
        others: Other values that the caller accepts, named in the error's hint.

    Raises:
        InvalidUsage: `INVALID_DURATION`: it is no duration.
    """
    return _parsed(text, parse_duration, others)


def parse_retention_ms(text: str, *others: str) -> int:
    """As `parse_duration_ms`, for how long history is kept: a number has a unit, or is 0."""
    return _parsed(text, parse_retention, others)


def _parsed(text: str, parse: Callable[[str], int], others: tuple[str, ...]) -> int:
    try:
        return parse(text)
    except UnparsableOption as hint:
        raise InvalidUsage(
            f"'{text}' is no duration",
            code="INVALID_DURATION",
            hint=" or ".join((f"write {hint}", *others)),
        ) from None
