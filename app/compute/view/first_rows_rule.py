"""The first rows of an order become the reading of a state: rows in front, and some to spare.

    LIMIT 10 over Sort over X      becomes      LIMIT 10 over Sort over the rows of a state
                                                and a state of those rows of X that are in front

The state has all rows of X that are not behind the last one it has, in the order of the query and,
among equal ones, of all columns. So of the changes of X only those matter that are not behind that
row, its *bound*: a filter, which no step has to read X for. What is left of millions of rows is a
thousand, over which the LIMIT is run anew.

    rows come in front      the state grows; beyond twice its size those at the end are dropped
    rows in front go        it shrinks, and its bound with it
    too few are left        the step runs the query anew, and the next one makes the state anew

Behind all rows of X is one more, the *end*. While the state has it, X has no other rows, however
few they are. No bound is kept beside the rows: the last one is right by itself, since the state has
everything in front of it. (Materialize's top-k is a hierarchy of buckets, each of which keeps its
first rows: it has all of X in memory, and a shorter way when some go.)

Columns of the state: `c1` … those of X that are needed; `o1` … what it is ordered by, where that is
none of them; `is_end` of the end, whose others are NULL.

Invariants:
    At each time the state has each row of X that is not behind its last one, as often as X has it.
    Whatever is shown is one of the answers that Spark allows: rows that tie may come in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructType

from shardline.app.compute.view.change_operators import ChangeOperators, NotIncremental
from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.kept_plan import KeptPlan, columns_of, shared_plan, state_leaf
from shardline.app.compute.view.view_columns import with_times
from shardline.app.sql.query_tree import QueryNode
from shardline.datasource.frames import kind_of, number_of, read_sequence
from shardline.datasource.java_names import java_class
from shardline.datasource.schema import DIFF, TS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["END", "FirstRowsRule", "FirstRowsState"]

END: Final = "is_end"
"""The column that is true of the end."""

_AT: Final = "at"
"""A column that is the same in all rows: when they are as they are."""

_SPARE: Final = 1_000
"""Rows beside those that are needed. As many may go until the query has to be run anew."""

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"


@dataclass(frozen=True, slots=True)
class FirstRowsState:
    """The state of the first rows of one order.

    Attributes:
        name: By which the query above reads it, as an input.
        source: What is ordered: an operator with the columns `c1` … and `o1` ….
        schema: Columns of the state.
        needed: How many rows the query needs of it.
    """

    name: str
    source: QueryNode
    schema: StructType
    needed: int
    _contents: KeptPlan
    _moved: KeptPlan
    _trimmed: KeptPlan
    _within: KeptPlan

    @property
    def changes(self) -> StructType:
        """Columns of the state's changes."""
        return with_times(self.schema)

    @property
    def held(self) -> StructType:
        """Columns of rows of the state that `change` takes: `at` is when its rows are dropped."""
        return _held_columns(self.schema)

    @property
    def rows_max(self) -> int:
        """Rows, the end among them, above which a step drops some."""
        return 2 * _kept(self.needed)

    def contents(self, session: SparkSession, rows: DataFrame, at: int) -> DataFrame:  # noqa: ARG002 - as of other states
        """The state over all rows of its source; nothing if too many of them are equal."""
        return self._contents.over(session, {"rows": rows})

    def change(
        self, session: SparkSession, changes: DataFrame, held: DataFrame, *, trimmed: bool
    ) -> DataFrame:
        """What changes of the source do to the state, with `_ts` and `_diff`.

        Args:
            session: The one that the frames are of.
            changes: Changes of the source.
            held: Rows of the state right before, in the columns of `held`; read more than once.
            trimmed: True if rows at the end are dropped, at the time `at`, should they be too many.
        """
        plan = self._trimmed if trimmed else self._moved
        updates = plan.over(session, {"changes": changes, "held": held})
        return correction_frame(updates, None).select(*self.schema.names, TS, DIFF)

    def within(self, session: SparkSession, rows: DataFrame, held: DataFrame) -> DataFrame:
        """The rows of the source that are not behind the last one of `held`, as of `change`."""
        return self._within.over(session, {"rows": rows, "held": held})

    def held_frame(self, rows: DataFrame, at: int) -> DataFrame:
        """Rows of the state as `change` takes them."""
        return rows.withColumn(_AT, F.lit(at).cast("bigint"))

    def held_table(self, rows: pa.Table, at: int) -> pa.Table:
        """The same in this process."""
        return rows.append_column(_AT, pa.array([at] * rows.num_rows, pa.int64()))


