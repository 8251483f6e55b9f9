"""A temporal filter becomes the reading of a state: the rows that its time lets be there, or will.

    Filter (valid_until > now()) over X      becomes      Filter here over the rows of a state
                                             and a state of the rows of X that still matter

What is above the filter reads the state as if it were an input: it has changes at the times at
which rows come and go, and contents before a step. So rules for changes need not know of time.

A row of X is there in `[begins, ends)`, which are numbers of the shard's time axis, computed from
Spark's own expressions in the comparisons (Materialize computes the same two bounds, of a temporal
filter's `MfpPlan`). An update of X at `s` gives the state's, whether the row comes or goes:

    at s         the row, here if it has begun; nothing if it has ended
    at begins    the row that is not here goes, and the one that is here comes
    at ends      the row goes

As this is linear, a row that X retracts takes back what it was yet to do. Those that are in the
state already do at their times the same as an update right before the step would.

Columns of the state: `c1` … those of X that are needed; `begins`, `ends`; `here`; `due`, the second
in which the row changes next, by which rows are looked up.

Invariants:
    A row is in the state exactly while its time is still to come or to end.
    Without a lower bound `begins` is before all times; without an upper one `ends` is behind them.
    A bound that is NULL lets the row never be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructType

from shardline.app.compute.view.change_operators import ChangeOperators
from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.kept_plan import KeptPlan, columns_of, state_leaf
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.query_tree import QueryNode
from shardline.app.sql.temporal_filters import Bound, TemporalCondition
from shardline.datasource.frames import number_of
from shardline.datasource.java_names import java_class
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DUE",
    "NEVER",
    "TemporalRule",
    "TemporalState",
    "between_bounds",
    "bounded_rows",
]

DUE: Final = "due"
"""The column by which rows of a state are looked up."""

NEVER: Final = 2**63 - 1
"""Behind all times of shards."""

_ALWAYS: Final = -(2**62)
"""Before all times of shards."""

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"


@dataclass(frozen=True, slots=True)
class TemporalState:
    """The state of one temporal filter.

    Attributes:
        name: By which the query above reads it, as an input.
        source: What is filtered: an operator with the columns `c1` …, and `b1` … of the bounds.
        schema: Columns of the state.
    """

    name: str
    source: QueryNode
    schema: StructType
    _contents: KeptPlan
    _of_changes: KeptPlan
    _of_rows: KeptPlan

    def contents(self, session: SparkSession, rows: DataFrame, at: int) -> DataFrame:
        """The state at a time, over the rows of its source at that time."""
        return self._contents.over(session, {"rows": rows.withColumn("at", _time(at))})

    @property
    def changes(self) -> StructType:
        """Columns of the state's changes."""
        return with_times(self.schema)

    @property
    def held(self) -> StructType:
        """Columns of rows of the state that `elapsed` takes: `at` is when they are as they are."""
        return held_columns(self.schema)

    def held_frame(self, rows: DataFrame, at: int) -> DataFrame:
        """Rows of the state as `elapsed` takes them."""
        return rows.drop("here", DUE).withColumn("at", _time(at))

    def held_table(self, rows: pa.Table, at: int) -> pa.Table:
        """The same in this process."""
        times = pa.array([at] * rows.num_rows, pa.int64())
        return rows.select(self.held.names[:-1]).append_column("at", times)

    def elapsed(
        self, session: SparkSession, changes: DataFrame | None, held: DataFrame
    ) -> DataFrame:
        """What becomes of the state, whenever it will be, with `_ts` and `_diff`.

        Args:
            session: The one that the frames are of.
            changes: Changes of the source; None if there are none.
            held: Rows of the state right before, in the columns of `held`.
        """
        updates = self._of_rows.over(session, {"held": held})
        if changes is not None:
            updates = self._of_changes.over(session, {"changes": changes}).unionAll(updates)
        return correction_frame(updates, None).select(*self.schema.names, TS, DIFF)


class TemporalRule:
    """Takes temporal filters apart."""

    def __init__(
        self, session: SparkSession, exact: SparkSession, operators: ChangeOperators
    ) -> None:
        """For the application of `session`.

        Args:
            session: The one that the view runs in.
            exact: One whose arithmetic raises where a number does not fit.
            operators: Of the plan.
        """
        self._spark = session
        self._exact = exact
        self._operators = operators

    def split(
        self, node: QueryNode, condition: TemporalCondition, needed: frozenset[int], name: str
    ) -> tuple[QueryNode, TemporalState]:
        """What a temporal filter is over a state of this name, and that state.

        Args:
            node: The `Filter`.
            condition: Its condition.
            needed: Ids of the columns that anything above it, or its condition, refers to.
            name: Names no input, and no other state.
        """
        columns = [one for one in node.output if number_of(one) in needed]
        source = bounded_rows(self._spark, self._operators, node, condition, columns)
        state = self._state(name, source, len(columns), condition.bounds)
        leaf = state_leaf(self._exact, name, state.schema)
        below = dict(zip(state.schema.names, leaf.output, strict=True))
        here = self._operators.plans.make("Filter", below["here"], leaf.plan)
        there = QueryNode(here, "Filter", "", (leaf,), leaf.inputs)
        held = {number_of(one): below[f"c{place}"] for place, one in enumerate(columns, 1)}
        read = self._operators.read(node.output, held, there)
        if condition.after:
            kept = self._operators.plans.make(
                "Filter", _all(self._spark, condition.after), read.plan
            )
            read = QueryNode(kept, "Filter", "", (read,), read.inputs)
        return read, state

    def _state(
        self, name: str, source: QueryNode, columns: int, bounds: Sequence[Bound]
    ) -> TemporalState:
        session = self._exact
        rows = columns_of(source.plan)
        own = [f"c{place}" for place in range(1, columns + 1)]
        timed = StructType([*rows.fields]).add("at", LongType(), nullable=False)
        contents = KeptPlan(session, _contents(own, bounds), {"rows": timed})
        state = contents.columns
        of_changes = KeptPlan(session, _of_changes(own, bounds), {"changes": with_times(rows)})
        of_rows = KeptPlan(session, _of_rows(own), {"held": held_columns(state)})
        return TemporalState(name, source, state, contents, of_changes, of_rows)


