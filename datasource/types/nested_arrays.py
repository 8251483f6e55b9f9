"""Adds functions that pyarrow lacks for nested arrays: exact for slices and for nulls.

    map_as_lists(map_array)        a map as the list of its entries, without a copy
    list_lengths(array)            elements per list, 0 for null
    raw_offsets(array)             the offsets of text or lists, as stored, of this slice
    null_mask(array)               a mask of the null values, or None when there are none
    validity_bitmap(array)         the inverse mask as a bitmap that starts at bit 0
    without_masked_nulls(array)    without nulls that only stand under null parents

Arrow's own casts check children under null parents, where any bytes may be, and fail on them;
nothing here looks at those.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "Offsets",
    "list_lengths",
    "map_as_lists",
    "null_mask",
    "raw_offsets",
    "validity_bitmap",
    "without_masked_nulls",
]

Offsets = npt.NDArray[np.int64]

_WIDE = (pa.types.is_large_binary, pa.types.is_large_string, pa.types.is_large_list)


def map_as_lists(array: pa.MapArray) -> pa.ListArray:
    """`array` as `list<struct<key, value>>` over the same buffers."""
    entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(entries.type),
        len(array),
        array.buffers()[:2],
        null_count=array.null_count,
        offset=array.offset,
        children=[entries],
    )


def list_lengths(array: pa.Array) -> Offsets:
    """The number of elements that each list has in `array.flatten()`; 0 for null lists."""
    lengths = np.diff(raw_offsets(array))
    absent = null_mask(array)
    if absent is not None:
        lengths[absent] = 0
    return lengths


def raw_offsets(array: pa.Array) -> Offsets:
    """The n + 1 offsets of an array of variable length, as int64, of its own slice only."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    kind = np.dtype(np.int64 if any(is_one(array.type) for is_one in _WIDE) else np.int32)
    stored = np.frombuffer(array.buffers()[1], kind, offset=array.offset * kind.itemsize)
    return stored[: len(array) + 1].astype(np.int64)


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """A mask of the null values; None when there are none."""
    if array.null_count == 0:
        return None
    absent: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return absent


def validity_bitmap(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap of `array` without its offset; None when nothing is null."""
    absent = null_mask(array)
    if absent is None:
        return None
    return pa.py_buffer(np.packbits(~absent, bitorder="little"))


def without_masked_nulls(array: pa.Array, *, nullable: bool = True) -> pa.Array:
    """`array` without nulls in children that are declared not nullable.

    Such a child may have nulls under null parents, where they mean nothing, but the Parquet writer
    takes them for nulls of the child. Elsewhere it must have none.

    Args:
        array: An array of any type.
        nullable: True if the array itself may have nulls.
    """
    if not pa.types.is_nested(array.type):
        if nullable or array.null_count == 0:
            return array
        return pa.Array.from_buffers(
            array.type, len(array), [None, *array.buffers()[1:]], 0, array.offset
        )
    if pa.types.is_struct(array.type):
        heads, children = [], [_unmasked_child(array.field(i), f) for i, f in enumerate(array.type)]
    else:
        offsets = np.concatenate([[0], np.cumsum(list_lengths(array))]).astype(np.int32)
        heads, children = [pa.py_buffer(offsets)], [_unmasked_elements(array)]
    bitmap, missing = (validity_bitmap(array), array.null_count) if nullable else (None, 0)
    return pa.Array.from_buffers(
        array.type, len(array), [bitmap, *heads], missing, children=children
    )


def _unmasked_child(child: pa.Array, field: pa.Field) -> pa.Array:
    return without_masked_nulls(child, nullable=field.nullable)


def _unmasked_elements(array: pa.Array) -> pa.Array:
    """The elements of the lists, or the entries of the maps, of `array`."""
    if not pa.types.is_map(array.type):
        return _unmasked_child(array.flatten(), array.type.value_field)
    entries = map_as_lists(array).flatten()
    fields = [array.type.key_field, array.type.item_field]
    columns = [_unmasked_child(entries.field(i), field) for i, field in enumerate(fields)]
    return pa.StructArray.from_arrays(columns, fields=fields)
