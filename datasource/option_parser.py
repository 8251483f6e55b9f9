"""Parses the options of `format("shard")`: text, looked up without case, one value at a time.

Spark passes every key in lower case, and every value as text. A misspelt option that was ignored
would read or write something else than the user meant, so unknown names are refused with the
nearest known one, and each error names its option and the values that it takes.

`options.py` says what each option means; this module knows only names, places and kinds of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, tzinfo
from typing import Final, TypeVar

from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.filters.comparisons import NotComparable, time_zone
from shardline.datasource.frontier import TIME_MAX
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.open import from_folder
from shardline.datasource.stores.shard_names import shard_directory

__all__ = [
    "OptionReader",
    "UnparsableOption",
    "options_from",
    "parse_count",
    "parse_duration",
    "parse_flag",
    "parse_names",
    "parse_number",
    "parse_retention",
    "parse_size",
    "parse_time",
    "parse_zone",
]

T = TypeVar("T")

_PLACE: Final = ("location", "shard", "path")
_IGNORED: Final = frozenset({"checkpointlocation", "queryname", "timezone"})
"""Options of Spark, which it passes along. `timeZone` is read where a date-time is parsed."""

_ELSEWHERE: Final = {
    "versionAsOf": "they have times and no versions: timestampAsOf",
    "startingVersion": "they have times and no versions: startingTimestamp",
    "endingVersion": "they have times and no versions: endingTimestamp",
    "startingOffsets": "startingTimestamp, and snapshot=exclude to begin with what changes",
    "ignoreDeletes": "readChangeFeed=true, which has deletes as rows with _diff -1",
    "ignoreChanges": "readChangeFeed=true, which has changes as pairs of rows",
    "skipChangeCommits": "readChangeFeed=true, and filter by _diff > 0",
    "overwriteSchema": "mergeSchema=true adds columns; drop and create the shard for another one",
    "partitionOverwriteMode": "mode overwrite writes the difference, whatever it replaces",
    "replaceWhere": "mode overwrite writes the difference: give it the whole contents",
}
"""Options of other formats for the same purpose: what to use here."""

_SPELLED: Final = {name.lower(): name for name in _ELSEWHERE}
"""Their names by those in lower case, as Spark hands over all options."""

_UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("week", "weeks"), 7 * 86_400_000),
}
_TIME_DIGITS: Final = len(str(TIME_MAX))
"""Digits of the greatest time."""

_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OptionReader:
    """The options that a user set, looked up without case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): text for name, text in options.items()}
        if "provider" in self._values:
            raise InvalidUsage(
                "a catalog table cannot keep the place of a shard: Spark 4.3 hands none of its "
                "options to a Python source that is read by the table's name",
                code="CATALOG_TABLE",
                hint="CREATE TABLE t (columns) USING shard, and then everywhere t WITH (path = "
                "'…'), for example in a view; or CREATE TEMPORARY VIEW … USING shard OPTIONS "
                "(path '…'), whose contents stay as they are now",
            )
        self._storage = {k: v for k, v in self._values.items() if "." in k}
        self._settings = _setting_names()
        names = (*_PLACE, *known, *self._settings)
        accepted = {name.lower() for name in names} | _IGNORED
        for name in self._values:
            if name not in accepted and name in _SPELLED:
                raise InvalidUsage(
                    f"shards have no option '{_SPELLED[name]}'",
                    code="UNKNOWN_OPTION",
                    hint=_ELSEWHERE[_SPELLED[name]],
                )
            if name not in accepted and "." not in name:
                raise unknown_name("option", name, names)

    def text(self, name: str) -> str | None:
        """The option's text; None if it is not set."""
        return self._values.get(name.lower())

    def value(self, name: str, parse: Callable[[str], T], default: T | None = None) -> T:
        """The option's value, or `default` if it is not set.

        Args:
            name: Name of the option, in any case.
            parse: Turns its text into a value; raises `UnparsableOption` if it cannot.
            default: Value of an option that is not set.

        Raises:
            InvalidUsage: `parse` refused the text.
        """
        text = self.text(name)
        if text is None:
            return default  # type: ignore[return-value]  # None where the caller's type has it
        try:
            return parse(text.strip())
        except InvalidUsage:
            raise
        except ValueError as error:
            hint = (
                str(error)
                if isinstance(error, UnparsableOption)
                else "see the documentation of the option"
            )
            raise InvalidUsage(
                f"option '{name}' cannot be '{text}'", code="INVALID_OPTION", hint=hint
            ) from error

    def choice(self, name: str, choices: tuple[T, ...]) -> T | None:
        """The one of `choices` that the option names, in any case; None if it is not set."""

        def parse(text: str) -> T:
            for choice in choices:
                if str(choice) == text.lower():
                    return choice
            raise UnparsableOption("one of " + ", ".join(map(str, choices)))

        return self.value(name, parse)

    def place(self, *, several: bool = False) -> tuple[str, str, Mapping[str, str], ShardSettings]:
        """Location, shard, storage options, settings; without a shard if there are `several`."""
        given = (self.text("location"), self.text("shard"), self.text("path"))
        location, shard = (_location_only if several else _place)(*given)
        if shard:
            # Refused where it is written, and not by the store that could not hold it.
            shard_directory(shard)
        chosen = {
            setting: text
            for name, setting in self._settings.items()
            if (text := self._checked_setting(name, setting)) is not None
        }
        return location, shard, self._storage, ShardSettings.parse(chosen)

    def _checked_setting(self, name: str, setting: str) -> str | None:
        """The text of a setting's option, once it is known to have a value that works."""
        text = self.text(name)
        if text is not None:
            try:
                ShardSettings.parse({setting: text})
            except InvalidUsage as error:
                # Whoever wrote the option knows no setting by its name in Python.
                what = f"option '{name}' cannot be '{text}'"
                raise InvalidUsage(what, code=error.code, hint=error.hint) from None
        return text


