"""The columns of a view: read from text, with those of updates, and given to a result.

    columns = parse_columns("id BIGINT, name STRING")
    with_times(columns)                                 those of its updates
    fit_columns(result, columns)                        a result under its names, in its types

Invariants:
    A result has exactly the view's columns and types, in order.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import LongType, StructField, StructType

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import DIFF, TS

__all__ = ["UPDATE_COLUMNS", "fit_columns", "parse_columns", "with_times"]

UPDATE_COLUMNS: Final = tuple(StructField(name, LongType(), nullable=False) for name in (TS, DIFF))
"""Columns that an update has beside its row's."""


def parse_columns(ddl: str) -> StructType:
    """The columns that `ddl` describes, such as `id BIGINT NOT NULL, name STRING`."""
    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType), ddl
    return columns


def fit_columns(result: DataFrame, schema: StructType, extra: tuple[str, ...] = ()) -> DataFrame:
    """`result` with the view's column names and types.

    Args:
        result: The query's rows; columns are matched by position.
        schema: Columns of the view.
        extra: Names of columns that follow, which stay as they are.

    Raises:
        InvalidUsage: There are more columns or fewer: an input has changed its own.
    """
    names = [field.name for field in schema.fields]
    if len(result.columns) != len(names) + len(extra):
        raise InvalidUsage(
            f"the query gives {len(result.columns) - len(extra)} columns, and the view has "
            f"{len(names)}",
            code="SCHEMA_CHANGED",
            hint="an input has other columns now: apply the project again",
        )
    found = result.schema.fields[: len(names)]
    if [(f.name, f.dataType) for f in found] == [(f.name, f.dataType) for f in schema.fields]:
        return result
    # Under names of their own first: a query may return two columns of one name.
    places = [f"c{place}" for place in range(len(names))]
    placed = result.toDF(*places, *extra)
    pairs = zip(places, schema.fields, placed.schema.fields, strict=False)
    columns = [_as(place, wanted, found) for place, wanted, found in pairs]
    return placed.select(*columns, *extra)


def with_times(columns: StructType) -> StructType:
    """The columns of updates of rows with these columns."""
    return StructType([*columns.fields, *UPDATE_COLUMNS])


def _as(place: str, wanted: StructField, found: StructField) -> Column:
    column = F.col(place)
    if found.dataType != wanted.dataType:
        column = column.cast(wanted.dataType)
    return column.alias(wanted.name)
