"""Maps Arrow types to the Spark types of the same values, for data that did not come from Spark.

`spark_record` is the inverse of `spark_types.arrow_type` where that is possible and refuses other
types by column path. `neutral_type` maps every Arrow type to the one representative that Spark uses
for the same values, so that "large_string or a dictionary of strings is as good as string" is
decided in one place.

Invariants:
    - `neutral_type` never maps two types to one unless a safe cast between them keeps every value
      or fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.spark_types import (
    Array,
    Atomic,
    Field,
    Map,
    Record,
    SparkType,
    arrow_type,
    path_text,
)

__all__ = ["neutral_type", "spark_record"]


_BY_ARROW: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "null": "void",
    "time32[s]": "time(6)",
    "time32[ms]": "time(6)",
    "time64[us]": "time(6)",
    "time64[ns]": "time(6)",
    "duration[s]": "interval day to second",
    "duration[ms]": "interval day to second",
    "duration[us]": "interval day to second",
}

_ARROW_METADATA: Final = b"SPARK::metadata::json"


def spark_record(schema: pa.Schema) -> Record:
    """The Spark types of `schema`'s columns, with Spark's own metadata where fields have it.

    Raises:
        InvalidUsage: `UNSUPPORTED_TYPE` with the column's path.
    """
    return Record(tuple(_spark_field(f, ()) for f in schema))


def neutral_type(kind: pa.DataType) -> pa.DataType:
    """The representative of all Arrow types with the same values, without nullability and names.

    Types that no Spark type holds are their own representative.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return neutral_type(kind.value_type)
    if types.is_map(kind):
        return pa.map_(neutral_type(kind.key_type), neutral_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(neutral_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, neutral_type(f.type)) for f in kind])
    try:
        return arrow_type(Atomic(_spark_name(kind, ())))
    except InvalidUsage:
        return kind


def _spark_field(field: pa.Field, path: tuple[str, ...]) -> Field:
    here = (*path, field.name)
    carried = (field.metadata or {}).get(_ARROW_METADATA, b"{}").decode()
    metadata = json.dumps(json.loads(carried), separators=(",", ":"), sort_keys=True)
    return Field(field.name, _spark_type(field.type, here), field.nullable, metadata)


def _spark_type(kind: pa.DataType, path: tuple[str, ...]) -> SparkType:
    types = pa.types
    if types.is_dictionary(kind):
        return _spark_type(kind.value_type, path)
    if types.is_map(kind):
        key = _spark_type(kind.key_type, (*path, "key"))
        return Map(key, _spark_type(kind.item_type, (*path, "value")), kind.item_field.nullable)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _spark_type(kind.value_type, (*path, "element"))
        return Array(inner, kind.value_field.nullable)
    if types.is_struct(kind):
        return _tagged(kind) or Record(tuple(_spark_field(f, path) for f in kind))
    return Atomic(_spark_name(kind, path))


def _tagged(kind: pa.StructType) -> Atomic | None:
    """The type whose values Spark passes as a struct with a tag in a field's metadata, if any."""
    for field in kind:
        tags = field.metadata or {}
        if b"variant" in tags:
            return Atomic("variant")
        for name in ("geometry", "geography"):
            if name.encode() in tags and tags.get(b"srid") in _CRS:
                return Atomic(f"{name}({_CRS[tags[b'srid']]}{_ALGORITHM[name]})")
    return None


_CRS: Final[Mapping[bytes, str]] = {
    b"0": "SRID:0",
    b"3857": "EPSG:3857",
    b"4326": "OGC:CRS84",
    b"-1": "SRID:ANY",
}
_ALGORITHM: Final[Mapping[str, str]] = {"geometry": "", "geography": ", SPHERICAL"}


def _spark_name(kind: pa.DataType, path: tuple[str, ...]) -> str:
    types = pa.types
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_decimal32(kind) or types.is_decimal64(kind) or types.is_decimal128(kind):
        if 0 <= kind.scale <= kind.precision:
            return f"decimal({kind.precision},{kind.scale})"
    elif types.is_fixed_size_binary(kind):
        return "binary"
    name = _BY_ARROW.get(str(kind))
    if name is None:
        raise InvalidUsage(
            f"column '{path_text(path)}' has the Arrow type {kind}, which no Spark type holds "
            "without loss",
            code="UNSUPPORTED_TYPE",
            hint="cast it first: unsigned integers to the next wider signed one, nanosecond "
            "timestamps to microseconds",
        )
    return name
