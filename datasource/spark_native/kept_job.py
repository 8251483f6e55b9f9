"""A kept job is a plan that Spark has planned once, run again and again over other rows.

    leaf = rows_given_later(spark, schema)        a frame without rows yet
    job = KeptJob(leaf.where(…), [leaf])          nothing is planned yet
    job.run([rows])                               computed in the driver; the result in Arrow

For a few rows nearly all that a query costs is its making: some hundred calls to the JVM for the
tree, an analysis, an optimization, a physical plan, a job. What a micro-batch brings differs in its
rows only. So the physical plan is kept, as Materialize keeps a dataflow for as long as its view
lives, with the RDDs and the compiled code that Spark makes of it, and each run puts rows into its
leaves (`KeptJobs.java`).

All is in one partition: leaves have one, exchanges are left out, and the branches of a union come
one after the other. The caller's thread computes it as a task would.

Many rows are split into pieces, by a column that the plan groups by, and each piece is computed by
a thread of its own. That this is right is Spark's own word: the plan is made once more over a leaf
that says of itself that its partitions are told by this column, and is taken if Spark sees no need
for an exchange. What decides is the same as where it leaves out a shuffle of a bucketed table.

A run is no SQL execution of Spark's: to make one, with its plan as text and its events, took a
third of the processor time of a run over few rows, and a hundred views pushed all others out of
Spark's status store. `KeptRuns` tells what runs have counted.

Invariants:
    No operator has anything of an earlier run: only kinds that are known not to are taken, neither
    subqueries, nor exchanges, broadcasts or cached rows.
    Nothing in a plan depends on how many rows a leaf has, or on when it was planned.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from shardline.datasource.java_names import java_class
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import java_type, settings_of
from shardline.datasource.spark_native.row_files import row_files
from shardline.datasource.spark_native.rule_loader import is_checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KeptJob", "KeptRuns", "KindOfRun", "NotKept", "rows_given_later"]

KindOfRun: TypeAlias = Literal["interpreted", "generated", "in pieces"]
"""Kinds of runs: a plan may be right in one and wrong in another.

    interpreted    what operators make for themselves in a run is interpreted
    generated      code is generated for it
    in pieces      the same, by several threads, each over some of the rows
