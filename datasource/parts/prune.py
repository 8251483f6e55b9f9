"""Prunes a plan: leaves out parts whose statistics prove that no row passes the filter.

    Pruner.prune(planned) -> list[PlannedPart]      by the statistics in the shard's state
    Pruner.prune_snapshot(plan) -> SnapshotPlan     the same, and less to merge
    is_audited(name) -> bool                        True if it is read although it could be skipped

This is the data skipping of Delta, by the statistics in the shard's state. Without it a filtered
read fetches every part. Statistics are only used to leave parts out: without any, a part is read,
and the filter is applied to every row that is read. As wrong statistics would lose rows silently,
they are tested: one in a hundred of the parts left out is read all the same (an *audit*), chosen by
its key, so always the same ones. It must hold no row that passes.

Invariants:
    A part that is left out holds no row for which the filter is true. Rows that are equal for
    consolidation are equal for a filter, so no retraction is lost that other parts need.
    A part is kept if it is inline, has no statistics, or has none that are understood of a column
    of the filter.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from shardline.datasource.filters.parser import Where
from shardline.datasource.filters.predicates import (
    ABSENT,
    ColumnKnowledge,
    Path,
    Predicate,
    field_at,
    may_be_true,
)
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, SnapshotPlan
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import path_text
from shardline.datasource.types.stats import PartStats, decode_bound

__all__ = ["Pruner", "is_audited", "may_pass"]

_AUDIT_ONE_IN: Final = 100

_AUDIT_BYTES: Final = 256 << 20
"""Audits of a plan may read as many bytes as the plan itself, plus this: twice a large part."""


def is_audited(name: str) -> bool:
    """True if the part or row group called `name` is to be audited when it is left out."""
    return zlib.crc32(name.encode()) % _AUDIT_ONE_IN == 0


@dataclass(frozen=True)
class Pruner:
    """Leaves out parts in which no row passes a filter.

    Attributes:
        where: The filter.
        schemas: The shard's schemas by id, as JSON text.
    """

    where: Where
    schemas: Mapping[int, str]

    def prune(self, planned: Iterable[PlannedPart]) -> list[PlannedPart]:
        """The parts that may hold a row that passes, and those to audit, in their order."""
        found = [(one, self.may_pass(one.part)) for one in planned]
        budget = _AUDIT_BYTES + sum(one.part.size_bytes for one, passes in found if passes)
        kept = []
        for one, passes in found:
            if passes:
                kept.append(one)
            elif is_audited(one.part.key) and one.part.size_bytes <= budget:
                budget -= one.part.size_bytes
                kept.append(msgspec.structs.replace(one, audit=True))
        return kept

    def prune_snapshot(self, plan: SnapshotPlan) -> SnapshotPlan:
        """The plan without parts in which no row passes; audits are among its plain parts.

        A group without any part that retracts need not be merged: its parts become plain ones.
        """
        plain = self.prune(plan.plain)
        groups = []
        for group in plan.groups:
            kept = self.prune(group)
            rest = tuple(one for one in kept if not one.audit)
            plain += [one for one in kept if one.audit]
            if any(one.part.retracts for one in rest):
                groups.append(rest)
            else:
                plain += rest
        return SnapshotPlan(tuple(plain), tuple(groups))

    def may_pass(self, part: Part) -> bool:
        """True if some row of `part` may pass; False proves that none does."""
        return may_pass(part, self.where.predicate, ShardSchema.parse(self.schemas[part.schema]))


def may_pass(part: Part, predicate: Predicate, written: ShardSchema) -> bool:
    """True if some row of `part`, written with this schema, may pass; False proves that none does.

    A predicate over columns that `written` lacks takes them for null in all rows.
    """
    stats = part.stats
    if stats is None or part.inline is not None:
        return True
    return may_be_true(predicate, lambda path: _known_in_part(stats, written, path))


def _known_in_part(stats: PartStats, written: ShardSchema, path: Path) -> ColumnKnowledge | None:
    column = stats.columns.get(_path_text(path))
    if column is None:
        return ABSENT if field_at(written.record, path) is None else None
    kind, nulls, nans = column.kind, column.nulls, column.nans
    return ColumnKnowledge(
        nulls > 0,
        nans > 0,
        nulls + nans < stats.rows,
        kind,
        None if kind is None or column.lo is None else decode_bound(kind, column.lo),
        None if kind is None or column.hi is None else decode_bound(kind, column.hi),
    )


_path_text = functools.cache(path_text)
"""Cached, because a plan needs the same few paths for every part."""
