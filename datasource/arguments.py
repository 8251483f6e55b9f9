"""Checks the kinds of arguments that callers of Python give, and makes options of them.

Type hints stop nobody in a notebook: a path of `pathlib` in place of a text, one column's name
where a list of names belongs (a list of its letters, to Python), half of a writer's number. Each is
either taken for what was meant, or refused by a sentence with the argument's name before anything
is done.

    text_of           a text, or a path of `pathlib`
    names_of          a list of names
    writer_number     name and number of a durable writer
    whole_number      a count
    append_number     number of an append or a transaction of a durable writer
    moment            a time of a shard, in milliseconds
    frontier_of       a frontier
    store_options     options of a store, as texts
    place_options, option_text, time_text    arguments as options of `format("shard")`
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import index
from typing import Final, SupportsIndex, TypeAlias

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MAX, TIME_MIN, Frontier

__all__ = [
    "Pathname",
    "Time",
    "append_number",
    "frontier_of",
    "moment",
    "names_of",
    "option_text",
    "place_options",
    "store_options",
    "text_of",
    "time_text",
    "whole_number",
    "writer_number",
    "wrong_kind",
]

Pathname: TypeAlias = "str | os.PathLike[str]"
"""A URL or a path, as text or as `pathlib` has it."""

Time = int | str | datetime
"""Milliseconds since the epoch, or a date-time, in the session's time zone if it names none."""


_URL_IN_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""A URL that was made a path."""

_SHOWN_MAX: Final = 60
"""Characters of a wrong value that a message has."""


def text_of(argument: str, value: object) -> str:
    """A text, or a path as text.

    Args:
        argument: What the caller calls it.
        value: What was given.

    Raises:
        InvalidUsage: It is something else.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise wrong_kind(argument, value, "give a text or a pathlib.Path")
    if text is not value and _URL_IN_PATH.match(text):
        # pathlib makes one slash of two: it would be a folder `s3:` of this machine.
        raise wrong_kind(argument, value, "give a URL as a text: a path has lost its '//'")
    return text


def names_of(argument: str, value: object) -> tuple[str, ...]:
    """Names, of columns or shards, from any sequence of texts that is not a text itself.

    Raises:
        InvalidUsage: It is one text, or has something else than texts.
    """
    if isinstance(value, str):
        raise wrong_kind(argument, value, f"give a list of names: {argument}=[{value!r}]")
    names = tuple(value) if isinstance(value, Sequence) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise wrong_kind(argument, value, "give a list of names")
    return names


def writer_number(argument: str, value: object) -> tuple[str, int]:
    """The name and the number of a durable writer.

    Raises:
        InvalidUsage: It is not a pair of a text and a whole number of at least 0.
    """
    match value:
        case (str() as name, SupportsIndex() as number) if not isinstance(number, bool):
            return name, append_number(argument, number)
    raise wrong_kind(argument, value, f'give a name and a number: {argument}=("orders-in", 17)')


def append_number(argument: str, value: object) -> int:
    """The number of an append or a transaction among those of its writer: 0 or greater.

    Raises:
        InvalidUsage: It is something else.
    """
    # -1 is the last number of a writer that has committed nothing: such a number would be one that
    # was committed before, and its rows would be lost.
    return whole_number(argument, value, least=0)


def moment(argument: str, value: object) -> int:
    """A time that updates of a shard may have, in milliseconds.

    Raises:
        InvalidUsage: It is something else.
    """
    # A greater one could be held and never be reached: a shard whose since is there can be read at
    # no time, and no since goes back.
    return whole_number(argument, value, least=TIME_MIN, most=TIME_MAX)


def frontier_of(argument: str, value: object) -> Frontier:
    """A frontier as it is; a number is none.

    Two numbers would be compared with frontiers and equal none, and None is no end but nothing that
    was said.

    Raises:
        InvalidUsage: It is something else, or its time is no whole number.
    """
    if not isinstance(value, Frontier):
        raise wrong_kind(argument, value, "give a frontier: Frontier(1700000000000), or EMPTY")
    if value.time is not None:
        whole_number(argument, value.time)
    return value


def whole_number(
    argument: str, value: object, *, least: int | None = None, most: int | None = None
) -> int:
    """A whole number of Python's, also from one of NumPy's; True is none, nor is 5.0.

    Args:
        argument: What the caller calls it.
        value: What was given.
        least: The least number that is taken; None for any.
        most: The greatest number that is taken; None for any.

    Raises:
        InvalidUsage: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise wrong_kind(argument, value, "give a whole number; times are in milliseconds")
    number = index(value)
    if least is not None and number < least:
        raise wrong_kind(argument, value, f"give a whole number of at least {least}")
    if most is not None and number > most:
        raise wrong_kind(argument, value, f"give a whole number of at most {most}")
    return number


def place_options(path: object, location: object, shard: object) -> dict[str, str]:
    """The options that name a shard, of those of three arguments that are not None.

    Raises:
        InvalidUsage: One of them is no text and no path.
    """
    named = {"path": path, "location": location, "shard": shard}
    return {name: text_of(name, value) for name, value in named.items() if value is not None}


def store_options(argument: str, value: object) -> dict[str, str]:
    """Options of a store by their names; None is none of them.

    Raises:
        InvalidUsage: It is no mapping from names to texts, numbers or flags.
    """
    if value is None:
        return {}
    hint = f'give names and their values: {argument}={{"s3.endpoint": "https://…"}}'
    if not isinstance(value, Mapping):
        raise wrong_kind(argument, type(value).__name__, hint)  # a value may be a secret
    for name, given in value.items():
        if not isinstance(name, str):
            raise wrong_kind(argument, name, hint)
        if not isinstance(given, str | int):
            raise wrong_kind(f"{argument}[{name!r}]", type(given).__name__, hint)
    return {name: option_text(given) for name, given in value.items()}


def option_text(value: object) -> str:
    """A value as the text of an option: `true` for True, as Spark's `option` has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def time_text(argument: str, time: object) -> str:
    """A time as the text of an option.

    Raises:
        InvalidUsage: It is no number of milliseconds, text or date-time.
    """
    if isinstance(time, datetime):
        return time.isoformat()
    if isinstance(time, bool) or not isinstance(time, SupportsIndex | str):
        raise wrong_kind(argument, time, "give milliseconds since the epoch or a date-time")
    return time if isinstance(time, str) else str(index(time))


def wrong_kind(argument: str, value: object, hint: str) -> InvalidUsage:
    """The error of an argument that is of no kind that is understood."""
    return InvalidUsage(
        f"'{argument}' cannot be {_shown(value)}", code="INVALID_ARGUMENT", hint=hint
    )


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[: _SHOWN_MAX - 3]}..."