def bounded_rows(
    spark: SparkSession,
    made: ChangeOperators,
    node: QueryNode,
    condition: TemporalCondition,
    columns: Sequence[Any],
) -> QueryNode:
    """The rows that a temporal filter looks at: columns as `c1` …, what it compares as `b1` …."""
    (below,) = node.children
    if condition.before:
        plan = made.plans.make("Filter", _all(spark, condition.before), below.plan)
        below = QueryNode(plan, "Filter", "", (below,), below.inputs)
    named = [(one, f"c{place}") for place, one in enumerate(columns, 1)]
    named += [(one.row, f"b{place}") for place, one in enumerate(condition.bounds, 1)]
    return made.plans.projected([made.named(one, text) for one, text in named], below)


def held_columns(state: StructType) -> StructType:
    """Columns of rows that a state holds, without what follows from the time they are taken at."""
    kept = [field for field in state.fields if field.name not in {"here", DUE}]
    return StructType(kept).add("at", LongType(), nullable=False)


# -- programs ------------------------------------------------------------------------------------


def between_bounds(columns: Sequence[str], bounds: Sequence[Bound], table: str) -> str:
    """A query of rows with `begins` and `ends`, without those that are never there.

    Args:
        columns: Columns that are handed on.
        bounds: What `b1` … of the table are compared with.
        table: Its name.
    """
    begins, ends = [f"{_ALWAYS}L"], [f"{NEVER}L"]
    for place, bound in enumerate(bounds, 1):
        later, earliest = _steps(f"b{place}", bound.shift_us)
        match bound.operator:
            case ">":
                ends.append(earliest)
            case ">=":
                ends.append(later)
            case "<":
                begins.append(later)
            case "<=":
                begins.append(earliest)
            case _:
                begins.append(earliest)
                ends.append(later)
    known = " AND ".join(f"b{place} IS NOT NULL" for place, _ in enumerate(bounds, 1))
    listed = ", ".join([*columns, f"{_of('greatest', begins)} AS begins"])
    return (
        f"(SELECT * FROM (SELECT {listed}, {_of('least', ends)} AS ends FROM {table} "  # noqa: S608
        f"WHERE {known}) WHERE begins < ends)"
    )


def _steps(value: str, shift_us: int) -> tuple[str, str]:
    """The first times t, in ms, with now() + shift > value; and with now() + shift >= value.

    `unix_millis` rounds down. Whole ms and the rest are taken apart, as a difference of µs need not
    fit.
    """
    whole, rest = divmod(shift_us, 1000)
    micros = f"pmod(unix_micros({value}), 1000L)"
    down = f"unix_millis({value}) - ({whole}L) - IF({micros} < {rest}L, 1L, 0L)"
    return f"({down} + 1L)", f"({down} + IF({micros} = {rest}L, 0L, 1L))"


def _of(function: str, values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{function}({', '.join(values)})"


_SECOND: Final = "(CASE WHEN {here} THEN ends ELSE begins END) div 1000 AS due"


def _contents(columns: Sequence[str], bounds: Sequence[Bound]) -> str:
    listed = ", ".join([*columns, "begins", "ends"])
    return (
        f"SELECT {listed}, begins <= at AS here, {_SECOND.format(here='begins <= at')} "  # noqa: S608
        f"FROM {between_bounds([*columns, 'at'], bounds, 'rows')} WHERE ends > at"
    )


def _of_changes(columns: Sequence[str], bounds: Sequence[Bound]) -> str:
    return _updates(columns, between_bounds([*columns, TS, DIFF], bounds, "changes"))


def _of_rows(columns: Sequence[str]) -> str:
    listed = ", ".join([*columns, "begins", "ends", f"at AS {TS}", f"1L AS {DIFF}"])
    return _updates(columns, f"(SELECT {listed} FROM held)")  # noqa: S608


def _updates(columns: Sequence[str], moved: str) -> str:
    """What updates of rows with bounds do to the state, whenever it may be."""
    listed = ", ".join([*columns, "begins", "ends"])
    coming = f"IF(begins > {TS}, begins, NULL)"
    done = [
        (f"begins <= {TS}", TS, DIFF),
        ("false", coming, f"-{DIFF}"),
        ("true", coming, DIFF),
        ("true", "ends", f"-{DIFF}"),
    ]
    structs = ", ".join(
        f"named_struct('here', {here}, 'at', {time}, 'diff', {diff})" for here, time, diff in done
    )
    return (
        f"SELECT {listed}, one.here, {_SECOND.format(here='one.here')}, one.at AS {TS}, "  # noqa: S608
        f"one.diff AS {DIFF} FROM {moved} LATERAL VIEW inline(array({structs})) one "
        f"WHERE ends > {TS} AND one.at < {NEVER}L"
    )


def _time(value: int) -> Any:
    return F.lit(value).cast("bigint")


def _all(spark: SparkSession, conditions: Sequence[Any]) -> Any:
    found, *others = conditions
    for one in others:
        found = java_class(spark, f"{_EXPRESSIONS}.And")(found, one)
    return found
