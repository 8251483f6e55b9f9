"""Time-varying tables on object storage, and SQL views of them kept up to date, on plain Spark.

    import shardline                               before the session starts

    spark.read.format("shard").load(path)          any PySpark session, batch and stream
    shardline.snapshot(spark, path, as_of=t)       contents, rows by Spark's own Parquet code
    shardline.changes(spark, path, start=a)        what has changed, with `_ts` and `_diff`
    shardline.save(frame, path, txn=("in", 17))    one append, exactly once
    shardline.client.ShardClient.open(url)         without Spark
    shardline.Application, shardline.Project       views over all that
    shardline.testing.Lab                          a test of a view in ten lines

This is the one package that is installed, and `shardline.…` the one name of each of its modules.
In a clone it is `src/shardline`, whose `app`, `datasource`, `jobs` and `conf` are links to the
folders of the repository; a wheel has what they lead to.

`import shardline` loads neither pyspark nor pyarrow: what it offers is loaded when it is asked for.
It has two effects. Spark's helper processes shall be this very Python, so it changes the
environment that a JVM inherits (`shardline.spark_python`); and sessions read `format("shard")` by
Spark's own Parquet reader (`shardline.session_hook`), but for those that have the setting
`spark.shardline.nativeReads=false`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from shardline.extras import needed_for
from shardline.installation import program_version
from shardline.session_hook import call_with_sessions
from shardline.spark_python import choose_python, warn_if_too_late

if TYPE_CHECKING:
    from shardline import client, testing
    from shardline.app import Application, Project
    from shardline.datasource import (
        changes,
        compare_and_append,
        interval_of,
        micro_batch,
        register,
        save,
        snapshot,
        transaction,
    )

    __version__: str

__all__ = [
    "Application",
    "Project",
    "__version__",
    "changes",
    "client",
    "compare_and_append",
    "interval_of",
    "micro_batch",
    "register",
    "save",
    "snapshot",
    "testing",
    "transaction",
]

_HOMES: Final = {
    "Application": "shardline.app",
    "Project": "shardline.app",
    "changes": "shardline.datasource",
    "compare_and_append": "shardline.datasource",
    "interval_of": "shardline.datasource",
    "micro_batch": "shardline.datasource",
    "register": "shardline.datasource",
    "save": "shardline.datasource",
    "snapshot": "shardline.datasource",
    "transaction": "shardline.datasource",
}

_MODULES: Final = ("client", "testing")


if not TYPE_CHECKING:  # a type checker would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return program_version()
        with needed_for(f"shardline.{name}"):
            if name in _MODULES:
                return importlib.import_module(f"shardline.{name}")
            if name in _HOMES:
                return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'shardline' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _offer_native_reads(session: object) -> None:
    module = importlib.import_module("shardline.datasource.spark_native.rule_loader")
    module.offer_native_reads(session)


choose_python()
warn_if_too_late()
call_with_sessions(_offer_native_reads)
