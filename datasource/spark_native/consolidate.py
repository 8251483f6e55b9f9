"""Consolidates updates by Spark expressions: each distinct row once, its copies in `_diff`.

Two rows are the same if `types/row_keys` says so. Spark's grouping differs in two points: it takes
-0.0 for 0.0, and different strings for equal under a collation. Both are corrected by grouping by
other expressions than the columns. Where that cannot tell values apart (maps, variants,
floating-point numbers inside of other values), `can_consolidate` is False, and Arrow fetch does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StringType

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.spark_native.types import quoted
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import Array, Atomic, Field, Record, SparkType

__all__ = [
    "can_consolidate",
    "consolidate",
    "fresh_name",
    "net_changes",
    "repeat_rows",
    "retracted_rows",
]

_NO_NUMBER = -1

_SPAN = 16
"""Copies of a row are made in steps of 2 ** this: the longest array that a step needs."""

_FLOATS = ("float", "double")
_APART = ("variant", "geometry", "geography")


def can_consolidate(schema: ShardSchema) -> bool:
    """True if Spark can tell rows of this schema apart exactly as `row_keys` does."""
    return all(_can_group_by(field, top=True) for field in schema.record.fields)


def _can_group_by(field: Field, *, top: bool) -> bool:
    return (top or field.collations == "null") and _can_compare(field, field.type, top=top)


def _can_compare(field: Field, kind: SparkType, *, top: bool) -> bool:
    match kind:
        case Atomic(name):
            if name.startswith(_APART):
                return False
            return top or not (name in _FLOATS or name.startswith("string collate"))
        case Array(element, _):
            return field.collations == "null" and _can_compare(field, element, top=False)
        case Record(fields):
            return all(_can_group_by(inner, top=False) for inner in fields)
    return False


def consolidate(
    updates: DataFrame, schema: ShardSchema, placed_by: Sequence[str] = ()
) -> DataFrame:
    """Sum the diffs of equal rows: the columns of `schema`, and `_diff` above 0.

    Args:
        updates: The columns and `_diff`; columns between them are dropped.
        schema: All columns of the shard: rows are the same if all of them are.
        placed_by: Further columns, functions of the row, that `updates` are partitioned by: then
            Spark shuffles nothing.
    """
    keys, back = _grouping(updates, schema)
    summed = updates.groupBy(*placed_by, *keys).agg(F.try_sum(DIFF).alias(DIFF))
    return summed.select(*back, _checked().alias(DIFF)).where(F.col(DIFF) > 0)


def net_changes(updates: DataFrame, schema: ShardSchema) -> DataFrame:
    """Sum the diffs of equal rows at each time: the columns, `_ts`, and `_diff` that is not 0.

    Args:
        updates: The columns, `_ts` and `_diff`.
        schema: All columns; `can_consolidate` is True for it.
    """
    keys, back = _grouping(updates, schema)
    summed = updates.groupBy(TS, *keys).agg(F.sum(DIFF).alias(DIFF))
    return summed.select(*back, TS, DIFF).where(F.col(DIFF) != 0)


def retracted_rows(updates: DataFrame, schema: ShardSchema, number: str) -> DataFrame:
    """The numbers of rows that retractions take back: of equal rows any, since they are equal.

    What is left of the rows without them is the same as `consolidate` gives.

    Args:
        updates: The columns, `_diff`, and a column `number`; of retractions it does not count.
        schema: All columns; `can_consolidate` is True for it.
        number: Name of the column with the numbers, which are not negative.

    Returns:
        One column. A negative number is among them if numbers cannot tell: an update that adds
        several copies of a row was taken back in part.
    """
    keys, _ = _grouping(updates, schema)
    diff = F.col(DIFF)
    rows, least, most = "_shardline_rows", "_shardline_least", "_shardline_most"
    found = updates.groupBy(*keys).agg(
        F.collect_list(F.when(diff > 0, quoted(number))).alias(rows),
        F.min(diff).alias(least),
        F.max(diff).alias(most),
        F.try_sum(diff).alias(DIFF),
    )
    # A sum that is wrong is an error here, too; the read that follows says which.
    taken = F.size(rows) - _checked()
    closed = F.when(F.col(most) <= 1, F.slice(rows, F.lit(1), taken.cast("int"))).otherwise(
        F.array(F.lit(_NO_NUMBER).cast("bigint"))
    )
    return found.where(F.col(least) < 0).select(F.explode(closed).alias(number))


def _grouping(updates: DataFrame, schema: ShardSchema) -> tuple[list[Column], list[Column]]:
    """Expressions to group rows by, and those that give the columns back from them."""
    keys: list[Column] = []
    back: list[Column] = []
    for number, field in enumerate(schema.record.fields):
        column, name = quoted(field.name), f"k{number}"
        metadata, collation = updates.schema[field.name].metadata, _collation(updates, field.name)
        if field.type in (Atomic("float"), Atomic("double")):
            # Not `column = 0.0`: the optimizer would replace the column by 0.0 wherever that holds,
            # and the sign, which the next line looks for, would be gone.
            zero = (column >= 0.0) & (column <= 0.0)
            negative = zero & column.cast("string").startswith("-")
            keys += [column.alias(name), negative.alias(f"n{number}")]
            minus_zero = F.lit(-0.0).cast(updates.schema[field.name].dataType)
            value = F.when(quoted(f"n{number}"), minus_zero).otherwise(quoted(name))
        elif collation is not None:
            keys.append(F.collate(column, "UTF8_BINARY").alias(name))
            value = F.collate(quoted(name), collation)
        else:
            keys.append(column.alias(name))
            value = quoted(name)
        back.append(value.alias(field.name, metadata=metadata))
    return keys, back


def _collation(updates: DataFrame, name: str) -> str | None:
    """The collation that Spark compares the column's values by; None for their bytes."""
    # Of the frame and not of the shard's schema, which has it in the name of the type or in the
    # field's metadata, depending on who wrote its JSON: Spark knows both.
    kind = updates.schema[name].dataType
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        return kind.collation
    return None


