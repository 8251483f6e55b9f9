"""Functions of a user that a query calls may be others by the next start, with the same name.

    calls_user_functions(spark, query, states)      True if a view's query calls any

They are functions of Python, Java or Scala, and those of SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.plan_nodes import tree_pattern
from shardline.datasource.frames import (
    analyse_query,
    children_of,
    clone_of,
    empty_frame,
    kind_of,
    read_sequence,
    struct_of,
)
from shardline.datasource.read import current_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.state import ShardState

__all__ = ["calls_user_functions"]

_PATTERNS: Final = ("PYTHON_UDF", "SCALA_UDF", "SQL_SCALAR_FUNCTION")
"""Patterns of Catalyst for functions of values."""

_SQL_TABLE_FUNCTION: Final = "SQLFunctionNode"
"""Operator of a table function of SQL, which has no pattern."""


def calls_user_functions(spark: SparkSession, query: str, inputs: Iterable[ShardState]) -> bool:
    """True if a query calls functions of a user.

    Args:
        spark: The session that knows the functions; it is not changed.
        query: The query.
        inputs: States of the shards that it reads.
    """
    session = clone_of(spark)
    empty = {
        state.name: empty_frame(session, struct_of(current_schema(state).record))
        for state in inputs
    }
    analysed = plan_of(analyse_query(session, query, empty))

    def has(name: str) -> bool:
        return bool(analysed.containsPattern(tree_pattern(session, name)))

    if any(map(has, _PATTERNS)) or _SQL_TABLE_FUNCTION in str(analysed.toString()):
        return True
    # Table functions of Python have no pattern of their own, and are within LATERAL mostly.
    if not has("GENERATOR"):
        return False
    return any(map(_has_table_function, (analysed, *read_sequence(analysed.subqueriesAll()))))


def _has_table_function(plan: Any) -> bool:
    """True if rows come from a table function of Python; not in subqueries of expressions."""
    if kind_of(plan) == "Generate":
        kind = kind_of(plan.generator())
        if kind.endswith("PythonUDTF"):
            return True
    return any(map(_has_table_function, children_of(plan)))
