"""Describes a run in words: its cast, faults, schedule, and the command that repeats it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from simulation.knobs import Plan
from simulation.scheduler import Violation

if TYPE_CHECKING:
    from simulation.run import Outcome

__all__ = ["command_of", "parse_plan", "told"]

_LINES_MAX = 400


def command_of(plan: Plan) -> str:
    """What to type to see this run again."""
    parts = [f"./spark-submit.sh python -m tests.simulation --seed {plan.seed} --trace --as-it-is"]
    if plan.without:
        parts.append(f"--without '{','.join(sorted(plan.without))}'")
    if plan.actions:
        parts.append(f"--actions '{','.join(f'{name}={most}' for name, most in plan.actions)}'")
    if plan.theme:
        parts.append(f"--theme {plan.theme}")
    return " ".join(parts)


def parse_plan(seed: int, without: str = "", actions: str = "", theme: str = "") -> Plan:
    """The plan of a command."""
    limits = (text.partition("=") for text in actions.split(",") if text)
    return Plan(
        seed,
        frozenset(name for name in without.split(",") if name),
        tuple((name, int(most)) for name, _, most in limits),
        theme,
    )


def told(outcome: Outcome) -> str:
    """A run as text; of a long one, the end."""
    lines = [f"{when:12.0f} ms  {who:18} {what[:400]}" for when, who, what in outcome.trace]
    if len(lines) > _LINES_MAX:
        lines = [f"… {len(lines) - _LINES_MAX} lines before", *lines[-_LINES_MAX:]]
    failure = outcome.failure
    if failure is not None and not isinstance(failure, Violation):
        lines.append("".join(traceback.format_exception(failure)))
    cast = ", ".join(f"{name} ({acted} times)" for name, acted in outcome.cast)
    return "\n".join(
        [
            *lines,
            "",
            f"seed      {outcome.plan.seed}",
            f"actors    {cast}",
            f"faults    {', '.join(outcome.faults) or 'none'}",
            f"failure   {outcome.failure or 'none'}",
            f"again     {command_of(outcome.plan)}",
        ]
    )
