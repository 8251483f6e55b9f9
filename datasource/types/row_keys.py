"""Defines identity and order of rows: one flat surrogate per column that Arrow can compare.

Consolidation must find equal rows of any type, and Arrow can sort and compare flat columns only.
Two rows are the same row exactly when their surrogates are equal, in whichever tables they stand,
and surrogates give one total order over all rows of a schema:

    - nulls are equal to each other and sort first; they differ from "" and from []
    - all NaNs are one value, which sorts last; -0.0 and 0.0 are two values, in this order: what
      was written can be read back, and retracted exactly
    - numbers, dates, times and intervals sort by value, strings and binary by bytes (collations
      shape queries, not identity), structs and lists are equal by content, maps whatever the
      order of their entries; variants are equal when their bytes are
    - nested values have *some* order, which is the same everywhere and for ever; plain columns
      have their natural one, because bounds of parts and pruning of row groups live on it

    surrogate(array) -> pa.Array                  the surrogate of one column
    key_columns(table, columns) -> list           those of several, each one contiguous array
    sort_words(surrogate) -> list of callables    a surrogate as fixed-width numbers

Surrogates: booleans and numbers as integers of their width (floats by the order of their bits),
wide decimals as they are, text as binary, nested values as an injective binary encoding: each value
announces its own end, so that concatenation keeps injectivity. A fixed-width value is a marker and
its big-endian bytes, text a marker, its length and its bytes, a list a marker, its length and its
elements, a struct a marker and its fields, a map the list of its entries sorted by their encoding.
The elements of a list are adjacent in the child's encoding already, so a list column reuses the
child's bytes with `child_offsets[list_offsets]`.

Invariants:
    - The encoding is never stored: it may change between releases, as long as the order of plain
      columns stays.
    - Widening a type as `schema_evolution` allows keeps the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.types.nested_arrays import (
    Offsets,
    list_lengths,
    map_as_lists,
    null_mask,
    raw_offsets,
)

__all__ = ["contiguous", "key_columns", "sort_words", "surrogate"]

Numbers = npt.NDArray[Any]
Words = Callable[[Offsets], Numbers]

CONTIGUOUS_BYTES: Final = 2**31 - 1
"""Most bytes that one array with 32-bit offsets can hold; beyond, 64-bit offsets take over."""

_NARROW_DECIMAL: Final = 18
"""Any number of this many decimal digits fits an int64."""

_WORD: Final = 8

_WORDS_MAX: Final = 512
"""Words of a text that are compared one by one. Each takes some 15 µs however few rows still tie:
two equal documents of 10 MiB would take 20 s."""


def key_columns(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> list[pa.Array]:
    """The surrogates of `columns`, in order, each as one contiguous array."""
    return [surrogate(contiguous(table.column(name))) for name in columns]


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """`column` as one array; text beyond 2 GiB gets 64-bit offsets."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    if column.nbytes > CONTIGUOUS_BYTES:
        column = column.cast(_large(column.type))
    return pa.concat_arrays(column.chunks)


def _large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def surrogate(array: pa.Array) -> pa.Array:
    """`array` as integers, decimals or binary with the same nulls, equality and order.

    Raises:
        TypeError: For types that a shard cannot hold (dictionaries, views, intervals of months).
    """
    kind = array.type
    if pa.types.is_nested(kind):
        return _encode(array)
    if pa.types.is_floating(kind):
        return _ordered_floats(array)
    if pa.types.is_boolean(kind):
        return pc.cast(array, pa.int8())
    if pa.types.is_decimal128(kind) and kind.precision <= _NARROW_DECIMAL:
        return _number_array(_fixed(array, np.dtype("<i8"))[::2], array)
    for is_one, as_type in _VIEWS:
        if is_one(kind):
            return array if as_type is None else array.view(as_type)
    raise TypeError(f"no row key for Arrow type {kind}")


_VIEWS: Final = (
    (pa.types.is_string, pa.binary()),
    (pa.types.is_large_string, pa.large_binary()),
    (pa.types.is_date32, pa.int32()),
    (pa.types.is_timestamp, pa.int64()),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_signed_integer, None),
    (pa.types.is_decimal128, None),
    (pa.types.is_binary, None),
    (pa.types.is_large_binary, None),
    (pa.types.is_null, None),
)
"""Types whose stored form, taken as the type beside, has the order of the values."""


