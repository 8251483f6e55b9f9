"""Temporal filters compare an expression of the row with now(), and are joined by AND in WHERE.

A view's contents at a time t are its query's with now() = t. Where now() decides only *when* a row
is there, each row is there from one time to another, which follow from the row: it comes and goes
without a change of any input, and a view can know beforehand when (Materialize's temporal filters,
over its `mz_now()`). Anywhere else now() would change each row at each time.

    valid_until > now()                      until valid_until
    ts > now() - INTERVAL 1 HOUR             until ts + 1 hour
    ts <= now()                              from ts on
    now() BETWEEN begins AND ends            from begins on, until right after ends

    split = split_condition(spark, condition)   the conjuncts before, the comparisons, the rest
    refused_clocks(spark, normal)               all other uses of the clock, each with a hint

`now() + interval` is as much later than now() for each now() only if the interval has no days, or
if the session's time zone has one offset: Spark adds days in local time, where a day may have 23
hours, and the sum may go back as now() goes on.

Invariants:
    Expressions are Spark's own, as they stand in the plan; none is made from text here.
    A use of the clock that is not known here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.plan_nodes import SUBQUERIES, deepest, tree_pattern, with_changed
from shardline.app.sql.strategy import CLOCKS, INPUT
from shardline.datasource.frames import children_of, kind_of, read_sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Bound",
    "RefusedClock",
    "TemporalCondition",
    "find_subqueries_beside",
    "has_clock_word",
    "refused_clocks",
    "split_condition",
    "uses_clock",
]

_WORD: Final = re.compile(r"\b(now|current_timestamp)\b", re.IGNORECASE)


_DAY_US: Final = 86_400_000_000

_OPERATORS: Final = {
    "EqualNullSafe": "=",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_MIRRORED: Final = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}

_ONLY_FILTERS: Final = (
    "now() decides when a row is there, in a comparison with the row: WHERE valid_until > now(), "
    "or ts > now() - INTERVAL 1 HOUR; to show the time itself, keep the rows and ask with `sql`, "
    "which takes now()"
)
_BY_ITSELF: Final = (
    "write the comparison as a condition of its own, joined by AND in WHERE; in the place of OR "
    "write two queries with UNION ALL"
)
_ONE_SIDE: Final = (
    "compare a TIMESTAMP of the row on one side with now(), or now() and an interval, on the "
    "other: valid_until > now(), ts > now() - INTERVAL 1 HOUR, timestamp_millis(ms) > now()"
)
_DAYS: Final = (
    "add days and months to the column: ts + INTERVAL 1 DAY > now(); from now() they are not "
    "always equally long, in this time zone"
)
_IN_JOIN: Final = (
    "move the comparison to WHERE, or, for rows of one side, to a query in FROM: "
    "JOIN (SELECT * FROM t WHERE valid_until > now()) USING (id)"
)
_CONSTANTS: Final = "filter rows of an input by now(): rows of constants never come and go"
_IN_RECURSION: Final = (
    "filter what the recursion reads by a query in FROM: "
    "JOIN (SELECT * FROM edges WHERE ends > now()) e ON e.src = r.id"
)
_IN_SUBQUERY: Final = (
    "make the subquery, with its comparison with now(), a view of its own, and read that one"
)
_TODAY: Final = (
    "compare with now(): write d > now() for d > current_date(), and date_add(d, 1) > now() for "
    "d >= current_date(); a date is its midnight in the session's time zone"
)
_LOCAL: Final = "compare with now(): write CAST(ts AS TIMESTAMP) > now()"


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison `row <operator> now() + shift`.

    Attributes:
        row: An expression of the row, of the type TIMESTAMP.
        operator: `<`, `<=`, `=`, `>=` or `>`.
        shift_us: Microseconds; may be negative.
        before: All conjuncts in front of it, those that compare with now() among them: the query
            evaluates `row` for the rows that they let through.
    """

    row: Any
    operator: str
    shift_us: int
    before: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class TemporalCondition:
    """A filter's condition, in three parts that are joined by AND, in the order of the query.

    Attributes:
        before: Conjuncts in front of the first comparison with now(): what may fail in that is
            evaluated for the rows that they let through, as by the query.
        bounds: The comparisons.
        after: The other conjuncts, which are evaluated for the rows that are there.
    """

    before: tuple[Any, ...]
    bounds: tuple[Bound, ...]
    after: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RefusedClock:
    """A use of the clock that a view cannot keep.

    Attributes:
        expression: Spark's: `now()`, `current_date()`, or what else depends on the run.
        hint: What to write instead; "" if it is not about time.
    """

    expression: Any
    hint: str


