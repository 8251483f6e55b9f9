"""Converts results: tables of Arrow to bytes for the protocol, and to text for programs.

    to_ipc(table), from_ipc(data)      an Arrow IPC stream: what responses carry
    as_json(table)                     a line of JSON for each row
    json_rows(table)                   a list of values for each row, for an encoder of JSON
    as_csv(table)                      a header, then a line for each row
    rows_of(table), value_text(value)  the rows as Python values; one value as a person reads it
    relabel(columns, schema)           columns whose types have other labels, as a table of `schema`
    too_large(limit_bytes)             the error for a result beyond its limit

Invariants:
    Rows and columns keep their order.
    `from_ipc(to_ipc(table))` is `table`, types and nullability included.
    Text of a value is exact: decimals and 64-bit numbers are never rounded.
    Every value has a text: of bytes that are no UTF-8 it is `U+FFFD`.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import python_values

__all__ = [
    "as_csv",
    "as_json",
    "from_ipc",
    "json_rows",
    "relabel",
    "rows_of",
    "to_ipc",
    "too_large",
    "value_text",
]

_ROWS_AT_ONCE: Final = 1 << 12


def to_ipc(table: pa.Table) -> bytes:
    """`table` as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes) -> pa.Table:
    """The table of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def as_json(table: pa.Table) -> Iterator[str]:
    """Each row as one line of JSON, nulls included.

    Numbers that JSON cannot write (`NaN`, `Infinity`) and decimals are text, binary is base64,
    dates and times are as SQL writes them; a map is a list of `{"key", "value"}`.
    """
    names = table.column_names
    for row in rows_of(table):
        values = [_json_value(value) for value in row]
        yield json.dumps(_object(names, values), ensure_ascii=False)


def json_rows(table: pa.Table) -> Iterator[list[Any]]:
    """Each row as a list of values that msgspec encodes as JSON.

    `NaN`, `Infinity` and `-Infinity` are text: JSON has no such numbers, and null means NULL. Dates
    and times are ISO 8601, also those that Python has no value for. A map is a list of pairs.
    """
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        some = [_json_column(column.slice(start, _ROWS_AT_ONCE)) for column in table.columns]
        yield from map(list, zip(*some, strict=True))


def _json_column(column: pa.ChunkedArray) -> list[Any]:
    values = python_values(column, between="T")
    return [_finite_or_text(value) for value in values] if _has_floats(column.type) else values


def _has_floats(kind: pa.DataType) -> bool:
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))


def _finite_or_text(value: Any) -> Any:
    match value:
        case float():
            return value if abs(value) < float("inf") else _float(value)
        case dict():
            return {name: _finite_or_text(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_finite_or_text(inner) for inner in value]
    return value


def as_csv(table: pa.Table) -> str:
    """A header and a line for each row, by RFC 4180; null is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(table.column_names)
    for row in rows_of(table):
        writer.writerow(["" if value is None else value_text(value) for value in row])
    return out.getvalue()


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as Python values, converted 4096 at a time: they take many times Arrow's memory."""
    columns = [_as_text_if_time(column) for column in table.columns]
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        some = [python_values(column.slice(start, _ROWS_AT_ONCE)) for column in columns]
        yield from zip(*some, strict=True)


def _as_text_if_time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and timestamps as text: their range exceeds that of Python's."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    return column


def _object(names: list[str], values: list[Any]) -> dict[str, Any]:
    """Values by name; a repeated name gets a number: `a`, `a_2`."""
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        key, count = name, 1
        while key in found:
            count += 1
            key = f"{name}_{count}"
        found[key] = value
    return found


def _json_value(value: Any) -> Any:
    """A value in a form that JSON can write."""
    if value is None or isinstance(value, (bool, int)):
        return value
    match value:
        case float() if abs(value) < float("inf"):
            return value
        case dict():
            return {str(name): _json_value(inner) for name, inner in value.items()}
        case (key, inner) if isinstance(value, tuple):  # an entry of a map, as Arrow gives it
            return {"key": _json_value(key), "value": _json_value(inner)}
        case list() | tuple():  # a tuple: an interval's months, days and nanoseconds
            return [_json_value(inner) for inner in value]
    return value_text(value)


def _float(value: float) -> str:
    if value != value:  # noqa: PLR0124 - only NaN differs
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def value_text(value: Any) -> str:
    """A value as text for a person; exact."""
    match value:
        case bool():
            text = "true" if value else "false"
        case Decimal():
            text = format(value, "f")
        case float():
            text = repr(value) if abs(value) < float("inf") else _float(value)
        case bytes():
            text = base64.b64encode(value).decode()
        case dt.datetime():
            text = value.isoformat(" ")
        case dict() | list() | tuple():
            text = json.dumps(_json_value(value), ensure_ascii=False)
        case _:
            text = str(value)
    return text


def relabel(columns: Sequence[pa.ChunkedArray], schema: pa.Schema) -> pa.Table:
    """Columns as a table of `schema`, from which only labels differ: time zones of timestamps."""
    # Not where nothing differs: Arrow refuses to cast a struct to its own type if it is NULL
    # somewhere and has fields that never are.
    labelled = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(labelled, schema=schema)


def too_large(limit_bytes: int) -> InvalidUsage:
    """The error for a result beyond its limit."""
    return InvalidUsage(
        f"the result is larger than its limit of {limit_bytes:,} bytes",
        code="RESULT_TOO_LARGE",
        hint="ask for fewer rows or columns (WHERE, LIMIT, an aggregate), raise the limit, or "
        "make it a view with a sink",
    )
