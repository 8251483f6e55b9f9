"""The plan of a view says how each operator of its query is kept up to date, and what that needs.

It is a value, made before anything runs (`compute.view.view_plan`), so that `plan` can show it,
`EXPLAIN VIEW` can put sizes and steps beside it, and a test can ask of it what must hold.

    plan_rows(plan)       its rows as `EXPLAIN VIEW` and `plan` show them: part, item, detail
    str(plan)             the same as lines of text
    obstacles(plan)       operators because of which a change is not followed, with the reason

Invariants:
    It says what would be done, by the rules that do it; sizes and times are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from typing_extensions import override

from shardline.app.protocol.objects import ProtocolValue, Strategy

__all__ = [
    "LookUpPlan",
    "PlanRow",
    "QueryOperator",
    "StatePlan",
    "ViewPlan",
    "WholeRead",
    "obstacles",
    "plan_rows",
]

INDENT = "  "


class QueryOperator(ProtocolValue, frozen=True, kw_only=True):
    """An operator of the query in its normal form.

    Attributes:
        depth: How many operators are above it.
        text: The operator as Spark shows it, or the name of an input.
        rule: How its change is computed.
        obstacle: Why it has no change of its own; "" if it has.
    """

    depth: int
    text: str
    rule: str
    obstacle: str = ""


class StatePlan(ProtocolValue, frozen=True, kw_only=True):
    """A state: a hidden shard with a row for each group of an aggregate, or of a temporal filter.

    Attributes:
        shard: Its name.
        key: What the aggregate groups by; () for one row.
        rows: What has a row in it, in words; "" for groups.
    """

    shard: str
    key: tuple[str, ...] = ()
    rows: str = ""


class LookUpPlan(ProtocolValue, frozen=True, kw_only=True):
    """Rows of a shard that are found by key, in an arrangement.

    Attributes:
        shard: The input, the state, or the view itself for what it has shown.
        columns: The key, in the query's words.
        arranged_by: The columns of the shard that it is.
        changes: Inputs where whose change this is done.
        first: Of each key only so many are found, those that come first in the query's order, and
            as many more as rows of it go; 0 for all.
    """

    shard: str
    columns: tuple[str, ...]
    arranged_by: tuple[str, ...]
    changes: tuple[str, ...]
    first: int = 0


class WholeRead(ProtocolValue, frozen=True, kw_only=True):
    """A shard that is read whole where one of `changes` changes."""

    shard: str
    changes: tuple[str, ...]


class ViewPlan(ProtocolValue, frozen=True, kw_only=True):
    """How a view follows its inputs.

    Attributes:
        view: Its name.
        strategy: As of its description.
        reason: Why it is no better one.
        inputs: What it reads.
        operators: Of the query, each above what it reads, from the last one on.
        states: What it keeps.
        look_ups: What it finds by key.
        whole_reads: What it reads whole although it follows changes.
        recomputed: Inputs at whose change the query is run anew, with the reason.
    """

    view: str
    strategy: Strategy
    reason: str = ""
    inputs: tuple[str, ...] = ()
    operators: tuple[QueryOperator, ...] = ()
    states: tuple[StatePlan, ...] = ()
    look_ups: tuple[LookUpPlan, ...] = ()
    whole_reads: tuple[WholeRead, ...] = ()
    recomputed: tuple[tuple[str, str], ...] = ()

    @override
    def __str__(self) -> str:
        """Its rows as lines, in columns."""
        rows = list(plan_rows(self))
        part, item = (max(len(row[place]) for row in rows) for place in (0, 1))
        return "\n".join(
            f"{row.part:{part}}  {row.item:{item}}  {row.detail}".rstrip() for row in rows
        )


class PlanRow(NamedTuple):
    """A row of `EXPLAIN VIEW`.

    Attributes:
        part: What it is about: `view`, `operator`, `state`, `look-up`, `read whole`, `recompute`;
            and of a view that runs `input`, `step` and `finding`.
        item: The operator, shard or step.
        detail: What there is to say of it.
    """

    part: str
    item: str
    detail: str


def obstacles(plan: ViewPlan) -> list[QueryOperator]:
    """The operators because of which the view is recomputed, the last one of the query first."""
    return [one for one in plan.operators if one.obstacle]


def plan_rows(plan: ViewPlan) -> Iterator[PlanRow]:
    """The rows that show a plan; the first has the strategy and the reason."""
    yield PlanRow("view", plan.strategy, plan.reason)
    for operator in plan.operators:
        yield PlanRow("operator", f"{INDENT * operator.depth}{operator.text}", operator.rule)
    for state in plan.states:
        key = f"a row for each {', '.join(state.key)}" if state.key else "one row"
        yield PlanRow("state", state.shard, state.rows or key)
    for found in plan.look_ups:
        first = f", the first {found.first:,} of each" if found.first else ""
        by = f"by {', '.join(found.columns)}{first}, where {_listed(found.changes)} changes"
        yield PlanRow("look-up", found.shard, by)
    for read in plan.whole_reads:
        yield PlanRow("read whole", read.shard, f"where {_listed(read.changes)} changes")
    for name, reason in plan.recomputed:
        yield PlanRow("recompute", f"where {name} changes", f"the query is run anew: {reason}")
    if plan.strategy == "recompute" and plan.inputs:
        cost = f"each time at which one changes, the query reads all of {', '.join(plan.inputs)}"
        yield PlanRow("recompute", "where any input changes", cost)


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join(names)
