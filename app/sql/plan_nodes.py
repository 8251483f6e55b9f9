"""Walks Spark's operators and expressions as one tree of nodes, subqueries included.

below(node)              expressions and inputs of an operator; arguments of an expression
deepest(node, guilty)    the nodes that are to blame for something
conjuncts(condition)     what a condition joins by AND
implied_equalities(…)    the equalities without which a condition is never true
needed_columns(root)     numbers of the columns that something in a plan refers to
plain(expression)        the column that an expression is, perhaps cast to a wider integer
conjunction(spark, all)  the condition that joins others by AND
column_named(spark, …)   an expression as a column
with_changed(spark, …)   a node with its children changed
tree_pattern(spark, …)   what `containsPattern` of a node takes, which answers without a walk
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, Final

from shardline.datasource.frames import (
    children_of,
    is_plan,
    kind_of,
    numbers_of,
    numbers_read,
    read_sequence,
    scala_sequence,
)
from shardline.datasource.java_names import class_in, java_class, jvm_of, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "KNOWN_BY_ID",
    "SUBQUERIES",
    "below",
    "column_named",
    "conjunction",
    "conjuncts",
    "deepest",
    "implied_equalities",
    "needed_columns",
    "plain",
    "tree_pattern",
    "with_changed",
]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")

KNOWN_BY_ID: Final = frozenset(
    {
        "Aggregate",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "PipeOperator",
        "Project",
        "Sort",
        "SubqueryAlias",
        "Window",
    }
)
"""Operators that know the columns below them by their ids, and not by their places."""

SUBQUERIES: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
"""Classes of expressions that have a plan in them."""


def tree_pattern(spark: SparkSession, name: str) -> Any:
    """A pattern of Catalyst, such as `IN_SUBQUERY`: a node knows those that it has within."""
    return _tree_pattern(jvm_of(spark), name)


@lru_cache(maxsize=64)
def _tree_pattern(jvm: Any, name: str) -> Any:
    return getattr(class_in(jvm, "org.apache.spark.sql.catalyst.trees.TreePattern"), name)()


def below(node: Any) -> Iterator[Any]:
    """Expressions and inputs of an operator; arguments of an expression, and the plan in it."""
    if is_plan(node):
        yield from read_sequence(node.expressions())
    elif kind_of(node) in SUBQUERIES:
        yield node.plan()
    yield from children_of(node)


def deepest(node: Any, guilty: Callable[[Any], bool]) -> Iterator[Any]:
    """The deepest nodes for which `guilty` holds, from one on for which it does."""
    found = [child for child in below(node) if guilty(child)]
    for child in found:
        yield from deepest(child, guilty)
    if not found:
        yield node


def conjuncts(condition: Any) -> Iterator[Any]:
    """The conditions that a condition joins by AND."""
    if kind_of(condition) != "And":
        yield condition
        return
    yield from conjuncts(condition.left())
    yield from conjuncts(condition.right())


def implied_equalities(condition: Any) -> list[Any]:
    """The equalities without which a condition is never true.

    Of an OR those that both sides have: an optimizer takes them out of it in the same way.
    """
    match kind_of(condition):
        case "EqualTo" | "EqualNullSafe":
            return [condition]
        case "And":
            return implied_equalities(condition.left()) + implied_equalities(condition.right())
        case "Or":
            right = implied_equalities(condition.right())
            left = implied_equalities(condition.left()) if right else []
            return [one for one in left if any(one.semanticEquals(other) for other in right)]
    return []


def conjunction(spark: SparkSession, conditions: Sequence[Any]) -> Any:
    """The condition that joins others, at least one, by AND."""
    return reduce(java_class(spark, f"{_EXPRESSIONS}.And"), conditions)


def column_named(spark: SparkSession, expression: Any, name: str, number: Any | None = None) -> Any:
    """An expression as a column of this name, and of this id if one is given.

    It has no metadata: by those of a session window Spark merges the rows of an aggregate.
    """
    none = scala_sequence(spark, [])
    if number is None:
        number = scala_object(spark, f"{_EXPRESSIONS}.NamedExpression").newExprId()
    empty = scala_object(spark, "org.apache.spark.sql.types.Metadata").empty()
    metadata = scala_object(spark, "scala.Option").apply(empty)
    kind = java_class(spark, f"{_EXPRESSIONS}.Alias")
    return kind(expression, name, number, none, metadata, none)


def with_changed(spark: SparkSession, node: Any, change: Callable[[Any], Any]) -> Any:
    """An operator or expression with its children changed; itself if none of them is."""
    given = children_of(node)
    made = [change(one) for one in given]
    if all(new is old for new, old in zip(made, given, strict=True)):
        return node
    return node.withNewChildren(scala_sequence(spark, made))


def plain(expression: Any) -> Any | None:
    """The column that an expression is; a cast to a wider integer changes no value."""
    while kind_of(expression) == "Cast":
        given, wanted = (_width(one) for one in (expression.child(), expression))
        if given < 0 or given > wanted:
            return None
        expression = expression.child()
    return expression if kind_of(expression) == "AttributeReference" else None


def _width(expression: Any) -> int:
    """The place of an expression's type among the integers, the widest last; -1 of others."""
    name = str(expression.dataType().simpleString())
    return _INTEGERS.index(name) if name in _INTEGERS else -1


def needed_columns(root: Any) -> frozenset[int]:
    """Ids of all columns that any operator of a plan refers to, and of those of its result."""
    found = set(numbers_of(root.output()))
    ahead = [root]
    while ahead:
        plan = ahead.pop()
        children = children_of(plan)
        found.update(numbers_read(plan))
        if kind_of(plan) not in KNOWN_BY_ID:
            found |= {number for child in children for number in numbers_of(child.output())}
        ahead += children
    return frozenset(found)
