"""A sink of Delta appends to a table, exactly once, by the transaction numbers that Delta keeps.

Delta notes with each append who has made it and under which number (`txnAppId`, `txnVersion`: the
action `txn` of its protocol), and leaves out an append whose number is not greater than the newest
one. That alone is not enough: a micro-batch that was written, and not accounted for, may be planned
anew with a later end after a crash, so with a greater number, and its rows would come twice. So the
table is asked at each start which number it has, and the sink goes on behind that.

Delta's jar is not part of this program, and no test runs it: one shows what is done with its
answers. An answer that does not come (a class that another version of Delta does not have) is an
error of the sink, and never taken for an empty table.

Invariants:
    A table that has the rows of the definition before is refused, as far as the sink's progress
    still names that one: they would come twice.
    Numbers of the sink grow with its times, and the newest one is the table's upper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.formats import path_option
from shardline.app.storage.sinks.interval import Interval, frontier_of
from shardline.app.storage.sinks.target import Written, cached_rows, evolving, target_taken
from shardline.datasource.frontier import Frontier
from shardline.datasource.java_names import java_class

__all__ = ["DeltaTarget"]


class DeltaTarget:
    """A table of Delta, by its path."""

    input = ""

    def __init__(
        self,
        spark: SparkSession,
        sink: SinkDescription,
        options: Mapping[str, str],
        previous_definition: str,
    ) -> None:
        """Look for what the sink has written before.

        Args:
            spark: The session that writes.
            sink: Writes to the table.
            options: Of the target.
            previous_definition: By the sink's progress; "" if none has committed anything.

        Raises:
            InvalidUsage: The table has the rows of another definition of the sink, which this one
                would write once more.
        """
        self._spark = spark
        self._options: dict[str, Any] = dict(options)
        self._sink = sink
        if not previous_definition:
            return
        mine = self._newest(accepted_fingerprints(sink))
        # Without a snapshot nothing comes that the table has. One that has been here before goes on
        # where it was, and what the definition before has written since would come again.
        repeats = mine >= 0 or sink.snapshot
        if repeats and self._newest([previous_definition]) > mine:
            raise target_taken(
                f"table '{path_option(options)}'", sink.name, "give the sink another table"
            )

    def committed(self) -> Frontier | None:
        """The upper of the sink's newest append, as the table has it now; None if there is none."""
        newest = self._newest(accepted_fingerprints(self._sink))
        return None if newest < 0 else frontier_of(newest)

    def has_taken(self, upper: Frontier) -> bool:
        """False if the newest append of the sink is before `upper`, or there is none."""
        there = self.committed()
        return there is not None and there >= upper

    def _newest(self, definitions: Iterable[str]) -> int:
        """The greatest number that definitions of the sink have there; -1 if there is none."""
        place = java_class(self._spark, "org.apache.hadoop.fs.Path")(path_option(self._options))
        # With the options of the writer: the file system may need them.
        options = java_class(self._spark, "PythonUtils").toScalaMap(self._options)
        tables = java_class(self._spark, "org.apache.spark.sql.delta.DeltaLog")
        # PySpark has no other way to its session of the JVM.
        table = tables.forTable(self._spark._jsparkSession, place, options)  # noqa: SLF001
        # A transaction that is begun, and never committed, writes nothing. It begins with the
        # newest state, where `snapshot` may be of an earlier look of this process.
        transaction = table.startTransaction()
        return max(int(transaction.txnVersion(self._app(one))) for one in definitions)

    def _app(self, definition: str) -> str:
        return f"sink:{self._sink.name}:{definition}"

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Append the rows under the interval's number, which the table takes once."""
        app = self._app(fingerprint(self._sink))
        numbered = {"txnAppId": app, "txnVersion": str(interval.number)}
        numbered |= evolving(self._options, self.committed())
        with cached_rows(rows) as frame:
            frame.write.format("delta").options(**self._options, **numbered).mode("append").save()
            return Written(frame.count())

    def skip(self, interval: Interval) -> None:
        """Do nothing: the sink's progress has the times without rows."""
