"""Plans the jobs of a view's steps once, where all of their rows are few.

    jobs = KeptJobs(view)
    jobs.rows(StepJob(key, session, given, make, …))    the rows of make(frames of given)

    1st time    both ways, whose rows are compared: only what is proved is used
    later       the kept plan; both ways once more where a run is of another kind, as it is over
                many rows in place of few

Nearly all jobs come again: of the plans that 32 views made in 80 seconds, two were used once.

Kept plans are an inside of Spark, and a wrong row would stay in the view. So each is proved on the
rows of a step before it counts, and whatever goes wrong with one, the ordinary way is asked: it
fails in the same way if it is the rows that are to blame, and else the plan is given up for good.

Invariants:
    Rows are those of the ordinary way, in any order.
    A key stands for one plan: over leaves of the same names and columns, in one session.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from shardline.app.execution.spark_errors import error_line
from shardline.datasource.frames import KeptJob, KindOfRun, NotKept, rows_given_later
from shardline.datasource.schema import contiguous, surrogate
from shardline.datasource.updates import consolidate, negate, stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from shardline.app.compute.view.kept_plan import Leaf
    from shardline.datasource.frames import SmallTarget

__all__ = [
    "RESULT_BYTES_MAX",
    "RESULT_ROWS_MAX",
    "FewRows",
    "KeptJobs",
    "ShardRows",
    "StepJob",
    "is_too_much",
]

_log = logging.getLogger(__name__)

RESULT_ROWS_MAX: Final = 262_144
"""Rows of a result that a kept plan may give, in one thread; measured: of a change of 200,000 rows
it takes half of what Spark's tasks take, on two cores."""

RESULT_BYTES_MAX: Final = 32 << 20
"""As much of Arrow."""

_GIVEN_BYTES_MAX: Final = 64 << 20
"""Of the rows that a kept plan is given; the JVM has them twice."""

_ALWAYS_FEW: Final = 16_384
"""Rows whose bytes are not counted: to add up the buffers of a table takes long."""

_JOBS_MAX: Final = 64
"""Plans of one view: one for each job of a step, and each set of inputs that has changed in it."""

_OTHER_ROWS: Final = "its rows are not those of the ordinary way"
"""Why a plan is given up that gives wrong rows."""


class FewRows(NamedTuple):
    """Rows in this process, whose Arrow types are those of the columns."""

    table: pa.Table
    columns: StructType


