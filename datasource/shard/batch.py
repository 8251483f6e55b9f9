"""Batches, runs and parts describe in a shard's state where its updates are stored.

They hold counts, bounds and keys but no rows, so that a read can be planned from the state alone. A
*batch* describes all updates of one interval of times (persist: `HollowBatch`). It is made of
*runs*; a run is a sequence of *parts* whose rows, read one part after the other, are in the shard's
sort order if `Run.order` says so. A part is a Parquet blob, or, when tiny, bytes inside the state.

Invariants:
    A part is written before a batch that names it is appended, and never changes afterwards.
    `ts` set means that all rows of the part are at that time and that the file has no `_ts`
    column: a commit stamps a part by writing metadata only.
    Statistics are hints: a missing one means "may be anything".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from shardline.datasource.shard.description import Description
from shardline.datasource.types.stats import NO_STATS, PartStats, decode_stats

__all__ = ["Batch", "Footer", "Part", "Run", "Volume", "add_up_diffs", "stamp_time"]


class Footer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a part's Parquet file, which locates everything else; it has no own checksum.

    Attributes:
        size_bytes: From the end of the pages to the end of the file: page index, footer, its length
            and the magic number. Of parts that earlier versions wrote: without the page index.
        crc32: Checksum of these bytes.
    """

    size_bytes: int
    crc32: int


class Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One part.

    Attributes:
        key: Blob key; for an inline part a name that is only an identity.
        rows: Number of rows (updates), > 0.
        size_bytes: Encoded size: the bytes that a reader fetches, and the part's weight when parts
            are packed into partitions.
        schema: Id of the schema that the rows were written with.
        ts: The time of every row, when the file has no `_ts` column; None when it has one.
        ts_min: Least time in the `_ts` column; None if `ts` is set.
        ts_max: Greatest time in the `_ts` column; None if `ts` is set.
        diff_sum: Sum of all diffs, as an int64: one beyond 2^63 has wrapped around.
        diff_min: Least diff. `diff_min >= 1` says that the part retracts nothing.
        diff_max: Greatest diff. 1 together with `diff_min == 1`: a plain bag of rows.
        crc32: Checksum of the whole file; None if its writer did not know it.
        encoded_stats: Column statistics within the budget, as they are written; see `stats`.
        inline: The rows themselves, as one Arrow record batch message, for a tiny part.
        footer: The end of the file, to be checked before a library reads it; None for parts that
            versions before 1.4 described, and for an inline part.
        nan_safe: True if the file is known to have no bounds of its own for a column that holds
            NaN: see `parts.nan_bounds`. False for parts that versions before 1.4 described.
        closes: True if the append that wrote the part took back all that the shard held under the
            key of any row that the part retracts: no row with that key from before the row's time
            is left (Iceberg: an equality delete). False says nothing.
    """

    key: str
    rows: int
    size_bytes: int
    schema: int
    ts: int | None = None
    ts_min: int | None = None
    ts_max: int | None = None
    diff_sum: int = 0
    diff_min: int = 1
    diff_max: int = 1
    crc32: int | None = None
    encoded_stats: msgspec.Raw = msgspec.field(default=NO_STATS, name="stats")
    inline: bytes | None = None
    footer: Footer | None = None
    nan_safe: bool = False
    closes: bool = False

    @property
    def time_bounds(self) -> tuple[int, int] | None:
        """Least and greatest time of the rows; None until a commit has stamped the part."""
        if self.ts is not None:
            return self.ts, self.ts
        if self.ts_min is None or self.ts_max is None:
            return None
        return self.ts_min, self.ts_max

    @property
    def stats(self) -> PartStats | None:
        """Column statistics; None if there are none.

        Decoded anew at each access: a state of 100,000 parts is mostly statistics, decoded they
        take four times the memory and a second, and a plan without a filter asks for none.
        """
        return decode_stats(self.encoded_stats)

    @property
    def retracts(self) -> bool:
        """True if some row of the part has a negative diff."""
        return self.diff_min < 0


class Run(msgspec.Struct, frozen=True, gc=False):
    """Parts in sequence.

    Attributes:
        parts: At least one.
        order: "sorted" if the rows follow the shard's sort order across all parts of the run.
    """

    parts: tuple[Part, ...]
    order: Literal["sorted", "none"] = "sorted"


class Batch(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """All updates of one interval of times.

    Attributes:
        desc: The interval, and how far its history is compacted.
        runs: Where the rows are; empty for an interval without updates.
        level: Size class in the trace: a batch of level `i` has at most `2**i` updates.
    """

    desc: Description
    runs: tuple[Run, ...] = ()
    level: int = 0

    @property
    def parts(self) -> Iterator[Part]:
        """All parts, run by run."""
        for run in self.runs:
            yield from run.parts

    @property
    def is_empty(self) -> bool:
        """True if the interval has no updates."""
        return not self.runs

    @property
    def is_trimmed(self) -> bool:
        """True if some part has rows outside of the interval, which are not the batch's."""
        spans = (part.time_bounds for part in self.parts)
        return any(span is None or not all(map(self.desc.covers, span)) for span in spans)

    @property
    def rows(self) -> int:
        """Number of updates, before consolidation."""
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Encoded size of all parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def inline_bytes(self) -> int:
        """Bytes of the batch's parts that are stored inside the state."""
        return sum(part.size_bytes for part in self.parts if part.inline is not None)


@dataclass(frozen=True, slots=True)
class Volume:
    """An upper bound of the data that a read has to fetch.

    Attributes:
        rows: Number of updates.
        size_bytes: Their encoded size.
    """

    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Volume:
        """The volume of all `parts` together."""
        rows = size_bytes = 0
        for part in parts:
            rows += part.rows
            size_bytes += part.size_bytes
        return cls(rows, size_bytes)

    def is_at_most(self, rows: int, size_bytes: int) -> bool:
        """True if there are no more updates than `rows`, and no more bytes than `size_bytes`."""
        return self.rows <= rows and self.size_bytes <= size_bytes


def add_up_diffs(parts: Iterable[Part]) -> int:
    """The sum of all diffs of parts, as an int64: as in a part, one beyond 2^63 wraps around.

    Relations show it in columns of that type. A shard may have so many copies of its rows, and must
    not keep all others from being shown.
    """
    return (sum(part.diff_sum for part in parts) + (1 << 63)) % (1 << 64) - (1 << 63)


def stamp_time(runs: tuple[Run, ...], time: int) -> tuple[Run, ...]:
    """`runs` with every unstamped part put at `time`, by metadata only."""
    return tuple(
        msgspec.structs.replace(
            run,
            parts=tuple(
                part if part.time_bounds else msgspec.structs.replace(part, ts=time)
                for part in run.parts
            ),
        )
        for run in runs
    )
