"""The classes inside of Spark that native fetch and write stand on, all of them in one place.

Spark's public reader would nearly do. It forgets which columns are never null, it looks at every
file before it reads any (a request each, on an object store), and it would take a part that
vanished since for one that never was. So the relation is put together here, as table formats do on
the JVM: our own list of files with the sizes that the plan knows, under the exact schema.

Measured against the exact version of Spark that this project names; a test reads every type.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

__all__ = [
    "WRITTEN_TIME",
    "File",
    "MicroBatch",
    "MicroBatchLog",
    "Options",
    "Token",
    "delete_directory",
    "has_class",
    "known_nullability",
    "local_rows",
    "micro_batch_under_way",
    "micro_batches",
    "relation",
    "session_with",
    "with_session",
]

_SQL: Final = "org.apache.spark.sql"
_SOURCES: Final = f"{_SQL}.execution.datasources"
_HADOOP: Final = "org.apache.hadoop.fs"


_STAMP: Final = "unix_millis(_metadata.file_modification_time)"

WRITTEN_TIME: Final = (
    f"coalesce(if({_STAMP} < 0L, -{_STAMP} - 1L, cast(raise_error("
    "'[REFRESHED] the files of the frame were listed anew: make the frame again'"
    ") AS bigint)), 0L)"
)
"""In SQL: the `time` of the file that a row of a `relation` is from, as a constant of the file.

It travels as the file's time of change, in a form that no real one has: where Spark lists the files
anew (`REFRESH` of a view, `refreshByPath`), their own times take its place, and this is an error
then, never another time. It is never null, and the rest says so to Spark.
"""


@dataclass(frozen=True, slots=True)
class File:
    """A file to scan.

    Attributes:
        path: As Hadoop names it.
        size_bytes: Its size; a file that is shorter fails to open.
        time: What `WRITTEN_TIME` gives for its rows.
    """

    path: str
    size_bytes: int
    time: int | None = None


class Options:
    """The options of all scans of one frame, as one object in the JVM.

    Every plan made of the frame refers to it, and so does every RDD that reads its files: it can
    be collected exactly when nothing can read them any more.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Remember what to make the object of, once a scan needs it."""
        self._spark = spark
        self._options = dict(options)
        self.used = False

    @cached_property
    def java(self) -> Any:
        """The object."""
        self.used = True
        given = _class(self._spark, "PythonUtils").toScalaMap(self._options)
        # What Spark would wrap it in by itself, once per use: then nothing kept the inner one.
        return _object(self._spark, f"{_SQL}.catalyst.util.CaseInsensitiveMap").apply(given)

    def token(self) -> Token:
        """Tells whether anything can still read the files."""
        return Token(self._spark, self.java)


class Token:
    """A weak reference to an object in the JVM."""

    def __init__(self, spark: SparkSession, java: Any) -> None:
        """Refer to `java`."""
        self._reference = _class(spark, "java.lang.ref.WeakReference")(java)

    @classmethod
    def of_source(cls, frame: DataFrame) -> Token:
        """Tells whether anything can still read the rows of `frame`, which Python handed over."""
        leaf = frame._jdf.logicalPlan().collectLeaves().head()  # noqa: SLF001 - no public door
        return cls(frame.sparkSession, leaf.rdd())

    def alive(self) -> bool:
        """Whether the object is still there; False once the JVM is gone."""
        with suppress(Py4JError, OSError):
            # `get` would make the gateway hold the object until Python has collected the answer.
            return not self._reference.refersTo(None)
        return False


def relation(
    spark: SparkSession, files: Sequence[File], schema: StructType, options: Options
) -> DataFrame:
    """The rows of Parquet `files` under exactly `schema`, nullability included.

    Touches no file. A file that is missing when it is read is an error that names it.
    """
    session = spark._jsparkSession  # noqa: SLF001 - no public door
    none = _object(spark, "scala.None")
    # Of our own, so that neither a setting nor another frame can empty it before it is used.
    statuses = _class(spark, f"{_SOURCES}.SharedInMemoryCache")(1 << 40, -1).createForNewClient()
    paths = _class(spark, "java.util.ArrayList")()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public door
    for file in files:
        path, listed = _listed(_jvm(spark), gateway, file)
        statuses.putLeafFiles(path, listed)
        paths.add(path)
    index = _class(spark, f"{_SOURCES}.InMemoryFileIndex")(
        session,
        _class(spark, "PythonUtils").toSeq(paths),
        options.java,
        none,
        statuses,
        none,
        none,
    )
    source = _class(spark, f"{_SOURCES}.HadoopFsRelation")(
        index,
        _struct(_jvm(spark), StructType([]).json()),
        _struct(_jvm(spark), schema.json()),
        none,
        _parquet(_jvm(spark)),
        options.java,
        session,
    )
    plan = _object(spark, f"{_SOURCES}.LogicalRelation").apply(source, False)
    return _frame(spark, session, plan)


@lru_cache(maxsize=1)
def _parquet(jvm: Any) -> Any:
    """Spark's Parquet format, which has no state."""
    return _found(jvm, f"{_SOURCES}.parquet.ParquetFileFormat")()


