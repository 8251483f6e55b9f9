"""The correction is the difference of two collections, as one aggregation of Spark.

    desired - persisted = the updates that turn the second into the first

By it views correct themselves: whatever the output holds, and whichever definition wrote it, a
recomputation appends the rows that it lacks and retracts those that it should not have. It is
Materialize's correction buffer of a persist sink, computed instead of kept.

Two rows are equal here exactly if they are equal for a shard
(`shardline.datasource.types.row_keys`). Spark's own grouping takes -0.0 for 0.0, takes different
strings of a collation for equal, and cannot group maps. So rows are grouped by key columns that
distinguish all of these, beside the values themselves.

Spark cannot plan a filter above a UNION ALL of which a side has a correlated subquery in SELECT: it
looks for columns of the subquery among those of that side. So such a side hides what it computes.

Invariants:
    No row is retracted that is not there, and none is added that is there often enough.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.sql.decided_values import holds_opaque
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import frame_of, read_sequence, scala_sequence
from shardline.datasource.java_names import java_class
from shardline.datasource.schema import DIFF

__all__ = ["additions", "check_comparable", "correction_frame"]

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"

_NOTHING: Final = {"of": ""}
"""Metadata of columns that are corrected. By those of a session window Spark would go on to merge
windows where rows are only grouped; none at all would leave them as they are."""


def correction_frame(desired: DataFrame | None, held: DataFrame | None) -> DataFrame:
    """The updates that turn `held` into `desired`: their columns and `_diff`, which is never 0.

    Args:
        desired: The wanted rows; None for none.
        held: The updates of the present contents, with `_diff`; None for none. At least one of the
            two is given, and both have the same columns and types.
    """
    both = ((desired, 1), (held, -1))
    signed = [_signed(_hidden(frame), sign) for frame, sign in both if frame is not None]
    updates = reduce(DataFrame.unionAll, signed)
    own = [field for field in updates.schema.fields if field.name != DIFF]
    # A column whose values Spark's grouping tells apart is itself a key. As a value that is kept of
    # a group it would cost two sorts if it is text: groups are hashed only where all that is kept
    # of them has a fixed length.
    as_they_are = [_column(field.name) for field in own if not _needs_key(field.dataType)]
    others = [field for field in own if _needs_key(field.dataType)]
    found = [key for field in others for key in _keys(_column(field.name), field.dataType)]
    # No column of the rows may have the name of a key: neither could be referred to.
    name = "k"
    while any(field.name.lower().startswith(name) for field in own):
        name += "k"
    keys = [key.alias(f"{name}{place}") for place, key in enumerate(found)]
    kept = [F.first(_column(field.name)).alias(field.name) for field in others]
    summed = updates.groupBy(*as_they_are, *keys).agg(*kept, F.sum(DIFF).alias(DIFF))
    return summed.where(F.col(DIFF) != 0).select(*(_column(field.name) for field in own), DIFF)


def additions(frame: DataFrame) -> DataFrame:
    """The updates that add these rows: the correction of what is empty, if no row is there twice.

    Nothing is grouped, so that no row meets another one.
    """
    return _signed(frame, 1)


def _hidden(frame: DataFrame) -> DataFrame:
    """`frame` under an operator that tells nothing of how its columns are computed.

    Only where there is a subquery in an expression: of any other Spark may use what it is told.
    """
    session, plan = frame.sparkSession, plan_of(frame)
    if plan.subqueriesAll().isEmpty():
        return frame
    columns = read_sequence(plan.output())
    rows = scala_sequence(session, [scala_sequence(session, columns)])
    # Each row once: of this operator alone Spark takes nothing to be known.
    output = scala_sequence(session, [one.newInstance() for one in columns])
    expand: Any = java_class(session, f"{_LOGICAL}.Expand")
    java = session._jsparkSession  # noqa: SLF001 - no public door
    return frame_of(session, java, expand(rows, output, plan))


def _signed(frame: DataFrame, sign: int) -> DataFrame:
    """`frame` with its diffs, or 1 for each row, times `sign` in its last column."""
    own = [
        # Only where there is any: of a condition below Spark makes one for each choice of columns
        # and of their aliases, which are twice as many with each column.
        _column(one.name).alias(one.name, metadata=_NOTHING) if one.metadata else _column(one.name)
        for one in frame.schema.fields
        if one.name != DIFF
    ]
    copies = F.col(DIFF) if DIFF in frame.columns else F.lit(1)
    return frame.select(*own, (copies.cast("bigint") * sign).alias(DIFF))


def check_comparable(view: str, schema: StructType) -> None:
    """Refuse columns whose values cannot be compared.

    Raises:
        InvalidUsage: A column of `schema` is, or has inside, a variant or a geometry.
    """
    for field in schema.fields:
        if holds_opaque(field.dataType):
            raise InvalidUsage(
                f"column '{field.name}' of view '{view}' is {field.dataType.simpleString()}, whose "
                "values cannot be compared",
                code="INCOMPARABLE_COLUMN",
                hint="cast it in the query: a variant to a string (to_json) or to its own type",
            )


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _keys(column: Column, kind: DataType) -> list[Column]:
    """The columns to group by so that exactly the equal values of `column` meet."""
    if isinstance(kind, FloatType | DoubleType):
        # Not `column == 0.0`: Spark would then put the constant in the place of the column, and
        # lose the sign that this key is about.
        zero = (column >= 0.0) & (column <= 0.0)
        return [column, zero & column.cast("string").startswith("-")]
    return [_key(column, kind)]


def _key(column: Column, kind: DataType) -> Column:
    """`column` in a form in which Spark's grouping finds unequal values unequal, at any depth."""
    match kind:
        case FloatType() | DoubleType():
            return column.cast("string")
        case StringType() if kind.collation != "UTF8_BINARY":
            return F.collate(column, "UTF8_BINARY")
        case ArrayType() if _needs_key(kind):
            return F.transform(column, lambda item: _key(item, kind.elementType))
        case StructType() if _needs_key(kind):
            inner = [
                _key(column.getField(field.name), field.dataType).alias(f"f{place}")
                for place, field in enumerate(kind.fields)
            ]
            return F.when(column.isNotNull(), F.struct(*inner))
        case MapType():
            entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
            entries = F.transform(F.map_entries(column), lambda item: _key(item, entry))
            return F.array_sort(entries)
    return column


def _needs_key(kind: DataType) -> bool:
    """True if Spark's grouping takes unequal values for equal, or cannot group them."""
    match kind:
        case ArrayType():
            return _needs_key(kind.elementType)
        case StructType():
            return any(_needs_key(field.dataType) for field in kind.fields)
        case MapType() | FloatType() | DoubleType():
            return True
        case StringType():
            return kind.collation != "UTF8_BINARY"
    return False
