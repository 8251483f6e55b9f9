"""Finds classes and objects of the JVM by their names, once each; passes sequences of Scala.

Each step of a dotted name is a call to the JVM: looked up anew at each use, names take longer than
all that is done with what they name.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "class_in",
    "java_class",
    "jvm_of",
    "read_sequence",
    "scala_object",
    "scala_sequence",
]


def jvm_of(spark: SparkSession) -> Any:
    """The JVM of a session, as Py4J shows it."""
    return spark._jvm  # noqa: SLF001 - PySpark's own classes use it the same way


def java_class(spark: SparkSession, name: str) -> Any:
    """The Java class `name`."""
    return class_in(jvm_of(spark), name)


def scala_object(spark: SparkSession, name: str) -> Any:
    """The Scala object `name`."""
    return _singleton(jvm_of(spark), name)


@lru_cache(maxsize=64)
def class_in(jvm: Any, name: str) -> Any:
    """The Java class `name` of a JVM."""
    found = jvm
    for step in name.split("."):
        found = getattr(found, step)
    return found


@lru_cache(maxsize=16)
def _singleton(jvm: Any, name: str) -> Any:
    return getattr(class_in(jvm, f"{name}$"), "MODULE$")


def scala_sequence(spark: SparkSession, items: Iterable[Any]) -> Any:
    """A sequence of Scala with these elements."""
    return java_class(spark, "PythonUtils").toSeq(list(items))


def read_sequence(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala."""
    return [sequence.apply(place) for place in range(sequence.size())]
