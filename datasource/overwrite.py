"""Overwriting replaces a shard's contents by one atomic difference.

Old rows that are not in the new contents are retracted, new rows are added, and rows that are in
both cost nothing. Readers see the old contents or the new, and a change feed shows only the rows
that changed; to retract and add everything would show every row twice. Old and new rows are merged
as sorted streams, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.difference import Difference, commit_difference, plan_staged, sorted_runs
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MIN
from shardline.datasource.parts.stage import Staged, UncommittedParts
from shardline.datasource.read import contents_of
from shardline.datasource.rows.merge_runs import Run, merge
from shardline.datasource.rows.updates import negate
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import TS
from shardline.datasource.write import WriteHandle

__all__ = ["overwrite", "overwrite_difference"]


def overwrite(
    handle: WriteHandle, new: Staged, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Make the rows of `new` the contents of the shard.

    Args:
        handle: A writer of the shard.
        new: The new contents, staged without times under a schema of the shard. Their blobs are
            deleted in the end, unless an unknown outcome leaves them to the orphan sweep.
        sequence: Number of this append of the writer.
        attempt: Id of the attempt that staged them.

    Raises:
        Determinate: Others appended faster than the difference could follow.
        InvalidUsage: `new` retracts rows or carries times.
    """
    with UncommittedParts(handle.machine.location.blob, new.runs) as parts:
        difference = overwrite_difference(handle.machine, new)
        parts.hand_over(new.runs)
    return commit_difference(handle, new, difference, sequence=sequence, attempt=attempt)


def overwrite_difference(machine: Machine, new: Staged) -> Difference:
    """The difference that makes the rows of `new` the contents of a shard.

    Raises:
        InvalidUsage: `new` retracts rows or carries times.
    """
    for run in new.runs:
        for part in run.parts:
            if part.diff_min < 1 or part.ts_min is not None:
                raise InvalidUsage(
                    f"shard '{machine.name}' cannot be overwritten with changes",
                    code="OVERWRITE_WITH_CHANGES",
                    hint="leave _ts and _diff out, or append",
                )
    return _Replacement(machine, new)


@dataclass(frozen=True, slots=True)
class _Replacement(Difference):
    """Retracts all rows of the shard and adds all new ones; equal ones cancel in the merge."""

    machine: Machine
    new: Staged

    @property
    @override
    def closes(self) -> bool:
        return False  # rows that stay are not taken back

    @override
    def against(
        self, state: ShardState, there: Sequence[PlannedPart], *, whole: bool
    ) -> Iterator[pa.Table]:
        # The contents come under the newest schema, which may be newer than the new rows'.
        contents = contents_of(self.machine, state)
        runs: list[Run] = [map(negate, run) for run in sorted_runs(contents, there)]
        if whole:
            runs += sorted_runs(contents, plan_staged(self.new))
        # All times are advanced to one, at or after every one of them, so that equal rows meet
        # whenever they were added.
        for table in merge(runs, state.key, since=state.upper.time or TIME_MIN):
            yield table.drop_columns([TS])
