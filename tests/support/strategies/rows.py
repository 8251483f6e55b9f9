"""Hypothesis strategies for schemas and rows of every Spark type, and a plain model of updates.

Rows are generated as plain Python values *before* Arrow sees them, so that a test's expectation
never passes through the code it checks. Dates, times and intervals are plain integers, because
Python's own types have a smaller range. `plain` turns Arrow back into the same form, and `identity`
says which plain values are one value.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from shardline.datasource.rows.updates import update_schema
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Array, Atomic, Map, Record, SparkType
from support.profiles import wide_examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = tuple[Any, ...]

PLAIN_TYPES = (
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "decimal(1,0)",
    "decimal(9,4)",
    "decimal(18,18)",
    "decimal(19,2)",
    "decimal(38,10)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "interval hour",
    "time(6)",
)
OTHER_TYPES = ("void", "variant", "geometry(OGC:CRS84)", "geography(OGC:CRS84, SPHERICAL)")

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "date": 32}


def json_types(depth: int = 3) -> st.SearchStrategy[Any]:
    """Spark's JSON for any type, nested up to `depth`."""
    plain = st.sampled_from(PLAIN_TYPES + OTHER_TYPES)
    if depth == 0:
        return plain
    inner = json_types(depth - 1)
    keys = st.sampled_from(PLAIN_TYPES)
    arrays = st.builds(
        lambda e, n: {"type": "array", "elementType": e, "containsNull": n or e == "void"},
        inner,
        st.booleans(),
    )
    maps = st.builds(
        lambda k, v, n: {
            "type": "map",
            "keyType": k,
            "valueType": v,
            "valueContainsNull": n or v == "void",
        },
        keys,
        inner,
        st.booleans(),
    )
    structs = json_records(inner)
    return st.one_of(plain, plain, arrays, maps, structs)


def json_records(
    types: st.SearchStrategy[Any] | None = None, most: int = 4
) -> st.SearchStrategy[dict[str, Any]]:
    """Spark's JSON for a struct with columns `c0`, `c1` …; void columns are always nullable."""
    return st.lists(
        st.tuples(json_types() if types is None else types, st.booleans()),
        min_size=1,
        max_size=most,
    ).map(
        lambda fields: {
            "type": "struct",
            "fields": [
                {"name": f"c{i}", "type": t, "nullable": n or t == "void", "metadata": {}}
                for i, (t, n) in enumerate(fields)
            ],
        }
    )


def schemas(
    types: st.SearchStrategy[Any] | None = None, most: int = 4
) -> st.SearchStrategy[ShardSchema]:
    """Schemas of one to `most` columns."""
    return json_records(types, most=most).map(lambda v: ShardSchema.parse(json.dumps(v)))


# --- values ------------------------------------------------------------------------------------


def values(kind: SparkType, *, nullable: bool) -> st.SearchStrategy[Any]:
    """Plain values of a type; small pools, so that equal ones meet, and the extremes."""
    found = _values(kind)
    return st.none() | found if nullable else found


def _values(kind: SparkType) -> st.SearchStrategy[Any]:
    match kind:
        case Atomic(name):
            return _atoms(name)
        case Array(element, nullable):
            return st.lists(values(element, nullable=nullable), max_size=3)
        case Map(key, value, nullable):
            item = values(value, nullable=nullable)
            return st.lists(
                st.tuples(_values(key), item), max_size=3, unique_by=lambda e: identity(e[0], key)
            )
        case Record(fields):
            return st.tuples(*(values(f.type, nullable=f.nullable) for f in fields))


def _atoms(name: str) -> st.SearchStrategy[Any]:
    if name in _BITS:
        return integers(_BITS[name])
    if name.startswith("decimal("):
        precision, scale = (int(x) for x in name[8:-1].split(","))
        most = 10**precision - 1
        unscaled = st.sampled_from([0, 1, -1, most, -most, 7]) | st.integers(-most, most)
        return unscaled.map(lambda u: Decimal((int(u < 0), tuple(map(int, str(abs(u)))), -scale)))
    if name.startswith(("geometry", "geography")):
        return st.tuples(st.just(4326), st.binary(max_size=3))
    if name.startswith("time("):
        return st.integers(0, 86_399_999_999).map(lambda us: us * 1000)
    if name.startswith(("timestamp", "interval")):
        return integers(64)
    return _NAMED[name]


def integers(bits: int) -> st.SearchStrategy[int]:
    top = 2 ** (bits - 1)
    return st.sampled_from([0, 1, -1, top - 1, -top]) | st.integers(-top, top - 1)


_FLOATS = st.sampled_from(
    [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5, 2.0**-126]
)
_TEXTS = st.sampled_from(
    ["", "a", "a\0", "ab", "é", "\U0010ffff", "\ud7ff", "abcdefgh", "abcdefghi"]
)

_NAMED: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "float": _FLOATS | st.floats(width=32),
    "double": _FLOATS | st.floats(),
    "string": _TEXTS | st.text(max_size=20),
    "binary": st.sampled_from([b"", b"\0", b"\0\0", b"\xff" * 9]) | st.binary(max_size=20),
    "void": st.none(),
    "variant": st.tuples(st.binary(max_size=2), st.binary(max_size=2)),
}


