"""Files of one native write, and the list of those that its job has committed.

`TaskFiles.java` is the half of it in the JVM, and says by which protocol. A file on the list is
whole, and its task counts; the folder may have others, of tasks that were retried, that lost
against a twin, or whose executor is lost. No record refers to those, so the orphan sweep deletes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import rebind_session

__all__ = ["TaskFiles", "WrittenFile", "WrittenFiles"]

_CLASS: Final = "TaskFiles"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that Spark has written.

    Attributes:
        name: Its name in the folder of the write.
        size_bytes: Its size.
    """

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What a job has written.

    Attributes:
        files: The files of its committed tasks.
        rows: Number of their rows, as the tasks have counted them.
    """

    files: tuple[WrittenFile, ...]
    rows: int


class TaskFiles:
    """One write into a folder of its own, which need not be there."""

    def __init__(
        self, rows: DataFrame, settings: Any, options: Mapping[str, str], url: str
    ) -> None:
        """Prepare the write; nothing is written.

        Args:
            rows: A frame with the columns of the files.
            settings: The Java session with the settings of the files.
            options: Options of Spark's Parquet writer, `maxRecordsPerFile` among them.
            url: The folder, for Hadoop.
        """
        self._rows = rows
        self._settings = settings
        columns = rows._jdf.schema()  # noqa: SLF001 - no public door
        self.java = java_object(rows.sparkSession, _CLASS, settings, columns, dict(options), url)

    def write(self) -> WrittenFiles:
        """Run the query of the frame, and write its rows."""
        self.java.write(rebind_session(self._rows, self._settings))
        return self.written()

    def written(self) -> WrittenFiles:
        """What was written by the job that has just been committed."""
        listed = [line.split(" ", 1) for line in self.java.list().splitlines()]
        files = tuple(WrittenFile(name, int(size)) for size, name in listed)
        return WrittenFiles(files, self.java.rows())