class FirstRowsRule:
    """Takes orders apart of which the first rows are needed."""

    def __init__(
        self, session: SparkSession, exact: SparkSession, operators: ChangeOperators
    ) -> None:
        """For the application of `session`.

        Args:
            session: The one that the view runs in.
            exact: One whose settings are the same for all views.
            operators: Of the plan.
        """
        self._spark = session
        self._exact = exact
        self._operators = operators

    def split(
        self, sort: QueryNode, rows: int, needed: frozenset[int], name: str
    ) -> tuple[QueryNode, FirstRowsState]:
        """What an order is over a state of this name, and that state.

        Args:
            sort: The `Sort`.
            rows: How many of its first rows are needed.
            needed: Ids of the columns that anything above it, or its order, refers to.
            name: Names no input, and no other state.

        Raises:
            NotIncremental: Nothing of its rows is needed.
        """
        (below,) = sort.children
        columns = [one for one in below.distinct_output if number_of(one) in needed]
        texts = {number_of(one): f"c{place}" for place, one in enumerate(columns, 1)}
        named = [(one, texts[number_of(one)]) for one in columns]
        keys: list[_Key] = []
        for order in read_sequence(sort.plan.order()):
            value = order.child()
            if value.foldable():
                continue
            is_column = kind_of(value) == "AttributeReference"
            text = texts.get(number_of(value)) if is_column else None
            if text is None:
                text = f"o{len(named) - len(columns) + 1}"
                named.append((value, text))
            descends = str(order.direction().sql()) == "DESC"
            keys.append(_Key(text, descends, str(order.nullOrdering().sql()) == "NULLS LAST"))
        if not named:
            raise NotIncremental("a LIMIT of rows of which nothing is read")
        source = self._operators.plans.projected(
            [self._operators.named(one, text) for one, text in named], below
        )
        state = self._state(name, source, rows, _Order(keys, list(texts.values())))
        return self._read(sort, state, columns), state

    def _read(self, sort: QueryNode, state: FirstRowsState, columns: Sequence[Any]) -> QueryNode:
        """The order over the rows of a state."""
        leaf = state_leaf(self._exact, state.name, state.schema)
        held = dict(zip(state.schema.names, leaf.output, strict=True))
        is_row = java_class(self._spark, f"{_EXPRESSIONS}.Not")(held[END])
        plan = self._operators.plans.make("Filter", is_row, leaf.plan)
        there = QueryNode(plan, "Filter", "", (leaf,), leaf.inputs)
        kept = {number_of(one): held[f"c{place}"] for place, one in enumerate(columns, 1)}
        read = self._operators.read(sort.output, kept, there)
        plan = sort.plan.withNewChildren(self._operators.plans.sequence([read.plan]))
        return QueryNode(plan, sort.kind, "", (read,), read.inputs)

    def _state(self, name: str, source: QueryNode, needed: int, order: _Order) -> FirstRowsState:
        session = self._exact
        rows = columns_of(source.plan)
        contents = shared_plan(session, _contents(rows.names, order, needed), {"rows": rows})
        state = contents.columns
        held = _held_columns(state)
        both = {"changes": with_times(rows), "held": held}
        return FirstRowsState(
            name,
            source,
            state,
            needed,
            contents,
            shared_plan(session, _moved(rows.names, order), both),
            shared_plan(session, _trimmed(rows.names, order, needed), both),
            shared_plan(session, _within(rows.names, order), {"rows": rows, "held": held}),
        )


def _kept(needed: int) -> int:
    """Rows that a state is made of, the end among them."""
    return 2 * needed + _SPARE


def _held_columns(state: StructType) -> StructType:
    return StructType([*state.fields]).add(_AT, LongType(), nullable=False)