class UnparsableOption(ValueError):
    """Raised by a parser; the text describes the values that it takes."""


def _setting_names() -> dict[str, str]:
    """Names of settings by name of their option: `part_buffer_bytes` by `partBufferBytes`."""
    names = {}
    for setting in fields(ShardSettings):
        first, *rest = setting.name.split("_")
        names[first + "".join(word.capitalize() for word in rest)] = setting.name
    return names


def _place(location: str | None, shard: str | None, path: str | None) -> tuple[str, str]:
    """Location and shard, from their own options or from a path that names both."""
    if path is not None:
        if location is not None and shard is not None:
            raise InvalidUsage(
                "a path and the options 'location' and 'shard' are given together",
                code="INVALID_OPTION",
                hint="a path names location and shard in one; leave it out, or the options",
            )
        trimmed = path.rstrip("/")
        if location is None and shard is None:
            head, _, last = trimmed.rpartition("/")
            if head and last and not head.endswith((":", "/")):
                return head, last
            raise InvalidUsage(
                f"the path '{path}' does not name a location and a shard in it",
                code="INVALID_OPTION",
                hint="use 'LOCATION/SHARD', such as s3://bucket/prefix/orders",
            )
        location, shard = (trimmed, shard) if location is None else (location, trimmed)
    for name, value in (("location", location), ("shard", shard)):
        if not value:
            raise InvalidUsage(
                f"option '{name}' is missing",
                code="MISSING_OPTION",
                hint="give a path 'LOCATION/SHARD', or the options 'location' and 'shard'; the "
                "name of a table is not enough: save(path) instead of saveAsTable, or at each use "
                "option(\"path\", …), in SQL t WITH (path = '…')",
            )
    assert location is not None
    assert shard is not None
    return location, shard


