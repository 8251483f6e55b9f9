"""Live settings can change while a runtime runs, by the protocols' `UpdateConfiguration`.

Each part of the runtime declares its own beside its settings; this module applies new values.

    LIVE: Final = {"index_limit": LiveSetting("limit_bytes", parse_size_bytes)}
    with_live_values(IndexSettings(), LIVE, {"index_limit": "1g"})    a copy with the new values

Names are those of section `[runtime]` of `conf/app.toml`, and values are written as there.

Invariants:
    Names of other knobs are ignored: each part of the runtime applies its own.
    The result is valid as a whole, or nothing is applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.option_parser import UnparsableOption, parse_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "LiveSetting",
    "LiveSettings",
    "parse_positive_count",
    "parse_positive_ms",
    "parse_size_bytes",
    "with_live_values",
]

S = TypeVar("S", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class LiveSetting:
    """A setting that may change.

    Attributes:
        field: The field of the settings class.
        read: Parses a value; raises `InvalidUsage` if it cannot.
    """

    field: str
    read: Callable[[str], int]


LiveSettings: TypeAlias = Mapping[str, LiveSetting]
"""Knobs by their names in section `[runtime]`."""


def with_live_values(settings: S, knobs: LiveSettings, given: Mapping[str, str]) -> S:
    """Return `settings` with the values of `given`.

    Raises:
        InvalidUsage: A value cannot be parsed, or does not go with the others; it is named.
    """
    changes: dict[str, int] = {}
    for name, knob in knobs.items():
        if name in given:
            try:
                changes[knob.field] = knob.read(given[name])
            except InvalidUsage as error:
                raise InvalidUsage(
                    f"setting 'runtime.{name}' is '{given[name]}'",
                    code="INVALID_SETTING",
                    hint=error.hint,
                ) from None
    return dataclasses.replace(settings, **changes) if changes else settings


def parse_positive_count(text: str) -> int:
    """Parse a whole number from 1 to 100,000."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _COUNT_MAX:
        raise InvalidUsage(
            f"'{text}' is no number",
            code="INVALID_SETTING",
            hint=f"use a whole number from 1 to {_COUNT_MAX:,}",
        )
    return int(text)


def parse_positive_ms(text: str) -> int:
    """Parse a duration that is not 0 to milliseconds."""
    found = parse_duration_ms(text)
    if found < 1:
        raise InvalidUsage(
            f"'{text}' is no time at all", code="INVALID_SETTING", hint="use at least 1ms"
        )
    return found


def parse_size_bytes(text: str) -> int:
    """Parse a size, `64m` or `1g`, to bytes."""
    try:
        return parse_size(text)
    except UnparsableOption as hint:
        raise InvalidUsage(
            f"'{text}' is no size", code="INVALID_SETTING", hint=f"write {hint}"
        ) from None


_COUNT_MAX: Final = 100_000
