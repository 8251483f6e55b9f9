"""Writes the micro-batches of a streaming sink natively, in the plan that the stream runs.

The query of a stream may keep state, which is committed by the tasks of the one plan that Spark
makes for a micro-batch. So no second query writes the rows, as for a batch write: the rule
(`ShardWriteRule.java`) exchanges the writer of that plan for Spark's own writer of Parquet files,
below which the rows are given the shard's columns.

    optimizer ---> the rule ---> StreamWriter.apply: does the frame fit, and what are its columns?
    execution ---> Spark's tasks write files, and commit them and their state
              ---> FilesOfMicroBatch.commit ---> _Attempt.apply: one append of the files

An append has the same identity as that of the Python workers: the query, the number of the
micro-batch, and the range that it covers. So a checkpoint goes on by either way.

Invariants:
    A micro-batch is written by one of the two ways, which is chosen when it is planned. What
        cannot be native, or is refused, is left as it was: the refusal is the Python workers' own.
    Files are deleted only before their append was asked for, or by what has settled that it never
        will be made.
    A micro-batch that was committed before runs its tasks, and is not appended again.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.errors import ShardError
from shardline.datasource.ids import new_id
from shardline.datasource.shard_sink.micro_batch_range import covered_by_micro_batch
from shardline.datasource.shard_sink.writers import check_stream
from shardline.datasource.shard_source.options import parse_sink
from shardline.datasource.spark_native.interrupts import is_interrupt
from shardline.datasource.spark_native.jvm import (
    from_folder_of_jvm,
    read_map,
    session_of,
)
from shardline.datasource.spark_native.running_batch import current_micro_batch
from shardline.datasource.spark_native.save import NativeWrite, plan_native_write
from shardline.datasource.spark_native.task_files import TaskFiles

__all__ = ["StreamWriter", "as_failure"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamWriter:
    """Plans the native write of a micro-batch, when the rule calls back from the stream's thread.

    Attributes:
        spark: A session of the same JVM.
    """

    spark: SparkSession

    def apply(self, request: Any) -> None:
        """Put what the rule needs into `request`; nothing if the Python workers are to write."""
        try:
            self._plan(request)
        except ShardError:
            pass  # the workers' planner comes to the same refusal, in its own words
        except Exception as error:  # noqa: BLE001 - no query fails because of a rule
            if is_interrupt(error):
                request["interrupted"] = True
            else:
                _log.warning("a micro-batch is left to Python workers", exc_info=True)

    def _plan(self, request: Any) -> None:
        java = request.get("frame")
        frame = DataFrame(java, session_of(self.spark, java.sparkSession()))
        saving = _planned(frame, read_map(request.get("options")))
        if saving is None:
            _log.info("a micro-batch is left to Python workers: Spark cannot write it by itself")
            return
        name = new_id("t", saving.client.ids)
        rows = saving.rows_in_order
        files = saving.files_at(saving.url_of(name), rows)
        request["commits"] = _Attempt(saving, name, files, saving.client.clock.now_ms())
        request["files"] = files.java
        request["rows"] = rows._jdf  # noqa: SLF001 - no public door

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


def _planned(frame: DataFrame, options: Mapping[str, str]) -> NativeWrite | None:
    parsed = parse_sink(from_folder_of_jvm(frame.sparkSession, options))
    check_stream(parsed, replace=False)
    if current_micro_batch(frame.sparkSession) is None:
        return None
    return plan_native_write(frame, parsed)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at a micro-batch, whose files Spark's tasks write.

    Attributes:
        name: Its id.
    """

    _saving: NativeWrite
    name: str
    _files: TaskFiles
    _begun_ms: int

    def apply(self, request: Any) -> Any:
        """Append the files, if the request has a number; else delete them.

        Returns None; or the JVM's exception, or a text for one.
        """
        try:
            number = request.get("number")
            if number is None:
                self._saving.delete_files(self.name)
            else:
                self._commit(number)
        except Exception as error:  # noqa: BLE001 - Spark shows it as it shows a worker's
            if is_interrupt(error):
                request["interrupted"] = True
            return as_failure(error)
        return None

    def _commit(self, number: int) -> None:
        log = current_micro_batch(self._saving.frame.sparkSession)
        assert log is not None, "a micro-batch is committed in the thread of its query"
        self._saving.append_written(
            self.name,
            self._begun_ms,
            self._files.written(),
            writer=f"query:{log.query}",
            sequence=number,
            covers=covered_by_micro_batch(log.query, number, log.read),
        )

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


def as_failure(error: Exception) -> Any:
    """The exception of the JVM, if it is one; else a text as Spark has it of a worker's."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    if isinstance(error, CapturedException) and error._origin is not None:  # noqa: SLF001
        return error._origin  # noqa: SLF001 - the exception as the JVM has thrown it
    if isinstance(error, ShardError):
        kind = type(error)
        return f"{kind.__module__}.{kind.__qualname__}: {error}\n"
    return "".join(traceback.format_exception(error))
