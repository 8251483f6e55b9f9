"""The text of a key in JSON: two keys have one text only if they are the same.

    key_text(frame, {"id": column})      {"id":7}

Errors of keyed sources and messages of sinks are found again by it, for years: it stays as it is.

Spark's JSON ends a timestamp at milliseconds. Where that would leave something out the text has
microseconds; where it would not it is Spark's own, as it always was.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType
from pyspark.sql.types import TimestampType as InstantType

from shardline.app.storage.formats import EXACT_TIMES

__all__ = ["key_text"]


def key_text(frame: DataFrame, parts: Mapping[str, Column]) -> Column:
    """The key of `parts` as a JSON object, without those that are null.

    Args:
        frame: Has the columns that the parts are made of.
        parts: The key's columns, by name.
    """
    named = [column.alias(name) for name, column in parts.items()]
    whole = F.struct(*named)
    types = [field.dataType for field in frame.select(*named).schema]
    if any(_has_inner_times(one) for one in types):
        return F.to_json(whole, dict(EXACT_TIMES))
    finer = F.lit(False)
    for column, one in zip(parts.values(), types, strict=True):
        if isinstance(one, InstantType | TimestampNTZType):
            micros = F.unix_micros(column.cast("timestamp")) % 1000
            finer = finer | F.coalesce(micros != 0, F.lit(False))
    return F.when(finer, F.to_json(whole, dict(EXACT_TIMES))).otherwise(F.to_json(whole))


def _has_inner_times(one: DataType) -> bool:
    """True if a timestamp may be within a value of this type."""
    match one:
        case StructType():
            inner = [field.dataType for field in one]
        case ArrayType():
            inner = [one.elementType]
        case MapType():
            inner = [one.keyType, one.valueType]
        case _:
            return False
    return any(isinstance(x, InstantType | TimestampNTZType) or _has_inner_times(x) for x in inner)
