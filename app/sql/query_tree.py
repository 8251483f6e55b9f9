"""A query tree is an analysed plan of Spark, read from the JVM once: operators, and what they read.

Each question to an operator in the JVM is a call to it. A rule asks the same of one operator for
each set of changed inputs, so the answers are kept beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardline.app.sql.strategy import INPUT
from shardline.datasource.frames import children_of, kind_of, number_of, numbers_of, read_sequence

__all__ = ["QueryNode", "join_kind", "query_tree"]


@dataclass(frozen=True, slots=True, eq=False)
class QueryNode:
    """An operator of a query.

    Attributes:
        plan: Spark's operator.
        kind: Name of its class.
        input: Name of the input that it stands for; "" if it is no input.
        children: What it is over; nothing below an input.
        inputs: All inputs that it reads, itself or below.
    """

    plan: Any
    kind: str
    input: str
    children: tuple[QueryNode, ...]
    inputs: frozenset[str]

    @property
    def output(self) -> list[Any]:
        """Its columns: attributes of Spark."""
        return read_sequence(self.plan.output())

    @property
    def numbers(self) -> list[int]:
        """The numbers by which Spark knows its columns, where these themselves are not needed."""
        return numbers_of(self.plan.output())

    @property
    def distinct_output(self) -> list[Any]:
        """Its columns, each once: Spark lets an operator return one several times."""
        return list({number_of(one): one for one in self.output}.values())


def query_tree(plan: Any) -> QueryNode:
    """The tree of an analysed plan whose inputs are temporary views."""
    kind = kind_of(plan)
    if kind == INPUT:
        # As it is kept: where a session tells capitals apart, it is as the text spells it.
        name = str(plan.desc().identifier().table()).lower()
        return QueryNode(plan, kind, name, (), frozenset([name]))
    children = tuple(query_tree(child) for child in children_of(plan))
    inputs = frozenset[str]().union(*(child.inputs for child in children))
    return QueryNode(plan, kind, "", children, inputs)


def join_kind(join: QueryNode) -> str:
    """The type of a join as Spark calls it: `Inner`, `LeftOuter`."""
    return kind_of(join.plan.joinType()).rstrip("$")
