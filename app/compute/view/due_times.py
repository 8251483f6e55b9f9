"""Finds the next time at which a view changes by itself, from its inputs where no state tells it.

A view with temporal filters changes when a row's time comes, although no input does. A step that
runs the query anew may not pass such a time by. It is found from what the filters look at, as it is
at one time: as long as no input changes, rows come and go at their own times, and at no others.

    due = DueTimes(query)
    due.after(session, frames, at)      NextTime(at=…): the first one after `at`, None for none

That reads what the query reads, and is the way of views that are run anew. Others know it from the
rows that they keep (`temporal_rule`).

Invariants:
    Between `at` and what is returned the query gives the same rows, over inputs that do not change.
    What a look that fails would have found is not taken for nothing. Spark evaluates parts of a
        filter in an order of its own, and below operators that stand below it: so a row at which a
        look fails may be one that Spark never evaluates, or not any more at a later time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructType

from shardline.app.compute.errors import data_error_text
from shardline.app.compute.view.change_operators import ChangeOperators
from shardline.app.compute.view.current_time import at_time
from shardline.app.compute.view.kept_plan import KeptPlan, Leaf, Operator, columns_of, plan_of
from shardline.app.compute.view.temporal_rule import NEVER, between_bounds, bounded_rows
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.app.sql.temporal_filters import (
    TemporalCondition,
    find_subqueries_beside,
    refused_clocks,
    split_condition,
)
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import analyse_query, empty_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DueTimes", "NextTime"]


class NextTime(NamedTuple):
    """The first time at which a query may give other rows, if no input changes.

    Attributes:
        at: The time; None for none.
        is_known: False if there may be an earlier one: a look has failed.
    """

    at: int | None
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at some rows: the next time at which one of them passes a filter, or no more."""

    rows: Operator
    next_time: KeptPlan


@dataclass(frozen=True, slots=True)
class _Filter:
    """A temporal filter of the query.

    Attributes:
        together: A look by all comparisons at once, for all rows that come to the first one.
        apart: Looks by each of the comparisons: for the rows that come to it, if there are several;
            and for all rows of the filter.
    """

    together: _Look
    apart: tuple[tuple[_Look, ...], ...]


class DueTimes:
    """Of one view. Used by one thread at a time."""

    def __init__(self, query: str) -> None:
        """Nothing is analysed yet."""
        self._query = query
        self._columns: dict[str, StructType] | None = None
        self._filters: list[_Filter] = []

    def are_any(self, session: SparkSession, columns: Mapping[str, StructType]) -> bool:
        """True if the query has a temporal filter.

        Args:
            session: The one that the view runs in.
            columns: Columns of each input.
        """
        if self._columns != columns:
            self._analyse(session, columns)
        return bool(self._filters)

    def after(self, session: SparkSession, inputs: Mapping[str, DataFrame], at: int) -> NextTime:
        """The first time after `at` at which the query may give other rows.

        Args:
            session: The one that the view runs in.
            inputs: Frames of the inputs' rows at `at`, by name.
            at: The time.
        """
        columns = {name: frame.schema for name, frame in inputs.items()}
        if not self.are_any(session, columns):
            return NextTime(None)
        leaves = {Leaf(name): frame for name, frame in inputs.items()}
        return _first(self._next(session, one, leaves, at) for one in self._filters)

    def _next(
        self, session: SparkSession, one: _Filter, leaves: Mapping[Leaf, DataFrame], at: int
    ) -> NextTime:
        def answer(look: _Look) -> NextTime:
            return _answer(partial(self._by, session, look, leaves, at))

        found = answer(one.together)
        if found.is_known:
            return found
        # A comparison may fail for a row that one in front of it keeps from it, and what stands in
        # front for one that Spark leaves out by the comparison first. The look that does not fail
        # has all the times, and more: it has more rows.
        times = []
        for looks in one.apart:
            answers = [answer(look) for look in looks]
            known = [one for one in answers if one.is_known]
            times += known or answers
        return _first(times)

    def _by(
        self, session: SparkSession, look: _Look, leaves: Mapping[Leaf, DataFrame], at: int
    ) -> int | None:
        made = ChangeOperators(session).plans
        # What a filter looks at may have come through another one.
        rows = at_time(session, made.frame(session, look.rows, leaves), at)
        timed = rows.withColumn("at", F.lit(at).cast("bigint"))
        ((time,),) = look.next_time.over(session, {"rows": timed}).collect()
        return None if time is None else int(time)

    def _analyse(self, session: SparkSession, columns: Mapping[str, StructType]) -> None:
        empty = {name: empty_frame(session, given) for name, given in columns.items()}
        normal = normal_form(session, plan_of(analyse_query(session, self._query, empty)))
        beside = find_subqueries_beside(session, normal)
        refused = next(itertools.chain(refused_clocks(session, normal), beside), None)
        if refused is not None:
            # A project's check lets none pass. In this session the query means something else.
            clock = refused.expression.toString()
            raise InvalidUsage(
                f"{clock} depends on when the query is run, in this session",
                code="NOT_DETERMINISTIC",
                hint=refused.hint or "check the project again",
            )
        self._filters.clear()
        self._add(session, query_tree(normal))
        self._columns = dict(columns)

    def _add(self, session: SparkSession, node: QueryNode) -> None:
        if node.input:
            return
        for child in node.children:
            self._add(session, child)
        if node.kind != "Filter":
            return
        condition = split_condition(session, node.plan.condition())
        if condition is None:
            return
        apart = []
        for one in condition.bounds:
            in_front = (one.before,) if len(condition.bounds) > 1 and one.before else ()
            looks = [TemporalCondition(before, (one,), ()) for before in (*in_front, ())]
            apart.append(tuple(self._look(session, node, look) for look in looks))
        self._filters.append(_Filter(self._look(session, node, condition), tuple(apart)))

    def _look(self, session: SparkSession, node: QueryNode, condition: TemporalCondition) -> _Look:
        made = ChangeOperators(session)
        source = bounded_rows(session, made, node, condition, ())
        rows = columns_of(source.plan)
        bounded = between_bounds(["at"], condition.bounds, "rows")
        text = (
            "SELECT min(CASE WHEN begins > at THEN begins "  # noqa: S608
            f"WHEN ends > at AND ends < {NEVER}L THEN ends END) AS next FROM {bounded}"
        )
        next_time = KeptPlan(session, text, {"rows": rows.add("at", LongType(), nullable=False)})
        return _Look(made.plans.over(source), next_time)


def _answer(ask: Callable[[], int | None]) -> NextTime:
    """What a look finds; not known if it fails by the data that it looks at."""
    try:
        return NextTime(ask())
    except Exception as error:
        if data_error_text(error) is None:
            raise
        return NextTime(None, is_known=False)


def _first(found: Iterable[NextTime]) -> NextTime:
    """The first one of several."""
    found = list(found)
    times = [one.at for one in found if one.at is not None]
    return NextTime(min(times, default=None), all(one.is_known for one in found))
