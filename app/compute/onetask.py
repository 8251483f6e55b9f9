"""Little input is read by one task: a query over it is one job of one stage.

    one = OneTask(session)
    inputs = one.inputs(frames, Amount.of(states))      each in one partition, if it is little

What is in one partition needs no exchange before an aggregate or a window. So where Spark would run
a stage for each input and one for each exchange, and would plan anew between them, there is one
task left; a join still broadcasts its small side, which is cheaper than to sort the other one. For
a few thousand rows the stages, not the rows, are what a step costs; for many rows all cores are
wanted, and nothing is changed.

Invariants:
    The rows are the same, and so is what the query means.
    The session is as it was found whenever there is more than a little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from datasource.state import ShardState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Amount", "OneTask"]

_ROWS_MAX: Final = 200_000
_BYTES_MAX: Final = 16 << 20
"""What one core reads and groups in well under a second, which is when more cores begin to pay."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Where there are no exchanges there is nothing to plan anew, and to watch for it costs."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is read, at the most.

    Attributes:
        rows: Updates.
        size_bytes: Encoded.
    """

    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, states: Iterable[ShardState]) -> Amount:
        """All that shards hold."""
        parts = [part for s in states for batch in s.trace.batches for part in batch.parts]
        return cls(sum(part.rows for part in parts), sum(part.size_bytes for part in parts))

    @property
    def little(self) -> bool:
        """Whether one task is the fastest way to read it."""
        return self.rows <= _ROWS_MAX and self.size_bytes <= _BYTES_MAX


class OneTask:
    """Of one session, in which nothing else runs. Used by one thread at a time."""

    def __init__(self, session: SparkSession) -> None:
        """Nothing is changed yet."""
        self._session = session
        self._adaptive = session.conf.get(_ADAPTIVE)
        self._little = False

    def inputs(self, frames: Mapping[str, DataFrame], amount: Amount) -> dict[str, DataFrame]:
        """Inputs of a query that is made and run next; by name."""
        if amount.little != self._little:
            adaptive = "false" if amount.little else self._adaptive
            assert adaptive is not None, "Spark has a default"
            self._session.conf.set(_ADAPTIVE, adaptive)
            self._little = amount.little
        if not amount.little:
            return dict(frames)
        return {name: frame.coalesce(1) for name, frame in frames.items()}
