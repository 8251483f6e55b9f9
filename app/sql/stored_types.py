"""Decides if the rows of a state can have values of a type.

A state is a shard. Inside of a query are values that a shard cannot hold, which something above
makes others of: intervals of months, arrays without elements; and some that Spark cannot compare,
so that rows with them cannot be added up.

    can_be_stored(kind)      of the type of a column
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from shardline.app.sql.decided_values import holds_opaque
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import ShardSchema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["can_be_stored"]


def can_be_stored(kind: DataType) -> bool:
    """True if a shard has columns of a type, and rows with them can be added up."""
    if holds_opaque(kind):
        return False
    try:
        ShardSchema.parse(StructType([StructField("c", kind)]).json())
    except InvalidUsage:
        return False
    return True