def options_from(folder: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options whose location is counted from `folder` if it is a relative path.

    A path beside option `location` is the name of a shard, and one that names a shard alone is
    refused: neither is a path from anywhere.
    """
    names = {name.lower(): name for name in options}
    place = names.get("location") or names.get("path")
    if place is None or not options[place]:
        return dict(options)
    is_whole = not {"location", "shard", "shards"}.isdisjoint(names)
    if not is_whole and "/" not in options[place].rstrip("/"):
        return dict(options)
    return {**options, place: from_folder(folder, options[place])}


def _location_only(location: str | None, shard: str | None, path: str | None) -> tuple[str, str]:
    if shard is not None or (location is None) == (path is None):
        raise InvalidUsage(
            "option 'shards' goes with the location alone",
            code="INVALID_OPTION",
            hint="give it as the path or as option 'location', and leave option 'shard' out",
        )
    return (location or path or "").rstrip("/"), ""


def parse_zone(text: str) -> tzinfo:
    """A time zone by a name that Spark takes for a session's."""
    try:
        return time_zone(text)
    except NotComparable as error:
        raise UnparsableOption(
            f"{error}; Spark may: set spark.sql.session.timeZone, or the option, to a region such "
            "as Europe/Berlin or an offset such as +02:00, or give milliseconds"
        ) from None


def parse_time(text: str, zone: Callable[[], tzinfo]) -> int:
    """Milliseconds since the epoch, from a number or an ISO date-time.

    Args:
        text: The time.
        zone: Called for the zone of a date-time that names none. Others have no use for it, and
            a session may have one that is known to Spark only.
    """
    if re.fullmatch(r"\d+", text):
        digits = text.lstrip("0") or "0"
        # By its length first: Python converts no text of thousands of digits.
        if len(digits) <= _TIME_DIGITS and (time := int(digits)) <= TIME_MAX:
            return time
        # A time goes into states, records and columns of 64 bits, where nothing greater has room.
        raise UnparsableOption(f"milliseconds since the epoch, at most {TIME_MAX}")
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise UnparsableOption(
            "milliseconds since the epoch, or a date-time such as 2026-11-20 12:00:00"
        ) from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=zone())
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def parse_flag(text: str) -> bool:
    """True or false, in any case."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    raise UnparsableOption("true or false")


def parse_names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UnparsableOption("column names separated by commas")
    return names


def parse_count(text: str) -> int:
    """A whole number of at least 1."""
    if re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    raise UnparsableOption("a whole number of at least 1")


def parse_size(text: str) -> int:
    """Bytes, from a number with an optional unit of 1024."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.lower())
    if match is None or int(match[1]) < 1:
        raise UnparsableOption("a size such as 1048576, 512k or 1g")
    return int(match[1]) * _SIZES[match[2]]


def parse_number(text: str) -> int:
    """A whole number of at least 0."""
    with suppress(ValueError):
        if (number := int(text)) >= 0:
            return number
    raise UnparsableOption("a whole number of at least 0, such as 17")


def parse_duration(text: str) -> int:
    """Milliseconds, from a number with an optional unit, or from an interval as Spark writes it."""
    words = text.lower().strip().removeprefix("interval ")
    terms = re.findall(r"(\d+)\s*([a-z]+)\s*", words) or [(words, "ms")]
    whole = re.fullmatch(r"\d+|(\d+\s*[a-z]+\s*)+", words)
    if whole is None or any(unit not in _UNITS for _, unit in terms):
        raise UnparsableOption("a duration such as 500ms, 10s, 5min, 1h or '7 days'")
    counts = [(count.lstrip("0") or "0", _UNITS[unit]) for count, unit in terms]
    # By its length first: Python converts no text of thousands of digits.
    if all(len(count) <= _TIME_DIGITS for count, _ in counts):
        found = sum(int(count) * unit_ms for count, unit_ms in counts)
        if found <= TIME_MAX:
            return found
    raise UnparsableOption(f"a duration of at most {TIME_MAX // _UNITS['day']} days")


def parse_retention(text: str) -> int:
    """Milliseconds for which history is kept, from a duration with a unit, or 0.

    A number alone is milliseconds elsewhere. Here who writes 7 means days, and would lose them.
    """
    if text.strip().isdigit() and int(text) != 0:
        raise UnparsableOption("a duration with its unit, such as '7 days' or 36h")
    return parse_duration(text)
