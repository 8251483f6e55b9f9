"""Timing in turns: what is compared is measured alternately, and each keeps its best round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datasource.clock import Clock

__all__ = ["Measured", "alternate"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the result.

    Attributes:
        name: What was measured.
        value: How fast it was, in `unit`; more is better unless the unit is a time.
        unit: Such as "rows/s".
        ratio: `value` over that of the line it is compared with; None for that line itself.
        aim: The ratio aimed at; None if there is none.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    aim: float | None = None


def alternate(
    clock: Clock, rounds: int, cases: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """Least seconds of each case over `rounds` rounds, the cases taken in turns."""
    best: dict[str, float] = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, case in cases.items():
            start = clock.elapsed_ms()
            case()
            best[name] = min(best[name], (clock.elapsed_ms() - start) / 1000.0)
    return best
