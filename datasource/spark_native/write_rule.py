"""Writes appends of `format("shard")` natively, by a rule in Spark's optimizer.

Spark encodes the rows of a Python sink in its Python workers, and compares and sorts them there:
half as much time again as its own Parquet writer takes. The rule (`ShardWriteRule.java`) exchanges
the table of an append for one that is given the whole frame, and hands it to `save`, which has the
same checks, the same errors and one append, as the writer of the Python workers has.

    optimizer ---> ShardWriteRule: the append's table takes frames
    execution ---> FrameTable.insert ---> FrameWriter.apply ---> save: Spark's writer, one append
                                                 |
                                                 +---> the Python workers, if it must not be native

An append that must have Python workers, since Spark cannot reach the location or write a type, is
begun anew with option `nativeWrites=false`, which the rule leaves alone.

Invariants:
    A frame is written once: by one of the two ways, which is chosen before any row is.
    A refusal before rows are read is the Python workers' own: its class and words stay the same.
    What may have been committed is never written by the other way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.errors import ShardError
from shardline.datasource.shard_source.options import parse_sink
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.interrupts import (
    CANCELLED_WRITE,
    call_interruptibly,
    is_interrupt,
)
from shardline.datasource.spark_native.jvm import from_folder_of_jvm, read_map, session_of
from shardline.datasource.spark_native.part_errors import explain_part_errors
from shardline.datasource.spark_native.save import (
    NativeWrite,
    plan_native_write,
    with_range_of_micro_batch,
)
from shardline.datasource.spark_native.stream_write import StreamWriter, as_failure

__all__ = ["make_write_rule"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RULE: Final = "ShardWriteRule"
_OPTION: Final = "nativeWrites"


def make_write_rule(spark: SparkSession) -> Any:
    """The rule of a session, made when its first append to a shard is optimized."""
    explain_part_errors()  # Ctrl-C, and parts that are read for the append
    return java_object(spark, _RULE, _FrameWriter(spark), StreamWriter(spark))


@dataclass(frozen=True, slots=True)
class _FrameWriter:
    """Writes frames, when the table of an append calls back from the thread that executes it."""

    spark: SparkSession

    def apply(self, request: Any) -> Any:
        """None if the frame was written; else the JVM's exception, or a text for one."""
        try:
            self._write(request)
        except KeyboardInterrupt:
            request["cancelled"] = CANCELLED_WRITE
        except Exception as error:  # noqa: BLE001 - Spark shows it as it shows a worker's
            if is_interrupt(error):
                request["interrupted"] = True
            return as_failure(error)
        return None

    def _write(self, request: Any) -> None:
        java = request.get("frame")
        frame = DataFrame(java, session_of(self.spark, java.sparkSession()))
        options = read_map(request.get("options"))
        saving, given = self._interruptibly(partial(_planned, frame, options))
        if saving is not None:
            saving.run(self._interruptibly)
            return
        # In any case, as Spark takes them.
        given = {name: value for name, value in given.items() if name.lower() != _OPTION.lower()}
        by_workers = frame.write.format("shard").options(**given, **{_OPTION: "false"})
        self._interruptibly(by_workers.mode("append").save)

    def _interruptibly(self, function: Callable[[], T]) -> T:
        # A job is one call to the JVM: a signal that had to wait for its answer would come once all
        # is written. As the handler of PySpark does it: all jobs.
        return call_interruptibly(function, self.spark.sparkContext.cancelAllJobs)

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


def _planned(
    frame: DataFrame, options: Mapping[str, str]
) -> tuple[NativeWrite | None, Mapping[str, str]]:
    """The native write of a frame, None if it is left to the Python workers; and its options."""
    given = from_folder_of_jvm(frame.sparkSession, options)
    try:
        given = with_range_of_micro_batch(given, frame.sparkSession)
        saving = plan_native_write(frame, parse_sink(given))
    except ShardError as error:
        if _OPTION in str(error):
            raise  # the workers are not given this option as it is
        # Nothing was written: the workers' planner comes to the same refusal, in its own words.
        return None, given
    except Exception as error:
        if is_interrupt(error):
            raise  # the query is stopped: nobody is to write its rows
        _log.warning("a frame is left to Python workers", exc_info=True)
        return None, given
    if saving is None:
        _log.info("a frame is left to Python workers: Spark cannot write it by itself")
    return saving, given
