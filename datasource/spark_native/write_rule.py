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
import traceback
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.errors import ShardError
from shardline.datasource.shard_source.options import parse_sink
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.interrupts import call_interruptibly
from shardline.datasource.spark_native.jvm import read_map, session_of
from shardline.datasource.spark_native.save import (
    NativeWrite,
    plan_native_write,
    with_range_of_micro_batch,
)

__all__ = ["make_write_rule"]

_log = logging.getLogger(__name__)

_RULE: Final = "ShardWriteRule"
_OPTION: Final = "nativeWrites"

_CANCELLED: Final = (
    "KeyboardInterrupt while a frame was written to format('shard'): if it was being committed, "
    "look at the shard before you write it again"
)
"""Message of the exception of the JVM that ends the write."""


def make_write_rule(spark: SparkSession) -> Any:
    """The rule of a session, made when its first append to a shard is optimized."""
    return java_object(spark, _RULE, _FrameWriter(spark))


@dataclass(frozen=True, slots=True)
class _FrameWriter:
    """Writes frames, when the table of an append calls back from the thread that executes it."""

    spark: SparkSession

    def apply(self, request: Any) -> Any:
        """None if the frame was written; else the JVM's exception, or a text for one."""
        try:
            call_interruptibly(lambda: self._write(request))
        except KeyboardInterrupt:
            request["cancelled"] = _CANCELLED
        except Py4JJavaError as error:
            return error.java_exception
        except CapturedException as error:
            if error._origin is not None:  # noqa: SLF001 - the exception as the JVM has thrown it
                return error._origin  # noqa: SLF001 - see above
            return str(error)
        except ShardError as error:
            kind = type(error)
            return f"{kind.__module__}.{kind.__qualname__}: {error}\n"
        except Exception as error:  # noqa: BLE001 - Spark shows it as it shows a worker's
            return "".join(traceback.format_exception(error))
        return None

    def _write(self, request: Any) -> None:
        java = request.get("frame")
        frame = DataFrame(java, session_of(self.spark, java.sparkSession()))
        options = read_map(request.get("options"))
        saving = _planned(frame, options)
        if saving is not None:
            saving.run()
            return
        # In any case, as Spark takes them.
        given = {name: value for name, value in options.items() if name.lower() != _OPTION.lower()}
        by_workers = frame.write.format("shard").options(**given, **{_OPTION: "false"})
        by_workers.mode("append").save()

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


def _planned(frame: DataFrame, options: dict[str, str]) -> NativeWrite | None:
    """The native write of a frame; None if it is left to the Python workers, who may refuse it."""
    try:
        given = with_range_of_micro_batch(options, frame.sparkSession)
        saving = plan_native_write(frame, parse_sink(given))
    except ShardError:
        # Nothing was written: the workers' planner comes to the same refusal, in its own words.
        return None
    if saving is None:
        _log.info("rows are written by Python workers: Spark cannot write their location or types")
    return saving
