"""Casts Arrow data to a shard's schema, without loss or with an error that names the column.

    check_data(table, schema)          data of a writer: exactly these columns, types, nullability
    migrate_rows(data, from, to)       data of an older schema as data of a newer one

Both are vectorised at every depth, and both accept and keep the columns `_ts` and `_diff`.

Invariants:
    - A value is converted exactly or refused (`LOSSY_VALUE`); nothing is truncated or rounded.
    - `migrate_rows` keeps order and identity: rows sorted by `row_keys` stay sorted, and two rows
      are the same value after it exactly when they were before.
    - Results have exactly the schema's Arrow types, child names and nullability included.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.errors import InvalidUsage, nearest_name
from shardline.datasource.types.arrow_to_spark import neutral_type
from shardline.datasource.types.nested_arrays import list_lengths, map_as_lists, validity_bitmap
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from shardline.datasource.types.spark_types import arrow_field, path_text

__all__ = ["check_data", "convert", "migrate_rows"]

Data = TypeVar("Data", pa.Table, pa.RecordBatch)

Path = tuple[str, ...]


def check_data(data: Data, schema: ShardSchema) -> Data:
    """`data` under exactly `schema.arrow`, then `_ts` and `_diff` if it has them.

    Columns are matched by name, in any order. Arrow types that hold the same values as the
    schema's (large strings, dictionaries, coarser time units) are cast.

    Raises:
        InvalidUsage: `MISSING_COLUMN`, `EXTRA_COLUMN`, `WRONG_TYPE`, `NULL_VALUE` or
            `LOSSY_VALUE`; the message names the column.
    """
    if data.schema.equals(schema.arrow) and not any(_is_required(field) for field in schema.arrow):
        return data  # the usual case: in tiny appends such checks would take most of the time
    _check_names(data.column_names, schema)
    columns = [_checked(data.column(f.name), f) for f in schema.arrow]
    return _assemble(data, columns, list(schema.arrow))


def migrate_rows(data: Data, from_schema: ShardSchema, to_schema: ShardSchema) -> Data:
    """`data`, written under `from_schema`, as rows of `to_schema`.

    Columns that `from_schema` lacks become null; types are widened. `to_schema` must be what
    `evolve` allowed, or a projection of it: columns that it lacks are dropped.

    Raises:
        InvalidUsage: `LOSSY_VALUE` when a value does not fit the wider type (a date beyond the
            range of timestamps).
    """
    columns = []
    for field in to_schema.record.fields:
        target = arrow_field(field).type
        if field.name in from_schema:
            columns.append(_each_chunk(data.column(field.name), target, (field.name,)))
        else:
            assert field.nullable, f"column {field.name!r} was added but is not nullable"
            columns.append(_nulls_like(data, target))
    return _assemble(data, columns, list(to_schema.arrow))


def _assemble(data: Data, columns: list[pa.Array], fields: list[pa.Field]) -> Data:
    for name in (TS, DIFF):
        if name in data.column_names:
            column = data.column(name)
            if column.type != pa.int64() or column.null_count:
                raise InvalidUsage(
                    f"column '{name}' must be int64 without nulls, not {column.type} with "
                    f"{column.null_count} nulls",
                    code="WRONG_TYPE",
                )
            columns.append(column)
            fields.append(pa.field(name, pa.int64(), nullable=False))
    return type(data).from_arrays(columns, schema=pa.schema(fields))


def _nulls_like(data: pa.Table | pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pa.nulls(data.num_rows, kind)


# --- checks ------------------------------------------------------------------------------------


def _check_names(names: list[str], schema: ShardSchema) -> None:
    for name in schema.names:
        if name not in names:
            near = nearest_name(name, set(names) - set(schema.names))
            hint = f"rename '{near}'?" if near else "add it, with nulls if it has no values"
            raise InvalidUsage(f"the data has no column '{name}'", code="MISSING_COLUMN", hint=hint)
        if names.count(name) > 1:
            raise InvalidUsage(f"the data has column '{name}' twice", code="DUPLICATE_COLUMN")
    for name in names:
        if name not in schema and name not in (TS, DIFF):
            raise InvalidUsage(
                f"the data has a column '{name}' that the shard does not have",
                code="EXTRA_COLUMN",
                hint="drop it, or evolve the schema first",
            )


def _checked(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if not neutral_type(column.type).equals(neutral_type(field.type)):
        raise InvalidUsage(
            f"column '{field.name}' has the type {column.type} where the shard has {field.type}",
            code="WRONG_TYPE",
            hint="cast it, or evolve the schema first",
        )
    result = _each_chunk(column, field.type, (field.name,))
    if _is_required(field):
        for chunk in result.chunks if isinstance(result, pa.ChunkedArray) else [result]:
            _refuse_nulls(chunk, field, ())
    return result


def _is_required(field: pa.Field) -> bool:
    """True if `field`, or any field inside of it, must not be null."""
    return not field.nullable or any(_is_required(child) for child in _children(field.type))


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def _refuse_nulls(array: pa.Array, field: pa.Field, path: Path) -> None:
    here = (*path, field.name)
    if array.null_count:
        if not field.nullable:
            raise InvalidUsage(
                f"column '{path_text(here)}' has {array.null_count} nulls but is not nullable",
                code="NULL_VALUE",
                hint="filter or fill them, or evolve the column to nullable",
            )
        array = array.drop_null()
    if not any(_is_required(child) for child in _children(field.type)):
        return
    for child, values in zip(_children(field.type), _child_arrays(array), strict=True):
        _refuse_nulls(values, child, here)


def _child_arrays(array: pa.Array) -> list[pa.Array]:
    """The children of an array without nulls, cut to what its slice refers to."""
    if isinstance(array, pa.StructArray):
        return list(array.flatten())
    if isinstance(array, pa.MapArray):
        return [map_as_lists(array).flatten()]
    return [array.flatten()]


# --- conversion --------------------------------------------------------------------------------


def _each_chunk(
    column: pa.Array | pa.ChunkedArray, target: pa.DataType, path: Path
) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([convert(c, target, path) for c in column.chunks], target)
    return convert(column, target, path)


def convert(array: pa.Array, target: pa.DataType, path: Path) -> pa.Array:
    """`array` as `target`: structs by field name, missing fields null, plain values cast exactly.

    Raises:
        InvalidUsage: `LOSSY_VALUE` with `path` when a value has no exact counterpart.
    """
    if array.type.equals(target, check_metadata=True):
        return array
    if pa.types.is_dictionary(array.type):
        return convert(array.dictionary_decode(), target, path)
    if pa.types.is_map(target):
        return _convert_map(array, target, path)
    if pa.types.is_list(target):
        return _convert_list(array, target, path)
    if pa.types.is_struct(target):
        return _convert_struct(array, target, path)
    try:
        return pc.cast(array, target, safe=True)
    except pa.ArrowInvalid as cause:
        raise InvalidUsage(
            f"column '{path_text(path)}' holds a value that does not fit {target}: {cause}",
            code="LOSSY_VALUE",
            hint="correct the value, or choose another type",
        ) from cause


def _convert_struct(array: pa.StructArray, target: pa.StructType, path: Path) -> pa.Array:
    present = {f.name: values for f, values in zip(array.type, array.flatten(), strict=True)}
    children = [
        convert(present[f.name], f.type, (*path, f.name))
        if f.name in present
        else pa.nulls(len(array), f.type)
        for f in target
    ]
    return pa.Array.from_buffers(
        target, len(array), [validity_bitmap(array)], array.null_count, children=children
    )


def _convert_list(array: pa.Array, target: pa.ListType, path: Path) -> pa.Array:
    if not pa.types.is_list(array.type):
        array = pc.cast(array, pa.list_(array.type.value_field))
    child = convert(array.flatten(), target.value_type, (*path, "element"))
    return _with_lengths(array, target, child)


def _convert_map(array: pa.MapArray, target: pa.MapType, path: Path) -> pa.Array:
    entries = map_as_lists(array).flatten()
    keys = convert(entries.field(0), target.key_type, (*path, "key"))
    items = convert(entries.field(1), target.item_type, (*path, "value"))
    kind = pa.struct([target.key_field, target.item_field])
    child = pa.StructArray.from_arrays([keys, items], fields=list(kind))
    return _with_lengths(array, target, child)


def _with_lengths(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """A list or map array shaped like `array` over the flattened, converted values `child`."""
    offsets = np.concatenate([[0], np.cumsum(list_lengths(array))])
    buffers = [validity_bitmap(array), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, children=[child])
