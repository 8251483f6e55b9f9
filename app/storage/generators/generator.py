"""A generator is a pure function from event numbers to the rows of one table.

So a micro-batch that runs again after a crash, on any machine, has the same rows: nothing of a
generator needs to be stored but its options.

The tables of a generator share one sequence of events, so that with equal options a bid refers to
an auction of the other table, and both have the times of one clock.

Invariants:
    `rows_before` never decreases and starts with 0; `rows(start, end)` has as many rows as it says.
    Rows come in the order of their events, whatever pieces are asked for.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from shardline.app.storage.generators.mixing import Events
from shardline.app.storage.generators.options import GeneratorOptions

__all__ = [
    "PIECE",
    "Columns",
    "Generator",
    "arrow_schema",
    "micro_batch_end",
    "text_column",
    "time_column",
    "times",
]

Columns: TypeAlias = dict[str, str]
"""Types in Spark's DDL by name, in order."""

PIECE: Final = 1 << 16
"""Events that are made at once."""

_ARROW: Final = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}


class Generator(Protocol):
    """One table of a generator, under given options."""

    @property
    def columns(self) -> Columns:
        """The table's columns."""
        ...

    def rows_before(self, event: int) -> int:
        """Number of rows of events 0 to `event` - 1."""
        ...

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        """The rows of events `start` to `end` - 1, at most `PIECE` of them."""
        ...


def arrow_schema(columns: Columns) -> pa.Schema:
    """Columns as an Arrow schema, as Spark needs it."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])


def micro_batch_end(generator: Generator, start: int, head: int, max_rows: int) -> int:
    """The end of a micro-batch that starts at event `start`; `start` if there are no rows.

    Args:
        generator: Makes the rows.
        start: The first event.
        head: End of the events that there are, exclusive; may be before `start`.
        max_rows: Most rows of the micro-batch; one event with rows is taken in any case.
    """
    before = generator.rows_before(start)
    if head <= start or generator.rows_before(head) == before:
        return start
    if generator.rows_before(head) - before <= max_rows:
        return head
    wanted = before + max_rows
    end = _last(generator, start, head, wanted)
    # An event may have more rows than a micro-batch: it is never split.
    return end if generator.rows_before(end) > before else _last(generator, end, head, before) + 1


def _last(generator: Generator, start: int, head: int, rows: int) -> int:
    """The greatest event from `start` to `head` with at most `rows` before it."""
    while start < head:
        middle = (start + head + 1) // 2
        if generator.rows_before(middle) <= rows:
            start = middle
        else:
            head = middle - 1
    return start


def times(options: GeneratorOptions, events: Events) -> Events:
    """Times of events, ms since the epoch."""
    passed: Events = np.floor(events * 1000.0 / options.rate).astype(np.int64)
    return options.zero_ms + passed


def time_column(milliseconds: Events) -> pa.Array:
    """A column of `TIMESTAMP`."""
    return pa.array(milliseconds * 1000).cast(_ARROW["TIMESTAMP"])


def text_column(pool: pa.StringArray, indices: Events) -> pa.Array:
    """A column of `STRING`: for each row the string of `pool` at its index."""
    return pool.take(pa.array(indices))
