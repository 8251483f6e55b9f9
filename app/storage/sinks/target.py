"""A target takes the rows of a sink: its contract, its formats, and what each of them guarantees.

Rows that a crash has left in doubt can be left out only if the target itself can be asked for them.
That divides all formats in two, and a user has to know which one a sink has:

    exactly once    the target remembers which interval it has: `shard`, files, `delta`, `memory`
    at least once   what was written right before a crash may come again: everything else

What a caller relies on:
    `check_sink` refuses a description that cannot work before anything runs; `guarantee` names what
    the sink gives.

Invariants:
    `write` makes all rows of an interval visible, or none; after it `committed` is at its upper,
    where the target can tell. (Files on an object store: a crash may leave a part of them, until
    the target is opened again.) Another call for an interval that the target has changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.formats import (
    FILES,
    missing_option,
    package_of,
    path_option,
    unknown_options,
)
from shardline.app.storage.sinks.interval import Interval
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import has_class
from shardline.datasource.frontier import Frontier
from shardline.datasource.option_parser import UnparsableOption, parse_duration
from shardline.datasource.settings import LONGEST_MS
from shardline.datasource.sink import parse_sink

__all__ = [
    "Guarantee",
    "Target",
    "Written",
    "cached_rows",
    "check_package",
    "check_sink",
    "console_options",
    "evolving",
    "guarantee",
    "interval_ms",
    "missing_package",
    "options_of",
    "target_taken",
]

Guarantee: TypeAlias = Literal["exactly once", "at least once"]

_EXACT: Final = frozenset({*FILES, "shard", "memory", "delta"})

_INTERVAL: Final = "interval"
"""Option of every sink: how far its micro-batches are apart."""

_INTERVAL_HINT: Final = (
    "a duration longer than 0, such as 10s, and of 100 years at most; leave it out to write as "
    "often as sources commit"
)


@dataclass(frozen=True, slots=True)
class Written:
    """The size of what a target has taken.

    Attributes:
        rows: Number of rows.
        size_bytes: Their size as they are stored; None if it is not known.
    """

    rows: int
    size_bytes: int | None = None


class Target(Protocol):
    """Takes the rows of one sink; called by one thread at a time."""

    @property
    def input(self) -> str:
        """Id of the shard whose changes it has; "" if it has none, or cannot tell."""
        ...

    def committed(self) -> Frontier | None:
        """The upper that the target itself remembers; None if it has nothing, or cannot tell."""
        ...

    def has_taken(self, upper: Frontier) -> bool:
        """False if it remembers what it was given, and that is less than rows up to `upper`.

        Rows that somebody has taken away since, to use them up, have been there nevertheless.
        """
        ...

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Make the rows of `interval` visible, all of them or none."""
        ...

    def skip(self, interval: Interval) -> None:
        """Take note that nothing else has changed before the interval's upper; idempotent."""
        ...


@contextmanager
def cached_rows(rows: DataFrame) -> Iterator[DataFrame]:
    """Cache `rows` for the context, so that writing and counting them reads them once.

    An `Observation` would count while they are written, but waits for ever where a writer runs the
    frame in a session or in a command of its own.
    """
    persisted = rows.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()


def evolving(options: Mapping[str, str], committed: Frontier | None) -> dict[str, str]:
    """The option by which a table takes what the input has got; none if its user has set it.

    Rows that a target has without these columns could not be taken back. One that has no rows of
    the sink may have been named by mistake, and is not given any.

    Args:
        options: Of the target, as its user wrote them.
        committed: How far the target is; None if it has nothing of the sink.
    """
    if committed is None or "mergeschema" in {name.lower() for name in options}:
        return {}
    return {"mergeSchema": "true"}


def target_taken(target: str, sink: str, way_out: str) -> InvalidUsage:
    """The error for a target that has the rows of another definition, which would come twice.

    Args:
        target: Kind and name, such as "folder 'out'".
        sink: Name of the sink that has written them.
        way_out: What to do, other than to go back to the definition before.
    """
    return InvalidUsage(
        f"{target} holds what sink '{sink}' as it was defined then has written",
        code="TARGET_TAKEN",
        hint=f"{way_out}, or go back to the definition before",
    )


def guarantee(sink: SinkDescription) -> Guarantee:
    """The guarantee of a sink under any failure, by its format."""
    return "exactly once" if sink.format in _EXACT else "at least once"


