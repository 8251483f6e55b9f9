"""Calls Spark's own formats, from Python, to hear what they refuse before anything starts.

    problem = find_refusal(parse, options)              Spark's error, or None
    find_culprit(parse, options, problem, places)       the option to blame for it, or ""

Spark's message often does not name the option (`For input string: "x"`). The one to blame is found
by leaving out one after the other.

Invariants:
    A call that this version of Spark does not have passes: the start of a query tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from shardline.app.sql.spark_errors import SparkProblem, read_spark_error
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["InvalidOption", "find_culprit", "find_refusal", "new_format", "scala_map"]

_DEEPEST: Final = 20
"""Causes of an exception that are followed."""


@dataclass(frozen=True, slots=True)
class InvalidOption:
    """An option with a value that its format refuses.

    Attributes:
        option: Its name as it is written; "" if no single one is to blame.
        problem: Spark's error.
    """

    option: str
    problem: SparkProblem


def new_format(spark: SparkSession, name: str) -> Any:
    """A new `FileFormat` of Spark, by the name of the format."""
    lookup = java_class(spark, "org.apache.spark.sql.execution.datasources.DataSource")
    state = spark._jsparkSession.sessionState()  # noqa: SLF001 - formats are on that side
    found = _instance(spark, lookup.lookupDataSource(name, state.conf()))
    # A format of the newer interface names the one that streams fall back to. Only a call
    # shows whether there is one: a Java object in Python seems to have every method.
    with contextlib.suppress(Py4JError):
        found = _instance(spark, found.fallbackFileFormat())
    return found


def scala_map(spark: SparkSession, options: Mapping[str, str]) -> Any:
    """Options as the JVM takes them."""
    found = java_class(spark, "java.util.HashMap")()
    for option, value in options.items():
        found.put(option, value)
    return java_class(spark, "PythonUtils").toScalaMap(found)


def find_culprit(
    parse: Callable[[Mapping[str, str]], None],
    options: Mapping[str, str],
    problem: SparkProblem,
    places: Collection[str] = (),
) -> str:
    """The option without which there is no such problem; "" if there is none.

    Args:
        parse: Has refused the options.
        options: By their names as they are written.
        problem: What it has said.
        places: Names, in lower case, of options that are not left out and so never blamed.
    """
    blamed = ""
    for option in options:
        if option.lower() in places:
            continue
        rest = {name: value for name, value in options.items() if name != option}
        left = find_refusal(parse, rest)
        if left is None:
            return option
        # Of two options that are wrong the one hides the other.
        if left != problem:
            blamed = blamed or option
    return blamed


def find_refusal(
    parse: Callable[[Mapping[str, str]], None], options: Mapping[str, str]
) -> SparkProblem | None:
    """The error of a parser; None if it takes the options, or cannot be called here."""
    try:
        parse(options)
    except PySparkException as error:
        return read_spark_error(error, "")
    except Py4JJavaError as error:
        return _cause(error)
    except Py4JError:
        # A class or method that this version of Spark does not have: the query's start tells.
        return None
    return None


def _instance(spark: SparkSession, kind: Any) -> Any:
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - for arrays of Java
    assert gateway is not None, "a session of Connect has no JVM"
    types = gateway.new_array(java_class(spark, "java.lang.Class"), 0)
    values = gateway.new_array(java_class(spark, "java.lang.Object"), 0)
    return kind.getDeclaredConstructor(types).newInstance(values)


def _cause(error: Py4JJavaError) -> SparkProblem:
    """The innermost cause of an exception that PySpark has no class for, without its trace."""
    problem = read_spark_error(error, "")
    if problem.code != "SPARK":
        return problem
    cause: Any = error.java_exception
    for _ in range(_DEEPEST):
        if cause.getCause() is None:
            break
        cause = cause.getCause()
    message = str(cause.getMessage() or cause.getClass().getSimpleName())
    return SparkProblem(problem.code, message.split("\n", 1)[0].rstrip("."), "", None)
