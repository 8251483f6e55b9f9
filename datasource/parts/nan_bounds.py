"""Keeps NaN from being lost to the bounds that a Parquet file has of its own columns.

    bounded_columns(table)            the columns of which a file may keep bounds
    float_paths(fields)               where floating-point numbers are that a filter can be about
    trusts_bounds(part, fields)       whether a part's file leaves NaN out of no bounds

NaN is above all numbers for Spark. The Parquet library that writes our files leaves it out of a
column's bounds, and readers that do not know of NaN then pass over the rows that have it: `f > 100`
is false for all numbers up to 50, which is all that the bounds tell. So a file has no bounds of a
column that holds NaN. Files that older versions wrote have them, and are read without their help.

Invariants:
    A part that says `nan_safe` has no bounds, in footer or page index, of a leaf that holds NaN.
    Of any other part bounds are trusted only if its statistics in the state count no NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.shard.batch import Part
from shardline.datasource.types.spark_types import Atomic, Field, Record, path_text

__all__ = ["bounded_columns", "float_paths", "trusts_bounds"]

_FLOATS = (Atomic("float"), Atomic("double"))


def bounded_columns(table: pa.Table) -> list[str] | Literal[True]:
    """The leaves of which a file of `table` may keep bounds, as Parquet names them; True for all.

    Two leaves may have one name, because of a dot in a column's: if one holds NaN, neither counts.
    """
    bare = {
        path
        for name, column in zip(table.column_names, table.columns, strict=True)
        if _has_floats(column.type)
        for chunk in column.chunks
        for path, leaf in _leaves(name, chunk)
        if pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(leaf)).as_py()
    }
    if not bare:
        return True
    leaves = (_leaves(field.name, pa.array([], field.type)) for field in table.schema)
    return [path for found in leaves for path, _ in found if path not in bare]


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The plain arrays inside of `array`, by the paths that Parquet gives them.

    What stands under a null parent may be among the values: a NaN there is no row's, and costs no
    more than bounds.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for position, field in enumerate(kind):
            yield from _leaves(f"{path}.{field.name}", array.field(position))
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def float_paths(fields: Iterable[Field], within: tuple[str, ...] = ()) -> Iterator[str]:
    """Path texts of the floating-point columns and struct fields; no file is asked about others.

    Spark pushes no filter on what is inside of an array or a map down to a file.
    """
    for field in fields:
        path = (*within, field.name)
        if isinstance(field.type, Record):
            yield from float_paths(field.type.fields, path)
        elif field.type in _FLOATS:
            yield path_text(path)


def trusts_bounds(part: Part, paths: Iterable[str]) -> bool:
    """Whether the bounds in the part's file, of the leaves at `paths`, leave out no NaN."""
    if part.nan_safe:
        return True
    wanted = list(paths)
    if not wanted:
        return True
    columns = {} if part.stats is None else part.stats.columns
    return all(path in columns and columns[path].nans == 0 for path in wanted)
