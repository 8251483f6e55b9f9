"""Relations of lag over time show how late objects were: percentiles and shares of the minutes.

One minute is one value: the largest lag in it. So the median is that of an object's minutes, and
not of its rows or its micro-batches; ten seconds of lag once a minute are ten seconds all day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardline.app.introspection.facts import MINUTE_MS, Facts
from shardline.app.introspection.relation import NUMBER, REAL, TEXT, Column, Past, Relation, Row

__all__ = ["LAG_DISTRIBUTION", "percentile", "tail_shares"]

_PERCENTS: Final = (50, 90, 99)
_STEPS: Final = 32
_HISTORY: Final = ("wallclock_lag_history",)


def percentile(values: Sequence[int], percent: int) -> int:
    """The least of the sorted values that `percent` % of them do not exceed."""
    return values[-(-percent * len(values) // 100) - 1]


def tail_shares(values: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Points of the complementary distribution: a value, and the share of the values above it.

    Args:
        values: Sorted.

    Returns:
        All different values if they are few; else those at steps of 1/32 of the share, and at
        halves of the last step, up to the greatest one: rare and large ones are looked for.
    """
    count = len(values)
    places = {count * step // _STEPS for step in range(_STEPS)}
    places |= {count - 1 - (count >> halved) for halved in range(5, count.bit_length() + 1)}
    chosen = sorted({values[place] for place in places if 0 <= place < count} | {values[-1]})
    if len(different := sorted(set(values))) <= _STEPS:
        chosen = different
    at = 0
    for value in chosen:
        while at < count and values[at] <= value:
            at += 1
        yield value, (count - at) / count


def _sorted_lags(facts: Facts) -> dict[str, list[int]]:
    """The lags of all minutes of each object, sorted."""

    def make() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _, (name, lag) in facts.lags.rows:
            assert isinstance(lag, int), lag
            found.setdefault(str(name), []).append(lag)
        for values in found.values():
            values.sort()
        return found

    return facts.derive("sorted lags", (facts.lags,), make)


def _percentiles(facts: Facts, _now_ms: int) -> list[Row]:
    def make() -> list[Row]:
        return [
            (name, len(lags), *(percentile(lags, p) for p in _PERCENTS), lags[-1])
            for name, lags in _sorted_lags(facts).items()
        ]

    return facts.derive("percentiles", (facts.lags,), make)


def _distribution(facts: Facts, _now_ms: int) -> list[Row]:
    def make() -> list[Row]:
        return [
            (name, lag, share)
            for name, lags in _sorted_lags(facts).items()
            for lag, share in tail_shares(lags)
        ]

    return facts.derive("distribution", (facts.lags,), make)


def _drop_open_minute(facts: Facts, at_ms: int) -> Facts:
    """Drop the minute that was not over at a moment from facts of then, which are a copy."""
    facts.lags.rows = [entry for entry in facts.lags.rows if entry[0] + MINUTE_MS <= at_ms]
    return facts


_NAMED: Final = Column("object_id", TEXT, "the object")

LAG_DISTRIBUTION: Final = (
    Relation(
        "wallclock_lag_percentiles",
        "How far an object was behind the clock in the kept minutes, of a day at most",
        (
            _NAMED,
            Column("minutes", NUMBER, "minutes that are known; each counts with its largest lag"),
            *(Column(f"p{p}", NUMBER, f"no more in {p} % of them, in ms") for p in _PERCENTS),
            Column("max", NUMBER, "in the worst of them, in ms"),
        ),
        _percentiles,
        "object_id",
        _HISTORY,
        separable=True,
        past=Past(
            lambda facts, at_ms: _percentiles(_drop_open_minute(facts, at_ms), at_ms), _HISTORY
        ),
    ),
    Relation(
        "wallclock_lag_distribution",
        "In how many kept minutes, of a day at most, an object was further behind the clock",
        (
            _NAMED,
            Column("lag", NUMBER, "in ms"),
            Column("share", REAL, "share of the minutes whose largest lag was above it: 0 to 1"),
        ),
        _distribution,
        "object_id",
        _HISTORY,
        separable=True,
        past=Past(
            lambda facts, at_ms: _distribution(_drop_open_minute(facts, at_ms), at_ms), _HISTORY
        ),
    ),
)
