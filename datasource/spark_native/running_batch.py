"""Looks into the micro-batch that Spark is executing, from inside of its `foreachBatch`.

The frame that Spark passes there has rows and nothing else. What they come from is found through
the query that the calling thread runs for: its sources with their offsets, its files, and the files
of its checkpoint. As in `jvm`, these are internal classes of the exact version of Spark that this
project names.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native.catalyst_nodes import kind_of, read_sequence
from shardline.datasource.spark_native.interrupts import is_interrupt
from shardline.datasource.spark_native.jvm import read_map

__all__ = [
    "MicroBatch",
    "MicroBatchFiles",
    "MicroBatchLog",
    "current_micro_batch",
    "micro_batch_files",
    "micro_batch_sources",
]

_CODECS: Final = (".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".zst")
"""Ends of the names, in any case, by which Hadoop knows compressed files."""

_COMPRESSED: Final = 64
"""Bytes that one of a compressed file may stand for: of most texts they are ten, of some that
repeat themselves a thousand."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One Python source's part in the micro-batch that a query is executing."""

    _leaf: Any
    _execution: Any

    @property
    def schema(self) -> StructType:
        """The schema of its rows."""
        return StructType.fromJson(json.loads(self._leaf.schema().json()))

    @property
    def options(self) -> Mapping[str, str]:
        """The options that the source was loaded with."""
        return read_map(self._leaf.relation().options().asCaseSensitiveMap())

    @property
    def offsets(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The source's offsets at the start and at the end of the micro-batch."""
        start, end = self._range
        return json.loads(start.json()), json.loads(end.json())

    def partitions(self) -> list[InputPartition]:
        """The partitions of the micro-batch; makes the source plan them if it has not yet."""
        stream = self._leaf.stream()
        for scan in _leaves(self._execution.executedPlan(), "MicroBatchScanExec"):
            if scan.stream().equals(stream):
                found = read_sequence(scan.inputPartitions())
                break
        else:
            # A native plan has taken the place of the scan: plan the range again.
            found = list(stream.planInputPartitions(*self._range))
        return [pickle.loads(bytes(one.pickedPartition())) for one in found]  # noqa: S301 - our own

    @property
    def _range(self) -> tuple[Any, Any]:
        return self._leaf.startOffset().get(), self._leaf.endOffset().get()


def micro_batch_sources(frame: DataFrame, number: int) -> list[MicroBatch]:
    """The Python sources of micro-batch `number`, whose `foreachBatch` received `frame`.

    Called in the thread that Spark runs `foreachBatch` in.
    """
    execution = _running_execution(frame, number)
    if execution is None:
        return []
    return [
        MicroBatch(leaf, execution)
        for leaf in _leaves(execution.logical(), "StreamingDataSourceV2ScanRelation")
        if kind_of(leaf.stream()).startswith("PythonMicroBatchStream")
    ]


@dataclass(frozen=True)
class MicroBatchFiles:
    """The files that Spark has found of those that it has planned for a micro-batch."""

    _spark: SparkSession
    _locations: list[Any]

    def size_bytes(self) -> int:
        """The size of all of them; of compressed ones what they may have in them."""
        size = sum(int(location.sizeInBytes()) for location in self._locations)
        compressed = any(url.lower().endswith(_CODECS) for url in self._urls)
        return size * _COMPRESSED if compressed else size

    def empty(self) -> list[str]:
        """URLs of files without a byte. Spark plans no task for them, and notes them as read."""
        empty = list[str]()
        for location in self._locations:
            files = location.allFiles()
            # Of all files in one call, as there may be many: seldom is one of them empty.
            if "length=0;" in files.toString():
                found = read_sequence(files)
                empty += [one.getPath().toString() for one in found if not one.getLen()]
        return empty

    def missing(self, planned: Iterable[str]) -> list[str]:
        """Those of the files `planned` that are not there. Spark leaves them out, and says nothing.

        Args:
            planned: URLs with escapes, as the log of the source has them.
        """
        return [url for url in planned if url not in self._urls] if self._locations else []

    def repeated(self) -> list[str]:
        """URLs, with escapes, of those that Spark reads more than once.

        For each path with a character of a glob Spark 4.3 lists all paths of the micro-batch, and
        then once more those without one.
        """
        return [url for url, times in Counter(self._listed).items() if times > 1]

    @cached_property
    def _urls(self) -> set[str]:
        return set(self._listed)

    @cached_property
    def _listed(self) -> list[str]:
        """URLs of all of them, with escapes, as often as each is read."""
        runtime = java_class(self._spark, "scala.runtime.ScalaRunTime")
        found = list[str]()
        for location in self._locations:
            # One text, as each element would be a call; a URL with escapes has no blank.
            text = runtime.stringOf(location.inputFiles())
            found += text.removeprefix("Array(").removesuffix(")").split(", ")
        return found


def micro_batch_files(frame: DataFrame, number: int) -> MicroBatchFiles:
    """The files of micro-batch `number`, whose `foreachBatch` received `frame`.

    Called as `micro_batch_sources`; elsewhere no file is known.
    """
    execution = _running_execution(frame, number)
    leaves = [] if execution is None else _leaves(execution.logical(), "LogicalRelation")
    return MicroBatchFiles(frame.sparkSession, [leaf.relation().location() for leaf in leaves])


def _running_execution(frame: DataFrame, number: int) -> Any | None:
    """The execution of micro-batch `number`, if the calling thread runs its `foreachBatch`."""
    spark = frame.sparkSession
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return None
    session = frame._jdf.sparkSession()  # noqa: SLF001 - no public door
    key = java_class(spark, "java.util.UUID").fromString(query_id)
    query = session.sharedState().activeStreamingQueries().get(key)
    if query is None or not query.sparkSessionForStream().equals(session):
        return None
    execution = query.lastExecution()
    return execution if execution is not None and execution.currentBatchId() == number else None


def current_micro_batch(spark: SparkSession) -> MicroBatchLog | None:
    """The micro-batch that the calling thread runs for; None outside of `foreachBatch`."""
    context = spark.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or number is None:
        return None
    key = java_class(spark, "java.util.UUID").fromString(query_id)
    shared = spark._jsparkSession.sharedState()  # noqa: SLF001 - no public door
    return MicroBatchLog(query_id, int(number), spark, shared.activeStreamingQueries().get(key))


@dataclass(frozen=True, slots=True)
class MicroBatchLog:
    """Reads the checkpoint of a micro-batch's query.

    Attributes:
        query: The query's id.
        number: Number of the micro-batch.
    """

    query: str
    number: int
    _spark: SparkSession
    _execution: Any

    def read(self, name: str) -> bytes | None:
        """The bytes of a file of the checkpoint, in any file system; None if it cannot be read."""
        if self._execution is None:
            return None
        conf = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001 - no public door
        try:
            path = java_class(self._spark, "org.apache.hadoop.fs.Path")(
                f"{self._execution.resolvedCheckpointRoot()}/{name}"
            )
            stream = path.getFileSystem(conf).open(path)
        except Py4JError as error:
            if is_interrupt(error):
                raise  # what is written for a query that is stopped must not lose its range
            return None
        try:
            return bytes(stream.readAllBytes())
        except Py4JError as error:
            if is_interrupt(error):
                raise  # as above
            return None
        finally:
            stream.close()


def _leaves(plan: Any, kind: str) -> list[Any]:
    leaves = read_sequence(plan.collectLeaves())
    return [leaf for leaf in leaves if kind_of(leaf) == kind]
