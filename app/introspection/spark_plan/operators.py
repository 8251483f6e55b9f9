"""Operators name the steps of an object, by a plan that follows from its description alone.

    operators_of(description)    the operators, each with its parent and its inputs

Spark's own operators get new numbers in each micro-batch, and change with its optimiser: nothing
could be summed over time by them. The lane allocates as many numbers as an object has operators;
operator `i` of the plan is number `first + i` for ever.

Operator 0 is the whole dataflow. The next ones are the phases of a micro-batch, which Spark times;
they have no inputs. Then come those that rows go through. Each of these stands for a `lir` node, as
Materialize calls the nodes of a rendered plan: for a view, the relational nodes of its query in the
order of evaluation, with the piece of SQL as `detail`.

Invariants:
    A pure function of the description: equal descriptions give equal plans.
    A parent and an input come before the operator itself.
    A query that cannot be taken apart is one operator, `Query`: a plan is never refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)

__all__ = ["PHASES", "OperatorPlan", "operators_of"]

PHASES: Final = (
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
)
"""Phases of a micro-batch as Spark names them, in their order."""

_MAX: Final = 500
"""Most operators of one object; a query with more is shown as one operator."""


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator.

    Attributes:
        name: Of its kind, such as `Join`.
        parent: Position of the operator that it is a part of; None for the dataflow itself.
        inputs: Positions of the operators whose output it takes.
        lir: Number of the plan node that it stands for, from 1; None if it stands for none.
        detail: The piece of SQL, or the object that is read; "" if there is none.
    """

    name: str
    parent: int | None
    inputs: tuple[int, ...] = ()
    lir: int | None = None
    detail: str = ""


def operators_of(description: Description) -> tuple[OperatorPlan, ...]:
    """The operators of an object; at least one."""
    plan = _Plan()
    match description:
        case SourceDescription():
            head = plan.row("Source", (), description.format)
            for name, detail in (
                ("Reclock", ""),
                ("Decode", description.schema),
                ("Envelope", description.envelope),
                ("Persist", description.name),
            ):
                head = plan.row(name, (head,), detail)
        case ViewDescription():
            result = _view(plan, description)
            last = plan.row("Correction", (result,), description.strategy)
            plan.row("Persist", (last,), description.name)
        case SinkDescription():
            head = plan.row("Source", (), description.on)
            head = plan.row("Envelope", (head,), description.envelope)
            plan.row("Sink", (head,), description.format)
        case IndexDescription():
            head = plan.row("Source", (), description.on)
            plan.row("Arrange", (head,), ", ".join(description.key))
        case SubscribeDescription():
            head = plan.row("Source", (), description.on)
            plan.row("Subscribe", (head,), "snapshot" if description.snapshot else "changes")
        case _:
            assert_never(description)
    return tuple(plan.operators)


class _Plan:
    """Collects the operators of one object."""

    def __init__(self) -> None:
        self.operators = [OperatorPlan("Dataflow", None)]
        self.operators += [OperatorPlan(phase, 0) for phase in PHASES]
        self._lir = 0

    def row(self, name: str, inputs: Iterable[int], detail: str = "") -> int:
        """Add an operator that rows go through; returns its position."""
        self._lir += 1
        given = tuple(inputs)
        self.operators.append(OperatorPlan(name, 0, given, self._lir, detail))
        return len(self.operators) - 1


def _view(plan: _Plan, view: ViewDescription) -> int:
    """Add the sources and the query of a view; returns the position of its result's operator."""
    # Imported here: the SQL parser is not loaded for an application without views.
    from shardline.app.introspection.spark_plan.relational import relational_nodes  # noqa: PLC0415

    sources = {name: plan.row("Source", (), name) for name in view.inputs}
    nodes = relational_nodes(view.query, view.inputs)
    if not nodes or len(nodes) > _MAX:
        return plan.row("Query", sources.values(), view.query)
    at: list[int] = []
    for node in nodes:
        inputs = [sources[i] if isinstance(i, str) else at[i] for i in node.inputs]
        at.append(plan.row(node.name, inputs, node.detail))
    return at[-1]
