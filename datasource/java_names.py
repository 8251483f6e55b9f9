"""Finds classes and objects of the JVM by their names, once each.

Each step of a dotted name is a call to the JVM, and what is no class (`org`, `org.apache`, …) is
looked for in each of Spark's three hundred archives, a name without dots once for each package that
PySpark has imported. Looked up anew at each use, names take longer than all that is done with what
they name: they were a fifth of the JVM's processor time in tests of views. PySpark does so itself,
ten times for each error that it converts, so what it asks for most is remembered for it, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "class_in",
    "java_class",
    "jvm_of",
    "remember_names",
    "scala_object",
]

_ASKED_OFTEN: Final = (
    "PythonErrorUtils",
    "PythonRDD",
    "PythonSQLUtils",
    "PythonUtils",
    "SerDeUtil",
    "SimplePythonFunction",
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.internal.SQLConf",
    "org.apache.spark.SparkThrowableHelper",
    "org.apache.spark.sql.types.Metadata",
    "org.apache.spark.util.Utils",
)
"""Names that PySpark asks for as an attribute of the JVM, at each use."""

_CALLED_OFTEN: Final = {
    "org.apache.spark.sql.functions": ("coalesce", "col", "expr", "lit", "sum"),
    "PythonUtils": ("toArray", "toSeq"),
}
"""Static methods of such classes: PySpark asks for each, too, whenever it calls it."""

_ASKED_BY_STEPS: Final = "py4j.reflection.TypeUtil"
"""The class by which Py4J finds out if an object is an instance of a class."""


def jvm_of(spark: SparkSession) -> Any:
    """The JVM of a session, as Py4J shows it."""
    return spark._jvm  # noqa: SLF001 - PySpark's own classes use it the same way


def java_class(spark: SparkSession, name: str) -> Any:
    """The Java class `name`."""
    return class_in(jvm_of(spark), name)


def scala_object(spark: SparkSession, name: str) -> Any:
    """The Scala object `name`."""
    return _singleton(jvm_of(spark), name)


def remember_names(spark: SparkSession) -> None:
    """Let PySpark find what it asks for most in its own process; again it does nothing.

    Py4J makes an object for a name that an attribute is missing for. Here they are attributes.
    """
    jvm = jvm_of(spark)
    if _ASKED_OFTEN[-1] in vars(jvm):
        return
    holder = jvm
    for step in _ASKED_BY_STEPS.split("."):
        found = getattr(holder, step)
        setattr(holder, step, found)
        holder = found
    for name in _ASKED_OFTEN:
        setattr(jvm, name, getattr(jvm, name))
    for name, methods in _CALLED_OFTEN.items():
        holder = getattr(jvm, name)
        for method in methods:
            setattr(holder, method, getattr(holder, method))


@lru_cache(maxsize=256)
def class_in(jvm: Any, name: str) -> Any:
    """The Java class `name` of a JVM."""
    # By the whole name: a step at a time would ask for each package.
    return getattr(jvm, name)


@lru_cache(maxsize=256)
def _singleton(jvm: Any, name: str) -> Any:
    return getattr(class_in(jvm, f"{name}$"), "MODULE$")