"""

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

_PIECES_MIN: Final = 131_072
"""Rows given from which on they are split. To split half a million takes 15 ms, and halves a run of
200 to 400; but the plan is made and proved once more, which a few runs over less do not pay."""

_PIECES: Final = min(os.cpu_count() or 1, 4)
"""Threads of a run in pieces: other views run beside it."""


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

    def __init__(
        self, frame: DataFrame, leaves: Sequence[DataFrame], *, rows_max: int | None = None
    ) -> None:
        """Nothing is planned yet.

        Args:
            frame: The rows of the job; its session is the one that the job runs in.
            leaves: All of `rows_given_later` that the frame is made of.
            rows_max: How many rows are wanted, if there are more.
        """
        self._frame = frame
        self._leaves = leaves
        self._rows_max = rows_max
        self._types = [_arrow_types(leaf.schema) for leaf in leaves]
        self._never_null = [_never_null(leaf.schema) for leaf in leaves]
        # No cached properties: Python 3.11 has one lock for those of all plans, held while one is
        # made.
        self._whole: _Plan | None = None
        self._in_pieces: _Plan | None = None
        self._may_be_split = len(leaves) == 1 and _PIECES > 1

    def takes(self, rows: Sequence[pa.Table]) -> bool:
        """True if rows have exactly the types of the leaves, and NULL only where those may."""
        if [table.schema.types for table in rows] != self._types:
            return False
        return not any(
            table.column(place).null_count
            for table, places in zip(rows, self._never_null, strict=True)
            for place in places
        )

    def run(self, rows: Sequence[pa.Table], *, is_told: bool = True) -> pa.Table:
        """The result over these rows.

        Args:
            rows: Those of each leaf, in their order; `takes` tells if they fit.
            is_told: Whether what its operators count is noted: not if the same rows go through a
                plan of Spark's as well, or they would be counted twice.

        Raises:
            NotKept: The plan reads something else as well, or has an operator that is not known.
        """
        kind = self.kind_of_run(rows)
        plan = self._in_pieces if kind == "in pieces" else self._plan()
        assert plan is not None, kind
        if kind == "in pieces":
            rows = _pieces(rows[0], plan.column)
        with row_files() as files:
            files.put(rows)
            found = files.take(plan.java.run(files.prefix, is_told, kind == "interpreted"))
        return found if self._rows_max is None else found.slice(0, self._rows_max)

    def kind_of_run(self, rows: Sequence[pa.Table]) -> KindOfRun:
        """The kind of a run over these rows.

        The code of the plan itself is compiled in any case. What is proved of a run of one kind is
        not proved of one of another. Never interpreted where text has a collation: Spark's
        interpreted aggregates keep such text by reference, and it is another one's by the next row.

        Raises:
            NotKept: See `run`.
        """
        given: int = sum(table.num_rows for table in rows)
        if given >= _PIECES_MIN and self._split() is not None:
            return "in pieces"
        is_interpreted = given <= _INTERPRETED_MAX and self._plan().may_be_interpreted
        return "interpreted" if is_interpreted else "generated"

    def _plan(self) -> _Plan:
        """The plan in one partition."""
        if self._whole is None:
            frame = self._frame if self._rows_max is None else self._frame.limit(self._rows_max)
            given, reasons = (java_class(self._spark, "java.util.ArrayList")() for _ in range(2))
            for leaf in self._leaves:
                given.add(leaf._jdf)  # noqa: SLF001 - no public door
            with _settings(self._spark, _PLANNING):
                java = self._java.keep(frame._jdf, given, reasons)  # noqa: SLF001
            if java is None:
                raise NotKept(str(reasons.get(0)))
            _made.set()
            self._whole = _Plan(java, may_be_interpreted=bool(java.mayBeInterpreted()))
        return self._whole

    def _split(self) -> _Plan | None:
        """The plan over rows in pieces; None if rows cannot be split."""
        if self._may_be_split and self._in_pieces is None:
            leaf, frame = self._leaves[0]._jdf, self._frame._jdf  # noqa: SLF001 - no public door
            most = -1 if self._rows_max is None else self._rows_max
            java = None
            # Whatever is wrong is told by the plan in one partition, which is asked next.
            with suppress(Py4JError), _settings(self._spark, _PLANNING):
                java = self._java.keepInPieces(frame, leaf, _PIECES, most)
            self._may_be_split = java is not None
            if java is not None:
                _made.set()
                self._in_pieces = _Plan(java, column=int(java.pieceColumn()))
        return self._in_pieces

    @property
    def _spark(self) -> SparkSession:
        return self._frame.sparkSession

    @property
    def _java(self) -> Any:
        return java_object(self._spark, _CLASS)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan in the JVM.

    Attributes:
        java: Runs it.
        may_be_interpreted: See `KeptJob.kind_of_run`.
        column: Number of the column of the leaf by whose values rows are split; -1 if they are not.
    """

    java: Any
    may_be_interpreted: bool = False
    column: int = -1


def _pieces(rows: pa.Table, column: int) -> list[pa.Table]:
    """Rows in as many tables, so that equal values of a column are in one of them."""
    # By the order in which values come: there is no type of which some values would all be in one.
    values = rows.column(column).combine_chunks().dictionary_encode()
    place = values.indices.fill_null(0).to_numpy(zero_copy_only=False) % _PIECES
    return [rows.filter(pa.array(place == piece)) for piece in range(_PIECES)]


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


def _never_null(schema: StructType) -> list[int]:
    return [place for place, field in enumerate(schema.fields) if not field.nullable]


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session in the block, in which nobody else plans with it."""
    before = settings_of(spark)
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
