"""Takes DISTINCT out of an aggregate's calls: values become groups of their own, each counted once.

    COUNT(DISTINCT a), SUM(b) over X by g    becomes    COUNT(a) FILTER (part = 1),
                                                        SUM(b) FILTER (part = 0)   by g   over

        part 0: the rows of X          UNION ALL          part 1: the pairs (g, a) of X, each once

Calls that differ in what they take each value of are further parts, of the same two aggregates.

Both aggregates follow from changes, where one with DISTINCT in it has to read all rows of each
group that a change touches, however large it is. Spark's `RewriteDistinctAggregates` does nearly
the same. It goes through the rows once, and so needs `first` to bring along what is not DISTINCT,
which depends on an order.

    with_distinct_values(spark, plan)      the same query; `plan` itself if nothing is to be done

Invariants:
    The plan gives the same rows, under the same ids of columns.
    Each expression is evaluated for all rows for which Spark evaluates it: no error is missed.
    An aggregate that would not follow from changes afterwards is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.kept_aggregates import (
    aggregate_expressions,
    is_of_session,
    refusal,
    takes_values_once,
)
from shardline.app.sql.plan_nodes import column_named, conjunction, with_changed
from shardline.app.sql.strategy import INPUT
from shardline.datasource.frames import (
    children_of,
    kind_of,
    number_of,
    read_sequence,
    scala_sequence,
)
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["with_distinct_values"]

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_EXPRESSIONS: Final = f"{_CATALYST}.expressions"
_LOGICAL: Final = f"{_CATALYST}.plans.logical"


def with_distinct_values(spark: SparkSession, plan: Any) -> Any:
    """A plan whose aggregates have no call with DISTINCT, where they follow from changes then.

    Args:
        spark: Any session of the application.
        plan: With aggregates that group by columns.
    """
    if kind_of(plan) == INPUT:
        return plan
    plan = with_changed(spark, plan, partial(with_distinct_values, spark))
    if kind_of(plan) != "Aggregate":
        return plan
    return _Aggregate(spark, plan).without_distinct()


@dataclass(frozen=True, slots=True)
class _Values:
    """What some calls of one aggregate take each value of once.

    Attributes:
        arguments: Their arguments: expressions of Spark.
        condition: Their FILTER; None if there is none.
        calls: Ids of the results of these calls.
    """

    arguments: list[Any]
    condition: Any | None
    calls: list[int]

    def is_of(self, arguments: Sequence[Any], condition: Any | None) -> bool:
        """True if a call with these arguments and this FILTER is about the same values."""
        if len(arguments) != len(self.arguments):
            return False
        if (condition is None) != (self.condition is None):
            return False
        pairs = [*zip(arguments, self.arguments, strict=True)]
        if condition is not None:
            pairs.append((condition, self.condition))
        return all(bool(one.semanticEquals(other)) for one, other in pairs)


class _Aggregate:
    """One aggregate, and what it becomes."""

    def __init__(self, spark: SparkSession, plan: Any) -> None:
        self._spark = spark
        self._plan = plan
        self._rows = plan.children().apply(0)
        self._keys = [
            key for key in read_sequence(plan.groupingExpressions()) if not key.foldable()
        ]
        self._literals = scala_object(spark, f"{_EXPRESSIONS}.Literal")

    def without_distinct(self) -> Any:
        """The aggregate over parts; itself if it has no DISTINCT, or would not follow so either."""
        calls = {
            number_of(call.resultAttribute()): call for call in aggregate_expressions(self._plan)
        }
        values, keys = self._values(calls), self._keys
        if not values or any(_may_fail_unseen(one) for one in values):
            return self._plan
        if any(kind_of(key) != "AttributeReference" or is_of_session(key) for key in keys):
            return self._plan
        singled = {number for one in values for number in one.calls}
        others = [call for number, call in calls.items() if number not in singled]
        once = self._values_once(values)
        if refusal(self._spark, once):
            return self._plan
        # With all rows, so that a group is there as long as any of its rows is.
        read = self._references([*keys, *others])
        found = self._over(self._with_rows(read, once), read, calls, values)
        return self._plan if refusal(self._spark, found) else found

    def _values(self, calls: Mapping[int, Any]) -> list[_Values]:
        found: list[_Values] = []
        for number, call in calls.items():
            if not takes_values_once(call):
                continue
            arguments = children_of(call.aggregateFunction())
            condition = call.filter().get() if call.filter().isDefined() else None
            for one in found:
                if one.is_of(arguments, condition):
                    one.calls.append(number)
                    break
            else:
                found.append(_Values(arguments, condition, [number]))
        return found

    def _values_once(self, values: Sequence[_Values]) -> Any:
        """Each value of each group, once: an aggregate without functions, one for all parts.

        Columns are the number of the part, the key, and the values of the parts in turn, of which
        those of other parts are NULL.
        """
        parts = [self._part(values, number) for number in range(1, len(values) + 1)]
        below = self._project(parts[0], self._rows) if len(parts) == 1 else self._expand(parts)
        output = read_sequence(below.output())
        rest = output[1 + len(self._keys) :]
        there = []
        for one in values:
            own, rest = rest[: len(one.arguments)], rest[len(one.arguments) :]
            # As the functions do, which take no row with a NULL in any argument.
            of_part = [self._expression("IsNotNull", column) for column in own]
            there.append(conjunction(self._spark, of_part))
        either = reduce(partial(self._expression, "Or"), there)
        below = java_class(self._spark, f"{_LOGICAL}.Filter")(either, below)
        return self._aggregate(below.output(), below.output(), below)

    def _part(self, values: Sequence[_Values], number: int) -> list[Any]:
        """The columns of one part, as expressions over the rows."""
        columns = [self._literal(number), *self._keys]
        for place, one in enumerate(values, 1):
            for argument in one.arguments:
                nothing = self._nothing(argument.dataType())
                given = argument if place == number else nothing
                if place == number and one.condition is not None:
                    given = self._expression("If", one.condition, argument, nothing)
                columns.append(given)
        return columns

    def _expand(self, parts: Sequence[Sequence[Any]]) -> Any:
        """Each row once for each part: what is below is not computed as often."""
        named = [column_named(self._spark, one, f"c{n}") for n, one in enumerate(parts[0])]
        output = [one.toAttribute().withNullability(True) for one in named]
        rows = [scala_sequence(self._spark, one) for one in parts]
        kind = java_class(self._spark, f"{_LOGICAL}.Expand")
        given = (scala_sequence(self._spark, one) for one in (rows, output))
        return kind(*given, self._rows)

    def _with_rows(self, read: Sequence[Any], once: Any) -> Any:
        """The rows as part 0, and the values.

        Columns are the number of the part, what is read of the rows, and the values of the parts in
        turn. Of what is read the parts have the key, and NULL for all else.
        """
        number, *columns = read_sequence(once.output())
        values = columns[len(self._keys) :]
        keys = {number_of(key): column for key, column in zip(self._keys, columns, strict=False)}
        none = [self._nothing(one.dataType()) for one in values]
        of_rows = [keys.get(number_of(one), self._nothing(one.dataType())) for one in read]
        rows = self._project([self._literal(0), *read, *none], self._rows)
        parts = self._project([number, *of_rows, *values], once)
        kind = java_class(self._spark, f"{_LOGICAL}.Union")
        return kind(scala_sequence(self._spark, [rows, parts]), False, False)

    def _over(
        self,
        union: Any,
        read: Sequence[Any],
        calls: Mapping[int, Any],
        values: Sequence[_Values],
    ) -> Any:
        """The aggregate over parts."""
        part, *columns = read_sequence(union.output())
        renamed = {number_of(old): new for old, new in zip(read, columns, strict=False)}
        rest = columns[len(read) :]
        replaced = {}
        for place, one in enumerate(values, 1):
            own, rest = rest[: len(one.arguments)], rest[len(one.arguments) :]
            for number in one.calls:
                function = calls[number].aggregateFunction()
                of_values = function.withNewChildren(scala_sequence(self._spark, own))
                replaced[number] = self._call(calls[number], of_values, self._is(part, place))
        of_rows = self._is(part, 0)
        for number, call in calls.items():
            if number in replaced:
                continue
            condition = of_rows
            if call.filter().isDefined():
                own_condition = self._renamed(call.filter().get(), renamed, {})
                condition = conjunction(self._spark, [of_rows, own_condition])
            function = self._renamed(call.aggregateFunction(), renamed, {})
            replaced[number] = self._call(call, function, condition)
        results = [
            self._result(one, renamed, replaced)
            for one in read_sequence(self._plan.aggregateExpressions())
        ]
        grouping = [
            self._renamed(one, renamed, {})
            for one in read_sequence(self._plan.groupingExpressions())
        ]
        groups, shown = (scala_sequence(self._spark, one) for one in (grouping, results))
        return self._aggregate(groups, shown, union)

    def _result(self, shown: Any, renamed: Mapping[int, Any], replaced: Mapping[int, Any]) -> Any:
        """A result over the parts, under the id that it had."""
        found = self._renamed(shown, renamed, replaced)
        if kind_of(shown) != "AttributeReference":
            return found
        return column_named(self._spark, found, shown.name(), shown.exprId())

    def _renamed(
        self, expression: Any, renamed: Mapping[int, Any], replaced: Mapping[int, Any]
    ) -> Any:
        """An expression over the columns of the union, with other calls."""
        kind = kind_of(expression)
        if kind == "AttributeReference":
            return renamed[number_of(expression)]
        if kind == "AggregateExpression":
            return replaced[number_of(expression.resultAttribute())]
        change = partial(self._renamed, renamed=renamed, replaced=replaced)
        return with_changed(self._spark, expression, change)

    def _call(self, call: Any, function: Any, condition: Any) -> Any:
        some = scala_object(self._spark, "scala.Option").apply(condition)
        kind = java_class(self._spark, f"{_EXPRESSIONS}.aggregate.AggregateExpression")
        return kind(function, call.mode(), False, some, call.resultId())

    def _is(self, part: Any, number: int) -> Any:
        return self._expression("EqualTo", part, self._literal(number))

    def _project(self, columns: Sequence[Any], below: Any) -> Any:
        """Columns under new ids: the same rows are below twice."""
        named = [column_named(self._spark, one, f"c{place}") for place, one in enumerate(columns)]
        kind = java_class(self._spark, f"{_LOGICAL}.Project")
        return kind(scala_sequence(self._spark, named), below)

    def _aggregate(self, groups: Any, results: Any, below: Any) -> Any:
        none = scala_object(self._spark, "scala.None")
        return java_class(self._spark, f"{_LOGICAL}.Aggregate")(groups, results, below, none)

    def _references(self, expressions: Sequence[Any]) -> list[Any]:
        """The columns that expressions read, each once."""
        of = scala_object(self._spark, f"{_EXPRESSIONS}.AttributeSet")
        return read_sequence(of.apply(scala_sequence(self._spark, expressions)).toSeq())

    def _literal(self, number: int) -> Any:
        return self._literals.apply(number)

    def _nothing(self, kind: Any) -> Any:
        return self._literals.create(None, kind)

    def _expression(self, name: str, *fields: Any) -> Any:
        return java_class(self._spark, f"{_EXPRESSIONS}.{name}")(*fields)


def _may_fail_unseen(values: _Values) -> bool:
    """True if an error of an argument could be missed.

    Of a single such call Spark evaluates the argument also for rows that its FILTER leaves out.
    """
    plain = all(kind_of(one) in {"AttributeReference", "Literal"} for one in values.arguments)
    return values.condition is not None and not plain
