"""Rows that a state's change follows from: what a step adds to groups, and the groups before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shardline.app.compute.view.found_rows import rows_in_driver
from shardline.app.compute.view.kept_plan import Leaf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.aggregate_rule import GroupState
    from shardline.app.compute.view.kept_jobs import FewRows

__all__ = ["HELD", "MOVED", "MergedGroups", "MovedGroups"]

MOVED: Final = Leaf("moved")
HELD: Final = Leaf("held", before=True)
"""Leaves of the plans of a state's change."""


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """Few rows that a state's change follows from.

    Attributes:
        group: The state.
        moved: What the step adds to groups.
        held: Rows of these groups.
    """

    group: GroupState
    moved: FewRows
    held: FewRows

    @property
    def few_rows(self) -> dict[Leaf, FewRows]:
        """The rows by the leaves that stand for them."""
        return {MOVED: self.moved, HELD: self.held}

    def frames(self, session: SparkSession) -> dict[Leaf, DataFrame]:
        """The rows as frames."""
        return {leaf: rows_in_driver(session, *one) for leaf, one in self.few_rows.items()}


@dataclass(frozen=True, slots=True)
class MovedGroups:
    """What a step adds to the groups of a state.

    Attributes:
        frame: Makes the rows: one for each group and time.
        rows: Their number.
        table: The same rows; None if they are many.
        release: Gives up what is kept for them.
    """

    frame: Callable[[], DataFrame]
    rows: int
    table: pa.Table | None
    release: Callable[[], None] = lambda: None

    def takes_values_away(self) -> bool:
        """True if a value may have gone of which some function shows the least or greatest."""
        if self.table is None:
            return True
        gone = [self.table[name] for name in self.table.column_names if name.startswith("g")]
        return any(column.null_count < len(column) for column in gone)
