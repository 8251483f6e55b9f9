"""Walks Spark's operators and expressions as one tree of nodes, subqueries included.

below(node)              expressions and inputs of an operator; arguments of an expression
deepest(node, guilty)    the nodes that are to blame for something
conjuncts(condition)     what a condition joins by AND
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from shardline.datasource.spark_native.java_names import read_sequence

__all__ = ["below", "conjuncts", "deepest", "is_plan"]

_SUBQUERIES: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})


def is_plan(node: Any) -> bool:
    """True for an operator, False for an expression."""
    return ".plans.logical." in str(node.getClass().getName())


def below(node: Any) -> Iterator[Any]:
    """Expressions and inputs of an operator; arguments of an expression, and the plan in it."""
    if is_plan(node):
        yield from read_sequence(node.expressions())
    elif node.getClass().getSimpleName() in _SUBQUERIES:
        yield node.plan()
    yield from read_sequence(node.children())


def deepest(node: Any, guilty: Callable[[Any], bool]) -> Iterator[Any]:
    """The deepest nodes for which `guilty` holds, from one on for which it does."""
    found = [child for child in below(node) if guilty(child)]
    for child in found:
        yield from deepest(child, guilty)
    if not found:
        yield node


def conjuncts(condition: Any) -> Iterator[Any]:
    """The conditions that a condition joins by AND."""
    if condition.getClass().getSimpleName() != "And":
        yield condition
        return
    yield from conjuncts(condition.left())
    yield from conjuncts(condition.right())
