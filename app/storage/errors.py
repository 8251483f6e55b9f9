"""Rows of a source that cannot be decoded become data of their own, in the shard `<source>_errors`.

To fail would let one bad row stop everything behind it; to drop the row would give wrong answers in
silence. So the error is a row with a time, like all others: Materialize's err collection.

    error   what is wrong with the row
    raw     the row as it came
    key     the row's key as JSON, where envelope and row have one that can be decoded
    file    the file that has the row; null for rows of versions that did not keep it

An error is added at the time of the micro-batch that brought the row, and the source goes on. While
it is live, reads of the source at that time or later fail with it. It goes away

    with a key       when a later row of the same key can be decoded, or deletes the key
    without one      when it is retracted by hand: `retract_errors`

    live_errors(client, "flights")             all live ones, newest state
    retract_errors(client, "flights")          all of it goes
    retract_errors(client, "flights", table)   these rows of it

Invariants:
    A retraction takes effect at a time at which nothing is bound, or can be bound any more: it
    never stands in the way of a micro-batch.
    The number of live errors is the sum of all diffs, which the shard's state knows.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.protocol.objects import errors_shard, skipped_shard
from shardline.app.storage.reclock import BoundOffsets, Remap
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.state import ShardState, UpperMismatch
from shardline.datasource.waiting import RetryPolicy

__all__ = [
    "ERRORS",
    "are_rows_there",
    "live_count",
    "live_errors",
    "may_retract",
    "open_errors",
    "open_skipped",
    "retract_errors",
    "retractions",
    "settle_time",
]

ERRORS: Final = pa.schema(
    [
        pa.field("error", pa.string(), nullable=False),
        pa.field("raw", pa.string()),
        pa.field("key", pa.string()),
        pa.field("file", pa.string()),
    ]
)
"""Columns of the shard, and of that with the rows that were skipped."""

_SIDES: Final = ("live", "wanted")
"""Columns by which rows of two tables are counted in one: no columns of `ERRORS`."""

SETTLE_RETRIES: Final = RetryPolicy(first_ms=100, longest_ms=100, attempts_max=64)
"""Looks for a time to retract errors at: until a micro-batch that is bound is committed."""


def open_errors(client: ShardClient, source: str) -> str:
    """Make the shard for the errors of `source`, if there is none, and return its name."""
    return _open(client, errors_shard(source), source)


def open_skipped(client: ShardClient, source: str) -> str:
    """Make the shard that notes rows of `source` that are left out, and return its name."""
    return _open(client, skipped_shard(source), source)


def _open(client: ShardClient, name: str, source: str) -> str:
    schema = ShardSchema.from_arrow(ERRORS)
    if client.exists(name):
        # One of an older version lacks the last column.
        client.evolve(name, schema)
    client.create(name, schema, times_by=f"source {source}")
    return name


def live_count(state: ShardState) -> int:
    """Number of rows of a shard at its newest time; needs no read of its parts."""
    return sum(part.diff_sum for batch in state.trace.batches for part in batch.parts)


def live_errors(client: ShardClient, source: str) -> pa.Table:
    """Read the live errors of `source`, one row for each.

    Raises:
        InvalidUsage: There is no such source.
    """
    name = errors_shard(source)
    if client.state(name).upper.time == 0:
        return ERRORS.empty_table()
    with client.reader(name, purpose="errors of a source") as reader:
        return reader.snapshot()


def retract_errors(client: ShardClient, source: str, errors: pa.Table | None = None) -> int:
    """Retract errors of `source`: readers see its rows again, without those that were bad.

    Args:
        client: Of the location.
        source: Name of the source.
        errors: Rows with the columns error, raw, key; None for all that are live. Rows that are not
            live are left out.

    Returns:
        The number of errors retracted.

    Raises:
        InvalidUsage: There is no such source, or it has taken nothing in yet.
        Determinate: Others changed the shards all the time, or a micro-batch that was bound is not
            committed: try again.
    """
    remap = Remap.attach(client, source)
    name = open_errors(client, source)
    handle = client.writer(name)
    handle.writes_leader = True
    for _ in SETTLE_RETRIES.begin(client.clock, client.ids).attempts():
        lower = handle.upper().time
        assert lower is not None, name
        if lower == 0:
            raise InvalidUsage(
                f"source '{source}' has taken nothing in yet",
                code="NOTHING_APPENDED",
                hint="wait until it has",
            )
        gone = retractions(live_errors(client, source), errors)
        if not gone.num_rows:
            return 0
        # The time is taken in the remap shard before anything is retracted at it: a micro-batch
        # that is bound meanwhile gets a later time, at which its errors can still be appended. It
        # moves that shard's upper, by which the source knows that errors may come (`commit`).
        bound = remap.read()
        at = max(lower, bound.upper)
        if may_retract(client, source, bound, lower) and settle_time(remap, bound, at):
            count = int(pc.sum(gone.column(DIFF)).as_py())
            times = pa.repeat(pa.scalar(at, pa.int64()), gone.num_rows)
            updates = gone.append_column(pa.field(TS, pa.int64(), nullable=False), times)
            outcome = handle.compare_and_append(updates, Frontier(lower), Frontier(at + 1))
            if not isinstance(outcome, UpperMismatch):
                return -count
    raise Determinate(
        f"no time was found to retract errors of source '{source}' at",
        code="CONTENTION",
        hint="see whether a micro-batch of the source fails again and again, then try again",
    )


def retractions(live: pa.Table, wanted: pa.Table | None) -> pa.Table:
    """Retractions of the wanted errors that are live; of equal rows as many as both tables have."""
    # In Arrow throughout: what came with a row may be no UTF-8, so that Python has no text for it.
    sides = [_marked(live, _SIDES[0]), _marked(live if wanted is None else wanted, _SIDES[1])]
    sums = pa.concat_tables(sides).group_by(ERRORS.names).aggregate([(n, "sum") for n in _SIDES])
    most = pc.min_element_wise(*(sums.column(f"{name}_sum") for name in _SIDES))
    schema = ERRORS.append(pa.field(DIFF, pa.int64(), nullable=False))
    gone = [*(sums.column(name) for name in ERRORS.names), pc.negate(most)]
    return pa.table(gone, schema=schema).filter(pc.greater(most, 0))


def _marked(rows: pa.Table, side: str) -> pa.Table:
    """Rows with a 1 in the column of their side, and a 0 in that of the other."""
    marked = pa.table([rows.column(name) for name in ERRORS.names], schema=ERRORS)
    for name in _SIDES:
        marks = pa.repeat(pa.scalar(int(name == side), pa.int64()), rows.num_rows)
        marked = marked.append_column(name, marks)
    return marked


def may_retract(client: ShardClient, source: str, bound: BoundOffsets, upper: int) -> bool:
    """True if no micro-batch that is bound can have errors that are not appended yet.

    Args:
        client: Of the location.
        source: Name of the source.
        bound: Its bindings.
        upper: The errors' own upper, not newer than `bound`.
    """
    # Errors are appended before rows, so the upper of the rows speaks for them.
    return bound.last is None or upper > bound.last.time or are_rows_there(client, source, bound)


def are_rows_there(client: ShardClient, source: str, bound: BoundOffsets) -> bool:
    """True if the rows of everything that is bound are in the source's shard."""
    upper = client.state(source).upper.time
    return bound.last is None or upper is None or upper > bound.last.time


def settle_time(remap: Remap, bound: BoundOffsets, at: int) -> bool:
    """Settle that nothing is bound at `at` or ever will be; False if that cannot be had now."""
    if bound.last is not None and bound.last.time >= at:
        return False
    return remap.advance(bound, at + 1) is not None
