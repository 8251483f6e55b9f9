"""Making a failing run small: what is left out one after the other, as long as it fails alike.

Because each process draws from dice of its own, a run without one of its actors or faults is
nearly the same run. First actors go, then kinds of faults, then single faults (in halves,
quarters, …), and then the last actions of each actor, until nothing more can go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.knobs import FAULTS
from simulation.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from simulation.knobs import Plan
    from simulation.run import Outcome

__all__ = ["shrink"]


def shrink(
    found: Outcome, *, runs_max: int = 400, run: Callable[[Plan], Outcome] = simulate
) -> Outcome:
    """The smallest run met that fails in the same way as `found`.

    Args:
        found: A run that failed.
        runs_max: How many runs that may take.
        run: Does a run.
    """
    search = _Search(found, runs_max, run)
    while search.improves():
        pass
    return search.best


class _Search:
    """Tries smaller plans, and keeps the smallest that fails alike."""

    def __init__(self, found: Outcome, runs_max: int, run: Callable[[Plan], Outcome]) -> None:
        self.best = found
        self._left = runs_max
        self._run = run

    def improves(self) -> bool:
        """One round of everything; whether the run became smaller."""
        before = self.best.plan
        for name, _ in self.best.cast:
            self._without([name])
        for kind in FAULTS:
            if any(fault.endswith(f":{kind}") for fault in self.best.faults):
                self._without([kind])
        size = len(self.best.faults)
        while size >= 1:
            for start in range(0, len(self.best.faults), size):
                self._without(self.best.faults[start : start + size])
            size //= 2
        for name, _ in self.best.cast:
            self._fewer(name)
        return self.best.plan != before and self._left > 0

    def _without(self, what: Iterable[str]) -> None:
        plan = self.best.plan
        self._try(replace(plan, without=plan.without | set(what)))

    def _fewer(self, name: str) -> None:
        """As few actions of this actor as will do."""
        limits = dict(self.best.plan.actions)
        for wanted in (0, 1, 2, 4, 8):
            if wanted >= limits.get(name, 99):
                return
            plan = replace(self.best.plan, actions=tuple({**limits, name: wanted}.items()))
            if self._try(plan):
                return

    def _try(self, plan: Plan) -> bool:
        if self._left <= 0 or plan == self.best.plan:
            return False
        self._left -= 1
        outcome = self._run(plan)
        if outcome.failure is None or outcome.kind != self.best.kind:
            return False
        self.best = outcome
        return True
