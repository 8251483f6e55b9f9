"""Represents Spark's data types as values, parsed from Spark's own JSON text without Spark.

A schema travels as the JSON text of a `StructType` (the same text Delta keeps as `schemaString`),
because it is the one form that loses nothing: collations, interval ranges and time precisions
have no place in an Arrow type. `parse_record` reads that text, `record_json` writes it back in
canonical form (keys sorted, no blanks: what `StructType.json()` gives), and `arrow_type` derives
what PySpark's `to_arrow_type(…, timezone="UTC")` derives.

Types that never reach a source or sink as themselves are refused by column path: year-month and
calendar intervals, char and varchar (Spark hands both over as string), user-defined types. So are
two that Arrow or Parquet cannot hold: void that may not be null, and structs without fields.

Invariants:
    - Two types are equal exactly when their canonical JSON is.
    - `parse_record(record_json(t)) == t`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shardline.datasource.errors import InvalidUsage

__all__ = [
    "COLLATIONS",
    "Array",
    "Atomic",
    "Field",
    "Map",
    "Record",
    "SparkType",
    "arrow_field",
    "arrow_type",
    "decimal_of",
    "parse_record",
    "path_text",
    "record_json",
    "type_text",
]

COLLATIONS: Final = "__COLLATIONS"
"""Field metadata key under which Spark keeps the collations of the strings inside a field."""

_ARROW_METADATA: Final = b"SPARK::metadata::json"

_SRIDS: Final[Mapping[str, int]] = {
    "SRID:0": 0,
    "EPSG:3857": 3857,
    "OGC:CRS84": 4326,
    "SRID:ANY": -1,
}

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ],
    ),
}

_DECIMAL_DIGITS: Final = 38

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_TIME = re.compile(r"time\(\s*([0-9])\s*\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)(?: to (day|hour|minute|second))?")
_COLLATED = re.compile(r"string collate (\w+)")
_SPATIAL = re.compile(r"(geometry|geography)(?:\(\s*(\w+:-?\w+)\s*(?:,\s*SPHERICAL\s*)?\))?")


@dataclass(frozen=True, slots=True)
class Atomic:
    """A type without inner types; `name` is Spark's canonical text for it."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    """`array<element>`; `nullable` is True if an element may be null."""

    element: SparkType
    nullable: bool


@dataclass(frozen=True, slots=True)
class Map:
    """`map<key, value>`; `nullable` is True if a value may be null, a key never is."""

    key: SparkType
    value: SparkType
    nullable: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a record. `metadata` is canonical JSON text, `"{}"` when there is none."""

    name: str
    type: SparkType
    nullable: bool
    metadata: str = "{}"

    @property
    def collations(self) -> str:
        """The collations of this field's strings as JSON text, `"null"` for plain byte order."""
        return _dump(json.loads(self.metadata).get(COLLATIONS))


@dataclass(frozen=True, slots=True)
class Record:
    """`struct<…>`; a schema is a record too."""

    fields: tuple[Field, ...]


SparkType = Atomic | Array | Map | Record


def path_text(path: tuple[str, ...]) -> str:
    """`("a", "b.c")` as Spark writes it: ``a.`b.c` ``."""
    return ".".join(_quoted(name) for name in path)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`" if "." in name or "`" in name or not name else name


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


# --- from JSON ---------------------------------------------------------------------------------


def parse_record(text: str) -> Record:
    """Parse Spark's JSON text of a struct type.

    Raises:
        InvalidUsage: `SCHEMA_UNREADABLE` if the text is no struct type; `UNSUPPORTED_TYPE` or
            `DUPLICATE_COLUMN` with the column's path.
    """
    try:
        value = json.loads(text)
        parsed = _parse(value, ())
    except RecursionError as cause:
        raise _unreadable("it is nested without end") from cause
    except ValueError as cause:
        raise _unreadable(f"it is not JSON: {cause}") from cause
    if not isinstance(parsed, Record):
        raise _unreadable(f"its type is {_dump(value)} where a struct is needed")
    return parsed


def _parse(value: object, path: tuple[str, ...]) -> SparkType:
    match value:
        case str(name):
            return Atomic(_canonical_name(name, path))
        case {"type": "array", "elementType": element, "containsNull": bool(nullable)}:
            inner = (*path, "element")
            return Array(_check_void(_parse(element, inner), nullable, inner), nullable)
        case {
            "type": "map",
            "keyType": key,
            "valueType": item,
            "valueContainsNull": bool(nullable),
        }:
            to_key, to_item = (*path, "key"), (*path, "value")
            key_type = _check_void(_parse(key, to_key), False, to_key)
            return Map(key_type, _check_void(_parse(item, to_item), nullable, to_item), nullable)
        case {"type": "struct", "fields": list(fields)}:
            if path and not fields:
                raise _unsupported("struct<> (Parquet has no struct without fields)", path)
            return _check_distinct(Record(tuple(_parse_field(f, path) for f in fields)), path)
        case {"type": "udt"}:
            raise _unsupported("a user-defined type", path)
    raise _unreadable(f"column '{path_text(path)}' has the type {_dump(value)}")


def _parse_field(value: object, path: tuple[str, ...]) -> Field:
    match value:
        case {"name": str(name), "type": kind, **rest}:
            metadata = _dump(rest.get("metadata") or {})
            nullable = bool(rest.get("nullable", True))
            here = (*path, name)
            return Field(name, _check_void(_parse(kind, here), nullable, here), nullable, metadata)
    raise _unreadable(f"'{path_text(path)}' holds {_dump(value)} where a field is needed")


