"""Reads Spark's plans and expressions in few calls to the JVM.

    kind_of(node)              `Filter`, `EqualTo`
    children_of(node)          its children, as nodes
    read_sequence(sequence)    the elements of a sequence of Scala
    scala_sequence(spark, …)   a sequence of Scala of these elements
    number_of(column)          the number by which Spark knows a column
    numbers_of(columns)        those of the columns in a sequence of Scala, in its order
    numbers_read(node)         those of the columns that an operator or expression refers to
    type_of(expression)        the type of an expression
    is_plan(node)              True for an operator, False for an expression
    operator_kinds(plan)       the kinds of all operators of a plan
    is_whole(plan)             True if each operator is resolved, and has below it what it refers to

A call takes a tenth of a millisecond of both processes, and several times as much in a JVM that has
just started. Py4J hands out one object in each, and giving it up is one more: to read a node's five
children took thirteen. A start of fifty objects made 120,000 calls, most of them for these few
questions. `CatalystNodes.java` answers each in one. Of a sequence it gives the names under which
the gateway keeps the nodes, of which Py4J's own objects are made here, and what their kinds are.

Invariants:
    Answers are those of Spark's own methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from shardline.datasource.java_names import java_class, jvm_of
from shardline.datasource.spark_native.compiled_java import shared_object
from shardline.datasource.spark_native.released_objects import release_together

__all__ = [
    "children_of",
    "is_plan",
    "is_whole",
    "kind_of",
    "number_of",
    "numbers_of",
    "numbers_read",
    "operator_kinds",
    "read_sequence",
    "scala_sequence",
    "type_of",
]

_CLASS: Final = "CatalystNodes"


def kind_of(node: Any) -> str:
    """The name of the class of an operator or expression, or of any other object of Spark's."""
    return node.kind_known if isinstance(node, _Node) else str(_reader(node).kind(node))


def number_of(column: Any) -> int:
    """The number by which Spark knows a column."""
    if isinstance(column, _Node) and column.number_known is not None:
        return column.number_known
    return int(_reader(column).number(column))


def numbers_of(columns: Any) -> list[int]:
    """The numbers of the columns in a sequence of Scala, in its order."""
    return [int(one) for one in _reader(columns).numbers(columns).split()]


def numbers_read(node: Any) -> list[int]:
    """The numbers of the columns that an operator or expression refers to, each once."""
    return [int(one) for one in _reader(node).read(node).split()]


def type_of(expression: Any) -> DataType:
    """The type of an expression of Spark's."""
    # As a column of a row: only there a collation is part of Spark's JSON.
    row = StructType.fromJson(json.loads(_reader(expression).type(expression)))
    return row.fields[0].dataType


def is_plan(node: Any) -> bool:
    """True for an operator, False for an expression."""
    return bool(_reader(node).isPlan(node))


def children_of(node: Any) -> list[Any]:
    """The children of an operator or expression."""
    return _nodes(_reader(node).children(node), node)


def read_sequence(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala."""
    nodes = _reader(sequence).elements(sequence)
    if nodes is None:  # not all are nodes: some may be texts or numbers, which have no name
        return [sequence.apply(place) for place in range(sequence.size())]
    return _nodes(nodes, sequence)


def scala_sequence(spark: SparkSession, items: Iterable[Any]) -> Any:
    """A sequence of Scala with these elements: objects of the JVM, or texts and numbers."""
    given = list(items)
    if all(isinstance(one, JavaObject) for one in given):
        names = " ".join(one._target_id for one in given)  # noqa: SLF001 - no public door
        return _reader(jvm_of(spark)).sequence(names)
    return java_class(spark, "PythonUtils").toSeq(given)


def operator_kinds(plan: Any) -> frozenset[str]:
    """The kinds of all operators of a plan, without those in subqueries."""
    return frozenset(_reader(plan).kinds(plan).split())


def is_whole(plan: Any) -> bool:
    """True if each operator of a plan is resolved, and has below it what it refers to."""
    return bool(_reader(plan).isWhole(plan))


def _reader(node: Any) -> Any:
    return _reader_of(node._gateway_client)  # noqa: SLF001 - all that a node knows of its JVM


@cache
def _reader_of(client: Any) -> Any:
    """The object of the JVM that answers."""
    found = shared_object(client, _CLASS)
    release_together(client, found.release)
    return found


class _Node(JavaObject):  # type: ignore[misc]  # Py4J has no types
    """A node that keeps the name of its class, and its number if it is a column.

    Neither changes: Spark makes another node for each change.
    """

    def __init__(self, client: Any, name: str, kind: str, number: str | None = None) -> None:
        super().__init__(name, client)
        self.kind_known = kind
        self.number_known = None if number is None else int(number)


def _nodes(described: str, holder: Any) -> list[_Node]:
    client = holder._gateway_client  # noqa: SLF001 - as Py4J makes an object of an answer
    return [_Node(client, *one.split(":")) for one in described.split()]
