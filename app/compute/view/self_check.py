"""A self-check recomputes one key of a step from the inputs, and compares it with what is kept.

Rules that follow changes add to what is there. If that is wrong (a state that was damaged, a cache
that is stale, a rule with a mistake) it stays wrong, and nothing tells. So one step in many takes a
row of an input that has changed, and asks the query itself for all rows with its values:

    check = SelfCheck(host, reports)
    check.is_due()                                  for one step in `self_check_every`, at random
    check.finds("late", compare)                    a difference, which is reported
    difference(key_of(row, columns), desired, held) a sentence; "" where both have the same rows

The key is put to the result of the whole query as a filter, and Spark takes it down through groups,
partitions and joins to the inputs as far as that is right. So what is compared does not depend on
which columns are taken: the fewer can be taken down, the more the check costs, at most what it
costs to run the query anew. It has the columns of one input alone, and none that are computed: so a
row is found as well that should be there and is not.

Invariants:
    A check changes nothing. Whoever asks drops what was found to be wrong, and recomputes.
    A check that fails itself is counted and logged, and harms no step.
    Only results that rows decide to the last bit are compared (`decided_values`): of others two
    right answers may differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import TimestampNTZType

from shardline.app.compute.errors import data_error_text
from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.reports import ViewReports
from shardline.app.compute.view.state_step import StateStep
from shardline.app.execution.host import Host
from shardline.app.execution.spark_errors import error_line
from shardline.app.sql.decided_values import holds_map, is_decided
from shardline.app.sql.kept_aggregates import has_one_form
from shardline.app.sql.path_above import WITH_COLUMNS_BELOW
from shardline.app.sql.strategy import LINEAR
from shardline.datasource.frames import kind_of, number_of, read_sequence, to_arrow, type_of
from shardline.datasource.schema import python_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["AskedBy", "SelfCheck", "asked_by", "difference", "key_of", "with_key"]

_log = logging.getLogger(__name__)

_COMPARED: Final = LINEAR | {"Aggregate", "Join", "Window"}
"""Operators whose results rows may decide; what ties decide in a LIMIT is in no list."""

_SHOWN: Final = 3
"""Rows of a difference that are told."""

Key = Mapping[str, Any]
"""Values by the names of columns."""


class SelfCheck:
    """The self-checks of one view."""

    def __init__(self, host: Host, reports: ViewReports) -> None:
        """No I/O."""
        self._every = host.self_check_every
        self._ids = host.ids
        self._reports = reports

    def is_due(self) -> bool:
        """True for one step in many, at random: a view that is started often is checked, too."""
        return self._every > 0 and self._ids.jitter() * self._every < 1

    def choose(self, rows: pa.Table) -> dict[str, Any]:
        """One row of a table that has some."""
        place = int(self._ids.jitter() * rows.num_rows)
        row = rows.slice(place, 1)
        return {name: python_values(row.column(name))[0] for name in row.column_names}

    def touched(
        self,
        step: StateStep,
        asked: Sequence[AskedBy],
        names: Sequence[str],
        changes: Callable[[StateStep, str], pa.Table | None],
    ) -> dict[str, Any]:
        """A key that a step has touched: values by columns of the view; {} for all rows.

        Args:
            step: The step.
            asked: Of the view's query.
            names: The view's columns.
            changes: The changes of an input in the step; None if they are many.
        """
        tried = [one for one in asked if one.input in step.changed]
        while tried:
            one = tried.pop(int(self._ids.jitter() * len(tried)))
            rows = changes(step, one.input)
            if rows is not None and rows.num_rows:
                row = self.choose(rows)
                return {names[place]: row[name] for place, name in one.columns.items()}
        return {}

    def finds(self, shard: str, compare: Callable[[], str]) -> bool:
        """True if a comparison finds a difference, or the query fails where a step did not.

        Args:
            shard: What is compared, for the report.
            compare: Returns a difference in a sentence, or "".
        """
        found, is_done = "", True
        try:
            found = compare()
        except Exception as error:  # noqa: BLE001 - the step needs nothing of this
            failed = data_error_text(error)
            found, is_done = "" if failed is None else f"the query fails: {failed}", False
            if failed is None:
                _log.warning(
                    "a self-check could not be made",
                    extra={"context": {"shard": shard, "reason": error_line(error)}},
                )
        self._reports.report_self_check(is_done=is_done or bool(found))
        if found:
            self._reports.report_doubt("audit", shard, found)
        return bool(found)


def key_of(row: Key, schema: StructType) -> dict[str, Any]:
    """The values of a row by which rows are found: those of columns whose equal values are one."""
    return {
        field.name: row[field.name]
        for field in schema.fields
        # What a time without a zone is to Python depends on the zone of the process.
        if field.name in row
        and has_one_form(field.dataType)
        and not isinstance(field.dataType, TimestampNTZType)
    }


def difference(key: Key, desired: DataFrame, held: DataFrame) -> str:
    """What rows of a key lack, or have too much, in a sentence; "" if nothing.

    Args:
        key: Values by the names of columns of both frames; without any all rows are compared.
        desired: The rows as they must be.
        held: The rows that are there, or updates with `_diff`.
    """
    changes = correction_frame(with_key(desired, key), with_key(held, key))
    rows = to_arrow(changes.limit(_SHOWN)).to_batches()
    listed = "; ".join(str(row) for one in rows for row in python_values(one.to_struct_array()))
    if not listed:
        return ""
    return f"where {dict(key)} the rows should change by {listed}"


def with_key(frame: DataFrame, key: Key) -> DataFrame:
    """The rows of a frame that have the values of a key; all rows if it has none."""
    conditions = [_equals(frame, name, value) for name, value in key.items()]
    return frame.where(reduce(Column.__and__, conditions)) if conditions else frame


def _equals(frame: DataFrame, name: str, value: object) -> Column:
    column = F.col(f"`{name.replace('`', '``')}`")
    if value is None:
        return column.isNull()
    return column == F.lit(value).cast(frame.schema[name].dataType)


# -- what can be checked of a query ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedBy:
    """Columns of a query that are columns of one input, which stands in it once.

    Attributes:
        input: The input.
        columns: Its columns, by the places of the query's columns that they are.
    """

    input: str
    columns: Mapping[int, str]


def asked_by(spark: SparkSession, query: QueryNode) -> tuple[AskedBy, ...] | None:
    """The columns by which rows of a query are asked for, where those of an input have changed.

    Returns:
        None if the query's results are not decided by its rows.
    """
    if not _is_decided(spark, query):
        return None
    found: dict[QueryNode, dict[int, str]] = {}
    for place, column in enumerate(query.output):
        for leaf, name in _origins(query, column):
            found.setdefault(leaf, {})[place] = name
    return tuple(AskedBy(leaf.input, columns) for leaf, columns in found.items())


def _is_decided(spark: SparkSession, node: QueryNode) -> bool:
    if node.input or not node.inputs:
        return True
    if node.kind not in _COMPARED or not is_decided(node):
        return False
    if any(holds_map(type_of(one)) for one in node.output):
        return False
    return all(_is_decided(spark, child) for child in node.children)


def _origins(node: QueryNode, column: Any) -> Iterator[tuple[QueryNode, str]]:
    """The inputs that a column comes out of as it is, through operators that take filters down."""
    if node.input:
        yield node, str(column.name())
    elif node.kind in _BELOW:
        for child, one in _BELOW[node.kind](node, column):
            yield from _origins(child, one)


_Below: TypeAlias = "Iterator[tuple[QueryNode, Any]]"
"""Operators below one, each with the column of it that a column is."""


def _of_child(node: QueryNode, column: Any) -> _Below:
    for child in node.children:
        yield from ((child, one) for one in child.output if _is_same(one, column))


def _of_project(node: QueryNode, column: Any) -> _Below:
    for one in _named(read_sequence(node.plan.projectList()), column):
        yield node.children[0], one


def _of_groups(node: QueryNode, column: Any) -> _Below:
    keys = read_sequence(node.plan.groupingExpressions())
    for one in _named(read_sequence(node.plan.aggregateExpressions()), column):
        if any(_is_column(key) and _is_same(key, one) for key in keys):
            yield node.children[0], one


def _of_partitions(node: QueryNode, column: Any) -> _Below:
    keys = read_sequence(node.plan.partitionSpec())
    if any(_is_column(key) and _is_same(key, column) for key in keys):
        yield node.children[0], column


def _of_union(node: QueryNode, column: Any) -> _Below:
    places = [place for place, one in enumerate(node.output) if _is_same(one, column)]
    yield from ((child, child.output[place]) for place in places for child in node.children)


_BELOW: Final[Mapping[str, Callable[[Any, Any], _Below]]] = {
    **dict.fromkeys(WITH_COLUMNS_BELOW | {"Join"}, _of_child),
    "Aggregate": _of_groups,
    "Project": _of_project,
    "Union": _of_union,
    "Window": _of_partitions,
}
"""Where a column of an operator comes from, by its kind."""


def _named(columns: Sequence[Any], column: Any) -> Iterator[Any]:
    """The column, perhaps under another name, that one of an operator's results is."""
    for one in columns:
        if _is_same(one, column):
            given = one.child() if kind_of(one) == "Alias" else one
            if _is_column(given):
                yield given


def _is_same(one: Any, other: Any) -> bool:
    return number_of(one) == number_of(other)


def _is_column(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference"
