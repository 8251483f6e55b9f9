"""A sink of files writes one sub-folder per micro-batch, which appears at once.

Spark's own file sink keeps a log of its files beside them, that only Spark reads: other readers see
files of micro-batches that failed or ran twice. Here the folder itself says what is committed.

    <path>/_shardline.json          the owner: sink, definition, and the shard that it reads
    <path>/.staging-<number>/       being written; hidden from every reader
    <path>/_upper=<number>/         files of a committed micro-batch, by its upper

`spark.read.parquet(path)` reads all of the last kind and nothing else: Spark hides names that begin
with a dot or an underscore, but for those with an equals sign, which are partitions. Column
`_upper` is the upper of the micro-batch that a row came with.

Invariants:
    A sub-folder is renamed into place when all of its files are complete. Where the file system
    renames folders in one step (a local disk, HDFS) a reader never sees a part of a micro-batch;
    object stores copy file by file, and a reader in that moment may.
    A sub-folder in place is never written again: its interval is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.protocol.objects import SinkDescription, fingerprint
from shardline.app.storage.sinks.interval import Interval, frontier_of
from shardline.app.storage.sinks.target import Written
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native.java_names import java_class

__all__ = ["FileTarget"]

_OWNER: Final = "_shardline.json"
_STAGING: Final = ".staging-"
_DONE: Final = "_upper="


class FileTarget:
    """A folder that belongs to one definition of one sink.

    Without the owner's file a folder with rows is refused. A sub-folder that is deleted by hand is
    not written again, since the sink's progress has its times.
    """

    def __init__(
        self, spark: SparkSession, sink: SinkDescription, options: Mapping[str, str], shard: str
    ) -> None:
        """Take the folder, and delete what an earlier incarnation has left unfinished in it.

        Args:
            spark: The session that writes.
            sink: The owner of the folder.
            options: Of the target.
            shard: Id of the shard that the sink reads.

        Raises:
            InvalidUsage: It belongs to another sink, or to another definition of this one.
        """
        given = {name.lower(): (name, text) for name, text in options.items()}
        self._path = given.pop("path")[1].rstrip("/")
        self._partition_by = [
            part.strip()
            for part in given.pop("partitionby", ("", ""))[1].split(",")
            if part.strip()
        ]
        self._options = dict(given.values())
        self._format = sink.format
        self._spark = spark
        self._path_class = java_class(spark, "org.apache.hadoop.fs.Path")
        # PySpark has no other door to file systems.
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._fs = self._path_class(self._path).getFileSystem(conf)
        self.input = self._take(sink, shard)
        for name in self._names():
            if name.startswith(_STAGING):
                self._fs.delete(self._place(name), True)

    def committed(self) -> Frontier | None:
        """The greatest upper of the sub-folders in place; None if there are none."""
        uppers = [name.removeprefix(_DONE) for name in self._names() if name.startswith(_DONE)]
        numbers = [int(text) for text in uppers if text.isdigit()]
        return frontier_of(max(numbers)) if numbers else None

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Write the rows into a hidden folder, then rename it into place."""
        done = self._place(f"{_DONE}{interval.number}")
        if self._fs.exists(done):
            return Written(0, 0)
        staged = self._place(f"{_STAGING}{interval.number}")
        self._fs.delete(staged, True)
        counter = Observation()
        counted = rows.observe(counter, F.count(F.lit(1)).alias("rows"))
        writer = counted.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.mode("errorifexists").save(staged.toString())
        size = self._fs.getContentSummary(staged).getLength()
        # Spark counts nothing where its optimiser found out that there are no rows.
        count = int(counter.get.get("rows", 0))
        if count == 0:
            self._fs.delete(staged, True)
        elif not self._fs.rename(staged, done):
            raise Determinate(
                f"the files of times up to {interval.upper} could not be put in place in "
                f"'{self._path}'",
                code="NOT_RENAMED",
                hint="look at the permissions of the folder",
            )
        return Written(count, size)

    def skip(self, interval: Interval) -> None:
        """Do nothing: an interval without rows has no folder."""

    def _take(self, sink: SinkDescription, shard: str) -> str:
        """Take the folder for the sink, and return the shard whose changes it has; "" if none.

        Raises:
            InvalidUsage: It holds what somebody else has written.
        """
        mine = {"sink": sink.name, "definition": fingerprint(sink)}
        owner = self._place(_OWNER)
        full = any(name.startswith(_DONE) for name in self._names())
        found = self._read(owner) if self._fs.exists(owner) else {}
        if {name: found.get(name) for name in mine} == mine and full:
            return str(found.get("input", ""))
        if found and not mine.items() <= found.items():
            raise self._taken(f"sink '{found.get('sink')}' as it was defined then")
        if full:
            raise self._taken("something else")
        out = self._fs.create(owner, True)
        out.write(bytearray(json.dumps({**mine, "input": shard}).encode()))
        out.close()
        return ""

    def _read(self, owner: Any) -> dict[str, str]:
        """The owner of the folder; empty if a crash has left the file incomplete."""
        stream = self._fs.open(owner)
        text = bytes(stream.readAllBytes()).decode()
        stream.close()
        try:
            found: dict[str, str] = json.loads(text)
        except ValueError:
            return {}
        return found

    def _taken(self, owner: str) -> InvalidUsage:
        return InvalidUsage(
            f"folder '{self._path}' holds what {owner} has written",
            code="TARGET_TAKEN",
            hint="give the sink another path, or empty the folder",
        )

    def _names(self) -> list[str]:
        path = self._path_class(self._path)
        if not self._fs.exists(path):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(path)]

    def _place(self, name: str) -> Any:
        return self._path_class(self._path, name)
