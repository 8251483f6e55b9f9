"""The parts of a sink, which `shardline.app.storage.sink_query` puts together.

Owns how a micro-batch of Spark becomes an interval of times, how updates become rows, and the
targets that take them.

    target           the contract of a target; formats, options and guarantees: start here
    interval         the times of a micro-batch, and whether a checkpoint fits its target
    progress         how far a sink is, in a shard of its own
    input_hold       the hold on the input, and whether that has changed meanwhile
    readable_times   where errors of the input cut an interval
    readable_wait    waits for such times, and tells why
    stalls           what of input and target does not fit, so that a person must decide
    rows             updates as the rows of an envelope
    reports          what an incarnation says of itself
    open_target      a sink's target, by its format
    files, shards, delta, others     the targets

May use: `protocol`, `execution`, `storage.formats`, `datasource`.

Never: counts by Spark's numbers of micro-batches, which begin anew with each checkpoint; knows
anything of the query or of its thread.
"""

from __future__ import annotations

__all__: list[str] = []
