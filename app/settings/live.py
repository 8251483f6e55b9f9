"""Settings that a running runtime takes over: those of the protocols' `UpdateConfiguration`.

    KNOBS: Final = {"index_limit": Knob("limit_bytes", size_bytes)}      beside what they are of
    tuned(IndexSettings(), KNOBS, {"index_limit": "1g"})                 with the new values

Names are those of section `[runtime]` of `conf/app.toml`, and values are written as there.

Invariants:
    Names of other knobs are passed over: each part of the runtime takes its own.
    What comes out is valid as a whole; nothing is taken over of what is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from shardline.app.settings.durations import duration_ms
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard_source.option_parser import Hint, parse_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Knob", "Knobs", "count", "positive_ms", "size_bytes", "tuned"]

S = TypeVar("S", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that may change.

    Attributes:
        field: Of the settings that it is in.
        read: Reads a value; `InvalidUsage` if it is none.
    """

    field: str
    read: Callable[[str], int]


Knobs: TypeAlias = Mapping[str, Knob]
"""By the name that people know."""


def tuned(settings: S, knobs: Knobs, given: Mapping[str, str]) -> S:
    """`settings` with the values that are given.

    Raises:
        InvalidUsage: One of them is none; names it.
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


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _COUNT_MAX:
        raise InvalidUsage(
            f"'{text}' is no number",
            code="INVALID_SETTING",
            hint=f"use a whole number from 1 to {_COUNT_MAX:,}",
        )
    return int(text)


def positive_ms(text: str) -> int:
    """Milliseconds of a duration that is not 0."""
    found = duration_ms(text)
    if found < 1:
        raise InvalidUsage(
            f"'{text}' is no time at all", code="INVALID_SETTING", hint="use at least 1ms"
        )
    return found


def size_bytes(text: str) -> int:
    """Bytes of `64m`, `1g`."""
    try:
        return parse_size(text)
    except Hint as hint:
        raise InvalidUsage(
            f"'{text}' is no size", code="INVALID_SETTING", hint=f"write {hint}"
        ) from None


_COUNT_MAX: Final = 100_000
