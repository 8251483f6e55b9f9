"""Checks of a sink: whether its format, as its options say it, can write its rows.

Each of these would be the failure of a sink that runs: its first micro-batch is refused, at each
attempt, and its target stays empty.

    is_only_read(catalyst, sink)                      its format is one of sources
    find_row_problems(catalyst, one, sink, schema)    columns, `partitionBy`, options of the writer
    find_target_problem(catalyst, one, sink)          no folder can be where it writes, or its
                                                      function is not registered

Invariants:
    Rows have the columns that the sink's envelope makes of them, as its target gets them.
"""

from __future__ import annotations

import json
from typing import Final

from shardline.app.project.columns import names_of
from shardline.app.project.option_problems import (
    HOME_HINT,
    hadoop_hint,
    invalid_option,
    value_problem,
)
from shardline.app.project.statements import WrittenObject
from shardline.app.protocol.objects import SinkDescription
from shardline.app.sql.catalyst import Catalyst, RefusedBySpark
from shardline.app.sql.problems import Problem, did_you_mean
from shardline.app.sql.sink_options import PARTITION_BY
from shardline.app.storage.formats import FILES, KNOWN_FORMATS, ONLY_READ, UPPER, path_option
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import DIFF, TS

__all__ = ["find_row_problems", "find_target_problem", "is_only_read"]

_NO_COLUMNS: Final = json.dumps({"type": "struct", "fields": []})

_CREDENTIALS: Final = frozenset({"s3.access-key-id", "s3.secret-access-key"})
"""Storage options that are given together."""

_UPDATE_FIELDS: Final = [
    {"name": TS, "type": "long", "nullable": False, "metadata": {}},
    {"name": DIFF, "type": "long", "nullable": False, "metadata": {}},
]

_PARTITION_HINT: Final = "divide by columns of numbers, texts or dates, and leave one for the files"


def is_only_read(catalyst: Catalyst, sink: SinkDescription) -> bool:
    """True if the format of a sink is certainly one of sources alone."""
    if sink.format in KNOWN_FORMATS:
        return sink.format in ONLY_READ
    from shardline.app.storage.sinks.others import has_no_writer  # noqa: PLC0415 - imports Spark

    return has_no_writer(catalyst.rows(_NO_COLUMNS).sparkSession, sink.format)


def find_row_problems(
    catalyst: Catalyst, one: WrittenObject, sink: SinkDescription, schema: str
) -> list[Problem]:
    """The reasons why a sink could not write its rows; none for formats other than of files.

    Args:
        catalyst: The analyzer of a session like the one that will write.
        one: The sink as it is written.
        sink: Its description, whose key is spelt as the columns are.
        schema: Columns of its input, in Spark's JSON.
    """
    if sink.format not in FILES:
        return []
    # They import Spark, for which projects without such sinks need not wait.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from shardline.app.sql.spark_errors import read_spark_error  # noqa: PLC0415
    from shardline.app.storage.sinks.rows import shape_rows  # noqa: PLC0415

    fields = [*json.loads(schema)["fields"], *_UPDATE_FIELDS]
    try:
        updates = catalyst.rows(json.dumps({"type": "struct", "fields": fields}))
        columns = str(shape_rows(updates, sink).schema.json())
    except RefusedBySpark as refused:
        problem = refused.problem
    except PySparkException as error:
        problem = read_spark_error(error, "")
    else:
        taken = _taken_column(one, names_of(columns))
        return [taken] if taken is not None else _writer_problems(catalyst, one, sink, columns)
    what = f"sink '{one.name}' cannot write '{sink.on}': {problem.message}"
    return [one.problem("on", problem.code, what, problem.hint)]


