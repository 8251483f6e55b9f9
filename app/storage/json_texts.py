"""Texts in JSON of rows and keys: of two different ones no two texts are the same.

    exact_json(["id", "at"])                {"id":7,"at":"2026-01-01T00:00:00.000000Z"}
    key_text(frame, {"id": column})         {"id":7}

Spark's JSON ends a timestamp at milliseconds, and what is behind them is lost.

Errors of keyed sources and messages of sinks are found again by the texts of their keys, for years.
So a key has microseconds only where they say something, and is Spark's own text otherwise, as it
always was; and whatever time zone the session has, its timestamps are told in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shardline.app.storage.formats import EXACT_TIMES

__all__ = ["exact_json", "key_text"]

_TIMES: Final = (TimestampType, TimestampNTZType)

_IN_UTC: Final = {"timeZone": "UTC"}


def exact_json(columns: Iterable[str | Column], **options: str) -> Column:
    """An object of `columns`, with all that their timestamps have; without those that are null.

    Args:
        columns: Of the row.
        options: More options of Spark's JSON.
    """
    return F.to_json(F.struct(*columns), {**EXACT_TIMES, **options})


def key_text(frame: DataFrame, parts: Mapping[str, Column]) -> Column:
    """The key of `parts` as a JSON object, without those that are null.

    Args:
        frame: Has the columns that the parts are made of.
        parts: The key's columns, by name.
    """
    named = [column.alias(name) for name, column in parts.items()]
    types = [field.dataType for field in frame.select(*named).schema]
    if any(_has_times(one) for whole in types for one in _types_within(whole)):
        return exact_json(named, **_IN_UTC)
    has_micros = F.lit(False)
    for column, one in zip(parts.values(), types, strict=True):
        if isinstance(one, _TIMES):
            micros = F.unix_micros(column.cast("timestamp")) % 1000
            has_micros = has_micros | F.coalesce(micros != 0, F.lit(False))
    return F.when(has_micros, exact_json(named, **_IN_UTC)).otherwise(
        F.to_json(F.struct(*named), _IN_UTC)
    )


def _has_times(one: DataType) -> bool:
    """True if a value of this type is a timestamp, or may have one within it."""
    return isinstance(one, _TIMES) or any(map(_has_times, _types_within(one)))


def _types_within(one: DataType) -> list[DataType]:
    match one:
        case StructType():
            return [field.dataType for field in one]
        case ArrayType():
            return [one.elementType]
        case MapType():
            return [one.keyType, one.valueType]
        case _:
            return []
