"""Wraps the internal classes of Spark that native fetch and write need, all of them in one place.

Checked against the exact version of Spark that this project names; a test reads every type.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from shardline.datasource.java_names import class_in, java_class, jvm_of, scala_object
from shardline.datasource.option_parser import options_from
from shardline.datasource.spark_native.catalyst_nodes import scala_sequence
from shardline.datasource.spark_native.interrupts import is_interrupt
from shardline.datasource.spark_native.row_files import batches_with_rows

__all__ = [
    "FileFormat",
    "LivenessToken",
    "as_active",
    "clone_of",
    "clone_session",
    "create_frame",
    "delete_directory",
    "empty_frame",
    "file_size",
    "frame_of",
    "has_class",
    "java_causes",
    "java_type",
    "known_nullability",
    "local_relation",
    "make_active",
    "pad_chars",
    "read_array",
    "read_map",
    "rebind_session",
    "select_text",
    "session_of",
    "settings_of",
]

_SQL: Final = "org.apache.spark.sql"
_SOURCES: Final = f"{_SQL}.execution.datasources"
_HADOOP: Final = "org.apache.hadoop.fs"


_RAW_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of a field's metadata: the type that a table has its text under."""


_JACKSON: Final = "com.fasterxml.jackson.databind.ObjectMapper"

_CAUSES_MAX: Final = 20


