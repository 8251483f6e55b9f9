"""Defines statistics of a part, by which readers skip it and merges find parts without common rows.

    merge_stats(parts) -> PartStats               statistics of several parts together
    encode_stats(stats), decode_stats(encoded)    to and from the form in a part's description
    bounds(stats, path) -> (lo, hi)               None where nothing is known
    may_overlap(a, b, columns) -> bool            False proves that they share no row
    stats_size(stats) -> int                      bytes in a shard's state
    kind_of(field) -> Kind                        None for types without an order

Per column, or per leaf of a struct (by its path, as Spark spells it): the number of nulls, and for
types with a natural order the least and the greatest value. Lists, maps and variants have the
number of nulls only. `parts.collect_stats.collect_part_stats` makes them when a part is written.

Invariants:
    - Every value of a column that is neither null nor NaN lies within its bounds, ends included.
      NaN is never a bound; `nans` counts it.
    - A column that is missing, or has no bounds though it has values, may hold anything.
    - Statistics survive JSON exactly: see `ColumnStats` for how each type is written.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from shardline.datasource.types.spark_types import Atomic, Field

__all__ = [
    "BUDGET_BYTES",
    "NO_STATS",
    "Bound",
    "ColumnStats",
    "Kind",
    "PartStats",
    "bounds",
    "decode_bound",
    "decode_stats",
    "encode_stats",
    "kind_of",
    "may_overlap",
    "merge_stats",
    "stats_size",
]

BUDGET_BYTES: Final = 1024
"""Encoded statistics of one part, unless columns that are never dropped need more."""

Bound = int | float | Decimal | str | bytes
Kind = Literal[
    "bool", "int", "float", "dec", "str", "coll", "bin", "date", "ts", "ntz", "dt", "time"
]


_KINDS: Final[Mapping[str, Kind]] = {
    "boolean": "bool",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "string": "str",
    "binary": "bin",
    "date": "date",
    "timestamp": "ts",
    "timestamp_ntz": "ntz",
    "decimal": "dec",
    "time": "time",
    "interval": "dt",
}


class ColumnStats(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Statistics of one column or leaf.

    Attributes:
        nulls: Rows in which it is null; a leaf is null when a struct around it is.
        kind: The form of the bounds; None for types without bounds. int, bool: the number. float:
            Python's shortest text, "inf" included. dec: plain text. str, and coll for strings with
            a collation: the text. bin: base64. date: days, ts, ntz, dt: microseconds, time:
            nanoseconds, all since their zero.
        lo, hi: The bounds, both inclusive, in that form; None when unknown.
        nans: Rows in which it is NaN.
    """

    nulls: int
    kind: Kind | None = None
    lo: int | str | None = None
    hi: int | str | None = None
    nans: int = 0


class PartStats(msgspec.Struct, frozen=True, gc=False):
    """Statistics of one part; `columns` is keyed by path text."""

    rows: int
    columns: dict[str, ColumnStats]


NO_STATS: Final = msgspec.Raw()
"""The encoded statistics of a part that has none."""

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PartStats)


def encode_stats(stats: PartStats | None) -> msgspec.Raw:
    """`stats` in the form of a part's description: JSON."""
    return NO_STATS if stats is None else msgspec.Raw(_encoder.encode(stats))


def decode_stats(encoded: msgspec.Raw) -> PartStats | None:
    """The statistics of a part's description; None for `NO_STATS` and for unreadable ones."""
    try:
        return _decoder.decode(encoded) if encoded != NO_STATS else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def stats_size(stats: PartStats) -> int:
    """Bytes that `stats` takes in a shard's state."""
    return len(_encoder.encode(stats))


def decode_bound(kind: Kind, written: int | str) -> Bound:
    """The value of a written bound; times and dates as the number that is written."""
    match kind:
        case "float":
            return float(written)
        case "dec":
            return Decimal(written)
        case "bin":
            return base64.b64decode(str(written))
        case "str" | "coll":
            return str(written)
    return int(written)


# --- conclusions -------------------------------------------------------------------------------


def bounds(stats: PartStats, path: str) -> tuple[Bound | None, Bound | None]:
    """Least and greatest value of the column at `path` (path text); None where unknown."""
    column = stats.columns.get(path)
    if column is None or column.kind is None:
        return None, None
    lo = None if column.lo is None else decode_bound(column.kind, column.lo)
    return lo, None if column.hi is None else decode_bound(column.kind, column.hi)


def may_overlap(a: PartStats, b: PartStats, columns: Iterable[str] | None = None) -> bool:
    """True if some row of `a` may equal some row of `b` in `columns`; False is a proof.

    Args:
        a: Statistics of one part.
        b: Statistics of the other one.
        columns: Path texts to compare; None for all that both have.
    """
    if a.rows == 0 or b.rows == 0:
        return False
    shared = a.columns.keys() & b.columns.keys()
    wanted = shared if columns is None else shared & set(columns)
    return all(_may_share(a, b, path) for path in wanted)


def _may_share(a: PartStats, b: PartStats, path: str) -> bool:
    """True if a value of this column may be in both parts."""
    one, two = a.columns[path], b.columns[path]
    if (one.nulls and two.nulls) or (one.nans and two.nans):
        return True
    if _is_bare(one, a.rows) or _is_bare(two, b.rows):
        return False
    if one.kind != two.kind:
        return True
    (lo1, hi1), (lo2, hi2) = bounds(a, path), bounds(b, path)
    apart = _less(hi1, lo2) or _less(hi2, lo1)
    return not apart


def _is_bare(column: ColumnStats, rows: int) -> bool:
    """True if all values are null or NaN."""
    return column.nulls + column.nans >= rows


def _less(a: Any, b: Any) -> bool:
    return a is not None and b is not None and bool(a < b)


def merge_stats(parts: Sequence[PartStats]) -> PartStats:
    """Statistics of the rows of all `parts` together, for columns that all of them have."""
    if not parts:
        return PartStats(0, {})
    shared = set.intersection(*(set(p.columns) for p in parts))
    merged = {path: _merged(parts, path) for path in sorted(shared)}
    known = {path: column for path, column in merged.items() if column is not None}
    return PartStats(sum(p.rows for p in parts), known)


def _merged(parts: Sequence[PartStats], path: str) -> ColumnStats | None:
    columns = [p.columns[path] for p in parts]
    kind = columns[0].kind
    if any(c.kind != kind for c in columns):
        return None
    nulls, nans = sum(c.nulls for c in columns), sum(c.nans for c in columns)
    valued = [c for p, c in zip(parts, columns, strict=True) if not _is_bare(c, p.rows)]
    if kind is None or not valued:
        return ColumnStats(nulls, kind, nans=nans)
    lo = _outermost(kind, [c.lo for c in valued], min)
    return ColumnStats(nulls, kind, lo, _outermost(kind, [c.hi for c in valued], max), nans)


def _outermost(
    kind: Kind, written: list[int | str | None], choose: Callable[..., int | str]
) -> int | str | None:
    known = [w for w in written if w is not None]
    return (
        choose(known, key=lambda w: decode_bound(kind, w)) if len(known) == len(written) else None
    )


def kind_of(field: Field) -> Kind | None:
    """The form of the column's bounds; None for types without an order."""
    if not isinstance(field.type, Atomic):
        return None
    name = field.type.name
    if name.startswith("string collate") or (name == "string" and field.collations != "null"):
        return "coll"
    return _KINDS.get(name.partition("(")[0].partition(" ")[0])