# -- programs ------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """A column of an order.

    Attributes:
        name: Of the column.
        descends: True if the greatest value comes first.
        nulls_last: True if NULL comes behind all values.
    """

    name: str
    descends: bool
    nulls_last: bool


@dataclass(frozen=True, slots=True)
class _Order:
    """An order of the rows of a state.

    Attributes:
        keys: What the query orders by.
        columns: By which those are told apart that the query takes for equal.
    """

    keys: Sequence[_Key]
    columns: Sequence[str]

    def text(self, *, reverse: bool = False) -> str:
        """What follows ORDER BY. The end is behind all rows."""
        directions = [(END, reverse, reverse)]
        directions += [
            (key.name, key.descends != reverse, key.nulls_last != reverse) for key in self.keys
        ]
        directions.append((self._rest(""), reverse, reverse))
        return ", ".join(
            f"{text} {'DESC' if descends else 'ASC'} NULLS {'LAST' if nulls_last else 'FIRST'}"
            for text, descends, nulls_last in directions
        )

    def is_behind(self, row: str, bound: str) -> str:
        """True of rows of a table that are behind the one of another, which is not the end."""
        text = f"{self._rest(f'{row}.')} > {self._rest(f'{bound}.')}"
        for key in reversed(self.keys):
            one, other = f"{row}.{key.name}", f"{bound}.{key.name}"
            text = (
                f"CASE WHEN {one} <=> {other} THEN {text} "
                f"WHEN {one} IS NULL THEN {_boolean(key.nulls_last)} "
                f"WHEN {other} IS NULL THEN {_boolean(not key.nulls_last)} "
                f"ELSE {one} {'<' if key.descends else '>'} {other} END"
            )
        return f"({text})"

    def _rest(self, table: str) -> str:
        listed = (f"'{name}', {table}{name}" for name in self.columns)
        # A row without columns is equal to all others.
        return f"named_struct({', '.join(listed)})" if self.columns else "named_struct('c', 0)"


def _boolean(value: bool) -> str:  # noqa: FBT001 - a literal of SQL
    return "true" if value else "false"


def _contents(columns: Sequence[str], order: _Order, needed: int) -> str:
    """The rows in front of the first `_kept`; all of them with the end, if they are no more.

    Rows equal to the last one are left out: others of them may have been cut off.
    """
    listed = ", ".join(columns)
    nulls = ", ".join("NULL" for _ in columns)
    # As a column of a UNION, so that Spark does not take it for a constant and the window below for
    # one without partitions, of which it warns.
    every = (
        f"SELECT {listed}, false AS {END}, 1 AS one FROM rows "  # noqa: S608
        f"UNION ALL SELECT {nulls}, true, 1"
    )
    first = f"SELECT * FROM ({every}) ORDER BY {order.text()} LIMIT {_kept(needed)}"  # noqa: S608
    placed = (
        f"SELECT *, rank() OVER (PARTITION BY one ORDER BY {order.text()}) AS place "  # noqa: S608
        f"FROM ({first})"
    )
    whole = (
        f"SELECT *, max(place) OVER (PARTITION BY one) AS last_place, "  # noqa: S608
        f"bool_or({END}) OVER (PARTITION BY one) AS is_whole FROM ({placed})"
    )
    return (
        f"SELECT {listed}, {END} FROM ({whole}) "  # noqa: S608
        f"WHERE is_whole OR (place < last_place AND last_place > {needed})"
    )


def _last(order: _Order) -> str:
    """The last row that is held."""
    return f"SELECT * FROM held ORDER BY {order.text(reverse=True)} LIMIT 1"  # noqa: S608


def _moved(columns: Sequence[str], order: _Order) -> str:
    return _in_front(columns, order, _last(order))


def _trimmed(columns: Sequence[str], order: _Order, needed: int) -> str:
    kept = _kept(needed)
    bound = (
        f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {_AT} ORDER BY {order.text()}) "  # noqa: S608
        f"AS place, count(*) OVER (PARTITION BY {_AT}) AS number FROM held) "
        f"WHERE place = IF(number > {2 * kept}, {kept}, number)"
    )
    listed = ", ".join(f"held.{name}" for name in columns)
    behind = (
        f"SELECT {listed}, held.{END}, held.{_AT}, -1L FROM held CROSS JOIN ({bound}) AS bound "  # noqa: S608
        f"WHERE NOT bound.{END} AND (held.{END} OR {order.is_behind('held', 'bound')})"
    )
    return f"{_in_front(columns, order, bound)} UNION ALL {behind}"


def _in_front(columns: Sequence[str], order: _Order, bound: str) -> str:
    """The changes that are not behind a row."""
    listed = ", ".join(f"changes.{name}" for name in columns)
    return (
        f"SELECT {listed}, false AS {END}, changes.{TS}, changes.{DIFF} "  # noqa: S608
        f"FROM changes CROSS JOIN ({bound}) AS bound "
        f"WHERE bound.{END} OR NOT {order.is_behind('changes', 'bound')}"
    )


def _within(columns: Sequence[str], order: _Order) -> str:
    listed = ", ".join(f"rows.{name}" for name in columns)
    return (
        f"SELECT {listed}, false AS {END} FROM rows CROSS JOIN ({_last(order)}) AS bound "  # noqa: S608
        f"WHERE bound.{END} OR NOT {order.is_behind('rows', 'bound')}"
    )