class FileFormat:
    """How the files of one frame are read: Spark's Parquet format and its options, in the JVM.

    Every plan made of the frame refers to the format, and so does every RDD that reads its files:
    the JVM collects it exactly when nothing can read the files any more. `token` observes that.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """Store the options; the objects are made once a scan needs them."""
        self._spark = spark
        self._options = dict(options)
        self.used = False

    @cached_property
    def java(self) -> Any:
        """The format in the JVM."""
        self.used = True
        # Of this frame alone, though all are equal and have no state: an RDD keeps the format that
        # its tasks read by, and of what its plan had nothing else, the options neither.
        return java_class(self._spark, f"{_SOURCES}.parquet.ParquetFileFormat")()

    @cached_property
    def options(self) -> Any:
        """The options in the JVM: the same for all frames, since nothing changes them."""
        return _options(jvm_of(self._spark), tuple(self._options.items()))

    def token(self) -> LivenessToken:
        """A token that is alive while anything can read the files."""
        return LivenessToken(self._spark, self.java)


_UNANSWERED_MAX: Final = 4
"""So many looks in a row without an answer, and the JVM is gone. They are a quarter of a lease
apart."""


class LivenessToken:
    """A weak reference to an object in the JVM, which lives as long as its readers do.

    They end with Spark, too: after `spark.stop()` nothing is read any more, and nothing makes the
    JVM collect, which goes on as long as the process.

    Losing the object while something reads would end the lease that the token stands for, and a
    read that misses a part then fails with `LEASE_LOST`. An object that is never collected keeps
    that lease, and with it history and blobs, until Spark or this process ends.
    """

    def __init__(self, spark: SparkSession, java: Any) -> None:
        """Refer to `java`."""
        self._context = spark.sparkContext
        self._reference = java_class(spark, "java.lang.ref.WeakReference")(java)
        self._unanswered = 0

    @classmethod
    def of_source(cls, frame: DataFrame) -> LivenessToken:
        """A token that is alive while anything can read the rows of `frame`, which Python made."""
        leaf = frame._jdf.logicalPlan().collectLeaves().head()  # noqa: SLF001 - no public door
        return cls(frame.sparkSession, leaf.rdd())

    def is_alive(self) -> bool:
        """True while the object was not collected; False some looks after the JVM is gone."""
        context = self._context._jsc  # noqa: SLF001 - no public door
        if context is None:
            return False  # stopped from here
        try:
            if context.sc().isStopped():
                return False
            # Not `get`: the gateway would hold the object until Python has collected the result,
            # and looking would keep it alive.
            collected = bool(self._reference.refersTo(None))
        except (Py4JError, OSError):
            # No answer says nothing of the object: the JVM may be out of memory for a moment, or
            # this process out of descriptors. One that is gone never answers again.
            self._unanswered += 1
            return self._unanswered < _UNANSWERED_MAX
        self._unanswered = 0
        return not collected


@lru_cache(maxsize=1 << 4)
def _options(jvm: Any, options: tuple[tuple[str, str], ...]) -> Any:
    given = class_in(jvm, "PythonUtils").toScalaMap(dict(options))
    # Spark would wrap any other map in one of these itself, anew at each use.
    maps = getattr(class_in(jvm, f"{_SQL}.catalyst.util.CaseInsensitiveMap$"), "MODULE$")
    return maps.apply(given)


def java_type(spark: SparkSession, schema: StructType) -> Any:
    """A type in the JVM."""
    return _struct(jvm_of(spark), schema.json())


@lru_cache(maxsize=1 << 8)
def _struct(jvm: Any, json: str) -> Any:
    """A type in the JVM."""
    return class_in(jvm, f"{_SQL}.types.DataType").fromJson(json)


def local_relation(
    spark: SparkSession, batches: Sequence[pa.RecordBatch], schema: StructType
) -> DataFrame:
    """Record batches as a local relation; their Arrow types must be exactly those of `schema`.

    `createDataFrame` does the same after reading two dozen settings from the session.
    """
    utils = java_class(spark, "PythonSQLUtils")
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.ipc.new_stream(file, batches[0].schema) as stream:
            for batch in batches_with_rows(batches):
                stream.write_batch(batch)
        file.flush()
        rows = utils.readArrowStreamFromFile(file.name)
        session = spark._jsparkSession  # noqa: SLF001 - no public door
        # The kind of offsets is that of the batches, and not that of the session's settings: where
        # they differ, the JVM reads memory that is not there, and dies. The zone changes no value.
        is_large = any(_has_large_offsets(field.type) for field in batches[0].schema)
        converters = scala_object(spark, f"{_SQL}.execution.arrow.ArrowConverters")
        frame = converters.toDataFrame(
            rows, java_type(spark, schema), session, "UTC", False, is_large
        )
        return DataFrame(frame, spark)


def _has_large_offsets(kind: pa.DataType) -> bool:
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return is_large or any(map(_has_large_offsets, inner))


def create_frame(
    session: SparkSession, rows: Sequence[tuple[object, ...]], schema: StructType
) -> DataFrame:
    """Rows of Python as a frame.

    As `session.createDataFrame` makes it, which would also make the session the active one: of the
    whole process in Python, and of this thread in the JVM.
    """
    return session._create_dataframe(rows, schema, None, False)  # noqa: SLF001 - no public door


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """No rows, as a frame: a local relation, which Spark leaves out of a union.

    `create_frame` makes an RDD of them, in two dozen calls to the JVM.
    """
    no_rows = java_class(session, "java.util.ArrayList")()
    java = session._jsparkSession  # noqa: SLF001 - no public door
    return DataFrame(java.createDataFrame(no_rows, java_type(session, schema)), session)


def select_text(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    """`frame.selectExpr(*texts)`, which would look up a class by its short name at each call."""
    spark = frame.sparkSession
    items = scala_sequence(spark, texts)
    return DataFrame(frame._jdf.selectExpr(items), spark)  # noqa: SLF001 - no public door


def known_nullability(column: Column, spark: SparkSession, *, nullable: bool) -> Column:
    """`column`, with a tag by which Spark takes it for nullable, or for never null."""
    inside = java_class(spark, f"{_SQL}.classic.ExpressionUtils")
    name = "KnownNullable" if nullable else "KnownNotNull"
    tag = java_class(spark, f"{_SQL}.catalyst.expressions.{name}")
    wrapped = tag(inside.expression(column._jc))  # noqa: SLF001
    return Column(inside.column(wrapped))


def pad_chars(frame: DataFrame) -> DataFrame:
    """`frame` with the text of columns that are a table's `CHAR(n)` padded, where Spark pads it.

    Its analyzer pads them in relations of its own whose columns say so, also inside of values, and
    what they are compared with in any frame.
    """
    spark = frame.sparkSession
    fields = frame.schema.fields
    if not any(_RAW_TYPE in field.metadata for field in fields):
        return frame
    conf = frame._jdf.queryExecution().sparkSession().sessionState().conf()  # noqa: SLF001
    if conf.charVarcharAsString() or not conf.readSideCharPadding():
        return frame
    inside = java_class(spark, f"{_SQL}.classic.ExpressionUtils")
    chars = java_class(spark, f"{_SQL}.catalyst.util.CharVarcharUtils")
    output = frame._jdf.queryExecution().analyzed().output()  # noqa: SLF001 - no public door
    return frame.select(
        [
            Column(inside.column(chars.addPaddingForScan(output.apply(place)))).alias(
                field.name, metadata=field.metadata
            )
            for place, field in enumerate(fields)
        ]
    )


def has_class(spark: SparkSession, name: str) -> bool:
    """True if the driver can load the Java class `name`."""
    try:
        java_class(spark, "org.apache.spark.util.Utils").classForName(name, True, False)
    except Py4JError as error:
        if is_interrupt(error):
            raise  # a query that is stopped says nothing about classes
        return False
    return True


def file_size(spark: SparkSession, url: str) -> int | None:
    """The size of a file by Spark's own file system, in bytes; None if it cannot be looked at.

    Raises:
        Py4JError: The calling thread was interrupted.
    """
    path = java_class(spark, f"{_HADOOP}.Path")(url)
    conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - no public door
    try:
        return int(path.getFileSystem(conf).getFileStatus(path).getLen())
    except Py4JError as error:
        if is_interrupt(error):
            raise  # it says nothing of the file
    return None


def java_causes(error: Any) -> Iterator[tuple[str | None, Mapping[str, str], str]]:
    """Conditions, parameters and texts of a Java exception and its causes, outermost first.

    Those that are not Spark's have none, and are left out.
    """
    for _ in range(_CAUSES_MAX):
        if error is None:
            return
        try:
            # Only a call shows if it has one: an object of Java seems to have every method.
            parameters = read_map(error.getMessageParameters())
            yield error.getCondition(), parameters, str(error.getMessage())
        except Py4JError as problem:
            if is_interrupt(problem):
                raise
        error = error.getCause()


def clone_session(frame: DataFrame, settings: Mapping[str, str]) -> Any:
    """A clone of the frame's Java session with `settings`; the frame's own is not changed."""
    clone = frame._jdf.sparkSession().cloneSession()  # noqa: SLF001 - no public door
    for name, value in settings.items():
        clone.conf().set(name, value)
    return clone


def clone_of(spark: SparkSession) -> SparkSession:
    """A session of the same settings, views and functions; what changes in it stays in it."""
    return session_of(spark, spark._jsparkSession.cloneSession())  # noqa: SLF001 - no public door


def make_active(session: SparkSession) -> None:
    """Make it the active session of this thread, through which Spark finds Python's sources."""
    java_class(session, f"{_SQL}.classic.SparkSession").setActiveSession(
        session._jsparkSession  # noqa: SLF001 - no public door
    )


