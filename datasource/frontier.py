"""A frontier states how far a collection is settled: up to which time nothing will change.

Processes that share a collection must agree on which times are final; one value says it for all of
them (differential dataflow: an antichain, here of at most one element). Times are int64 and totally
ordered (milliseconds since the epoch unless a user's own clock counts otherwise). A frontier is one
time, or empty:

    `Frontier(t)` : every time `< t` is settled; `t` or anything later may still come.
    `EMPTY`       : every time is settled. Nothing more, ever.

`EMPTY` is *beyond* every time, so frontiers are totally ordered too: the meet is the smaller one
and the join the larger one. If `frontier.is_beyond(t)`, nothing will ever change at `t`. It may not
be concluded that anything exists at `t`, or that `t` was ever a shard's upper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import total_ordering
from typing import Final

from typing_extensions import override

__all__ = [
    "EMPTY",
    "MINIMUM",
    "TIME_MAX",
    "TIME_MIN",
    "Frontier",
    "clock_date",
    "join",
    "meet",
    "utc",
    "with_date",
]

TIME_MIN: Final = 0
"""The least time: nothing happens before the epoch of the user's clock."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999_MS: Final = 253_402_300_799_999

_DAY_MS: Final = 86_400_000
"""Times below are none of the clock: of tests, or positions in an order, as those of the lane."""

TIME_MAX: Final = 2**63 - 2
"""The greatest time an update may carry: its successor must still be an int64."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Frontier:
    """A time, or nothing more (`time is None`). Ordered; the empty frontier is the greatest."""

    time: int | None

    def is_beyond(self, time: int) -> bool:
        """True if `time` is settled: no update can ever be added at it."""
        return self.time is None or time < self.time

    def admits(self, time: int) -> bool:
        """True if an update at `time` may still come; the opposite of `is_beyond`."""
        return not self.is_beyond(time)

    @property
    def is_empty(self) -> bool:
        """True if nothing more can ever come."""
        return self.time is None

    def __lt__(self, other: Frontier) -> bool:
        if self.time is None:
            return False
        return other.time is None or self.time < other.time

    @override
    def __str__(self) -> str:
        return "[]" if self.time is None else f"[{self.time}]"


def utc(ms: int) -> str:
    """A time in ms as a UTC date-time; "" before 1970 and after the year 9999."""
    if not 0 <= ms <= _YEAR_9999_MS:
        return ""
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def clock_date(ms: int) -> str:
    """A time as `utc` has it; "" also where it is none of the clock."""
    return utc(ms) if ms >= _DAY_MS else ""


def with_date(time: int | Frontier) -> str:
    """A time or a frontier for a sentence: `[1795980325000] (2026-11-29 20:12:05.000 UTC)`.

    The number alone where it is no date.
    """
    ms = time.time if isinstance(time, Frontier) else time
    date = "" if ms is None else clock_date(ms)
    return f"{time} ({date} UTC)" if date else str(time)


EMPTY: Final = Frontier(None)
MINIMUM: Final = Frontier(TIME_MIN)


def meet(frontiers: Iterable[Frontier]) -> Frontier:
    """The least of `frontiers`, up to which all are settled. `EMPTY` when there is none."""
    return min(frontiers, default=EMPTY)


def join(frontiers: Iterable[Frontier]) -> Frontier:
    """The greatest of `frontiers`. `MINIMUM` when there is none."""
    return max(frontiers, default=MINIMUM)
