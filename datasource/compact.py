"""Compaction: fewer, larger batches that mean the same.

So far one kind: when the inline parts of a shard reach their budget, the writer that meets it moves
all of them into one blob (`flush_inline`). Thousands of tiny appends then cost the state one batch,
and stay one request each.

A merge is written first and applied after; if it is not applied, its blobs are deleted, but only
when that is certain: a merge whose application has an unknown outcome is left to the sweeper
(materialize #14101).
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from datasource.batch import Batch
from datasource.commands.merge import apply_merge
from datasource.convert import migrate
from datasource.description import Description
from datasource.machine import Machine
from datasource.partfile import decode_inline
from datasource.schema import DIFF, TS, ShardSchema
from datasource.stage import Stager, discard
from datasource.state import ShardState
from datasource.trace import level_of
from datasource.update import advance, consolidate

__all__ = ["flush_inline"]


def flush_inline(machine: Machine) -> bool:
    """Move the shard's newest stretch of inline batches into one blob; False if there is none.

    Raises:
        Indeterminate: It is not known whether it was applied; either way the contents are the same.
    """
    state = machine.cached or machine.state()
    inputs = _inline_stretch(state)
    if not inputs:
        return False
    schema = ShardSchema.parse(state.schemas[state.schema_id])
    stager = Stager(
        machine.location.blob,
        machine.directory,
        schema,
        state.schema_id,
        state.key,
        machine.settings,
        machine.clock,
        machine.ids,
        may_inline=False,
    )
    updates = _consolidated(state, schema, inputs)
    staged = stager.stage([updates])
    desc = Description(inputs[0].desc.lower, inputs[-1].desc.upper, state.since.time)
    output = Batch(desc, staged.runs, level=level_of(staged.rows))
    if machine.apply(partial(apply_merge, inputs=inputs, output=output)):
        return True
    discard(machine.location.blob, staged.runs)
    return False


def _inline_stretch(state: ShardState) -> tuple[Batch, ...]:
    """The last stretch of neighbouring batches that have inline parts only, none empty at its ends.

    An empty batch at the end of the trace may still grow, so it is never part of a merge.
    """
    batches = state.trace.batches
    end = len(batches)
    while end and not _is_inline(batches[end - 1]):
        end -= 1
    start = end
    while start and (_is_inline(batches[start - 1]) or batches[start - 1].is_empty):
        start -= 1
    while start < end and batches[start].is_empty:
        start += 1
    return batches[start:end]


def _is_inline(batch: Batch) -> bool:
    return not batch.is_empty and all(part.inline is not None for part in batch.parts)


def _consolidated(state: ShardState, schema: ShardSchema, inputs: tuple[Batch, ...]) -> pa.Table:
    """All updates of `inputs` under `schema`, their times advanced towards the shard's since."""
    schemas = {number: ShardSchema.parse(text) for number, text in state.schemas.items()}
    tables = []
    for batch in inputs:
        for part in batch.parts:
            rows = pa.Table.from_batches([decode_inline(part, schemas[part.schema])])
            if part.ts is not None:
                times = pa.repeat(pa.scalar(part.ts, pa.int64()), rows.num_rows)
                rows = rows.append_column(pa.field(TS, pa.int64(), nullable=False), times)
            rows = migrate(rows, schemas[part.schema], schema)
            tables.append(_within(rows, batch.desc))
    updates = pa.concat_tables(tables).select([*schema.names, TS, DIFF])
    # Since may be beyond the merged interval, and readers leave out what is not inside of it.
    ends = (state.since.time, _last_time(inputs[-1].desc))
    since = min((time for time in ends if time is not None), default=None)
    return consolidate(updates if since is None else advance(updates, since), state.key)


def _last_time(desc: Description) -> int | None:
    return None if desc.upper is None else desc.upper - 1


def _within(rows: pa.Table, desc: Description) -> pa.Table:
    """The rows at times that the batch claims: a trimmed batch has parts with others too."""
    times = rows.column(TS)
    inside = pc.greater_equal(times, desc.lower)
    if desc.upper is not None:
        inside = pc.and_(inside, pc.less(times, desc.upper))
    return rows.filter(inside)