def _ordered_floats(array: pa.Array) -> pa.Array:
    """Integers that compare like IEEE total order, with a single NaN above everything."""
    width = array.type.bit_width // 8
    floats = _fixed(array, np.dtype(f"<f{width}"))
    bits = np.where(np.isnan(floats), np.array(np.nan, floats.dtype), floats).view(f"<i{width}")
    # Negative floats have descending bit patterns: flip all but the sign.
    flipped = bits ^ ((bits >> (8 * width - 1)) & np.iinfo(bits.dtype).max)
    return _number_array(flipped, array)


def _number_array(numbers: Numbers, like: pa.Array) -> pa.Array:
    return pa.array(numbers, mask=null_mask(like))


def _fixed(array: pa.Array, dtype: np.dtype[Any]) -> Numbers:
    """The raw values of a fixed-width array; arbitrary ones under its nulls."""
    per_value = array.type.bit_width // 8 // dtype.itemsize
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) * per_value, dtype)
    start = array.offset * per_value
    return np.frombuffer(buffer, dtype)[start : start + len(array) * per_value]


# --- as numbers --------------------------------------------------------------------------------


def sort_words(key: pa.Array) -> list[Words]:
    """A surrogate as a sequence of fixed-width numbers, most significant first.

    Each entry maps row numbers to integers; comparing two rows means comparing the first entry
    that differs. Entries are computed only for the rows passed, so a sort computes later ones only
    where earlier ones tie, and numbers of two calls have nothing to do with each other. Text of n
    bytes has n/8 words, and long text one more for all that is behind the first words.
    """
    found: list[Words] = []
    absent = null_mask(key)
    if pa.types.is_null(key.type):
        return found
    if absent is not None:
        valid = (~absent).astype(np.int8)
        found.append(lambda rows: valid[rows])
    if pa.types.is_binary(key.type) or pa.types.is_large_binary(key.type):
        return found + _text_words(key)
    if pa.types.is_decimal128(key.type):
        halves = _fixed(key, np.dtype("<i8"))
        high, low = halves[1::2], halves[::2].view("<u8")
        return [*found, _masked(high, absent), _masked(low, absent)]
    return [*found, _masked(_fixed(key, np.dtype(key.type.to_pandas_dtype())), absent)]


def _masked(values: Numbers, absent: npt.NDArray[np.bool_] | None) -> Words:
    if absent is None:
        return lambda rows: values[rows]
    # The bytes under a null are arbitrary, but nulls must tie.
    clean = np.where(absent, np.array(0, values.dtype), values)
    return lambda rows: clean[rows]


