"""Makes the source of `format("shard")` in the driver's own Python, in place of a helper process.

Spark starts two processes for the first use of a Python source in a session: one looks for sources
in all of Python's folders, the other makes an object of the class and asks it for the schema. Both
load PySpark, Arrow and this package, which the driver has loaded already, or will for the plan of
the read. A first `load()` took 0.9 s for them, and each later one 5 to 10 ms.

So Spark is told of the source before it looks (`DriverSource.java`), and its objects are made here,
by the same class with the same options. Everything else that Spark asks of a source (partitions
for Python workers, writers, the planner of a stream) it asks as before.

    SparkSession starts ---> offer_driver_source: the source is known, and no process was started
    load() ---> DriverSource ---> apply: the pickled object and its schema, or a refusal

Invariants:
    A source that is made here is what the helper process would have made: the pickled object has
    the options as they were given, and relative paths are taken from where the JVM was started.
    Sources of others are found as before: where there may be any, Spark looks for them itself.
    A failure that is not an error of the shard's leaves it to the helper process.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from shardline.datasource.errors import ShardError
from shardline.datasource.java_names import jvm_of
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.interrupts import CANCELLED, call_interruptibly
from shardline.spark_python import is_python_of_jvm

__all__ = ["offer_driver_source"]

_log = logging.getLogger(__name__)

_CLASS: Final = "DriverSource"

_REFERENCE: Final = b"cshardline.datasource.format\nShardDataSource\n."
"""The class of the source, pickled by its name: to load it would load Arrow."""

_PREFIX: Final = "pyspark_"
"""Of the modules that Spark looks for sources in."""

_OURS: Final = "pyspark_shard"

_offered: list[Any] = []
"""The JVM that knows the source."""


def offer_driver_source(spark: SparkSession) -> None:
    """Let the JVM of a session that has just started make sources in this process.

    Nothing is done where helper processes might find other sources than this process would: where
    they are another Python, or a module of another source is there and Spark has not looked yet.
    """
    jvm = jvm_of(spark)
    if any(known is jvm for known in _offered) or not is_python_of_jvm(spark.sparkContext):
        return
    made = java_object(spark, _CLASS, _REFERENCE, _SourceMaker())
    if made.install(set(_modules_of_sources()) == {_OURS}):
        _offered[:] = [jvm]


def _modules_of_sources() -> Iterator[str]:
    """Names of modules that may have a source; from the folder of the process as well as here.

    By names alone: Python's own list of modules looks into each folder, 20 ms for all.
    """
    for path in {os.getcwd(), *(path or os.getcwd() for path in sys.path)}:  # noqa: PTH109 - text
        try:
            names = [name.partition(".")[0] for name in os.listdir(path)]  # noqa: PTH208 - text
        except OSError:
            # An archive; or what cannot be looked at, where imports find nothing either.
            names = [module.name for module in pkgutil.iter_modules([path])]
        yield from (name for name in names if name.startswith(_PREFIX) and name.isidentifier())


class _SourceMaker:
    """Makes sources for the JVM, which calls it from the thread that loads."""

    def apply(self, asked: str) -> str | None:
        """The source as JSON; or why there is none; None to leave it to a helper process.

        Args:
            asked: As JSON: `options`, the `folder` that relative paths are taken from, and the
                `schema` if the user gave one.
        """
        try:
            return json.dumps(call_interruptibly(partial(_make_source, json.loads(asked))))
        except KeyboardInterrupt:
            return json.dumps({"cancelled": CANCELLED})
        except Exception:  # noqa: BLE001 - a helper process makes it, or says what is wrong
            _log.debug('a source of format("shard") is left to a helper process', exc_info=True)
        return None

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


def _make_source(asked: Mapping[str, Any]) -> dict[str, str]:
    # Not before the first one is made: a session without shards loads no Arrow.
    from shardline.datasource.option_parser import options_from  # noqa: PLC0415
    from shardline.datasource.shard_source.worker_errors import error_text  # noqa: PLC0415

    source = pickle.loads(_REFERENCE)  # noqa: S301 - our own
    options, schema = asked["options"], asked["schema"]
    if schema is None:
        there = options_from(asked["folder"], options)
        try:
            schema = source(CaseInsensitiveDict(there)).schema().json()
        except ShardError as error:
            return {"refused": error_text(error)}
    pickled = pickle.dumps(source(CaseInsensitiveDict(options)))
    return {"source": base64.b64encode(pickled).decode(), "schema": schema}
