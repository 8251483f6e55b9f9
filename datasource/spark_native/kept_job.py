"""A kept job is a plan that Spark has planned once, run again and again over other rows.

    leaf = rows_given_later(spark, schema)        a frame without rows yet
    job = KeptJob.of(leaf.where(…), [leaf])       analysed, optimized and planned
    job.run([rows])                               computed in the driver; the result in Arrow

For a few rows nearly all that a query costs is its making: some hundred calls to the JVM for the
tree, an analysis, an optimization, a physical plan, a job. What a micro-batch brings differs in its
rows only. So the physical plan is kept, as Materialize keeps a dataflow for as long as its view
lives, with the RDDs and the compiled code that Spark makes of it, and each run puts rows into its
leaves (`KeptJobs.java`).

All is in one partition: leaves have one, exchanges are left out, and the branches of a union come
one after the other. The caller's thread computes it as a task would.

A run is no SQL execution of Spark's: to make one, with its plan as text and its events, took a
third of the processor time of a run over few rows, and a hundred views pushed all others out of
Spark's status store. `KeptRuns` tells what runs have counted.

Invariants:
    No operator has anything of an earlier run: only kinds that are known not to are taken, neither
    subqueries, nor exchanges, broadcasts or cached rows.
    Nothing in a plan depends on how many rows a leaf has, or on when it was planned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import java_type
from shardline.datasource.spark_native.row_files import row_files
from shardline.datasource.spark_native.rule_loader import is_checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KeptJob", "KeptRuns", "NotKept", "rows_given_later"]

_CLASS: Final = "KeptJobs"

_PLANNING: Final[Mapping[str, str]] = {
    # Planned while it runs, by the rows of that run.
    "spark.sql.adaptive.enabled": "false",
    # A place that reads the exchange of another one has no children, and would keep its rows.
    "spark.sql.exchange.reuse": "false",
    # Its rows would be those of one run.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}


_INTERPRETED_MAX: Final = 2_048
"""Rows given up to which a run generates no code of its own; measured: of a hundred rows it takes
half the time, of ten thousand more."""


class NotKept(Exception):
    """A plan cannot be kept; why: its text."""


def rows_given_later(spark: SparkSession, schema: StructType) -> DataFrame:
    """A leaf of a plan to keep. It has no rows before.

    Raises:
        NotKept: This is not the Spark that kept plans were checked against.
    """
    if not is_checked(spark):
        raise NotKept(f"Spark {spark.version} is not known")
    kind = java_type(spark, schema)
    session = spark._jsparkSession  # noqa: SLF001 - no public door
    return DataFrame(java_object(spark, _CLASS).given(session, kind), spark)


class KeptJob:
    """A kept plan. Used by one thread at a time."""

    def __init__(self, java: Any, leaves: Sequence[DataFrame]) -> None:
        """Of the object in the JVM; see `of`."""
        self._java = java
        self._may_be_interpreted = bool(java.mayBeInterpreted())
        self._types = [_arrow_types(leaf.schema) for leaf in leaves]

    @classmethod
    def of(cls, frame: DataFrame, leaves: Sequence[DataFrame]) -> KeptJob:
        """Plan a frame over leaves.

        Args:
            frame: The rows of the job; its session is the one that the job runs in.
            leaves: All of `rows_given_later` that the frame is made of.

        Raises:
            NotKept: The plan reads something else as well, or has an operator that is not known.
        """
        spark = frame.sparkSession
        given, reasons = (java_class(spark, "java.util.ArrayList")() for _ in range(2))
        for leaf in leaves:
            given.add(leaf._jdf)  # noqa: SLF001 - no public door
        with _settings(spark, _PLANNING):
            java = java_object(spark, _CLASS).keep(frame._jdf, given, reasons)  # noqa: SLF001
        if java is None:
            raise NotKept(str(reasons.get(0)))
        _made.set()
        return cls(java, leaves)

    def takes(self, rows: Sequence[pa.Table]) -> bool:
        """True if rows have exactly the types of the leaves."""
        return [table.schema.types for table in rows] == self._types

    def run(self, rows: Sequence[pa.Table], *, is_told: bool = True) -> pa.Table:
        """The result over these rows.

        Args:
            rows: Those of each leaf, in their order; `takes` tells if they fit.
            is_told: Whether what its operators count is noted: not if the same rows go through a
                plan of Spark's as well, or they would be counted twice.
        """
        with row_files() as files:
            files.put(rows)
            few = self.is_interpreted(rows)
            return files.take(self._java.run(files.prefix, is_told, few))

    def is_interpreted(self, rows: Sequence[pa.Table]) -> bool:
        """True if Spark interprets, for so few rows, what operators make for themselves in a run.

        The code of the plan itself is compiled in any case. What is proved of a run of one kind is
        not proved of one of the other. Never where text has a collation: Spark's interpreted
        aggregates keep such text by reference, and it is another one's by the next row.
        """
        given: int = sum(table.num_rows for table in rows)
        return self._may_be_interpreted and given <= _INTERPRETED_MAX


class KeptRuns:
    """What the runs of all kept plans of this process have counted; for one thread.

    Each run is told once, whoever asks. Of some thousands that nobody has asked for the newest are
    remembered.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Ask nothing yet.

        Args:
            spark: Any session of the application.
        """
        self._spark = spark
        self._java: Any = None

    def counted(self) -> str:
        """The runs since the last call, in their order, as JSON.

        A list of lists: number of the plan; the description that Spark would give to an SQL
        execution of that thread; the counts by the number of the counter, as Spark's status store
        writes them.
        """
        if self._java is None:
            if not _made.is_set():
                return "[]"
            self._java = java_object(self._spark, _CLASS)
        return str(self._java.counted())

    def graph(self, plan: int) -> Any | None:
        """Spark's `SparkPlanGraph` of a plan, in the JVM; None if the plan was given up."""
        return self._java.graph(plan)


_made: Final = threading.Event()
"""Set once a plan is kept: until then nobody has to load the class."""


def _arrow_types(schema: StructType) -> list[pa.DataType]:
    return list(to_arrow_schema(schema, timezone="UTC").types)


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session in the block, in which nobody else plans with it."""
    before = spark.conf.getAll
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in wanted:
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)
