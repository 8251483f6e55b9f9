"""Makes relations of Parquet files: our own list of files, under an exact schema, in one call.

Spark's public reader is not enough. It forgets which columns are never null, it looks at every file
before it reads any (a request each, on an object store), and it silently leaves out a part that was
deleted before it looked. So the relation is put together in the JVM (`NativeRelations.java`), as
table formats do there, with the sizes that the plan knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from shardline.datasource.java_names import jvm_of
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import FileFormat, java_type
from shardline.datasource.spark_native.skipped_files import ScannedParts, file_statistics

__all__ = ["File", "relation"]

_CLASS: Final = "NativeRelations"


@dataclass(frozen=True, slots=True)
class File:
    """A file to scan.

    Attributes:
        path: URL for Hadoop.
        size_bytes: Its size; a file that is shorter fails to open.
        constants: Of each constant of the `relation` the value that all of its rows have.
        seen: What it is compared with whenever a task that reads it is sent: see `seen_file`; empty
            for a file that is not on the local disk.
    """

    path: str
    size_bytes: int
    constants: tuple[int, ...] = ()
    seen: str = ""


def relation(
    spark: SparkSession,
    files: Sequence[File],
    schema: StructType,
    file_format: FileFormat,
    *,
    constants: Sequence[str],
    scanned: ScannedParts,
) -> DataFrame:
    """The rows of Parquet `files` under exactly `schema`, nullability included.

    Touches no file, not even for a `REFRESH`. A file that is missing when it is read is an error
    that names it, and so is another one in the place of a local file.

    Args:
        spark: The session that reads.
        files: The files, each with its constants.
        schema: The columns that are read from the files.
        file_format: The format of all scans of the frame.
        constants: Names of further columns, behind the others: whole numbers that no file has.
        scanned: The parts of the files, in their order.
    """
    columns = StructType([StructField(name, LongType(), nullable=False) for name in constants])
    # One text for all of them, whose number has no bound.
    listed = "\0".join(
        "\0".join([*map(str, (file.size_bytes, *file.constants)), file.path]) for file in files
    )
    seen = "\0".join(file.seen for file in files).strip("\0")
    relations, statistics = _relations(spark), file_statistics()
    number = statistics.add(scanned) if scanned.can_skip else ""
    made = relations.relation(
        spark._jsparkSession,  # noqa: SLF001 - no public door
        file_format.options,
        java_type(spark, columns),
        listed,
        seen,
        number,
        java_type(spark, schema),
        file_format.java,
    )
    if number:
        statistics.forget(relations.forgotten().split())
    return DataFrame(made, spark)


def _relations(spark: SparkSession) -> Any:
    """The maker of relations in the JVM of a session."""
    jvm = jvm_of(spark)
    if jvm not in _MAKERS:
        # Of two threads that are here for the first time, both go on with the same one.
        _MAKERS.setdefault(jvm, java_object(spark, _CLASS, file_statistics()))
    return _MAKERS[jvm]


_MAKERS: Final[dict[Any, Any]] = {}
"""The maker of relations of each JVM of this process."""
