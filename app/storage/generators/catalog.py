"""The catalog lists the load generators: their tables, columns and names in Spark. No Spark here.

What a caller relies on:
    `schema_of` and `spark_format` accept the names of `CREATE SOURCE`; other formats pass through
    `spark_format` unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shardline.app.storage.generators import auction, counter, nexmark
from shardline.app.storage.generators.generator import Generator
from shardline.app.storage.generators.options import GeneratorOptions, parse
from shardline.datasource.errors import unknown_name

__all__ = ["FORMATS", "open_generator", "schema_of", "spark_format", "with_start"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A generator: its constructor, its tables, and options that only it has."""

    make: Callable[[GeneratorOptions], Generator]
    tables: tuple[str, ...]
    special: tuple[str, ...] = ()


_KINDS: Final[Mapping[str, _Kind]] = {
    "auction": _Kind(auction.Auction, auction.TABLES),
    "counter": _Kind(counter.Counter, counter.TABLES, ("maxCardinality",)),
    "nexmark": _Kind(
        nexmark.Nexmark, nexmark.TABLES, ("hotAuctionRatio", "hotSellerRatio", "hotBidderRatio")
    ),
}

FORMATS: Final = tuple(sorted(_KINDS))
"""Names of the generators, as `CREATE SOURCE … USING` takes them."""


def open_generator(
    format: str,  # noqa: A002 - Spark's word
    options: Mapping[str, str],
) -> tuple[GeneratorOptions, Generator]:
    """Open a table of a generator; returns its parsed options, too.

    Raises:
        InvalidUsage: No such generator, table or option, or an invalid value.
    """
    if format not in _KINDS:
        raise unknown_name("generator", format, FORMATS)
    kind = _KINDS[format]
    parsed = parse(options, kind.tables, kind.special)
    return parsed, kind.make(parsed)


def schema_of(format: str, options: Mapping[str, str]) -> str:  # noqa: A002 - Spark's word
    """Columns of a generator's table, in Spark's DDL; with `_diff` if it retracts rows.

    Args:
        format: One of `FORMATS`.
        options: As the source has them; `startTime` may be missing.

    Raises:
        InvalidUsage: No such generator, table or option, or an invalid value.
    """
    _, generator = open_generator(format, options)
    return ", ".join(f"{name} {kind}" for name, kind in generator.columns.items())


def spark_format(format: str) -> str:  # noqa: A002 - Spark's word
    """The name of a generator for `spark.readStream.format`; other formats as they are."""
    return f"shardline_{format}" if format in _KINDS else format


def with_start(
    format: str,  # noqa: A002 - Spark's word
    options: Mapping[str, str],
    start_ms: int,
) -> dict[str, str]:
    """The options of a source, with the time of event 0 fixed if it is a generator without one.

    The caller keeps `start_ms` with the source for ever: another start makes other rows.

    Args:
        format: Name of a format, as in `CREATE SOURCE`.
        options: Of the source.
        start_ms: Time of event 0, ms since the epoch.
    """
    said = {name.lower() for name in options}
    fixed = {} if format not in _KINDS or "starttime" in said else {"startTime": str(start_ms)}
    return {**options, **fixed}
