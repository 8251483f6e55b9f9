"""Parses and checks the options of load generators, before any row is made.

| option | meaning | default |
|---|---|---|
| `table` | which of the generator's tables; `counter` has one only | none |
| `seed` | everything random follows from it | `0` |
| `rate` | events per second, also in the event times | `1000` |
| `startTime` | time of event 0, ms since the epoch or a date-time | see `pace` |
| `pace` | `real`: an event comes when its time has come. `none`: all at once | `real` |
| `limit` | events there are; without it they never end | none |
| `maxRowsPerTrigger` | rows of a micro-batch at most, but one event always | `1000000` |
| `maxCardinality` | `counter`: rows there are at one time; older ones are retracted | none |
| `hotAuctionRatio` | `nexmark`: of so many bids one is not for the hot auction | `2` |
| `hotSellerRatio`, `hotBidderRatio` | the same of auctions' sellers, bids' bidders | `4` |

Invariants:
    Time zero is an option and never the time of a call: with `pace` `real` the caller fixes it
    (`with_start`) and keeps it, or a restart would make other rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Final, Literal, TypeVar

from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.option_parser import (
    UnparsableOption,
    parse_count,
    parse_time,
)

__all__ = ["COMMON", "GeneratorOptions", "Pace", "parse"]

T = TypeVar("T")

Pace = Literal["real", "none"]

COMMON: Final = ("seed", "rate", "startTime", "pace", "limit", "maxRowsPerTrigger")
"""Options of every generator."""

_IGNORED: Final = frozenset({"checkpointlocation", "queryname", "timezone"})
"""Spark's own, which it passes along."""

_EPOCH_MS: Final = 1_436_918_400_000
"""Default time of event 0: 2015-07-15, as Nexmark has it."""

_MAX_ROWS: Final = 1_000_000
_EVENTS_MAX: Final = 1 << 52
"""No event has a greater number: event times are exact up to there."""


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """The options of one table of a generator.

    Attributes:
        table: Name of the table; "" if the generator has only one.
        seed: Of everything random.
        rate: Events per second.
        start_ms: Time of event 0, ms since the epoch; None if it is not set.
        pace: `real` if events wait for their time, `none` if all are there at once.
        limit: How many events there are.
        max_rows: Most rows of one micro-batch.
        max_cardinality: Most rows of a counter at one time; None for no bound.
        hot_auction: One bid of so many is not for the hot auction; so with `hot_seller` (of
            auctions) and `hot_bidder` (of bids).
    """

    table: str = ""
    seed: int = 0
    rate: float = 1000.0
    start_ms: int | None = None
    pace: Pace = "real"
    limit: int = _EVENTS_MAX
    max_rows: int = _MAX_ROWS
    max_cardinality: int | None = None
    hot_auction: int = 2
    hot_seller: int = 4
    hot_bidder: int = 4

    @property
    def zero_ms(self) -> int:
        """Time of event 0, ms since the epoch."""
        return _EPOCH_MS if self.start_ms is None else self.start_ms

    def due(self, now_ms: int) -> int:
        """Number of events that are due at `now_ms`."""
        if self.pace == "none":
            return self.limit
        elapsed = now_ms + 1 - self.zero_ms
        # Event n is due once n * 1000 / rate ms have passed.
        return 0 if elapsed <= 0 else min(self.limit, -int(-elapsed * self.rate // 1000))

    def check_readable(self) -> None:
        """Refuse options that have columns, but cannot be read.

        Raises:
            InvalidUsage: Events wait for their time and `startTime` is missing, or all are to come
                at once and there is no `limit`.
        """
        if self.pace == "real" and self.start_ms is None:
            raise InvalidUsage(
                "option 'startTime' is missing: events wait for their time",
                code="MISSING_OPTION",
                hint="give the time of event 0, the same one at each start; or pace 'none'",
            )
        if self.pace == "none" and self.limit == _EVENTS_MAX:
            raise InvalidUsage(
                "option 'limit' is missing: without a pace there would be no end",
                code="MISSING_OPTION",
                hint="say how many events there are",
            )


def parse(
    options: Mapping[str, str], tables: tuple[str, ...], special: tuple[str, ...]
) -> GeneratorOptions:
    """Parse the options of a generator.

    Args:
        options: By name, in any case.
        tables: The generator's tables; () if it has only one.
        special: Options that it has besides the common ones.

    Raises:
        InvalidUsage: An unknown option or table, or an invalid value.
    """
    known = (*COMMON, *special, *(("table",) if tables else ()))
    accepted = {name.lower() for name in known} | _IGNORED
    for name in options:
        if name.lower() not in accepted:
            raise unknown_name("option", name, known)
    given = {name.lower(): text.strip() for name, text in options.items()}

    def value(name: str, of: Callable[[str], T], default: T) -> T:
        return _value(given, name, of, default)

    return GeneratorOptions(
        table=_table(given.get("table"), tables),
        seed=value("seed", _whole, 0),
        rate=value("rate", _rate, 1000.0),
        start_ms=value("startTime", _time, None),
        pace=value("pace", _parse_pace, "real"),
        limit=min(value("limit", parse_count, _EVENTS_MAX), _EVENTS_MAX),
        max_rows=value("maxRowsPerTrigger", parse_count, _MAX_ROWS),
        max_cardinality=value("maxCardinality", parse_count, None),
        hot_auction=value("hotAuctionRatio", parse_count, 2),
        hot_seller=value("hotSellerRatio", parse_count, 4),
        hot_bidder=value("hotBidderRatio", parse_count, 4),
    )


def _value(given: Mapping[str, str], name: str, of: Callable[[str], T], default: T) -> T:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return of(text)
    except ValueError as error:
        hint = str(error) if isinstance(error, UnparsableOption) else "see docs/generators.md"
        raise InvalidUsage(
            f"option '{name}' cannot be '{text}'", code="INVALID_OPTION", hint=hint
        ) from error


def _table(text: str | None, tables: tuple[str, ...]) -> str:
    if not tables:
        return ""
    if text is None:
        raise InvalidUsage(
            "option 'table' is missing",
            code="MISSING_OPTION",
            hint=f"one of {', '.join(tables)}",
        )
    if text.lower() not in tables:
        raise unknown_name("table", text, tables)
    return text.lower()


def _whole(text: str) -> int:
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    raise UnparsableOption("a whole number of at least 0")


def _rate(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text) and 0.001 <= float(text) <= 1e9:  # noqa: PLR2004
        return float(text)
    raise UnparsableOption("events per second, from 0.001 to 1000000000")


def _parse_pace(text: str) -> Pace:
    match text.lower():
        case "real":
            return "real"
        case "none":
            return "none"
    raise UnparsableOption("real or none")


def _time(text: str) -> int | None:
    return parse_time(text, lambda: UTC)
