"""The row groups of a Parquet file: what each costs, and whether a filter can pass it over.

Everything is told by the file's footer. The file's own types count when its statistics are read,
which writers may choose otherwise than ours does (decimals as integers or bytes, units of time);
what is not certain is unknown. Footers do not count NaN and leave it out of their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardline.datasource.filters.parser import Where
from shardline.datasource.filters.predicates import ABSENT, Known, Path, field_at
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import Bound, Kind, kind_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["RowGroups"]


class RowGroups:
    """What a footer says of the row groups of one part."""

    def __init__(self, metadata: pq.FileMetaData, written: ShardSchema) -> None:
        """Of a file with `metadata`, whose rows were written under `written`."""
        self._metadata = metadata
        self._written = written

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._metadata.num_row_groups)

    def rows(self, groups: Sequence[int]) -> int:
        """How many rows `groups` have."""
        return sum(self._metadata.row_group(group).num_rows for group in groups)

    def row_bytes(self, groups: Sequence[int]) -> float:
        """How large a row of `groups` is, all columns, not compressed but encoded."""
        size = sum(self._metadata.row_group(group).total_byte_size for group in groups)
        return float(size / max(self.rows(groups), 1))

    def requests(
        self, groups: Sequence[int], columns: Sequence[str], target_bytes: int
    ) -> Iterator[list[int]]:
        """`groups` in lists of which `columns` take about `target_bytes` in the file."""
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
        """Whether some row of the group may pass; False is a proof that none does."""
        return where.may_pass(lambda path: self.known(group, path))

    @cached_property
    def _paths(self) -> list[str]:
        schema = self._metadata.schema
        return [str(schema.column(i).path) for i in range(self._metadata.num_columns)]

    @cached_property
    def _plain(self) -> Mapping[str, int]:
        """Leaf columns by path: those that are in no list, and whose path is theirs alone."""
        schema = self._metadata.schema
        return {
            path: leaf
            for leaf, path in enumerate(self._paths)
            if self._paths.count(path) == 1 and not schema.column(leaf).max_repetition_level
        }

    def _column(self, group: int, leaf: int) -> pq.ColumnChunkMetaData:
        return self._metadata.row_group(group).column(leaf)

    def known(self, group: int, path: Path) -> Known | None:
        """What the footer says of a column in one group; None for nothing."""
        at = field_at(self._written.record, path)
        if at is None:
            return ABSENT
        leaf, kind = self._plain.get(".".join(path)), kind_of(at)
        stats = None if leaf is None or kind is None else self._column(group, leaf).statistics
        if stats is None or kind is None:
            return None
        rows = self._metadata.row_group(group).num_rows
        nulls = stats.null_count if stats.has_null_count else None
        known = Known(
            nulls=nulls != 0, nans=kind == "float" and nulls != rows, values=nulls != rows
        )
        read = _reader(kind, stats.physical_type, self._metadata.schema.column(leaf).logical_type)
        if read is None or not stats.has_min_max:
            return known
        lo, hi = read(stats.min_raw), read(stats.max_raw)
        if lo is None or hi is None or lo > hi:  # type: ignore[operator]  # two of one kind
            return known
        return msgspec.structs.replace(known, kind=kind, lo=lo, hi=hi)


_Read = Callable[[Any], Bound | None]


def _reader(kind: Kind, physical: str, logical: Any) -> _Read | None:
    """How a bound in a footer is decoded; None where that is not certain.

    The file's own types count, which other writers may choose otherwise than ours.
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
# A coarser unit is exact in a finer one; a finer one is left alone.
_PER_US: Final[Mapping[str, _Read]] = {
    "microseconds": int,
    "milliseconds": lambda raw: raw * 1000,
}
_PER_NS: Final[Mapping[str, _Read]] = {
    "nanoseconds": int,
    "microseconds": lambda raw: raw * 1000,
}