@dataclass(frozen=True, slots=True)
class StepJob:
    """A job of a step.

    Attributes:
        key: Stands for the plan.
        session: The one that the job runs in.
        few_rows: All rows that the plan is over.
        make: Makes the frame over leaves; None if it cannot.
        ordinary: Runs the job without a kept plan; None if its rows are too many.
        rows_max: How many of its rows are wanted, if there are more.
    """

    key: Hashable
    session: SparkSession
    few_rows: Mapping[Leaf, FewRows]
    make: Callable[[Mapping[Leaf, DataFrame]], DataFrame | None]
    ordinary: Callable[[], pa.Table | None]
    rows_max: int

    def plan(self) -> KeptJob:
        """The plan over rows that are given later.

        Raises:
            NotKept: Its rows are not written as they are.
        """
        leaves = {
            leaf: rows_given_later(self.session, one.columns) for leaf, one in self.few_rows.items()
        }
        frame = self.make(leaves)
        if frame is None:
            raise NotKept("its rows are not written as they are")
        return KeptJob(frame, list(leaves.values()), rows_max=self.rows_max)


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Few rows that are to be staged for a shard.

    Attributes:
        target: The shard.
        over: Makes their frame over the rows of leaves.
        frame: Makes it without a kept plan.
    """

    target: SmallTarget
    over: Callable[[Mapping[Leaf, DataFrame]], DataFrame]
    frame: Callable[[], DataFrame]

    def by(
        self,
        jobs: KeptJobs,
        key: Hashable,
        session: SparkSession,
        given: Mapping[Leaf, FewRows],
    ) -> pa.Table | None:
        """The rows, by a kept plan where it can be; None if they are too many.

        Args:
            jobs: Of the view.
            key: Stands for the plan, for a shard of any columns.
            session: The one that the job runs in.
            given: All rows that the plan is over.
        """
        shaped = (key, self.target.schema_id)
        job = StepJob(shaped, session, given, self._make, self._collect, RESULT_ROWS_MAX + 1)
        rows = jobs.rows(job)
        return None if rows is None or is_too_much(rows) else rows

    def _make(self, frames: Mapping[Leaf, DataFrame]) -> DataFrame | None:
        return self.target.to_write(self.over(frames))

    def _collect(self) -> pa.Table | None:
        return self.target.collect(
            self.frame(), rows_max=RESULT_ROWS_MAX, bytes_max=RESULT_BYTES_MAX
        )


@dataclass(slots=True)
class _KnownPlan:
    """What is known of a plan.

    Attributes:
        job: The plan, once it is made.
        proved: Kinds of runs whose rows were those of the ordinary way.
        refused: Why the ordinary way is taken for good; "" if it is not.
    """

    job: KeptJob | None = None
    proved: set[KindOfRun] = field(default_factory=set)
    refused: str = ""


class KeptJobs:
    """The kept plans of one view. Used by one thread at a time."""

    def __init__(self, view: str) -> None:
        """Nothing is planned yet."""
        self._view = view
        self._kept: OrderedDict[Hashable, _KnownPlan] = OrderedDict()

    def rows(self, job: StepJob) -> pa.Table | None:
        """The rows of a job; None, or what `is_too_much`, if they are too many."""
        kept = self._kept.setdefault(job.key, _KnownPlan())
        self._kept.move_to_end(job.key)
        if len(self._kept) > _JOBS_MAX:
            self._kept.popitem(last=False)
        tables = [one.table for one in job.few_rows.values()]
        if _bytes_of(tables) > _GIVEN_BYTES_MAX:
            return job.ordinary()
        if kept.refused or (kept.job is not None and not kept.job.takes(tables)):
            return job.ordinary()
        found, wrong = _run(kept, job, tables)
        # Too many are used by nobody: the ordinary way would only tell the same.
        if not wrong and (_is_proved(kept, tables) or (found is not None and is_too_much(found))):
            return found
        rows = job.ordinary()
        if rows is None and not wrong:
            return None  # too large to compare: it may be proved by a later step
        wrong = wrong or _difference(found, rows)
        if kept.job is None or wrong:
            self._refuse(kept, wrong)
        else:
            kept.proved.add(kept.job.kind_of_run(tables))
        return rows

    def _refuse(self, kept: _KnownPlan, reason: str) -> None:
        kept.refused, kept.job = reason, None
        _log.info(
            "a step's plan is made anew each time",
            extra={"context": {"view": self._view, "reason": reason}},
        )


def is_too_much(rows: pa.Table) -> bool:
    """True if nobody uses a result: it may be unproved, and is computed another way."""
    return rows.num_rows > RESULT_ROWS_MAX or _bytes_of([rows]) > RESULT_BYTES_MAX


def _bytes_of(tables: Sequence[pa.Table]) -> int:
    few = sum(table.num_rows for table in tables) <= _ALWAYS_FEW
    return 0 if few else sum(table.nbytes for table in tables)


def _is_proved(kept: _KnownPlan, tables: Sequence[pa.Table]) -> bool:
    return kept.job is not None and kept.job.kind_of_run(tables) in kept.proved


def _run(kept: _KnownPlan, job: StepJob, tables: Sequence[pa.Table]) -> tuple[pa.Table | None, str]:
    """The rows of the kept plan, which is made if it is not there; or what is wrong with it."""
    try:
        if kept.job is None:
            kept.job = job.plan()
        # A run that only proves the plan is beside the ordinary one, whose rows are counted.
        return kept.job.run(tables, is_told=_is_proved(kept, tables)), ""
    except NotKept as refused:
        return None, str(refused)
    except Exception as error:  # noqa: BLE001 - the ordinary way tells whose error it is
        return None, error_line(error)


def _difference(found: pa.Table | None, rows: pa.Table | None) -> str:
    """Why rows cannot be taken for those of the ordinary way; "" if they are the same.

    By what rows are to a shard, and never as values of Python: those have less range than Spark's
    (dates beyond the year 9999), and text of a user may be no UTF-8.
    """
    if found is None or rows is None:
        return _OTHER_ROWS
    try:
        added, gone = (stamp(_row_keys(table), 0) for table in (found, rows))
        if added.schema == gone.schema:
            left = consolidate(pa.concat_tables([added, negate(gone)]))
            return _OTHER_ROWS if left.num_rows else ""
    except Exception as error:  # noqa: BLE001 - the rows are there; only the plan is in doubt
        return f"its rows cannot be compared: {error_line(error)}"
    return _OTHER_ROWS


def _row_keys(rows: pa.Table) -> pa.Table:
    """A table that has equal rows exactly where `rows` has."""
    keys = [surrogate(contiguous(column)) for column in rows.columns]
    return pa.table(keys, names=[str(place) for place, _ in enumerate(keys)])
