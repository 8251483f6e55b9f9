"""Timing in turns: what is compared is measured alternately, and each keeps its best round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardline.datasource.clock import Clock

__all__ = ["Measured", "alternate", "in_turns", "quantile", "rates"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the result.

    Attributes:
        name: What was measured.
        value: How fast it was, in `unit`; more is better unless the unit is a time or a share.
        unit: Such as "rows/s".
        ratio: `value` over that of the line it is compared with; None for that line itself.
        aim: The ratio aimed at; None if there is none.
        most: The greatest `value` aimed at; None if there is none.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    aim: float | None = None
    most: float | None = None


def in_turns(rounds: int, cases: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The least result of each case over `rounds` rounds, the cases taken in turns."""
    best: dict[str, float] = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, case in cases.items():
            best[name] = min(best[name], case())
    return best


def alternate(
    clock: Clock, rounds: int, cases: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """Least seconds of each case over `rounds` rounds, the cases taken in turns."""

    def timed(case: Callable[[], object]) -> Callable[[], float]:
        def seconds() -> float:
            start = clock.elapsed_ms()
            case()
            return (clock.elapsed_ms() - start) / 1000.0

        return seconds

    return in_turns(rounds, {name: timed(case) for name, case in cases.items()})


def rates(
    what: str, seconds: Mapping[str, float], count: int, unit: str, aims: Mapping[str, float]
) -> list[Measured]:
    """A line for each case: how many of `count` per second, compared with the first case."""
    base = next(iter(seconds.values()))
    return [
        Measured(
            f"{what}: {name}",
            count / taken,
            unit,
            base / taken if index else None,
            aims.get(name) if index else None,
        )
        for index, (name, taken) in enumerate(seconds.items())
    ]


def quantile(values: Sequence[float], share: float) -> float:
    """The least of `values` that at least `share` of them do not exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    # The nearest rank: a value that was measured, not one between two.
    rank = -int(-share * len(ordered) // 1)
    return ordered[min(max(rank, 1), len(ordered)) - 1]
