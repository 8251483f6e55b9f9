"""What a sink writes to: the promise of a target, the formats there are, and what each guarantees.

    exactly once    the target remembers which interval it has: `shard`, files, `delta`, `memory`
    at least once   what was written right before a crash may come again: everything else

What a caller relies on:
    `check_sink` refuses what cannot work before anything runs; `guarantee` is what the sink gives.

Invariants:
    `write` makes all rows of an interval visible, or none; after it `committed` is at its upper,
    where the target can tell. Another call for an interval that the target has changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from app.protocol.objects import SinkDescription
from app.storage.sinks.interval import Interval
from datasource.errors import InvalidUsage, unknown_name
from datasource.frontier import Frontier
from datasource.native.jvm import has_class
from datasource.shard_source.given import Hint, parse_duration

__all__ = [
    "FILES",
    "Guarantee",
    "Target",
    "Written",
    "check_package",
    "check_sink",
    "guarantee",
    "interval_ms",
    "kept",
    "options_of",
]

Guarantee: TypeAlias = Literal["exactly once", "at least once"]

FILES: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
"""Formats that are files in a folder."""

_EXACT: Final = frozenset({*FILES, "shard", "memory", "delta"})

_OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "console": ("numRows", "truncate"),
    "foreachBatch": ("function",),
    "memory": (),
}
"""Options of the formats that are ours; others know their own."""

_PACKAGES: Final = {
    "avro": ("org.apache.spark.sql.avro.AvroFileFormat", "org.apache.spark:spark-avro_2.13"),
    "delta": ("org.apache.spark.sql.delta.sources.DeltaDataSource", "io.delta:delta-spark_2.13"),
    "iceberg": (
        "org.apache.iceberg.spark.source.IcebergSource",
        "org.apache.iceberg:iceberg-spark-runtime of this version of Spark",
    ),
    "kafka": (
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "org.apache.spark:spark-sql-kafka-0-10_2.13",
    ),
}
"""Formats that are not in Spark: a class of theirs, and where it is."""

_INTERVAL: Final = "interval"
"""Option of every sink: how far its micro-batches are apart."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a target has taken.

    Attributes:
        rows: How many.
        size_bytes: Their size as they are stored; None if the target does not say.
    """

    rows: int
    size_bytes: int | None = None


class Target(Protocol):
    """Where the rows of one sink go."""

    def committed(self) -> Frontier | None:
        """How far the target is, from its own memory; None if it has nothing, or cannot tell."""
        ...

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Make the rows of `interval` visible, all of them or none."""
        ...

    def skip(self, interval: Interval) -> None:
        """Nothing has changed in `interval`."""
        ...


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """`rows` such that writing and counting them reads them once.

    An `Observation` would count while they are written, but waits for ever where a writer runs the
    frame in a session or in a command of its own.
    """
    persisted = rows.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()


def guarantee(sink: SinkDescription) -> Guarantee:
    """What reaches the sink's target, whatever fails."""
    return "exactly once" if sink.format in _EXACT else "at least once"


def check_sink(sink: SinkDescription) -> None:
    """Refuse a description that cannot work, whatever is on the class path.

    Raises:
        InvalidUsage: An option or a key is missing, unknown or means nothing.
    """
    if sink.envelope == "upsert" and not sink.key:
        raise InvalidUsage(
            f"sink '{sink.name}' has the envelope upsert and no key",
            code="KEY_NEEDED",
            hint="name the columns that identify a row: KEY (…)",
        )
    interval_ms(sink)
    options = options_of(sink)
    if sink.format in FILES and "path" not in {name.lower() for name in options}:
        raise InvalidUsage(
            f"option 'path' of sink '{sink.name}' is missing",
            code="MISSING_OPTION",
            hint="the folder to write to",
        )
    known = _OWN.get(sink.format)
    if known is None:
        return
    for name in options:
        if name.lower() not in {other.lower() for other in known}:
            raise unknown_name("option", name, (*known, _INTERVAL))
    if sink.format == "foreachBatch" and "function" not in options:
        raise InvalidUsage(
            f"option 'function' of sink '{sink.name}' is missing",
            code="MISSING_OPTION",
            hint="the name that the function was registered with",
        )


def check_package(spark: SparkSession, format: str) -> None:  # noqa: A002 - Spark's word
    """Refuse a format whose package is not there.

    Raises:
        InvalidUsage: It is not on the class path; names it.
    """
    if format not in _PACKAGES:
        return
    needed, package = _PACKAGES[format]
    if not has_class(spark, needed):
        raise InvalidUsage(
            f"format '{format}' is not on the class path",
            code="PACKAGE_MISSING",
            hint=f"start with --packages {package}",
        )


def interval_ms(sink: SinkDescription) -> int | None:
    """How far the sink's micro-batches are apart; None if it does not say.

    Raises:
        InvalidUsage: Its option `interval` is no duration.
    """
    text = next((t for name, t in sink.options.items() if name.lower() == _INTERVAL), None)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except Hint as hint:
        raise InvalidUsage(
            f"option 'interval' cannot be '{text}'", code="INVALID_OPTION", hint=f"{hint}"
        ) from None


def options_of(sink: SinkDescription) -> dict[str, str]:
    """The options that are the target's."""
    return {name: text for name, text in sink.options.items() if name.lower() != _INTERVAL}