def has_clock_word(text: str) -> bool:
    """True if a query's text may use now(): one without the word does not."""
    return _WORD.search(text) is not None


def uses_clock(spark: SparkSession, node: Any) -> bool:
    """True if an operator or an expression, or anything below it, depends on the run."""
    current = tree_pattern(spark, "CURRENT_LIKE")
    return bool(node.containsPattern(current))


def split_condition(spark: SparkSession, condition: Any) -> TemporalCondition | None:
    """The parts of a filter's condition; None if it has no comparison with now() to be kept.

    Args:
        spark: Any session of the application.
        condition: Of a `Filter`, resolved.
    """
    if not uses_clock(spark, condition):
        return None
    before: list[Any] = []
    bounds: list[Bound] = []
    after: list[Any] = []
    seen: list[Any] = []
    for one in _conjuncts(spark, condition):
        found = _bound(spark, one) if uses_clock(spark, one) else None
        if isinstance(found, Bound):
            bounds.append(replace(found, before=tuple(seen)))
        else:
            (after if bounds else before).append(one)
        seen.append(one)
    return TemporalCondition(tuple(before), tuple(bounds), tuple(after)) if bounds else None


def refused_clocks(spark: SparkSession, plan: Any) -> Iterator[RefusedClock]:
    """The uses of the clock in a plan that a view cannot keep.

    Args:
        spark: Any session of the application.
        plan: A query's, in its normal form.
    """
    if not uses_clock(spark, plan) or kind_of(plan) == INPUT:
        return
    for expression in read_sequence(plan.expressions()):
        if uses_clock(spark, expression):
            yield from _refused_in(spark, plan, expression)
    for child in children_of(plan):
        yield from refused_clocks(spark, child)


def find_subqueries_beside(spark: SparkSession, plan: Any) -> Iterator[RefusedClock]:
    """The comparisons with now() of a plan that has subqueries in expressions, all refused.

    What such a subquery reads is hidden from the rules by which views are kept.
    """
    if uses_clock(spark, plan) and not plan.subqueriesAll().isEmpty():
        for expression in _all_expressions(plan):
            for clock in _clocks(spark, expression):
                yield RefusedClock(clock, _IN_SUBQUERY)


def _all_expressions(plan: Any) -> Iterator[Any]:
    if kind_of(plan) != INPUT:
        yield from read_sequence(plan.expressions())
        for child in children_of(plan):
            yield from _all_expressions(child)


def _refused_in(spark: SparkSession, plan: Any, expression: Any) -> Iterator[RefusedClock]:
    """The uses in one expression of an operator."""
    kind = kind_of(plan)
    if kind != "Filter" or not _reads_input(plan) or _is_recursive(plan):
        hint = {"Join": _IN_JOIN, "Filter": _CONSTANTS}.get(kind, _ONLY_FILTERS)
        hint = _IN_RECURSION if _is_recursive(plan) else hint
        hint = _IN_SUBQUERY if _is_in_subquery(spark, expression) else hint
        for clock in _clocks(spark, expression):
            yield RefusedClock(clock, _hint(clock, hint))
        return
    for one in _conjuncts(spark, expression):
        if not uses_clock(spark, one):
            continue
        found = _IN_SUBQUERY if _is_in_subquery(spark, one) else _bound(spark, one)
        if isinstance(found, str):
            for clock in _clocks(spark, one):
                yield RefusedClock(clock, _hint(clock, found))


def _is_in_subquery(spark: SparkSession, expression: Any) -> bool:
    """True if a subquery of an expression that uses the clock does."""
    if kind_of(expression) in SUBQUERIES:
        return uses_clock(spark, expression)
    return any(_is_in_subquery(spark, one) for one in children_of(expression))


