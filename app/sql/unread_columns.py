"""Leaves out columns that a query does not read, where their types would keep it from following.

A join that is computed anew by key returns all columns of its sides: those of a map cannot be
compared with what was there before, nor can those of a variant (`decided_values`). Mostly they are
there because the input has them, and nothing above the join reads them. Catalyst's `ColumnPruning`
puts a projection below a join for each side of which less is read. It goes on into views; but the
view is what marks an input, with all of its columns, so views are put back as they were.

    without_unread_columns(spark, plan)      the same rows; `plan` itself if nothing is to be done

Invariants:
    Inputs are the same nodes as before, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from shardline.app.sql.decided_values import holds_map, holds_opaque
from shardline.app.sql.plan_nodes import with_changed
from shardline.app.sql.strategy import INPUT
from shardline.datasource.frames import children_of, kind_of, read_sequence, type_of
from shardline.datasource.java_names import scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["without_unread_columns"]

_COLUMN_PRUNING: Final = "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"


def without_unread_columns(spark: SparkSession, plan: Any) -> Any:
    """A plan whose joins are over the columns that are read, if one of their inputs has a map.

    Args:
        spark: Any session of the application.
        plan: Without subqueries in its expressions.
    """
    inputs = list(_inputs(plan))
    columns = (column for one in inputs for column in read_sequence(one.output()))
    if not any(_hinders(column) for column in columns):
        return plan
    pruned = scala_object(spark, _COLUMN_PRUNING).apply(plan)
    found = [*_inputs(pruned)]
    assert list(map(_name, found)) == list(map(_name, inputs)), "a rule has moved inputs"
    ahead = iter(inputs)

    def put_back(node: Any) -> Any:
        return next(ahead) if kind_of(node) == INPUT else with_changed(spark, node, put_back)

    return put_back(pruned)


def _inputs(plan: Any) -> Iterator[Any]:
    """The inputs of a plan, from left to right."""
    if kind_of(plan) == INPUT:
        yield plan
        return
    for child in children_of(plan):
        yield from _inputs(child)


def _name(view: Any) -> str:
    return str(view.desc().identifier())


def _hinders(column: Any) -> bool:
    kind = type_of(column)
    return holds_map(kind) or holds_opaque(kind)
