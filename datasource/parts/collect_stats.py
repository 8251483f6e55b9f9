"""Collects the statistics of a part from its rows, within a budget of bytes.

    collect_part_stats(table, schema, keep) -> PartStats
    exact_part_stats(table, schema) -> PartStats             all columns, nothing shortened

Statistics live in the shard's state, which every process reads, so they must stay small. If they
are too large, the bounds of text are shortened first: the lower one to a prefix, the upper one to
an incremented prefix, so that both remain bounds. Then whole columns are dropped, the largest
first. Time-like columns (`ts`, `…_at`, `…time`) and those in `keep` are never dropped: they prune
best.

Invariants:
    - All that `types.stats` promises of a `PartStats`.
    - Bounds of text are valid UTF-8; a column with other text has none.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.types.row_keys import surrogate
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Field, Record, path_text
from shardline.datasource.types.stats import (
    BUDGET_BYTES,
    ColumnStats,
    Kind,
    PartStats,
    kind_of,
    stats_size,
)

__all__ = ["collect_part_stats", "exact_part_stats"]

_TEXT_BYTES: Final = (64, 32, 16, 8)
"""Lengths of a bound of text, tried in turn until the budget is met."""

_LAST_POINT: Final = 0x10FFFF
_BEFORE_SURROGATES: Final = 0xD7FF
_AFTER_SURROGATES: Final = 0xE000

_TIME_LIKE = re.compile(
    r"ts|receivedat|createdat|_fivetran_deleted|last_.*|.*(timestamp|time|_at|_tstamp)"
)


def collect_part_stats(
    table: pa.Table,
    schema: ShardSchema,
    keep: Sequence[str] = (),
    budget_bytes: int = BUDGET_BYTES,
) -> PartStats:
    """The statistics of `table`, whose columns are those of `schema` (others are ignored).

    Args:
        table: Data that passed `check_data`.
        schema: Its schema.
        keep: Columns that are never dropped, whatever the budget: those that parts are sorted by.
        budget_bytes: Greatest encoded size of the result; columns that are never dropped may exceed
            it.
    """
    full = exact_part_stats(table, schema).columns
    columns = full
    for text_bytes in _TEXT_BYTES:
        columns = {path: _shortened(c, text_bytes) for path, c in full.items()}
        if stats_size(PartStats(table.num_rows, columns)) <= budget_bytes:
            break
    fixed = {path_text((name,)) for name in keep}
    return PartStats(table.num_rows, _within(columns, fixed, budget_bytes, table.num_rows))


def exact_part_stats(table: pa.Table, schema: ShardSchema) -> PartStats:
    """As `collect_part_stats`, for every column, with whole bounds: others must enclose them."""
    return PartStats(table.num_rows, dict(_leaves(table, schema.record.fields)))


def _within(
    columns: dict[str, ColumnStats], fixed: set[str], budget_bytes: int, rows: int
) -> dict[str, ColumnStats]:
    """`columns` without the largest, until they fit or only those never dropped are left."""
    sizes = {p: len(msgspec.json.encode({p: c})) - 1 for p, c in columns.items()}
    total = stats_size(PartStats(rows, columns))
    kept = dict(columns)
    for path in sorted(sizes, key=lambda p: -sizes[p]):
        if total <= budget_bytes:
            break
        if path not in fixed and not _TIME_LIKE.fullmatch(path.rpartition(".")[2].lower()):
            del kept[path]
            total -= sizes[path]
    return kept


def _leaves(table: pa.Table, fields: Iterable[Field]) -> Iterator[tuple[str, ColumnStats]]:
    for field in fields:
        yield from _field_stats(table.column(field.name), field, (field.name,))


def _field_stats(
    column: pa.ChunkedArray, field: Field, path: tuple[str, ...]
) -> Iterator[tuple[str, ColumnStats]]:
    if not isinstance(field.type, Record):
        yield path_text(path), _column_stats(column, field)
        return
    yield path_text(path), ColumnStats(column.null_count)
    for position, child in enumerate(field.type.fields):
        # flatten() lets a null struct make its fields null.
        chunks = [chunk.flatten()[position] for chunk in column.chunks]
        inner = pa.chunked_array(chunks, column.type.field(position).type)
        yield from _field_stats(inner, child, (*path, child.name))


def _column_stats(column: pa.ChunkedArray, field: Field) -> ColumnStats:
    kind = kind_of(field)
    nulls = column.null_count
    if kind is None:
        return ColumnStats(nulls)
    nans = 0
    if kind == "float":
        finite = column.filter(pc.invert(pc.is_nan(column)))
        nans = len(column) - nulls - (len(finite) - finite.null_count)
        column = finite
    least, most = _least_and_most(column)
    if least is None or most is None:
        return ColumnStats(nulls, kind, nans=nans)
    lo, hi = _encoded(kind, least), _encoded(kind, most)
    if lo is None or hi is None:
        lo = hi = None
    return ColumnStats(nulls, kind, lo, hi, nans)


def _least_and_most(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Least and greatest as Python values; surrogates where Python's types have less range."""
    natural = pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if not (natural or pa.types.is_integer(column.type)):
        kind = _surrogate_type(column.type)
        column = pa.chunked_array([surrogate(chunk) for chunk in column.chunks], kind)
    if len(column) == 1:
        only = column[0].as_py()
        return only, only
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


@lru_cache(maxsize=256)
def _surrogate_type(kind: pa.DataType) -> pa.DataType:
    return surrogate(pa.array([], kind)).type


# --- the written form --------------------------------------------------------------------------


def _encoded(kind: Kind, value: Any) -> int | str | None:
    match kind:
        case "float":
            return repr(value)
        case "dec":
            return format(value, "f")
        case "bin":
            return base64.b64encode(value).decode()
        case "str" | "coll":
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return None  # Spark can make strings that are no UTF-8; JSON cannot hold them.
    return int(value)


def _shortened(column: ColumnStats, most_bytes: int) -> ColumnStats:
    """`column` with text bounds of at most `most_bytes` bytes that are still bounds."""
    shorten = _SHORTEN.get(column.kind or "")
    if shorten is None or column.lo is None or column.hi is None:
        return column
    lo, hi = shorten(str(column.lo), str(column.hi), most_bytes)
    return msgspec.structs.replace(column, lo=lo, hi=hi)


def _shortened_text(lo: str, hi: str, most_bytes: int) -> tuple[str, str | None]:
    upper: str | None = hi
    if len(hi.encode()) > most_bytes:
        upper = _incremented(_prefix(hi, most_bytes))
    return _prefix(lo, most_bytes), upper


def _prefix(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")


def _incremented(prefix: str) -> str | None:
    """The least text, by code points, that is greater than all that begin with `prefix`."""
    for last in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[last])
        if point < _LAST_POINT:
            following = _AFTER_SURROGATES if point == _BEFORE_SURROGATES else point + 1
            return prefix[:last] + chr(following)
    return None


def _shortened_bytes(lo: str, hi: str, most_bytes: int) -> tuple[str, str | None]:
    low, high = base64.b64decode(lo), base64.b64decode(hi)
    upper: bytes | None = high
    if len(high) > most_bytes:
        head = high[:most_bytes].rstrip(b"\xff")
        upper = head[:-1] + bytes([head[-1] + 1]) if head else None
    written = None if upper is None else base64.b64encode(upper).decode()
    return base64.b64encode(low[:most_bytes]).decode(), written


_SHORTEN: Final[Mapping[str, Callable[[str, str, int], tuple[str, str | None]]]] = {
    "str": _shortened_text,
    "coll": _shortened_text,
    "bin": _shortened_bytes,
}