def _check_void(kind: SparkType, nullable: bool, path: tuple[str, ...]) -> SparkType:  # noqa: FBT001
    """`kind`; refuses void where null is not allowed, since it has no other value."""
    if kind == Atomic("void") and not nullable:
        raise _unsupported("void without nulls (as of an empty array literal)", path)
    return kind


def _canonical_name(name: str, path: tuple[str, ...]) -> str:
    if name in _PLAIN or _COLLATED.fullmatch(name):
        return name
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= _DECIMAL_DIGITS and scale <= precision:
            return f"decimal({precision},{scale})"
    if found := _TIME.fullmatch(name):
        return f"time({found[1]})"
    if found := _DAY_TIME.fullmatch(name):
        first, last = found[1], found[2]
        return f"interval {first}" if last in (None, first) else f"interval {first} to {last}"
    if (found := _SPATIAL.fullmatch(name)) and (found[2] or "OGC:CRS84") in _SRIDS:
        tail = ", SPHERICAL" if found[1] == "geography" else ""
        return f"{found[1]}({found[2] or 'OGC:CRS84'}{tail})"
    if name == "decimal":
        return "decimal(10,0)"
    raise _unsupported(f"'{name}'", path)


def _check_distinct(record: Record, path: tuple[str, ...]) -> Record:
    seen: set[str] = set()
    for field in record.fields:
        if field.name.lower() in seen:
            where = path_text((*path, field.name))
            raise InvalidUsage(
                f"column '{where}' appears twice (upper and lower case count as the same)",
                code="DUPLICATE_COLUMN",
                hint="rename one of them",
            )
        seen.add(field.name.lower())
    return record


def _unreadable(why: str) -> InvalidUsage:
    return InvalidUsage(
        f"cannot read a schema: {why}",
        code="SCHEMA_UNREADABLE",
        hint="pass the text of StructType.json()",
    )


def _unsupported(what: str, path: tuple[str, ...]) -> InvalidUsage:
    return InvalidUsage(
        f"column '{path_text(path)}' has the type {what.strip()}, which a shard cannot hold",
        code="UNSUPPORTED_TYPE",
        hint="cast it before writing: intervals of months to int, char and varchar to string, "
        "user-defined types to their SQL type",
    )


# --- to JSON and Arrow -------------------------------------------------------------------------


def record_json(record: Record) -> str:
    """The canonical text: equal text, equal schema."""
    return _dump(_json_value(record))


def _json_value(kind: SparkType) -> object:
    match kind:
        case Atomic(name):
            return name
        case Array(element, nullable):
            inner = _json_value(element)
            return {"type": "array", "elementType": inner, "containsNull": nullable}
        case Map(key, value, nullable):
            return {
                "type": "map",
                "keyType": _json_value(key),
                "valueType": _json_value(value),
                "valueContainsNull": nullable,
            }
        case Record(fields):
            return {"type": "struct", "fields": [_field_value(f) for f in fields]}


def _field_value(field: Field) -> dict[str, object]:
    return {
        "name": field.name,
        "type": _json_value(field.type),
        "nullable": field.nullable,
        "metadata": json.loads(field.metadata),
    }


def arrow_type(kind: SparkType) -> pa.DataType:
    """The Arrow type in which Spark passes values of `kind` to Python."""
    match kind:
        case Atomic(name):
            return _PLAIN[name] if name in _PLAIN else _parametric(name)
        case Array(element, nullable):
            return pa.list_(pa.field("element", arrow_type(element), nullable=nullable))
        case Map(key, value, nullable):
            return pa.map_(
                pa.field("key", arrow_type(key), nullable=False),
                pa.field("value", arrow_type(value), nullable=nullable),
            )
        case Record(fields):
            return pa.struct([arrow_field(f) for f in fields])


def arrow_field(field: Field) -> pa.Field:
    """The Arrow field, with Spark's metadata except collations, as in PySpark."""
    metadata = json.loads(field.metadata)
    metadata.pop(COLLATIONS, None)
    carried = {_ARROW_METADATA: json.dumps(metadata).encode()} if metadata else None
    return pa.field(field.name, arrow_type(field.type), field.nullable, carried)


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale if `name` is a decimal type."""
    found = _DECIMAL.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def _parametric(name: str) -> pa.DataType:
    if precision_and_scale := decimal_of(name):
        return pa.decimal128(*precision_and_scale)
    if name.startswith("time("):
        return pa.time64("ns")
    if name.startswith("interval "):
        return pa.duration("us")
    if name.startswith("string collate "):
        return pa.string()
    spatial = _SPATIAL.fullmatch(name)
    assert spatial is not None, name
    tag = {spatial[1].encode(): b"true", b"srid": str(_SRIDS[spatial[2]]).encode()}
    return pa.struct(
        [
            pa.field("srid", pa.int32(), nullable=False),
            pa.field("wkb", pa.binary(), nullable=False, metadata=tag),
        ],
    )


def type_text(kind: SparkType) -> str:
    """`kind` in one line for messages, with Spark's JSON names: `array<long>`."""
    match kind:
        case Atomic(name):
            return name
        case Array(element, _):
            return f"array<{type_text(element)}>"
        case Map(key, value, _):
            return f"map<{type_text(key)},{type_text(value)}>"
        case Record(fields):
            inner = ",".join(f"{_quoted(f.name)}:{type_text(f.type)}" for f in fields)
            return f"struct<{inner}>"
