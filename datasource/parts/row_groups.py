"""Reads a Parquet footer: the size of each row group, and if a filter may skip it.

A read of few rows from a large part should decode few row groups. All information is in the file's
footer. Its statistics are decoded by the types in the file, which differ between writers (decimals
as integers or bytes, units of time); a bound whose meaning is not certain counts as unknown.
Footers do not count NaN and leave it out of their bounds.

Invariants: a row group that is skipped holds no row that passes the filter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardline.datasource.filters.parser import Where
from shardline.datasource.filters.predicates import ABSENT, ColumnKnowledge, Path, field_at
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import Bound, Kind, kind_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["RowGroups"]


class RowGroups:
    """The row groups of one part, as its footer describes them."""

    def __init__(self, metadata: pq.FileMetaData, written: ShardSchema) -> None:
        """Describe a file with `metadata`, whose rows have the schema `written`."""
        self._metadata = metadata
        self._written = written

    @property
    def count(self) -> int:
        """Number of row groups."""
        return int(self._metadata.num_row_groups)

    def rows(self, groups: Sequence[int]) -> int:
        """Number of rows in `groups`."""
        return sum(self._metadata.row_group(group).num_rows for group in groups)

    def row_bytes(self, groups: Sequence[int]) -> float:
        """Average size of a row of `groups`: all columns, encoded but not compressed, in bytes."""
        size = sum(self._metadata.row_group(group).total_byte_size for group in groups)
        return float(size / max(self.rows(groups), 1))

    def requests(
        self, groups: Sequence[int], columns: Sequence[str], target_bytes: int
    ) -> Iterator[list[int]]:
        """`groups` split into lists whose `columns` take about `target_bytes` in the file."""
        leaves = [i for i, path in enumerate(self._paths) if path.partition(".")[0] in columns]
        some: list[int] = []
        size = 0
        for group in groups:
            more = sum(self._column(group, leaf).total_compressed_size for leaf in leaves)
            if some and size + more > target_bytes:
                yield some
                some, size = [], 0
            some.append(group)
            size += more
        if some:
            yield some

    def may_pass(self, group: int, where: Where) -> bool:
        """True if some row of the group may pass; False proves that none does."""
        return where.may_pass(lambda path: self.known(group, path))

    @cached_property
    def _paths(self) -> list[str]:
        schema = self._metadata.schema
        return [str(schema.column(i).path) for i in range(self._metadata.num_columns)]

    @cached_property
    def _plain(self) -> Mapping[str, int]:
        """Leaf columns by path: those outside of lists whose path is unique in the file."""
        schema = self._metadata.schema
        return {
            path: leaf
            for leaf, path in enumerate(self._paths)
            if self._paths.count(path) == 1 and not schema.column(leaf).max_repetition_level
        }

    def _column(self, group: int, leaf: int) -> pq.ColumnChunkMetaData:
        return self._metadata.row_group(group).column(leaf)

    def known(self, group: int, path: Path) -> ColumnKnowledge | None:
        """The footer's statistics of a column in one group; None if there are none."""
        at = field_at(self._written.record, path)
        if at is None:
            return ABSENT
        leaf, kind = self._plain.get(".".join(path)), kind_of(at)
        stats = None if leaf is None or kind is None else self._column(group, leaf).statistics
        if stats is None or kind is None:
            return None
        rows = self._metadata.row_group(group).num_rows
        nulls = stats.null_count if stats.has_null_count else None
        known = ColumnKnowledge(
            nulls=nulls != 0, nans=kind == "float" and nulls != rows, values=nulls != rows
        )
        read = _bound_decoder(
            kind, stats.physical_type, self._metadata.schema.column(leaf).logical_type
        )
        if read is None or not stats.has_min_max:
            return known
        lo, hi = read(stats.min_raw), read(stats.max_raw)
        if lo is None or hi is None or lo > hi:  # type: ignore[operator]  # two of one kind
            return known
        return msgspec.structs.replace(known, kind=kind, lo=lo, hi=hi)


_Read = Callable[[Any], Bound | None]


def _bound_decoder(kind: Kind, physical: str, logical: Any) -> _Read | None:
    """A function that decodes a bound in a footer; None if its meaning is not certain.

    Chosen by the types in the file, because writers differ.
    """
    says = json.loads(logical.to_json()) if logical is not None and logical.type != "NONE" else {}
    name = says.get("Type", "None")
    if kind == "dec" and name == "Decimal":
        return _decimal(physical, int(says["scale"]))
    if kind in ("ts", "ntz") and name == "Timestamp" and physical == "INT64":
        adjusted = says.get("isAdjustedToUTC") is (kind == "ts")
        return _PER_US.get(says.get("timeUnit", "")) if adjusted else None
    if name == "Int" and not says.get("isSigned"):
        return None
    if kind == "time" and name == "Time" and physical == "INT64":
        return _PER_NS.get(says.get("timeUnit", ""))
    return _READERS.get((kind, physical, name))


def _decimal(physical: str, scale: int) -> _Read | None:
    def scaled(units: int) -> Decimal:
        return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))

    if physical in ("INT32", "INT64"):
        return scaled
    if physical in ("FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY"):
        return lambda raw: scaled(int.from_bytes(raw, "big", signed=True))
    return None


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _number(raw: float) -> float | None:
    return raw if raw == raw else None  # noqa: PLR0124 - only NaN differs


_READERS: Final[Mapping[tuple[Kind, str, str], _Read]] = {
    ("bool", "BOOLEAN", "None"): int,
    ("int", "INT32", "None"): int,
    ("int", "INT32", "Int"): int,
    ("int", "INT64", "None"): int,
    ("int", "INT64", "Int"): int,
    ("float", "FLOAT", "None"): _number,
    ("float", "DOUBLE", "None"): _number,
    ("str", "BYTE_ARRAY", "String"): _text,
    ("bin", "BYTE_ARRAY", "None"): bytes,
    ("date", "INT32", "Date"): int,
    ("dt", "INT64", "None"): int,
}
# A coarser unit converts exactly to a finer one. Bounds in a finer unit count as unknown.
_PER_US: Final[Mapping[str, _Read]] = {
    "microseconds": int,
    "milliseconds": lambda raw: raw * 1000,
}
_PER_NS: Final[Mapping[str, _Read]] = {
    "nanoseconds": int,
    "microseconds": lambda raw: raw * 1000,
}
