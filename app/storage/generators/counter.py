"""`counter` generates 1, 2, 3, …, a row per event; with `maxCardinality` old rows are retracted.

Invariants:
    After event `i` the contents are the last `min(i + 1, max_cardinality)` numbers up to `i + 1`.
    A retraction stands right before the row that takes its place.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from shardline.app.storage.generators.generator import Columns, arrow_schema
from shardline.app.storage.generators.options import GeneratorOptions

__all__ = ["TABLES", "Counter"]

TABLES: Final[tuple[str, ...]] = ()


class Counter:
    """The one table of `counter`."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._max_cardinality = options.max_cardinality

    @property
    def columns(self) -> Columns:
        """`counter`, and `_diff` where rows are retracted."""
        return {"counter": "BIGINT"} | (
            {"_diff": "BIGINT"} if self._max_cardinality is not None else {}
        )

    def rows_before(self, event: int) -> int:
        """One row for each event, and one more for each retraction."""
        return (
            event
            if self._max_cardinality is None
            else event + max(0, event - self._max_cardinality)
        )

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        """The numbers of the events, each behind the retraction of the one that it replaces."""
        added = np.arange(start + 1, end + 1, dtype=np.int64)
        schema = arrow_schema(self.columns)
        if self._max_cardinality is None:
            return pa.RecordBatch.from_arrays([pa.array(added)], schema=schema)
        # Each number stands behind the retraction that makes room for it; there are none below 1.
        numbers = np.stack([added - self._max_cardinality, added], axis=1).ravel()
        diffs = np.tile(np.array([-1, 1], dtype=np.int64), len(added))
        there = numbers >= 1
        return pa.RecordBatch.from_arrays(
            [pa.array(numbers[there]), pa.array(diffs[there])], schema=schema
        )
