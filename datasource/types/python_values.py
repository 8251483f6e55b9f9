"""Converts values of Arrow to values of Python, also those that Python has no value for.

Spark's dates reach beyond the years 1 and 9999, and its text may be no UTF-8. `to_pylist` raises at
the first of them, so that one row of a user's would end whatever lists rows: a message of an error,
a page, a result. Here such dates are text, and bytes that are no UTF-8 are `U+FFFD`.

    python_values(column)      the values of `to_pylist`, if Python has them all

Invariants:
    A column whose values Python has all is converted as Arrow does it, and as fast.
    Nothing is decided by these values: two that differ may look the same.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["python_values"]


def python_values(column: pa.Array | pa.ChunkedArray, between: str = " ") -> list[Any]:
    """The values of a column.

    Args:
        column: Of any type.
        between: What stands between date and time, where a time is text.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in _without_range(chunk, between)]
    return values


def _without_range(array: pa.Array, between: str) -> list[Any]:
    kind, types = array.type, pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        texts = array.cast(pa.string()).to_pylist()
        return [text and text.replace(" ", between) for text in texts]
    if types.is_string(kind) or types.is_large_string(kind):
        raw = array.view(pa.large_binary() if types.is_large_string(kind) else pa.binary())
        return [None if one is None else one.decode(errors="replace") for one in raw.to_pylist()]
    if types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        fields = [python_values(child, between) for child in array.flatten()]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]
        return [row if there else None for row, there in zip(rows, array.is_valid(), strict=True)]
    found = [python_values(one.values, between) if one.is_valid else None for one in array]
    if types.is_map(kind):
        return [one and [(entry["key"], entry["value"]) for entry in one] for one in found]
    return found
