"""Spark's own parsers check the values of a source's options before anything starts.

Spark looks at most of them when a streaming query begins: `maxFilesPerTrigger 'many'` passes every
analysis and stalls the source. So the code that would refuse it then is called here, without a
query, over no file:

    check = SourceOptions(spark)
    check.find_invalid("csv", {"path": "in", "maxFilesPerTrigger": "many"})
        InvalidOption("maxFilesPerTrigger", SparkProblem(…))
    check.open_stream("csv", {"path": "nowhere"}, "a INT")
        InvalidOption("", SparkProblem("PATH_NOT_FOUND", …))

Spark's message often does not name the option (`For input string: "x"`). The one to blame is found
by leaving out one after the other.

Invariants:
    Nothing runs and no row is read. A format that cannot be checked so passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from shardline.app.sql.spark_errors import SparkProblem, read_spark_error
from shardline.datasource.frames import scala_sequence
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["InvalidOption", "SourceOptions"]

_EXECUTION: Final = "org.apache.spark.sql.execution"

_FILES: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""Formats of files, which Spark streams by one source with options of its own."""

_PLACES: Final = frozenset({"path", "location", "shard", "shards", "subscribe", "host", "port"})
"""Options that say where the data are: if it cannot be opened there, the option may be right."""

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


class SourceOptions:
    """Checks options of sources by the code of a session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        """Check by the formats that are on the class path of `spark`."""
        self._spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001 - the parsers are on that side

    def find_invalid(self, name: str, options: Mapping[str, str]) -> InvalidOption | None:
        """The first option of a format of files that Spark's parsers refuse; None if none is."""
        if name.lower() not in _FILES:
            return None
        for parse in (self._parse_file_stream, lambda given: self._parse_rows(name, given)):
            problem = _refusal(parse, options)
            if problem is not None:
                return InvalidOption(_culprit(parse, options, problem), problem)
        return None

    def open_stream(self, name: str, options: Mapping[str, str], ddl: str) -> str | InvalidOption:
        """Open a source as a stream, which Spark analyses and does not start.

        Returns:
            The columns in Spark's JSON; or the error. Its `option` is "" if the place cannot be
            read: a folder that is not there, a file system that does not answer.
        """
        found = ""

        def open_it(given: Mapping[str, str]) -> None:
            nonlocal found
            reader = self._spark.readStream.format(name).options(**given)
            found = str((reader.schema(ddl) if ddl else reader).load().schema.json())

        problem = _refusal(open_it, options)
        if problem is None:
            return found
        if problem.code == "PATH_NOT_FOUND":
            return InvalidOption("", problem)
        return InvalidOption(_culprit(open_it, options, problem), problem)

    def _parse_file_stream(self, options: Mapping[str, str]) -> None:
        parser = self._class(f"{_EXECUTION}.streaming.runtime.FileStreamOptions")
        parser(self._scala_map(options))

    def _parse_rows(self, name: str, options: Mapping[str, str]) -> None:
        """Let a format parse its options, as it does first when it infers columns from files."""
        lookup = self._class(f"{_EXECUTION}.datasources.DataSource").lookupDataSource
        found = self._instance(lookup(name, self._session.sessionState().conf()))
        # A format of the newer interface names the one that streams fall back to. Only a call
        # shows whether there is one: a Java object in Python seems to have every method.
        with contextlib.suppress(Py4JError):
            found = self._instance(found.fallbackFileFormat())
        no_files = scala_sequence(self._spark, [])
        found.inferSchema(self._session, self._scala_map(options), no_files)

    def _instance(self, kind: Any) -> Any:
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - for arrays of Java
        assert gateway is not None, "a session of Connect has no JVM"
        types = gateway.new_array(self._class("java.lang.Class"), 0)
        values = gateway.new_array(self._class("java.lang.Object"), 0)
        return kind.getDeclaredConstructor(types).newInstance(values)

    def _class(self, name: str) -> Any:
        return java_class(self._spark, name)

    def _scala_map(self, options: Mapping[str, str]) -> Any:
        found = self._class("java.util.HashMap")()
        for option, value in options.items():
            found.put(option, value)
        return self._class("PythonUtils").toScalaMap(found)


def _culprit(
    parse: Callable[[Mapping[str, str]], None], options: Mapping[str, str], problem: SparkProblem
) -> str:
    """The option without which there is no such problem; "" if there is none, or the place is."""
    blamed = ""
    for option in options:
        if option.lower() in _PLACES:
            continue
        rest = {name: value for name, value in options.items() if name != option}
        left = _refusal(parse, rest)
        if left is None:
            return option
        # Of two options that are wrong the one hides the other.
        if left != problem:
            blamed = blamed or option
    return blamed


def _refusal(
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
