"""The options of `format("shard")`: text from Spark, parsed once, each error naming its option.

Spark hands over every key in lower case, so keys are matched without case. Unknown ones are refused
with the nearest known name. What each means is said here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from datasource.errors import InvalidUsage, unknown_name
from datasource.settings import ShardSettings

__all__ = ["SaveMode", "ShardOptions", "SinkOptions", "SourceOptions", "parse_sink", "parse_source"]

SaveMode = Literal["append", "overwrite", "errorifexists", "ignore"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """What every use of the format has.

    Attributes:
        location: URL of the persist location. Option `location`, or all but the last segment of
            the path given to `load`/`save`/`start`.
        shard: Name of the shard. Option `shard`, or the last segment of the path.
        storage: Options of the store, such as `s3.endpoint`.
        settings: Any setting of `ShardSettings`, in camel case, such as `partBufferBytes`.
    """

    location: str
    shard: str
    storage: Mapping[str, str]
    settings: ShardSettings


@dataclass(frozen=True, slots=True)
class SourceOptions(ShardOptions):
    """Options of a read.

    Attributes:
        timestamp_as_of: `timestampAsOf`: contents at this time; for a stream, the snapshot that it
            starts from. Default: the latest that can be read.
        read_change_feed: `readChangeFeed`: rows carry `_ts` and `_diff`. A batch read then gives
            changes instead of contents. A stream without it gives added rows only, and fails at
            the first retraction.
        starting_timestamp: `startingTimestamp`: changes at this time and later. Default: all that
            can still be told apart.
        ending_timestamp: `endingTimestamp`: changes before this time only; a stream ends there.
        snapshot: `snapshot`: whether a stream starts with the contents ("include") or only with
            what changes after them ("exclude").
        columns: `columns`: names, separated by commas; only these are read. Default: all.
        max_bytes: `maxBytesPerTrigger`: encoded bytes of parts per micro-batch.
        max_rows: `maxRowsPerTrigger`: updates per micro-batch.
        max_files: `maxFilesPerTrigger`: parts per micro-batch. Of all three limits the first one
            reached counts; one step is always admitted.
        progress_interval_ms: `progressInterval`: how often a stream without news moves its offset
            (and with it its holds) when the shard's upper has moved.
        hold: `hold`: name of the stream's since hold; make it unique per query. Default: a name
            made up when the query first runs, kept in its checkpoint.
        hold_interval_ms: `holdInterval`: the stream moves its holds at most this often.
        wait_timeout_ms: `waitTimeout`: how long a batch read waits until its time is settled.
        partition_bytes: `partitionBytes`: encoded bytes of parts per partition, about.
    """

    timestamp_as_of: int | None = None
    read_change_feed: bool = False
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    snapshot: Literal["include", "exclude"] = "include"
    columns: tuple[str, ...] | None = None
    max_bytes: int | None = None
    max_rows: int | None = None
    max_files: int | None = None
    progress_interval_ms: int = 10_000
    hold: str | None = None
    hold_interval_ms: int = 1_000
    wait_timeout_ms: int = 60_000
    partition_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions(ShardOptions):
    """Options of a write.

    Attributes:
        key: `key`: columns, separated by commas; used when the write makes the shard.
        comment: `comment`: text kept with a shard that the write makes.
        merge_schema: `mergeSchema`: evolve the shard's schema to take the frame's new columns and
            wider types.
        save_mode: `saveMode`: what a batch write does when the shard exists. Spark lets a Python
            source see only its modes `append` and `overwrite`, so the other two are an option:
            `df.write.format("shard").mode("append").option("saveMode", "ignore")`.
        txn_app_id: `txnAppId`: name of a durable writer; a write with a `txnVersion` that this
            writer has committed before does nothing.
        txn_version: `txnVersion`: number of the write; greater than all before.
    """

    key: tuple[str, ...] | None = None
    comment: str = ""
    merge_schema: bool = False
    save_mode: SaveMode | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None


_SOURCE: Final = (
    "timestampAsOf",
    "readChangeFeed",
    "startingTimestamp",
    "endingTimestamp",
    "snapshot",
    "columns",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "maxFilesPerTrigger",
    "progressInterval",
    "hold",
    "holdInterval",
    "waitTimeout",
    "partitionBytes",
)
_SINK: Final = (
    "key",
    "comment",
    "mergeSchema",
    "saveMode",
    "txnAppId",
    "txnVersion",
)
_PLACE: Final = ("location", "shard", "path")
_IGNORED: Final = frozenset({"checkpointlocation", "queryname", "timezone"})
"""Spark's own, which it passes along. `timeZone` is read where a date-time is parsed."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read.

    Raises:
        InvalidUsage: An option is unknown, missing, or its value means nothing.
    """
    given = _Given(options, _SOURCE)
    zone = given.value("timeZone", ZoneInfo, default=ZoneInfo("UTC"))
    parsed = SourceOptions(
        *given.place(),
        timestamp_as_of=given.value("timestampAsOf", lambda text: _time(text, zone)),
        read_change_feed=given.value("readChangeFeed", _flag) or False,
        starting_timestamp=given.value("startingTimestamp", lambda text: _time(text, zone)),
        ending_timestamp=given.value("endingTimestamp", lambda text: _time(text, zone)),
        snapshot=given.choice("snapshot", ("include", "exclude")) or "include",
        columns=given.value("columns", _names),
        max_bytes=given.value("maxBytesPerTrigger", _size),
        max_rows=given.value("maxRowsPerTrigger", _count),
        max_files=given.value("maxFilesPerTrigger", _count),
        progress_interval_ms=given.value("progressInterval", _duration, default=10_000),
        hold=given.text("hold"),
        hold_interval_ms=given.value("holdInterval", _duration, default=1_000),
        wait_timeout_ms=given.value("waitTimeout", _duration, default=60_000),
        partition_bytes=given.value("partitionBytes", _size, default=32 << 20),
    )
    _check_times(parsed)
    return parsed


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write; errors as `parse_source`."""
    given = _Given(options, _SINK)
    parsed = SinkOptions(
        *given.place(),
        key=given.value("key", _names),
        comment=given.text("comment") or "",
        merge_schema=given.value("mergeSchema", _flag) or False,
        save_mode=given.choice("saveMode", get_args(SaveMode)),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.value("txnVersion", int),
    )
    if (parsed.txn_app_id is None) != (parsed.txn_version is None):
        raise InvalidUsage(
            "options 'txnAppId' and 'txnVersion' go together, and only one is set",
            code="INVALID_OPTION",
            hint="set both: the writer's name, and a number that grows with each write",
        )
    return parsed