def rows(schema: ShardSchema, most: int = 12) -> st.SearchStrategy[list[Row]]:
    """Rows of a schema as tuples of plain values; some repeat."""
    columns = [values(f.type, nullable=f.nullable) for f in schema.record.fields]
    distinct = st.lists(st.tuples(*columns), min_size=1, max_size=most)
    return distinct.flatmap(
        lambda some: st.lists(st.sampled_from(some), max_size=most).map(lambda more: some + more)
    ) | st.just([])


@dataclass(frozen=True)
class Case:
    """A schema, plain rows of it, and the same rows in Arrow."""

    schema: ShardSchema
    rows: list[Row]
    table: pa.Table


@st.composite
def cases(draw: st.DrawFn, types: st.SearchStrategy[Any] | None = None, most: int = 12) -> Case:
    """A random schema with a random table, cut in random chunks with random slices."""
    schema = draw(schemas(types))
    some = draw(rows(schema, most))
    return Case(schema, some, cut(to_table(some, schema), draw(st.lists(st.integers(0, most)))))


def cut(table: pa.Table, places: Iterable[int]) -> pa.Table:
    """The same table in chunks that begin at `places`, slices of larger arrays."""
    borders = [0, *sorted(p for p in places if p <= table.num_rows), table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in pairwise(borders)]
    return pa.concat_tables(pieces)


def to_table(some: Sequence[Row], schema: ShardSchema) -> pa.Table:
    """Plain rows as an Arrow table of exactly the schema."""
    columns = [
        pa.array([_for_arrow(row[i], f.type) for row in some], schema.arrow.field(i).type)
        for i, f in enumerate(schema.record.fields)
    ]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


_TUPLE_NAMES = {"variant": ("value", "metadata"), "geo": ("srid", "wkb")}


def _for_arrow(value: Any, kind: SparkType) -> Any:
    if value is None:
        return None
    match kind:
        case Array(element, _):
            return [_for_arrow(v, element) for v in value]
        case Map(key, item, _):
            return [(_for_arrow(k, key), _for_arrow(v, item)) for k, v in value]
        case Record(fields):
            return {f.name: _for_arrow(v, f.type) for f, v in zip(fields, value, strict=True)}
        case Atomic(name) if isinstance(value, tuple):
            return dict(
                zip(_TUPLE_NAMES["variant" if name == "variant" else "geo"], value, strict=True)
            )
    return value


def plain(scalar: Any) -> Any:
    """An Arrow scalar as the plain value it was made from."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.MapScalar):
        return [(plain(e["key"]), plain(e["value"])) for e in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [plain(v) for v in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return tuple(plain(scalar[i]) for i in range(len(scalar.type)))
    if isinstance(
        scalar, (pa.Date32Scalar, pa.TimestampScalar, pa.DurationScalar, pa.Time64Scalar)
    ):
        return scalar.value
    return scalar.as_py()


def plain_rows(table: pa.Table, columns: Sequence[str] | None = None) -> list[Row]:
    """The rows of a table as tuples of plain values."""
    names = table.column_names if columns is None else columns
    return list(zip(*([plain(v) for v in table.column(n)] for n in names), strict=True))


# --- the model ---------------------------------------------------------------------------------


def identity(value: Any, kind: SparkType) -> Any:
    """A hashable that is equal for two plain values exactly when they are the same value."""
    if value is None:
        return None
    match kind:
        case Array(element, _):
            return tuple(identity(v, element) for v in value)
        case Map(key, item, _):
            return frozenset(
                Counter((identity(k, key), identity(v, item)) for k, v in value).items()
            )
        case Record(fields):
            return ("row", *(identity(v, f.type) for f, v in zip(fields, value, strict=True)))
        case Atomic("float" | "double"):
            return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def row_identity(row: Row, schema: ShardSchema) -> Row:
    return tuple(identity(v, f.type) for v, f in zip(row, schema.record.fields, strict=True))


def summed(updates: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    """The model of consolidation: the sum of diffs per key, without zeros."""
    total: Counter[Any] = Counter()
    for key, diff in updates:
        total[key] += diff
    return {key: diff for key, diff in total.items() if diff}


def updates_of(case: Case, times: Sequence[int], diffs: Sequence[int]) -> pa.Table:
    """The case's rows as updates, row by row."""
    columns = [pa.array(times, pa.int64()), pa.array(diffs, pa.int64())]
    schema = update_schema(case.table.schema)
    return pa.Table.from_arrays([*case.table.columns, *columns], schema=schema)


def contents(updates: pa.Table, case: Case) -> list[tuple[Any, int]]:
    """Identity, time and diff of each update, in order."""
    ids = [row_identity(r, case.schema) for r in plain_rows(updates, case.schema.names)]
    keys = zip(ids, updates["_ts"].to_pylist(), strict=True)
    return list(zip(keys, updates["_diff"].to_pylist(), strict=True))


bounded = wide_examples()
"""Every strategy here is wide: its properties get as many examples as the profile says."""

ample = wide_examples(2.5)
"""For properties that are too slow for the fast run anyway."""
