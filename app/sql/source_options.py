"""Spark's own parsers check the values of a source's options before anything starts.

Spark looks at most of them when a streaming query begins: `maxFilesPerTrigger 'many'` passes every
analysis and stalls the source. So the code that would refuse it then is called here, without a
query, over no file:

    check = SourceOptions(spark)
    check.find_invalid("csv", {"path": "in", "maxFilesPerTrigger": "many"})
        InvalidOption("maxFilesPerTrigger", SparkProblem(…))
    check.open_stream("csv", {"path": "nowhere"}, "a INT")
        InvalidOption("", SparkProblem("PATH_NOT_FOUND", …))

Invariants:
    Nothing runs and no row is read. A format that cannot be checked so passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.format_calls import (
    InvalidOption,
    find_culprit,
    find_refusal,
    new_format,
    scala_map,
)
from shardline.app.sql.problems import did_you_mean
from shardline.app.sql.spark_errors import SparkProblem
from shardline.datasource.frames import scala_sequence
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SourceOptions"]

_EXECUTION: Final = "org.apache.spark.sql.execution"
_SHARD_HINT: Final = "a shard says what it has: leave out SCHEMA, and cast in a view"

_UTIL: Final = "org.apache.spark.sql.catalyst.util"

_FILES: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""Formats of files, which Spark streams by one source with options of its own."""

_PLACES: Final = frozenset({"path", "location", "shard", "shards", "subscribe", "host", "port"})
"""Options that say where the data are: if it cannot be opened there, the option may be right."""

_TEXT_KEYS: Final = frozenset({"json", "xml"})
"""Formats whose maps have texts as keys: Spark takes any type, and fails at the first such map, or
makes NULL of it."""

_KEYS_HINT: Final = (
    "declare MAP<STRING, …>, and cast the keys in a view: "
    "transform_keys(column, (k, v) -> CAST(k AS INT))"
)

_OF_BINARY_FILES: Final = frozenset({"content", "length", "modificationTime", "path"})

_TYPES_HINT: Final = "declare a STRING, and take it apart in a view: split(…), from_json(…)"


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
        parsers = (
            self._parse_file_stream,
            lambda given: self._parse_rows(name, given),
            self._parse_patterns,
        )
        for parse in parsers:
            problem = find_refusal(parse, options)
            if problem is not None:
                return InvalidOption(find_culprit(parse, options, problem, _PLACES), problem)
        return None

    def find_unreadable(self, name: str, columns: str) -> SparkProblem | None:
        """The reason why a format of files has no rows with such columns; None if it may have.

        Args:
            name: The format.
            columns: In Spark's JSON.
        """
        fields = json.loads(columns)["fields"]
        found = _own_columns_missing(name.lower(), fields)
        if found is not None or name.lower() not in _FILES - {"text"}:
            return found
        if name.lower() in _TEXT_KEYS:
            for path, key in _map_keys(json.loads(columns), ()):
                if key != "string":
                    what = f"the keys of map '{'.'.join(path)}' are texts in {name}, and no {key}"
                    return SparkProblem("UNSUPPORTED_TYPE", what, _KEYS_HINT, 0)

        def verify(_: Mapping[str, str]) -> None:
            types = java_class(self._spark, "org.apache.spark.sql.types.DataType")
            utils = java_class(self._spark, f"{_EXECUTION}.datasources.DataSourceUtils")
            utils.verifySchema(new_format(self._spark, name), types.fromJson(columns), True)

        found = find_refusal(verify, {})
        return found and replace(found, hint=found.hint or _TYPES_HINT, offset=0)

    def find_unlike(self, own: str, given: str) -> SparkProblem | None:
        """The reason why a shard has no rows with such columns; None if it may have.

        Args:
            own: Its columns in Spark's JSON.
            given: Some of them, as they are written.
        """
        known = {field["name"]: field["type"] for field in json.loads(own)["fields"]}
        for field in json.loads(given)["fields"]:
            name, kind = field["name"], field["type"]
            if name not in known:
                what = f"the shard has no column '{name}'"
                return SparkProblem("UNKNOWN_COLUMN", what, did_you_mean(name, known), 0)
            # Of nested types what may be NULL is written otherwise, and is no difference.
            if isinstance(kind, str) and kind != known[name]:
                what = f"column '{name}' of the shard is {known[name]}, and not {kind}"
                return SparkProblem("WRONG_TYPE", what, _SHARD_HINT, 0)
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

        problem = find_refusal(open_it, options)
        if problem is None:
            return found
        if problem.code == "PATH_NOT_FOUND":
            return InvalidOption("", problem)
        return InvalidOption(find_culprit(open_it, options, problem, _PLACES), problem)

    def _parse_file_stream(self, options: Mapping[str, str]) -> None:
        parser = java_class(self._spark, f"{_EXECUTION}.streaming.runtime.FileStreamOptions")
        parser(scala_map(self._spark, options))

    def _parse_patterns(self, options: Mapping[str, str]) -> None:
        """Let Spark take patterns of times, as it does at the first row that has one."""
        utc = java_class(self._spark, "java.time.ZoneOffset").UTC
        for option, pattern in options.items():
            if option.lower() in {"timestampformat", "timestampntzformat"}:
                java_class(self._spark, f"{_UTIL}.TimestampFormatter").apply(pattern, utc, True)
            elif option.lower() == "dateformat":
                java_class(self._spark, f"{_UTIL}.DateFormatter").apply(pattern, True)

    def _parse_rows(self, name: str, options: Mapping[str, str]) -> None:
        """Let a format parse its options, as it does first when it infers columns from files."""
        no_files = scala_sequence(self._spark, [])
        given = scala_map(self._spark, options)
        new_format(self._spark, name).inferSchema(self._session, given, no_files)


def _own_columns_missing(name: str, fields: Sequence[Any]) -> SparkProblem | None:
    """The problem of columns that are not those which each file of a format has.

    Others may be there as well: names of folders, such as `day=7`, are columns, too.
    """
    if name == "text" and not any(field["type"] == "string" for field in fields):
        what = "files of format 'text' have one column, which is a STRING"
        return SparkProblem("UNSUPPORTED_TYPE", what, "write SCHEMA (value STRING)", 0)
    if name == "binaryfile" and not {one["name"] for one in fields} >= _OF_BINARY_FILES:
        what = "format 'binaryFile' has columns of its own"
        hint = "leave out SCHEMA, and choose among them in a view"
        return SparkProblem("INVALID_SCHEMA", what, hint, 0)
    return None


def _map_keys(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The maps within a type in Spark's JSON, each by its path, with the name of its keys' type."""
    if not isinstance(kind, dict):
        return
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                yield from _map_keys(field["type"], (*path, field["name"]))
        case "array":
            yield from _map_keys(kind["elementType"], (*path, "element"))
        case "map":
            key = kind["keyType"]
            yield path, key if isinstance(key, str) else key["type"]
            yield from _map_keys(key, (*path, "key"))
            yield from _map_keys(kind["valueType"], (*path, "value"))
