"""Words problems of options of sources and sinks: the option, its value, what to write instead.

A message of Spark's parsers names the option or its value, seldom both, and never what to do.

    invalid_option(one, "maxFilesPerTrigger", problem)    an option has a wrong value
    unreachable_problem(one, source, problem)             nothing can be read at its place

Invariants:
    A value that may be a secret is not shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardline.app.project.statements import WrittenObject
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.protocol.redaction import redact_option
from shardline.app.sql.problems import Problem
from shardline.app.sql.spark_errors import SparkProblem
from shardline.app.storage.formats import path_option

__all__ = ["HOME_HINT", "hadoop_hint", "invalid_option", "unreachable_problem", "value_problem"]

HOME_HINT: Final = (
    "write the whole path: it would be a folder named ~, as only a shell knows another"
)
"""Hint for a path that begins as in a shell."""

_OURS: Final = frozenset({"INVALID_OPTION", "INVALID_SETTING", "UNKNOWN_OPTION", "MISSING_OPTION"})
"""Codes of errors of our own data source, which name the option and say what to do."""

_PATTERN_REFUSED: Final = "INCONSISTENT_BEHAVIOR_CROSS_VERSION"
"""Beginning of codes of patterns that an older Spark took; the messages are about its upgrade."""

_BARE: Final = "for input string"
"""Beginning of messages of Java for a text that is no number, and of Scala for no boolean."""


def value_problem(one: WrittenObject, option: str, value: str, hint: str) -> Problem:
    """The problem of an option with a wrong value."""
    shown = redact_option(option, value)
    what = f"option '{option}' cannot be '{shown}'"
    return one.problem(f"option {option.lower()}", "INVALID_OPTION", what, hint)


def invalid_option(one: WrittenObject, option: str, problem: SparkProblem) -> Problem:
    """The problem of an option whose value a format refuses.

    Args:
        one: The source or sink as it is written.
        option: Name of the option, as it is written.
        problem: The error of the format.
    """
    described = one.description
    assert isinstance(described, SourceDescription | SinkDescription), one
    place = f"option {option.lower()}"
    if problem.code in _OURS:
        return one.problem(place, problem.code, problem.message, problem.hint)
    hint = f"see Spark's page on the format '{described.format}'"
    if not problem.message.lower().startswith(_BARE):
        hint = f"{problem.message[:1].lower()}{problem.message[1:]}"
    if problem.code.startswith(_PATTERN_REFUSED):
        hint = "Spark reads no times by this pattern: see its page on datetime patterns"
    return value_problem(one, option, described.options[option], hint)


def hadoop_hint(message: str) -> str:
    """What to do where Spark has no file system for a URL; "" of other messages."""
    if 'No FileSystem for scheme "s3"' in message:
        return (
            "write s3a://…, and start with --packages org.apache.hadoop:hadoop-aws:VERSION: files "
            "go through Spark's own file systems, and s3:// is for shards"
        )
    return ""


def unreachable_problem(
    one: WrittenObject, source: SourceDescription, problem: SparkProblem
) -> Problem:
    """The problem of a source whose data cannot be opened where they should be.

    Args:
        one: The source as it is written.
        source: Its description.
        problem: The error of the format.
    """
    path = path_option(source.options)
    if problem.code != "PATH_NOT_FOUND" or path is None:
        hint = (
            hadoop_hint(problem.message)
            or problem.hint
            or "the source would stall with this: correct its options, or what it reads"
        )
        what = f"source '{one.name}' cannot be opened: {problem.message}"
        return one.problem("OPTIONS", problem.code, what, hint)
    hint = "create the folder, or correct the path"
    if "://" not in path and not Path(path).is_absolute():
        hint += f": it counts from '{Path.cwd()}'"
    if path.startswith("~"):
        hint = HOME_HINT
    what = f"source '{one.name}' reads '{path}', which is not there"
    return one.problem("option path", "PATH_NOT_FOUND", what, hint)
