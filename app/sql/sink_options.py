"""Spark's own writers check the options of a sink of files before anything starts.

Spark looks at most of them when a task opens its first file: a codec that it does not have passes
every analysis and stalls the sink. So a writer is opened here in the same way, in the driver, for
a file of no rows in a scratch folder, and closed:

    check = FileSinkOptions(spark)
    check.find_invalid("parquet", {"compression": "zipp"}, ["day"], columns)
        InvalidOption("compression", SparkProblem("CODEC_NOT_AVAILABLE…", …))
    check.find_folder_problem("out/delays")
        SparkProblem("NO_FOLDER", …) where a file of this name is in the way

Invariants:
    No job runs, and nothing is written where the sink writes. No object store is asked.
    A failure for want of a disk is no fault of the options, and passes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from shardline.app.sql.format_calls import (
    InvalidOption,
    find_culprit,
    find_refusal,
    new_format,
    scala_map,
)
from shardline.app.sql.spark_errors import SparkProblem
from shardline.datasource.frames import scala_sequence
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTITION_BY", "FileSinkOptions"]

PARTITION_BY: Final = "partitionBy"
"""Option of sinks of files: columns that are in the names of folders."""

_SOURCES: Final = "org.apache.spark.sql.execution.datasources"
_MAPREDUCE: Final = "org.apache.hadoop.mapreduce"

_ENCRYPTION: Final = ("crypt", "kms")
"""Of these the writer is not opened: it would ask a server for keys, which may be down."""


class FileSinkOptions:
    """Checks sinks of files by the code of a session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        """Check by the formats that are on the class path of `spark`."""
        self._spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001 - the writers are on that side

    def find_invalid(
        self, name: str, options: Mapping[str, str], partition_by: Sequence[str], columns: str
    ) -> InvalidOption | None:
        """The first reason why a format of files cannot write such rows; None if it can.

        Args:
            name: The format.
            options: Of its writer.
            partition_by: Columns that are not in the files but in the names of folders.
            columns: Of the rows, in Spark's JSON.
        """
        whole = self._struct(json.loads(columns)["fields"])

        def partition(_: Mapping[str, str]) -> None:
            utils = java_class(self._spark, f"{_SOURCES}.PartitioningUtils")
            names = scala_sequence(self._spark, list(partition_by))
            cased = self._session.sessionState().conf().caseSensitiveAnalysis()
            utils.validatePartitionColumn(whole, names, cased)

        problem = find_refusal(partition, {})
        if problem is not None:
            return InvalidOption(PARTITION_BY, problem)
        apart = {name.lower() for name in partition_by}
        fields = json.loads(columns)["fields"]
        rows = self._struct([one for one in fields if one["name"].lower() not in apart])

        def open_writer(given: Mapping[str, str]) -> None:
            self._open_writer(name, given, rows)

        problem = find_refusal(open_writer, options)
        if problem is None:
            return None
        return InvalidOption(find_culprit(open_writer, options, problem), problem)

    def find_folder_problem(self, path: str) -> SparkProblem | None:
        """The reason why there can be no folder at `path`; None if there is or may be one."""
        found: SparkProblem | None = None

        def look(_: Mapping[str, str]) -> None:
            nonlocal found
            found = self._file_in_the_way(path)

        return find_refusal(look, {}) or found

    def _struct(self, fields: Sequence[object]) -> Any:
        text = json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False)
        return java_class(self._spark, "org.apache.spark.sql.types.DataType").fromJson(text)

    def _file_in_the_way(self, path: str) -> SparkProblem | None:
        conf = self._session.sessionState().newHadoopConf()
        place = java_class(self._spark, "org.apache.hadoop.fs.Path")(path)
        systems = java_class(self._spark, "org.apache.hadoop.fs.FileSystem")
        scheme = place.toUri().getScheme() or systems.getDefaultUri(conf).getScheme()
        # By its class alone: to open it may ask an object store, which may be down just now.
        systems.getFileSystemClass(scheme, conf)
        if scheme != "file":
            return None
        system = place.getFileSystem(conf)
        above = system.makeQualified(place)
        while above is not None and not system.exists(above):
            above = above.getParent()
        if above is None or system.getFileStatus(above).isDirectory():
            return None
        what = f"'{above.toUri().getPath()}' is a file, and the sink needs a folder"
        return SparkProblem("NO_FOLDER", what, "move the file away, or give another path", None)

    def _open_writer(self, name: str, options: Mapping[str, str], rows: Any) -> None:
        """Open a writer of rows as a task does, and close it."""
        writes = new_format(self._spark, name)
        utils = java_class(self._spark, f"{_SOURCES}.DataSourceUtils")
        utils.verifySchema(writes, rows, False)
        given = scala_map(self._spark, options)
        conf = self._session.sessionState().newHadoopConfWithOptions(given)
        job = java_class(self._spark, f"{_MAPREDUCE}.Job").getInstance(conf)
        factory = writes.prepareWrite(self._session, job, given, rows)
        if any(word in option.lower() for option in options for word in _ENCRYPTION):
            return
        attempt = java_class(self._spark, f"{_MAPREDUCE}.task.TaskAttemptContextImpl")(
            job.getConfiguration(), java_class(self._spark, f"{_MAPREDUCE}.TaskAttemptID")()
        )
        try:
            with tempfile.TemporaryDirectory(prefix="shardline-check-") as folder:
                file = f"file:{folder}/rows{factory.getFileExtension(attempt)}"
                factory.newInstance(file, rows, attempt).close()
        except Py4JJavaError as error:
            gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - knows Java's classes
            if not is_instance_of(gateway, error.java_exception, "java.io.IOException"):
                raise
        except OSError:
            return