def _checked() -> Column:
    """The sum of a row's diffs; an error if it overflows or is negative.

    A value and not a condition: Spark may evaluate the user's conditions first, and drop a wrong
    row by them before this one is evaluated.
    """
    overflow = InvalidUsage(
        "the diffs of one row add up to more than an int64 holds",
        code="DIFF_OVERFLOW",
        hint="a diff counts copies of a row; write smaller ones",
    )
    negative = Corrupt(
        "a row has been removed more often than it was added",
        code="NEGATIVE_MULTIPLICITY",
        hint="a writer retracted rows that were never there; find it in the change feed by "
        "its negative diffs, and add the rows back to repair the shard",
    )
    total = F.col(DIFF)
    return (
        F.when(total.isNull(), F.raise_error(F.lit(str(overflow))).cast("bigint"))
        .when(total < 0, F.raise_error(F.lit(str(negative))).cast("bigint"))
        .otherwise(total)
    )


def repeat_rows(rows: DataFrame) -> DataFrame:
    """Repeat each row `_diff` times, and drop `_diff`."""
    names = [name for name in rows.columns if name != DIFF]
    step_name, copy_name = fresh_name("_step", names), fresh_name("_copy", names)
    copies, step = F.col(DIFF), quoted(step_name)
    own = [quoted(name) for name in names]
    last = F.shiftright(copies - 1, _SPAN)
    left = F.least(copies - F.shiftleft(step, _SPAN), F.lit(1 << _SPAN).cast("bigint"))
    there = rows.where(F.col(DIFF) > 0)
    steps = there.select("*", F.explode(F.sequence(F.lit(0).cast("bigint"), last)).alias(step_name))
    each = F.explode(F.array_repeat(F.lit(0), left.cast("int"))).alias(copy_name)
    return steps.select(*own, each).select(*own)


def fresh_name(name: str, taken: Iterable[str]) -> str:
    """`name`, with underscores added until no name in `taken` equals it in any case."""
    folded = {other.lower() for other in taken}
    while name in folded:
        name += "_"
    return name
