"""Overwriting: replace a shard's contents by one atomic difference.

What is there and not wanted any more is retracted, what is new is added, and rows that are in both
cost nothing. Readers see the old contents or the new, and a change feed shows only what changed.

The difference is computed against the contents right before the commit; when somebody else appends
meanwhile, it is computed again. Old and new rows are merged as sorted streams, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from datasource.batch import Part, stamp
from datasource.commands.append import AlreadyCommitted, Appended, UpperMismatch
from datasource.contents import Contents
from datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from datasource.frontier import TIME_MIN, Frontier
from datasource.merge import merge
from datasource.plan import PlannedPart, TimeFilter, plan_changes
from datasource.read import contents_of, current_schema, open_reader
from datasource.schema import TS
from datasource.stage import Staged, discard
from datasource.state import ShardState
from datasource.update import negate
from datasource.write import WriteHandle

__all__ = ["overwrite"]

_ATTEMPTS = 16
"""How often a difference is computed anew because somebody else appended meanwhile."""


def overwrite(
    handle: WriteHandle, new: Staged, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Make the rows of `new` the contents of the shard.

    Args:
        handle: A writer of the shard.
        new: The wanted rows, staged without times. Their blobs are deleted in the end, unless an
            unknown outcome leaves them to the sweeper.
        sequence: Number of this append of the writer.
        attempt: Id of the attempt that staged them.

    Raises:
        Determinate: Others appended faster than a difference could be computed.
        InvalidUsage: `new` retracts rows or carries times.
    """
    blob = handle.machine.location.blob
    try:
        outcome = _replaced(handle, new, sequence=sequence, attempt=attempt)
    except Indeterminate:
        raise
    except ShardError:
        discard(blob, new.runs)
        raise
    discard(blob, new.runs)
    return outcome


def _replaced(
    handle: WriteHandle, new: Staged, *, sequence: int, attempt: str
) -> Appended | AlreadyCommitted:
    """Commit the difference, computed as often as it takes; leaves `new` alone."""
    machine = handle.machine
    for part in _parts(new):
        if part.diff_min < 1 or part.ts_min is not None:
            raise InvalidUsage(
                f"shard '{machine.name}' cannot be overwritten with changes",
                code="OVERWRITE_WITH_CHANGES",
                hint="leave _ts and _diff out, or append",
            )
    with open_reader(machine, purpose=f"overwrite by {handle.writer}") as reader:
        for _ in range(_ATTEMPTS):
            state = machine.state()
            entry = state.writers.get(handle.writer)
            if entry is not None and sequence <= entry.last:
                return AlreadyCommitted(Frontier(entry.upper), "")
            # The contents come under the newest schema, which may be newer than the handle's.
            schema = current_schema(state)
            stager = replace(handle.stager(), schema=schema, schema_id=state.schema_id)
            difference = stager.stage(_difference(handle, state, new))
            outcome = handle.commit_at(difference, state.upper, sequence=sequence, attempt=attempt)
            if not isinstance(outcome, UpperMismatch):
                return outcome
            discard(machine.location.blob, difference.runs)
            reader.lease.renew()
    raise Determinate(
        f"shard '{machine.name}' changed {_ATTEMPTS} times while it was being overwritten",
        code="CONTENTION",
        hint="stop its other writers, or append a difference instead",
    )


def _difference(handle: WriteHandle, state: ShardState, new: Staged) -> Iterator[pa.Table]:
    """What turns the contents of `state` into the rows of `new`, as updates without times."""
    contents = contents_of(handle.machine, state)
    runs = [
        _negated(contents, planned) for planned in plan_changes(state, TIME_MIN, state.upper.time)
    ]
    runs += [
        contents.ordered_run(PlannedPart(part, TimeFilter(None, None), ordered=True))
        for run in stamp(new.runs, TIME_MIN)
        for part in run.parts
    ]
    # All times are advanced to one, at or after every one of them, so that equal rows meet
    # whenever they were added.
    for table in merge(runs, handle.key, since=state.upper.time or TIME_MIN):
        yield table.drop_columns([TS])


def _negated(contents: Contents, planned: PlannedPart) -> Iterator[pa.Table]:
    for table in contents.ordered_run(planned):
        yield negate(table)


def _parts(staged: Staged) -> Iterator[Part]:
    for run in staged.runs:
        yield from run.parts