def check_sink(sink: SinkDescription) -> None:
    """Refuse a description that cannot work, whatever is on the class path.

    Raises:
        InvalidUsage: An option or a key is missing, unknown or invalid.
    """
    if sink.envelope == "upsert" and not sink.key:
        raise InvalidUsage(
            f"sink '{sink.name}' has the envelope upsert and no key",
            code="KEY_NEEDED",
            hint="name the columns that identify a row: KEY (…)",
        )
    interval_ms(sink)
    options = options_of(sink)
    if sink.format in FILES and path_option(options) is None:
        raise InvalidUsage(
            f"option 'path' of sink '{sink.name}' is missing",
            code="MISSING_OPTION",
            hint="the folder to write to",
        )
    needed = missing_option(sink.format, options, "sink")
    if needed is not None:
        raise InvalidUsage(
            f"option '{needed[0]}' of sink '{sink.name}' is missing",
            code="MISSING_OPTION",
            hint=needed[1],
        )
    unknown = unknown_options(sink.format, sink.options, "sink")
    if unknown:
        name, hint = unknown[0]
        raise InvalidUsage(f"unknown option '{name}'", code="UNKNOWN_OPTION", hint=hint)
    if sink.format == "shard":
        _check_shard(options)
    if sink.format in FILES:
        _check_rows_of_files(options)
    if sink.format == "console":
        console_options(options)
    _check_rows(sink)


def _check_shard(options: Mapping[str, str]) -> None:
    """Refuse options that no shard has, whatever location it is in."""
    elsewhere = {name.lower() for name in options} & {"path", "location"}
    parse_sink(dict(options) if elsewhere else {**options, "location": "."})


def _check_rows(sink: SinkDescription) -> None:
    """Refuse an envelope whose rows the format cannot hold."""
    message, hint = "", ""
    if sink.format == "csv" and sink.envelope == "debezium":
        message = "csv has no columns for rows inside of rows, as before and after are"
        hint = "write json, or use the envelope diff or upsert"
    elif sink.format == "text" and sink.envelope != "none":
        message = "text has one column, and none for what the envelope says of a row"
        hint = "use the envelope none for rows that are only added, or write json"
    if message:
        raise InvalidUsage(message, code="ENVELOPE_MISMATCH", hint=hint)


def check_package(spark: SparkSession, format: str) -> None:  # noqa: A002 - Spark's word
    """Refuse a format whose package is not there.

    Raises:
        InvalidUsage: It is not on the class path; names it.
    """
    found = package_of(format)
    if found is not None and not has_class(spark, found[0]):
        raise missing_package(format, found[1])


def missing_package(format: str, package: str) -> InvalidUsage:  # noqa: A002 - Spark's word
    """The error for a format whose package is not there."""
    return InvalidUsage(
        f"format '{format}' is not on the class path",
        code="PACKAGE_MISSING",
        hint=f"start with --packages {package}",
    )


def interval_ms(sink: SinkDescription) -> int | None:
    """The time between the sink's micro-batches, in ms; None if the sink does not set it.

    Raises:
        InvalidUsage: Its option `interval` is no duration.
    """
    text = next((t for name, t in sink.options.items() if name.lower() == _INTERVAL), None)
    if text is None:
        return None
    try:
        found = parse_duration(text)
    except UnparsableOption as hint:
        raise _invalid_option(_INTERVAL, text, f"{hint}") from None
    if not 0 < found <= LONGEST_MS:
        raise _invalid_option(_INTERVAL, text, _INTERVAL_HINT)
    return found


def _invalid_option(name: str, text: str, hint: str) -> InvalidUsage:
    return InvalidUsage(f"option '{name}' cannot be '{text}'", code="INVALID_OPTION", hint=hint)


def console_options(options: Mapping[str, str]) -> tuple[int, bool]:
    """The number of rows that a terminal is shown, and whether long values are cut.

    Raises:
        InvalidUsage: `numRows` is no whole number, or `truncate` neither true nor false.
    """
    rows, truncate = 20, True
    for name, text in options.items():
        if name.lower() == "numrows":
            if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
                raise _invalid_option(name, text, "a whole number: the most rows that are shown")
            rows = int(text)
        elif name.lower() == "truncate":
            if text.strip().lower() not in {"true", "false"}:
                raise _invalid_option(name, text, "true or false")
            truncate = text.strip().lower() == "true"
    return rows, truncate


def _check_rows_of_files(options: Mapping[str, str]) -> None:
    """Refuse a number of rows that Spark's writer could not read, in a task."""
    for name, text in options.items():
        if name.lower() == "maxrecordsperfile" and not re.fullmatch(r"\d{1,18}", text.strip()):
            raise _invalid_option(name, text, "the most rows of a file; 0 for any number")


def options_of(sink: SinkDescription) -> dict[str, str]:
    """The options of a sink that are for its target."""
    return {name: text for name, text in sink.options.items() if name.lower() != _INTERVAL}