@contextmanager
def as_active(session: SparkSession) -> Iterator[None]:
    """Make it the active session of this thread while the block runs.

    An expression takes settings of the active session when it is made: the type of a division of
    decimals, and what becomes of a number that does not fit. So a query that is parsed, and a plan
    that is put together, mean what they are to mean only in their own session.
    """
    sessions = java_class(session, f"{_SQL}.classic.SparkSession")
    before = sessions.getActiveSession()
    make_active(session)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def from_folder_of_jvm(spark: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """Options whose relative paths are absolute, from the folder that the JVM was started in.

    The Python processes that Spark starts count from there, and this one may have gone elsewhere
    since: both would have another shard by one name.
    """
    # From any folder a relative path is another text. The JVM is asked only where there is one.
    if options_from("", options) == options:
        return dict(options)
    return options_from(java_class(spark, "java.lang.System").getProperty("user.dir"), options)


def is_observed(frame: DataFrame) -> bool:
    """True if a query tells its caller of its rows while it runs (`DataFrame.observe`).

    Spark brings that to the session that runs it: run in a copy, the caller would wait for ever.
    """
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public door
    # Of each operator the text has its name. A literal that has it as well does no harm, and of a
    # text that was cut (`spark.sql.maxPlanStringLength`) nobody knows.
    text = str(plan.toString())
    return "CollectMetrics" in text or "Truncated plan of" in text


def rebind_session(frame: DataFrame, session: Any) -> Any:
    """`frame` as a Java Dataset that `session` executes."""
    spark = frame.sparkSession
    plan = frame._jdf.logicalPlan()  # noqa: SLF001 - no public door
    return scala_object(spark, f"{_SQL}.classic.Dataset").ofRows(session, plan)


def delete_directory(spark: SparkSession, url: str) -> None:
    """Delete the directory `url`; files that cannot be deleted are left to the orphan sweep."""
    path = java_class(spark, f"{_HADOOP}.Path")(url)
    with suppress(Py4JError):
        path.getFileSystem(spark._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001


# --- sessions -----------------------------------------------------------------------------------


def session_of(spark: SparkSession, session: Any) -> SparkSession:
    """The Java session `session` as PySpark's: `spark` itself, or one beside it.

    Made without its constructor, which would change the methods of RDDs of the whole process.
    """
    if spark._jsparkSession.equals(session):  # noqa: SLF001 - no public door
        return spark
    made = SparkSession.__new__(SparkSession)
    for name in ("_sc", "_jsc", "_jvm", "_profiler_collector"):
        setattr(made, name, getattr(spark, name))
    made._jsparkSession = session  # noqa: SLF001 - no public door
    return made


def read_array(array: Any) -> list[Any]:
    """The elements of a Java array."""
    return [array[index] for index in range(len(array))]


def read_map(java: Any) -> dict[str, Any]:
    """The entries of a Java map whose keys are text.

    Python's own iteration over a map or a list of Java ends with an exception of the JVM. PySpark
    asks it of which of its kinds it is, 70 calls that take 10 to 30 ms, before it is dropped.
    """
    return {name: java.get(name) for name in read_array(java.keySet().toArray())}


def settings_of(spark: SparkSession) -> dict[str, str]:
    """All that is set in a session, as `spark.conf.getAll` has it, in three calls.

    PySpark makes two for each setting, and 70 more at the end of the map (`read_map`).
    """
    java: Any = spark.conf._jconf  # noqa: SLF001 - no public door
    mapper = java_class(spark, _JACKSON)()
    found: dict[str, str] = json.loads(mapper.writeValueAsString(java.getAllAsJava()))
    return found


def frame_of(spark: SparkSession, session: Any, plan: Any) -> DataFrame:
    """The rows of a plan, which the Java session `session` executes."""
    return DataFrame(scala_object(spark, f"{_SQL}.classic.Dataset").ofRows(session, plan), spark)
