"""Remembers with which Spark, settings and code the self-test of native reads has passed here.

The test reads a small shard of all types, which takes nearly a second of a JVM that has just
started: more than most first reads do. What it tests is the same in the next process, as long as
the same programs read by the same settings. So each combination that has passed is kept, by a
digest of all that could make a difference, and is tested once for each installation.

Of the settings these are all of `spark.sql` and `spark.hadoop` but for folders, which have other
names in each run. Of programs these are the files of the JVM's class path and of this package, by
size and time. A rule that somebody has put into the session counts by the name of its class.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native.jvm import settings_of
from shardline.datasource.spark_native.kept_files import kept_file, read_kept, store_kept

__all__ = ["combination_of", "has_passed", "note_passed"]

_FILE: Final = "self-test.passed"

_KEPT_MAX: Final = 16
"""Combinations that are kept, the latest ones: settings of some sessions are others in each run."""

_SETTINGS: Final = ("spark.sql.", "spark.hadoop.", "spark.plugins", "spark.jars")

_FOLDERS: Final = ("spark.sql.warehouse.dir", "spark.sql.streaming.checkpointLocation")

_PROPERTIES: Final = ("java.vm.version", "os.arch", "user.timezone", "java.class.path")


def combination_of(spark: SparkSession) -> str | None:
    """A digest of all that rows of a native read may depend on; None if it cannot be told."""
    system = java_class(spark, "java.lang.System")
    properties = {name: str(system.getProperty(name)) for name in _PROPERTIES}
    settings = {
        name: value
        for name, value in settings_of(spark).items()
        if name.startswith(_SETTINGS) and not name.startswith(_FOLDERS)
    }
    files = chain(properties["java.class.path"].split(os.pathsep), _jars(settings), _own_files())
    try:
        looks = [_look(path) for path in files]
    except OSError:
        return None
    versions = spark.version, sys.version, pa.__version__
    told = json.dumps([versions, properties, settings, _rules(spark), looks], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def has_passed(combination: str | None) -> bool:
    """True if the test has passed with a combination, in this process or another one."""
    return combination is not None and combination in _passed()


def note_passed(combination: str | None) -> None:
    """Keep a combination with which the test has passed."""
    if combination is not None:
        kept = [*(one for one in _passed() if one != combination), combination]
        store_kept(kept_file(_FILE), json.dumps(kept[-_KEPT_MAX:]).encode())


def _passed() -> list[str]:
    kept = read_kept(kept_file(_FILE))
    return [] if kept is None else json.loads(kept)


def _rules(spark: SparkSession) -> list[str]:
    """Classes of what somebody has added to the session's optimizer and planner."""
    added = spark._jsparkSession.experimental()  # noqa: SLF001 - no public door
    lists = added.extraOptimizations(), added.extraStrategies()
    return [rules.apply(n).getClass().getName() for rules in lists for n in range(rules.size())]


def _jars(settings: dict[str, str]) -> Iterator[str]:
    """Local files that a session was given beside the class path."""
    for url in settings.get("spark.jars", "").split(","):
        scheme, separator, path = url.rpartition(":")
        if path and scheme in ("", "file"):
            yield path if separator else url


def _own_files() -> Iterator[str]:
    """The code of this package that reads."""
    for folder, _, names in os.walk(Path(__file__).parent.parent):
        yield from (f"{folder}/{name}" for name in names if name.endswith((".py", ".java")))


def _look(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - hundreds of them
    except FileNotFoundError:
        return path, -1, -1  # a class path may name what is not there
    return path, found.st_size, found.st_mtime_ns