@lru_cache(maxsize=1 << 8)
def _struct(jvm: Any, json: str) -> Any:
    """A type in the JVM."""
    return _found(jvm, f"{_SQL}.types.DataType").fromJson(json)


@lru_cache(maxsize=1 << 12)
def _listed(jvm: Any, gateway: Any, file: File) -> tuple[Any, Any]:
    """The path of `file`, and what a listing of it gives: the same for all frames that read it."""
    make_status = _found(jvm, f"{_HADOOP}.FileStatus")
    path = _found(jvm, f"{_HADOOP}.Path")(file.path)
    stamp = 0 if file.time is None else -file.time - 1
    listed = gateway.new_array(make_status, 1)
    listed[0] = make_status(file.size_bytes, False, 1, 1 << 27, stamp, path)
    return path, listed


def local_rows(
    spark: SparkSession, batches: Sequence[pa.RecordBatch], schema: StructType
) -> DataFrame:
    """Record batches as a local relation; they have exactly the Arrow types that `schema` means.

    `createDataFrame` does the same after two dozen looks at the session's settings.
    """
    utils = _class(spark, "PythonSQLUtils")
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.ipc.new_stream(file, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        file.flush()
        rows = utils.readArrowStreamFromFile(file.name)
        session = spark._jsparkSession  # noqa: SLF001 - no public door
        return DataFrame(utils.toDataFrame(rows, schema.json(), session), spark)


def known_nullability(column: Column, spark: SparkSession, *, nullable: bool) -> Column:
    """`column`, which Spark then takes for one that may, or can not, be null."""
    inside = _class(spark, f"{_SQL}.classic.ExpressionUtils")
    name = "KnownNullable" if nullable else "KnownNotNull"
    tag = _class(spark, f"{_SQL}.catalyst.expressions.{name}")
    wrapped = tag(inside.expression(column._jc))  # noqa: SLF001
    return Column(inside.column(wrapped))


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver can load the Java class `name`."""
    try:
        _class(spark, "org.apache.spark.util.Utils").classForName(name, True, False)
    except Py4JError:
        return False
    return True


def session_with(frame: DataFrame, settings: Mapping[str, str]) -> Any:
    """A Java session like the frame's own, but for `settings`; the frame's is left alone."""
    clone = frame._jdf.sparkSession().cloneSession()  # noqa: SLF001 - no public door
    for name, value in settings.items():
        clone.conf().set(name, value)
    return clone


def with_session(frame: DataFrame, session: Any) -> Any:
    """`frame` as a Java Dataset that `session` executes."""
    spark = frame.sparkSession
    plan = frame._jdf.logicalPlan()  # noqa: SLF001 - no public door
    return _object(spark, f"{_SQL}.classic.Dataset").ofRows(session, plan)


def delete_directory(spark: SparkSession, url: str) -> None:
    """Delete all that is below `url`; what cannot be deleted is left to the sweeper."""
    path = _class(spark, f"{_HADOOP}.Path")(url)
    with suppress(Py4JError):
        path.getFileSystem(spark._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001


# --- the micro-batch under way -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One Python source's part in the micro-batch that a query is executing."""

    _scan: Any
    _execution: Any

    @property
    def schema(self) -> StructType:
        """Of its rows."""
        return StructType.fromJson(json.loads(self._scan.schema().json()))

    @property
    def options(self) -> Mapping[str, str]:
        """What the source was loaded with."""
        relations = _leaves(self._execution.logical(), "StreamingDataSourceV2ScanRelation")
        stream = self._scan.stream()
        mine = next(relation for relation in relations if relation.stream().equals(stream))
        return dict(mine.relation().options().asCaseSensitiveMap())

    @property
    def offsets(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Where the micro-batch starts and ends, as the source said it."""
        start, end = json.loads(self._scan.start().json()), json.loads(self._scan.end().json())
        return start, end

    def partitions(self) -> list[InputPartition]:
        """What the source planned for the micro-batch; plans it if that was not done yet."""
        planned = self._scan.inputPartitions()
        return [
            pickle.loads(bytes(planned.apply(index).pickedPartition()))  # noqa: S301 - our own
            for index in range(planned.size())
        ]


def micro_batches(frame: DataFrame, number: int) -> list[MicroBatch]:
    """The Python sources of micro-batch `number`, whose `foreachBatch` was handed `frame`.

    Called in the thread that Spark runs `foreachBatch` in.
    """
    spark = frame.sparkSession
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return []
    session = frame._jdf.sparkSession()  # noqa: SLF001 - no public door
    key = _class(spark, "java.util.UUID").fromString(query_id)
    query = session.sharedState().activeStreamingQueries().get(key)
    if query is None or not query.sparkSessionForStream().equals(session):
        return []
    execution = query.lastExecution()
    if execution is None or execution.currentBatchId() != number:
        return []
    return [
        MicroBatch(scan, execution)
        for scan in _leaves(execution.executedPlan(), "MicroBatchScanExec")
        if scan.stream().getClass().getSimpleName().startswith("PythonMicroBatchStream")
    ]


def micro_batch_under_way(spark: SparkSession) -> MicroBatchLog | None:
    """The micro-batch that the calling thread runs for; None outside of `foreachBatch`."""
    context = spark.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or number is None:
        return None
    key = _class(spark, "java.util.UUID").fromString(query_id)
    shared = spark._jsparkSession.sharedState()  # noqa: SLF001 - no public door
    return MicroBatchLog(query_id, int(number), spark, shared.activeStreamingQueries().get(key))


@dataclass(frozen=True, slots=True)
class MicroBatchLog:
    """Where the query of a micro-batch writes down what it does.

    Attributes:
        query: The query's id.
        number: The micro-batch's.
    """

    query: str
    number: int
    _spark: SparkSession
    _execution: Any

    def read(self, name: str) -> bytes | None:
        """A file of the checkpoint, in whatever file system; None if it cannot be read."""
        if self._execution is None:
            return None
        conf = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001 - no public door
        try:
            path = _class(self._spark, f"{_HADOOP}.Path")(
                f"{self._execution.resolvedCheckpointRoot()}/{name}"
            )
            stream = path.getFileSystem(conf).open(path)
        except Py4JError:
            return None
        try:
            return bytes(stream.readAllBytes())
        except Py4JError:
            return None
        finally:
            stream.close()


def _leaves(plan: Any, kind: str) -> list[Any]:
    found = plan.collectLeaves()
    leaves = [found.apply(index) for index in range(found.size())]
    return [leaf for leaf in leaves if leaf.getClass().getSimpleName() == kind]


# --- py4j --------------------------------------------------------------------------------------


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm  # noqa: SLF001 - PySpark's own classes use it the same way


def _class(spark: SparkSession, name: str) -> Any:
    """The Java class `name`."""
    return _found(_jvm(spark), name)


def _object(spark: SparkSession, name: str) -> Any:
    """The Scala object `name`."""
    return _singleton(_jvm(spark), name)


@lru_cache(maxsize=64)
def _found(jvm: Any, name: str) -> Any:
    # Each step of a dotted name is a call across: by itself more than making a relation takes.
    found = jvm
    for step in name.split("."):
        found = getattr(found, step)
    return found


@lru_cache(maxsize=16)
def _singleton(jvm: Any, name: str) -> Any:
    return getattr(_found(jvm, f"{name}$"), "MODULE$")


def _frame(spark: SparkSession, session: Any, plan: Any) -> DataFrame:
    return DataFrame(_object(spark, f"{_SQL}.classic.Dataset").ofRows(session, plan), spark)
