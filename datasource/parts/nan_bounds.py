"""Decides for which columns a Parquet file has min/max bounds, so that filters lose no NaN.

    bounded_columns(table)            the columns for which a file may have bounds
    leaf_arrays(path, array)          the leaves of a column, by the paths that Parquet gives them
    float_paths(fields)               paths of the floating-point columns that a filter can be about
    trusts_bounds(part, paths)        True if no bound in the part's file leaves out a NaN

For Spark, NaN is greater than all numbers. The Parquet library that writes our files leaves it out
of a column's bounds, and readers that ignore this then skip the rows that have it: with bounds up
to 50, `f > 100` seems false for every row, and is true for NaN. So a file has no bounds for a
column that holds NaN. Files of older versions have them; these are read without using their bounds.

Invariants:
    A part with `nan_safe` has no bounds, in footer or page index, of a leaf that holds NaN.
    Bounds of any other part are trusted only if its statistics in the state count no NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.shard.batch import Part
from shardline.datasource.types.spark_types import Atomic, Field, Record, path_text

__all__ = ["bounded_columns", "float_paths", "leaf_arrays", "trusts_bounds"]

_FLOATS = (Atomic("float"), Atomic("double"))


def bounded_columns(table: pa.Table) -> list[str] | Literal[True]:
    """The leaves for which a file of `table` may have bounds, by Parquet's names; True for all.

    A dot in a column's name can give two leaves one name: if one holds NaN, neither has bounds.
    """
    bare = {
        path
        for name, column in zip(table.column_names, table.columns, strict=True)
        if _has_floats(column.type)
        for chunk in column.chunks
        for path, leaf in leaf_arrays(name, chunk)
        if pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(leaf)).as_py()
    }
    if not bare:
        return True
    leaves = (leaf_arrays(field.name, pa.array([], field.type)) for field in table.schema)
    return [path for found in leaves for path, _ in found if path not in bare]


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def leaf_arrays(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The leaf arrays inside of `array`, by the paths that Parquet gives them.

    Values below a null parent may be among them: a NaN there belongs to no row, and only costs the
    bounds of the leaf.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for position, field in enumerate(kind):
            yield from leaf_arrays(f"{path}.{field.name}", array.field(position))
    elif pa.types.is_map(kind):
        yield from leaf_arrays(f"{path}.key_value.key", array.keys)
        yield from leaf_arrays(f"{path}.key_value.value", array.items)
    elif pa.types.is_nested(kind):
        yield from leaf_arrays(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def float_paths(fields: Iterable[Field], within: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the floating-point columns and struct fields, as text.

    Arrays and maps are left out: Spark pushes down no filter on their elements.
    """
    for field in fields:
        path = (*within, field.name)
        if isinstance(field.type, Record):
            yield from float_paths(field.type.fields, path)
        elif field.type in _FLOATS:
            yield path_text(path)


def trusts_bounds(part: Part, paths: Iterable[str]) -> bool:
    """True if the bounds in the part's file, for the leaves at `paths`, leave out no NaN."""
    if part.nan_safe:
        return True
    wanted = list(paths)
    if not wanted:
        return True
    columns = {} if part.stats is None else part.stats.columns
    return all(path in columns and columns[path].nans == 0 for path in wanted)
