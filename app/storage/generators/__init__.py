"""Load generators are sources of made-up rows, the same rows for the same options, for ever.

Owns the generators, their options and columns, and the data sources of Spark that read them.

    options     the options, parsed; unknown ones are refused
    generator   the contract of a generator: a pure function from event numbers to rows
    mixing      numbers and words out of (seed, event), a column at a time
    counter, auction, nexmark   the generators
    catalog     names of the generators, columns of their tables, names of their formats in Spark
    source      the Python data source of Spark around them

    spark.readStream.format(spark_format("nexmark")).options(table="bid", rate="1000", …).load()

What a caller relies on:
    Reading `format`, `schema_of` and `with_start` needs no Spark. `register(spark)` once per
    session makes the formats known, also to executors where this package is installed.

May use: the clock and errors of `datasource`, its calls to Spark (`frames`), and the parser of
options of its `shard_source`.

Never: lets event `i` of a generator depend on anything but its options and `i`: not on the clock,
the process, the micro-batch or the partition that it is made in.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from shardline.app.storage.generators.catalog import FORMATS, schema_of, spark_format, with_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_registered: WeakSet[SparkSession] = WeakSet()
_registering = threading.Lock()

__all__ = ["FORMATS", "register", "schema_of", "spark_format", "with_start"]


def register(spark: SparkSession) -> None:
    """Register the generators' formats with a session, once: Spark warns of each repetition."""
    # Sources of one session begin side by side.
    with _registering:
        if spark not in _registered:
            _register(spark)
            _registered.add(spark)


def _register(spark: SparkSession) -> None:
    # Imported here: names and columns are needed where there is no PySpark session, as in `plan`.
    from shardline.app.storage.generators.source import SOURCES  # noqa: PLC0415
    from shardline.datasource.frames import as_active  # noqa: PLC0415

    # Spark refuses the name of a data source that the thread's active session has already.
    with as_active(spark):
        for source in SOURCES:
            spark.dataSource.register(source)