def _reads_input(plan: Any) -> bool:
    return kind_of(plan) == INPUT or any(map(_reads_input, children_of(plan)))


def _is_recursive(plan: Any) -> bool:
    """True if an operator reads the rows that a recursion has found before."""
    kind = kind_of(plan)
    if kind in {"UnionLoop", "UnionLoopRef"}:
        # Above the whole of a recursion its rows are like any others.
        return kind == "UnionLoopRef"
    return any(map(_is_recursive, children_of(plan)))


def _hint(clock: Any, hint: str) -> str:
    match kind_of(clock):
        case "CurrentDate":
            return _TODAY
        case "LocalTimestamp":
            return _LOCAL
        case "CurrentTime":
            return _ONE_SIDE
    return hint if kind_of(clock) in CLOCKS else ""


def _clocks(spark: SparkSession, node: Any) -> Iterator[Any]:
    """The deepest expressions that depend on the run; none of a node that does not."""
    return deepest(node, partial(uses_clock, spark)) if uses_clock(spark, node) else iter(())


# -- comparisons ---------------------------------------------------------------------------------


def _conjuncts(spark: SparkSession, condition: Any) -> Iterator[Any]:
    """What a condition joins by AND; BETWEEN is two comparisons."""
    match kind_of(condition):
        case "And":
            yield from _conjuncts(spark, condition.left())
            yield from _conjuncts(spark, condition.right())
        case "Between" if uses_clock(spark, condition):
            (replacement,) = children_of(condition)
            yield from _conjuncts(spark, replacement)
        case "With" if uses_clock(spark, condition):
            defined = {
                str(one.id().toString()): one.child() for one in read_sequence(condition.defs())
            }
            yield from _conjuncts(spark, _inlined(spark, condition.child(), defined))
        case _:
            yield condition


def _inlined(spark: SparkSession, expression: Any, defined: dict[str, Any]) -> Any:
    """An expression with common expressions written out."""
    if kind_of(expression) == "CommonExpressionRef":
        return defined.get(str(expression.id().toString()), expression)
    return with_changed(spark, expression, lambda one: _inlined(spark, one, defined))


def _bound(spark: SparkSession, comparison: Any) -> Bound | str:
    """A comparison with now(), or a hint if it is none that can be kept."""
    operator = _OPERATORS.get(kind_of(comparison))
    if operator is None:
        return _BY_ITSELF
    left, right = comparison.left(), comparison.right()
    if uses_clock(spark, left):
        left, right, operator = right, left, _MIRRORED[operator]
    if uses_clock(spark, left) or not bool(left.deterministic()):
        return _ONE_SIDE
    if str(left.dataType().typeName()) != "timestamp":
        return _ONE_SIDE
    shift = _shift(right)
    return shift if isinstance(shift, str) else Bound(left, operator, shift)


def _shift(expression: Any) -> int | str:
    """Microseconds by which an expression is always later than now(); or a hint."""
    match kind_of(expression):
        case "Now" | "CurrentTimestamp":
            return 0
        case "Cast" if str(expression.dataType().typeName()) == "timestamp":
            below = expression.child()
            return _shift(below) if str(below.dataType().typeName()) == "timestamp" else _ONE_SIDE
        case "DatetimeSub":
            (replacement,) = children_of(expression)
            return _shift(replacement)
        case "TimestampAddInterval":
            return _later(expression)
        case "TimestampAddYMInterval":
            return _DAYS
    return _ONE_SIDE


def _later(expression: Any) -> int | str:
    """The same of now() and an interval."""
    start, interval = children_of(expression)
    before = _shift(start)
    if isinstance(before, str):
        return before
    kind = kind_of(interval.dataType()).rstrip("$")
    if kind != "DayTimeIntervalType":
        return _DAYS
    if not interval.foldable():
        return _ONE_SIDE
    length = interval.eval(None)
    if length is None:
        return _ONE_SIDE
    if abs(int(length)) >= _DAY_US and not expression.zoneId().getRules().isFixedOffset():
        return _DAYS
    return before + int(length)