def _check_times(parsed: SourceOptions) -> None:
    start, end = parsed.starting_timestamp, parsed.ending_timestamp
    if start is not None and end is not None and end <= start:
        raise InvalidUsage(
            f"option 'endingTimestamp' ({end}) is not after 'startingTimestamp' ({start})",
            code="INVALID_OPTION",
            hint="the end is exclusive",
        )
    if start is not None and parsed.timestamp_as_of is not None:
        raise InvalidUsage(
            "options 'timestampAsOf' and 'startingTimestamp' exclude each other",
            code="INVALID_OPTION",
            hint="the first starts with a snapshot at that time, the second with changes from then",
        )


class _Given:
    """Options as given, looked up without case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): text for name, text in options.items()}
        if "provider" in self._values:
            raise InvalidUsage(
                "a shard cannot be a catalog table: Spark 4.3 keeps the options of one to itself "
                "when a Python source reads it",
                code="CATALOG_TABLE",
                hint="CREATE TEMPORARY VIEW … USING shard OPTIONS (path '…') works",
            )
        self._storage = {k: v for k, v in self._values.items() if "." in k}
        self._settings = _setting_names()
        names = (*_PLACE, *known, *self._settings)
        accepted = {name.lower() for name in names} | _IGNORED
        for name in self._values:
            if name not in accepted and "." not in name:
                raise unknown_name("option", name, names)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def value(self, name: str, parse: Callable[[str], T], default: T | None = None) -> T:
        text = self.text(name)
        if text is None:
            return default  # type: ignore[return-value]  # None where the caller's type has it
        try:
            return parse(text.strip())
        except InvalidUsage:
            raise
        except (ValueError, ZoneInfoNotFoundError) as error:
            hint = str(error) if isinstance(error, _Hint) else "see the documentation of the option"
            raise InvalidUsage(
                f"option '{name}' cannot be '{text}'", code="INVALID_OPTION", hint=hint
            ) from error

    def choice(self, name: str, choices: tuple[T, ...]) -> T | None:
        def parse(text: str) -> T:
            for choice in choices:
                if str(choice) == text.lower():
                    return choice
            raise _Hint("one of " + ", ".join(map(str, choices)))

        return self.value(name, parse)

    def place(self) -> tuple[str, str, Mapping[str, str], ShardSettings]:
        location, shard = _place(self.text("location"), self.text("shard"), self.text("path"))
        names = {name.lower(): setting for name, setting in self._settings.items()}
        chosen = {names[k]: text for k, text in self._values.items() if k in names}
        return location, shard, self._storage, ShardSettings.parse(chosen)


class _Hint(ValueError):
    """What a value should have been."""


def _setting_names() -> dict[str, str]:
    """Settings by option name: `partBufferBytes` for `part_buffer_bytes`."""
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
                hint="give a path 'LOCATION/SHARD', or the options 'location' and 'shard'",
            )
    assert location is not None
    assert shard is not None
    return location, shard


def _time(text: str, zone: ZoneInfo) -> int:
    """Milliseconds since the epoch, from a number or an ISO date-time in `zone`."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise _Hint(
            "milliseconds since the epoch, or a date-time such as 2026-11-20 12:00:00"
        ) from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def _flag(text: str) -> bool:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    raise _Hint("true or false")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise _Hint("column names separated by commas")
    return names


def _count(text: str) -> int:
    if re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    raise _Hint("a whole number of at least 1")


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.lower())
    if match is None or int(match[1]) < 1:
        raise _Hint("a size such as 1048576, 512k or 1g")
    return int(match[1]) * _SIZES[match[2]]


def _duration(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    unit = _UNITS.get(match[2] or "ms") if match else None
    if match is None or unit is None:
        raise _Hint("a duration such as 500ms, 10s, 5min or 1h")
    return int(match[1]) * unit
