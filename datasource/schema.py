"""Columns of shards and values in them, for callers that make or compare schemas.

The public face of the room `types`. A schema that differs in one name or in whether a column may be
null is another contract with every reader, so nobody puts one together from pyarrow by hand.

    ShardSchema, Field, Record, Atomic    columns and their types, as Spark has them
    TS, DIFF, RESERVED           the columns `_ts` and `_diff` of updates; names that are taken
    evolve, Incompatible         the columns of a shard to those of a new query, or why not
    python_values                columns in Arrow to the values that PySpark would give
    contiguous, surrogate        one column to compare in place of a key's; a key as one number
    bounds                       least and greatest values, as parts note them
"""

from shardline.datasource.types.python_values import python_values
from shardline.datasource.types.row_keys import contiguous, surrogate
from shardline.datasource.types.schema import DIFF, RESERVED, TS, ShardSchema
from shardline.datasource.types.schema_evolution import Incompatible, evolve
from shardline.datasource.types.spark_types import Atomic, Field, Record
from shardline.datasource.types.stats import bounds

__all__ = [
    "DIFF",
    "RESERVED",
    "TS",
    "Atomic",
    "Field",
    "Incompatible",
    "Record",
    "ShardSchema",
    "bounds",
    "contiguous",
    "evolve",
    "python_values",
    "surrogate",
]