def _writer_problems(
    catalyst: Catalyst, one: WrittenObject, sink: SinkDescription, columns: str
) -> list[Problem]:
    """The reasons why the format cannot write rows with these columns."""
    from shardline.app.storage.sinks.files import (  # noqa: PLC0415 - as above
        parse_file_options,
        spell_columns,
    )
    from shardline.app.storage.sinks.target import options_of  # noqa: PLC0415

    _, given, options = parse_file_options(sink, options_of(sink))
    partition_by = spell_columns(given, names_of(columns))
    unknown = _unknown_columns(one, partition_by, names_of(columns))
    if unknown:
        return unknown
    invalid = catalyst.sink_options.find_invalid(sink.format, options, partition_by, columns)
    if invalid is None:
        return []
    problem = invalid.problem
    if invalid.option == PARTITION_BY:
        hint = problem.hint or _PARTITION_HINT
        return [_partition_problem(one, problem.code, problem.message, hint)]
    if invalid.option in sink.options:
        return [invalid_option(one, invalid.option, problem)]
    what = f"format '{sink.format}' cannot write the rows of sink '{one.name}': {problem.message}"
    hint = problem.hint or "make a view that has what the format can write, or use another format"
    return [one.problem("format", problem.code, what, hint)]


def _taken_column(one: WrittenObject, columns: list[str]) -> Problem | None:
    """The problem of a column that readers of the folder would get something else for."""
    if UPPER not in {name.lower() for name in columns}:
        return None
    what = (
        f"sink '{one.name}' writes a column '{UPPER}', and Spark reads another one from the names "
        "of the folders of its micro-batches"
    )
    return one.problem("on", "RESERVED_NAME", what, "make a view that has another name for it")


def find_target_problem(
    catalyst: Catalyst, one: WrittenObject, sink: SinkDescription
) -> Problem | None:
    """The reason why the target of a sink cannot be there now; None if it can be there.

    A folder may come later, and a function with the program that registers it: a sink that runs
    already waits for it.
    """
    if sink.format == "foreachBatch":
        return _function_problem(one, sink)
    if sink.format == "shard":
        return _location_problem(one, sink)
    path = path_option(sink.options)
    if sink.format not in FILES or path is None:
        return None
    return _folder_problem(catalyst, one, path)


def _folder_problem(catalyst: Catalyst, one: WrittenObject, path: str) -> Problem | None:
    if path.startswith("~"):
        return value_problem(one, "path", path, HOME_HINT)
    problem = catalyst.sink_options.find_folder_problem(path)
    if problem is None:
        return None
    if problem.code == "NO_FOLDER":
        return one.problem("option path", problem.code, problem.message, problem.hint)
    return value_problem(one, "path", path, hadoop_hint(problem.message) or problem.message)


def _function_problem(one: WrittenObject, sink: SinkDescription) -> Problem | None:
    from shardline.app.storage.sinks.others import find_function  # noqa: PLC0415 - as above

    try:
        find_function(sink.options)
    except InvalidUsage as error:
        return one.problem("option function", error.code, error.detail, error.hint)
    return None


def _location_problem(one: WrittenObject, sink: SinkDescription) -> Problem | None:
    from shardline.app.storage.sinks.target import options_of  # noqa: PLC0415 - as above
    from shardline.datasource.sink import check_place, parse_sink  # noqa: PLC0415

    given = {name.lower(): name for name in sink.options}
    option = given.get("location") or given.get("path")
    if option is None:
        return None  # that of the project's own shards
    try:
        parsed = parse_sink(options_of(sink))
        # One half of the credentials may be among the options of the application's own location.
        rest = {name: text for name, text in parsed.storage.items() if name not in _CREDENTIALS}
        check_place(parsed.location, rest)
    except InvalidUsage as error:
        named = (name for name in sink.options if f"'{name.lower()}'" in error.detail)
        piece = f"option {next(named, option).lower()}"
        return one.problem(piece, error.code, error.detail, error.hint)
    return None


def _unknown_columns(
    one: WrittenObject, partition_by: list[str], columns: list[str]
) -> list[Problem]:
    return [
        _partition_problem(
            one,
            "UNKNOWN_COLUMN",
            f"'{name}' is no column of the rows that sink '{one.name}' writes",
            did_you_mean(name, columns),
        )
        for name in partition_by
        if name not in columns
    ]


def _partition_problem(one: WrittenObject, code: str, message: str, hint: str) -> Problem:
    return one.problem(f"option {PARTITION_BY.lower()}", code, message, hint)
