"""Little input is read by one task: a query over it is one job of one stage.

    one = OneTask()
    inputs = one.inputs(session, frames, volume)      each in one partition, if it is little

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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.shard.batch import Volume

__all__ = ["OneTask"]

_ROWS_MAX: Final = 200_000
_BYTES_MAX: Final = 16 << 20
"""What one core reads and groups in well under a second, which is when more cores begin to pay."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Where there are no exchanges there is nothing to plan anew, and to watch for it costs."""


class OneTask:
    """Of one streaming query, in whose session nothing else runs. Used by one thread at a time."""

    def __init__(self) -> None:
        """Nothing is changed yet."""
        self._adaptive: str | None = None

    def inputs(
        self, session: SparkSession, frames: Mapping[str, DataFrame], volume: Volume
    ) -> dict[str, DataFrame]:
        """Inputs of a query that is made and run next; by name.

        Args:
            session: The query's.
            frames: The inputs.
            volume: Of all of them.
        """
        little = volume.rows <= _ROWS_MAX and volume.size_bytes <= _BYTES_MAX
        if little and self._adaptive is None:
            self._adaptive = session.conf.get(_ADAPTIVE)
            session.conf.set(_ADAPTIVE, "false")
        elif not little and self._adaptive is not None:
            session.conf.set(_ADAPTIVE, self._adaptive)
            self._adaptive = None
        if not little:
            return dict(frames)
        return {name: frame.coalesce(1) for name, frame in frames.items()}
