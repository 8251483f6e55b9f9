"""A part of a plan knows the rows that it has of inputs, and what these need to come to anything.

    part = PlanPart()
    part.changed, part.found, part.all_read        changes, what was looked up, what is read whole
    part.add(inner)                                what is true of a part is true of the whole

Invariants:
    Of rows that come to something in two ways, no more is needed than both ways need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardline.app.compute.view.kept_plan import Leaf

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["Needed", "PlanPart"]

Rows: TypeAlias = "tuple[QueryNode, Leaf]"
"""Rows of an input, at its place in the query."""


class Needed(NamedTuple):
    """A look-up without whose rows others come to nothing.

    Attributes:
        input: What is looked up.
        leaf: Its rows.
        key: Their columns.
        columns: Those of the others.
    """

    input: QueryNode
    leaf: Leaf
    key: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(slots=True)
class PlanPart:
    """A part of a plan, and the rows that it has of inputs.

    Attributes:
        changed: Inputs whose changes are in it.
        found: What was looked up of inputs for it.
        all_read: Inputs that it reads whole.
        look_ups: For rows of an input the look-ups that were made by them and without whose rows
            they come to nothing; each with the input that it is of.
    """

    changed: set[QueryNode] = field(default_factory=set)
    found: dict[QueryNode, list[Leaf]] = field(default_factory=dict)
    all_read: set[QueryNode] = field(default_factory=set)
    look_ups: dict[Rows, tuple[Needed, ...]] = field(default_factory=dict)

    def rows(self) -> set[Rows]:
        """All rows of inputs that it has."""
        found = {(node, leaf) for node, leaves in self.found.items() for leaf in leaves}
        return found | {(node, Leaf(node.input)) for node in self.changed}

    def add(self, other: PlanPart) -> None:
        """Take in a part of this one."""
        there = self.rows()
        for rows in other.rows():
            needed = other.look_ups.get(rows, ())
            if rows in there:  # the same rows come to something in two ways
                needed = tuple(one for one in self.look_ups.get(rows, ()) if one in needed)
            self.look_ups[rows] = needed
        self.changed |= other.changed
        self.all_read |= other.all_read
        for node, leaves in other.found.items():
            mine = self.found.setdefault(node, [])
            mine += [leaf for leaf in leaves if leaf not in mine]
