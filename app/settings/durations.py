"""Durations in settings and on command lines are written as in the options of `format("shard")`."""

from __future__ import annotations

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.option_parser import UnparsableOption, parse_duration

__all__ = ["parse_duration_ms"]


def parse_duration_ms(text: str, *others: str) -> int:
    """Parse `7d`, `36h`, `90min`, `10s`, `500` or `'7 days'` to milliseconds.

    Args:
        text: The duration.
        others: Other values that the caller accepts, named in the error's hint.

    Raises:
        InvalidUsage: `INVALID_DURATION`: it is no duration.
    """
    try:
        return parse_duration(text)
    except UnparsableOption as hint:
        raise InvalidUsage(
            f"'{text}' is no duration",
            code="INVALID_DURATION",
            hint=" or ".join((f"write {hint}", *others)),
        ) from None
