"""A plan tree is a logical plan of Spark as plain values, read from Spark's own JSON of it.

Each look at a plan through Py4J is a call to the JVM: a walk over a plan would take thousands, and
could not be tested without Spark. One call to `TreeNode.toJSON` brings all of it.

    root = plan_tree(json)
    root.kind, root.children        "Filter", (…,)
    root.expressions                every expression of this operator, and plans inside of them
    root.trees                      the same by field: {"projections": [[…], […]]}

`toJSON` lists nodes in pre-order, each with the number of its children; all else of a node is in
its fields, and trees among those are lists of the same form.

Invariants:
    Every operator and expression of the plan is reachable, those of subqueries too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Node", "plan_tree"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator or an expression.

    Attributes:
        kind: Name of its class: "Filter", "Rand".
        family: Last part of its package: "logical", "expressions", "aggregate".
        fields: All of its fields in Spark's JSON that have no trees.
        children: Its children in Spark's sense.
        trees: Fields with trees, each with these in lists as Spark nests them.
    """

    kind: str
    family: str
    fields: dict[str, Any]
    children: tuple[Node, ...]
    trees: dict[str, Any]

    @property
    def expressions(self) -> tuple[Node, ...]:
        """All trees in its fields, one after the other."""
        return tuple(tree for nested in self.trees.values() for tree in _flat(nested))

    @property
    def identity(self) -> object:
        """The id of the column that it is or names, by which others refer to it; None for none."""
        found = self.fields.get("exprId")
        return found.get("id") if isinstance(found, dict) else found

    def walk(self) -> Iterator[Node]:
        """It and everything below it, in pre-order; subqueries included."""
        ahead = [self]
        while ahead:
            node = ahead.pop()
            yield node
            ahead += reversed((*node.expressions, *node.children))


def plan_tree(text: str) -> Node:
    """Read a tree from `text`, the JSON that Spark has written."""
    return _tree(json.loads(text))


def _tree(nodes: list[dict[str, Any]]) -> Node:
    """One tree from its nodes in pre-order; built from the end, so that depth costs no stack."""
    built: list[Node] = []
    for raw in reversed(nodes):
        count = raw["num-children"]
        children = tuple(reversed(built[len(built) - count :])) if count else ()
        del built[len(built) - count :]
        built.append(_node(raw, children))
    assert len(built) == 1, f"{len(built)} roots"
    return built[0]


def _node(raw: dict[str, Any], children: tuple[Node, ...]) -> Node:
    trees: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        nested = _nested(value)
        (trees if any(True for _ in _flat(nested)) else fields)[name] = nested
    *_, family, kind = raw["class"].split(".")
    return Node(kind, family, fields, children, trees)


def _nested(value: Any) -> Any:
    """A field with each tree in it as a node: one, a list of them, or lists of lists."""
    if not isinstance(value, list) or not value:
        return value
    if isinstance(value[0], dict) and "num-children" in value[0]:
        return _tree(value)
    return [_nested(inner) for inner in value]


def _flat(nested: Any) -> Iterator[Node]:
    if isinstance(nested, Node):
        yield nested
    elif isinstance(nested, list):
        for inner in nested:
            yield from _flat(inner)
