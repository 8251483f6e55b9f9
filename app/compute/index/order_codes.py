"""Numbers that compare as Spark orders the values of a column, so that numpy sorts and searches.

    order = OrderBy("price", descends=True, nulls_first=False)
    codes_of(table, order)      a number for each row, the less the earlier

Values that Spark takes for equal have one code. Others may have one as well: of text only the first
eight bytes are in it. So rows up to a code, all of those that have it included, are always the
first rows of the order, and of any longer order that begins with it.

Invariants:
    A row that comes before another one has no greater code.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from shardline.datasource.schema import contiguous, surrogate

__all__ = ["Codes", "OrderBy", "codes_of", "has_codes"]

Codes: TypeAlias = npt.NDArray[np.int64]

_NUMBERS: Final = (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

_DIGITS_MAX: Final = 18
"""Of a decimal whose digits are one number."""

_TEXT_BYTES: Final = 8
_LEAST: Final = np.iinfo(np.int64).min
_GREATEST: Final = np.iinfo(np.int64).max


class OrderBy(NamedTuple):
    """The first column of an order.

    Attributes:
        column: Its name.
        descends: True if the greatest value comes first.
        nulls_first: True if NULL comes before all values.
    """

    column: str
    descends: bool
    nulls_first: bool


def has_codes(kind: DataType) -> bool:
    """True if `codes_of` knows the order of a type of Spark's."""
    if isinstance(kind, StringType):
        return bool(kind.isUTF8BinaryCollation())
    if isinstance(kind, DecimalType):
        return bool(kind.precision <= _DIGITS_MAX)
    return isinstance(kind, _NUMBERS)


def codes_of(table: pa.Table, order: OrderBy) -> Codes:
    """The code of each row of a table, which has the column of the order."""
    column = contiguous(table.column(order.column))
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0, column.type))  # -0.0 is 0.0 to Spark
    key = surrogate(column)
    nulls = key.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_binary(key.type) or pa.types.is_large_binary(key.type):
        codes = _codes_of_bytes(key)
    else:
        codes = key.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if order.descends:
        codes = ~codes
    return np.where(nulls, _LEAST if order.nulls_first else _GREATEST, codes)


def _codes_of_bytes(values: pa.Array) -> Codes:
    """The first bytes of each value, as a number."""
    large = values.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    if not len(large):
        return np.zeros(0, np.int64)
    # Zeros behind the last value, whose first bytes may be fewer.
    stored = np.frombuffer(data or b"", np.uint8)
    text = np.concatenate([stored, np.zeros(_TEXT_BYTES, np.uint8)])
    found = np.zeros(len(large), np.uint64)
    for place in range(_TEXT_BYTES):
        at = bounds[:-1] + place
        byte = np.where(at < bounds[1:], text[np.minimum(at, len(text) - 1)], 0)
        found = (found << np.uint64(8)) | byte.astype(np.uint64)
    # Signed, in the same order.
    return (found ^ np.uint64(1 << 63)).view(np.int64)