def _text_words(key: pa.Array) -> list[Words]:
    starts, lengths, data = _text_parts(key)
    longest = int(lengths.max(initial=0))
    # Eight bytes at every byte offset: overlapping views of one buffer, padded for the last ones.
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    at_offset: Numbers = np.lib.stride_tricks.as_strided(
        padded[:_WORD].view(np.uint64), (len(data) + 1,), (1,), writeable=False
    )

    def word(number: int) -> Words:
        def read(rows: Offsets) -> Numbers:
            begin = number * _WORD
            left = np.clip(lengths[rows] - begin, 0, _WORD)
            offset = np.minimum(starts[rows] + begin, len(data))
            value = at_offset[offset].byteswap()
            unwanted = ((_WORD - left) * 8).astype(np.uint64)
            # A shift by the whole width is undefined in C, so it is taken in two halves.
            half = unwanted >> np.uint64(1)
            rest = unwanted - half
            kept: Numbers = ((value >> half) >> rest << rest) << half
            return kept

        return read

    count = -(-longest // _WORD)
    words = [word(number) for number in range(min(count, _WORDS_MAX))]
    # Words are filled up with zeros: of two values with equal words the shorter one is first.
    last = (lambda rows: lengths[rows]) if count <= _WORDS_MAX else partial(_ranks, key)
    return [*words, last]


def _ranks(key: pa.Array, rows: Offsets) -> Numbers:
    """The places of whole values among those of `rows`.

    By a dictionary: values that tie for so long are equal mostly, which their hash tells at once.
    """
    found = key.take(pa.array(rows)).fill_null(b"").dictionary_encode()
    order = pc.array_sort_indices(found.dictionary).to_numpy()
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    ranks: Numbers = places[found.indices.to_numpy()]
    return ranks


def _text_parts(key: pa.Array) -> tuple[Offsets, Offsets, npt.NDArray[np.uint8]]:
    """Start and length of each value in the data buffer; nulls have length 0."""
    raw = raw_offsets(key)
    buffer = key.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    first, last = (int(raw[0]), int(raw[-1])) if len(raw) else (0, 0)
    lengths = np.diff(raw)
    absent = null_mask(key)
    if absent is not None:
        lengths[absent] = 0
    return raw[:-1] - first, lengths, data[first:last]


# --- encoding of nested values -----------------------------------------------------------------


def _encode(array: pa.Array) -> pa.Array:
    """Each value as self-delimiting bytes, nulls included: a large_binary array without nulls."""
    types = pa.types
    if types.is_struct(array.type):
        fields = [_encode(child) for child in array.flatten()]
        return _joined([_markers(array), *fields])
    if types.is_map(array.type):
        return _encode_map(array)
    if types.is_list(array.type) or types.is_large_list(array.type):
        lengths = list_lengths(array)
        return _encode_list(array, lengths, _encode(array.flatten()))
    if types.is_null(array.type):
        return _markers(array)
    key = surrogate(array)
    if types.is_binary(key.type) or types.is_large_binary(key.type):
        _, lengths, _ = _text_parts(key)
        content = pc.fill_null(pc.cast(key, pa.large_binary()), b"")
        return _joined([_headers(array, lengths), content])
    return _encode_fixed(key)


def _encode_fixed(key: pa.Array) -> pa.Array:
    """Marker, then the value big-endian with the sign flipped: byte order is numeric order."""
    width = key.type.bit_width // 8
    raw = _fixed(key, np.dtype(np.uint8)).reshape(len(key), width)
    out = np.zeros((len(key), 1 + width), np.uint8)
    out[:, 0] = 1
    out[:, 1:] = raw[:, ::-1]
    out[:, 1] ^= 0x80
    absent = null_mask(key)
    if absent is not None:
        out[absent] = 0
    return _rows_of_bytes(out)


def _markers(array: pa.Array) -> pa.Array:
    """One byte per value: 0 for null, 1 otherwise."""
    absent = array.is_null().to_numpy(zero_copy_only=False)
    return _rows_of_bytes((~absent).astype(np.uint8).reshape(-1, 1))


def _headers(array: pa.Array, lengths: Offsets) -> pa.Array:
    """A marker and a length of eight bytes per value, all zero for null."""
    out = np.zeros((len(array), 9), np.uint8)
    out[:, 0] = ~array.is_null().to_numpy(zero_copy_only=False)
    out[:, 1:] = np.ascontiguousarray(lengths.astype(">i8")).view(np.uint8).reshape(-1, 8)
    return _rows_of_bytes(out)


def _rows_of_bytes(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return _binary(offsets, pa.py_buffer(np.ascontiguousarray(rows)))


def _binary(offsets: Offsets, data: pa.Buffer) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers, null_count=0)


def _joined(pieces: list[pa.Array]) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _encode_list(array: pa.Array, lengths: Offsets, elements: pa.Array) -> pa.Array:
    """`elements`: the encodings of all elements of all lists, one list after the other."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    raw = raw_offsets(elements)
    data = elements.buffers()[2] or pa.py_buffer(b"")
    return _joined([_headers(array, lengths), _binary(raw[ends], data)])


def _encode_map(array: pa.Array) -> pa.Array:
    """Encode each map as the list of its entries, sorted by their bytes."""
    lists = map_as_lists(array)
    lengths = list_lengths(lists)
    entries = _encode(lists.flatten())
    owner = pa.array(np.repeat(np.arange(len(array)), lengths))
    order = pc.sort_indices(
        pa.table({"owner": owner, "entry": entries}),
        sort_keys=[("owner", "ascending"), ("entry", "ascending")],
    )
    return _encode_list(array, lengths, entries.take(order))
