"""Walks Spark's operators and expressions as one tree of nodes, subqueries included.

below(node)              expressions and inputs of an operator; arguments of an expression
deepest(node, guilty)    the nodes that are to blame for something
conjuncts(condition)     what a condition joins by AND
conjunction(spark, all)  the condition that joins others by AND
column_named(spark, …)   an expression as a column
with_changed(spark, …)   a node with its children changed
kind_of(node)            the name of a node's class: `Filter`, `EqualTo`
spark_type(spark, …)     the type of an expression
tree_pattern(spark, …)   what `containsPattern` of a node takes, which answers without a walk
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import DataType, StructType

from shardline.datasource.java_names import (
    java_class,
    read_sequence,
    scala_object,
    scala_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SUBQUERIES",
    "below",
    "column_named",
    "conjunction",
    "conjuncts",
    "deepest",
    "is_plan",
    "kind_of",
    "spark_type",
    "tree_pattern",
    "with_changed",
]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"

SUBQUERIES: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
"""Classes of expressions that have a plan in them."""


def kind_of(node: Any) -> str:
    """The name of the class of an operator or expression, as Spark has it."""
    return str(node.getClass().getSimpleName())


def tree_pattern(spark: SparkSession, name: str) -> Any:
    """A pattern of Catalyst, such as `IN_SUBQUERY`: a node knows those that it has within."""
    return getattr(java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern"), name)()


def spark_type(spark: SparkSession, expression: Any) -> DataType:
    """The type of an expression of Spark's."""
    # In a column of a row: only there a collation is part of Spark's JSON.
    row = java_class(spark, "org.apache.spark.sql.types.StructType")()
    columns = StructType.fromJson(json.loads(row.add("c", expression.dataType()).json()))
    return columns.fields[0].dataType


def is_plan(node: Any) -> bool:
    """True for an operator, False for an expression."""
    return ".plans.logical." in str(node.getClass().getName())


def below(node: Any) -> Iterator[Any]:
    """Expressions and inputs of an operator; arguments of an expression, and the plan in it."""
    if is_plan(node):
        yield from read_sequence(node.expressions())
    elif kind_of(node) in SUBQUERIES:
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
    if kind_of(condition) != "And":
        yield condition
        return
    yield from conjuncts(condition.left())
    yield from conjuncts(condition.right())


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
    given = read_sequence(node.children())
    made = [change(one) for one in given]
    if all(new is old for new, old in zip(made, given, strict=True)):
        return node
    return node.withNewChildren(scala_sequence(spark, made))
