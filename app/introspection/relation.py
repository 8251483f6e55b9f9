"""A relation declares its columns, types and meanings, beside the function that makes its rows.

Columns and rows are in one place, so that neither can be changed without the other; documentation,
the description of the JSON interface and the tables in Spark are made from the declaration.

Invariants:
    A row has as many values as there are columns, in their order.
    Columns have Materialize's names where there is a counterpart. The id of an object is its name,
    as in both protocols; `dataflow_global_ids` and `objects` have its global id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from shardline.app.introspection.facts import Facts
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = [
    "AT",
    "BYTES",
    "FLAG",
    "FRONTIER",
    "MS",
    "NUMBER",
    "NUMBERS",
    "REAL",
    "TEXT",
    "TEXTS",
    "Column",
    "Metric",
    "Past",
    "Relation",
    "Row",
    "Rows",
    "Scalar",
    "instant",
]

Row: TypeAlias = tuple[object, ...]
Rows: TypeAlias = Callable[[Facts, int], Iterable[Row]]
"""Makes the rows from the facts and the present time, in ms since the epoch."""

Scalar: TypeAlias = str | int | float | bool | None
"""A value that a filter compares a column with."""

TEXT: Final = pa.string()
TEXTS: Final = pa.list_(pa.string())
NUMBER: Final = pa.int64()
NUMBERS: Final = pa.list_(pa.int64())
REAL: Final = pa.float64()
FLAG: Final = pa.bool_()
BYTES: Final = pa.int64()
FRONTIER: Final = pa.int64()
"""A time on the data's own clock, NULL for the empty frontier."""
AT: Final = pa.timestamp("us", "UTC")
"""When something happened, by the driver's clock."""

_FILTERED: Final[dict[pa.DataType, tuple[type, ...]]] = {
    TEXT: (str,),
    AT: (str,),
    NUMBER: (int,),
    REAL: (int, float),
    FLAG: (bool,),
}
"""Types of a filter's value, by the column's; columns of others have none."""

MS: Final = 1e-3
"""Scale of a metric in seconds whose column is in ms."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The Prometheus family that a column is exposed as: one sample for each row.

    Declared with the column, so that the number on a dashboard and the one that SQL gives cannot be
    two. The names are for ever: dashboards and alerts of others have them.

    Some families cannot be declared so, as their samples are not one number for each row with the
    relation's own labels. `shardline.app.server.metrics` makes them, of rows of relations too:

        states        status and verdict: one sample for each value that a state can have
        histograms    micro-batches and peeks: the buckets of a sample are several rows
        joins         times, rows and sizes of operators: the labels are in another relation's rows
        counts        active peeks, subscriptions, the lane's index: one sample of all rows

    Attributes:
        name: After `shardline_`, with the unit last.
        help: In a sentence.
        scale: From the column's unit to that of the name.
        grows: True for a sum that only grows while its object lives: a counter.
    """

    name: str
    help: str
    scale: float = 1.0
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: As in SQL.
        type: Of its values.
        comment: Its meaning, without a full stop.
        metric: The family that it is exposed as; None if it is none.
    """

    name: str
    type: pa.DataType
    comment: str
    metric: Metric | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The rows that a relation had at an earlier moment: a function of the histories.

    Attributes:
        rows: Makes them from facts that have nothing but the histories up to the moment, and from
            the moment. What was not recorded is None.
        histories: Names of those that must reach back to the moment.
    """

    rows: Rows
    histories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation.

    Attributes:
        name: As in `introspection.<name>`.
        comment: The meaning of a row, without a full stop.
        columns: In their order.
        rows: Makes all rows.
        object: The column with the name of the object that a row is about; "" if there is none.
        histories: Names of the histories that the rows are made of, and of nothing else: they stay
            for a time, also over restarts, and change only with these. () for rows that go with the
            thing that they describe.
        separable: True if rows about one object, or shard, are made of the facts of that one alone,
            and of rows of histories that begin with its name: those of one are then computed
            without the others.
        labels: Of the metrics of its columns: label and column, where "" stands for the kind of the
            object. None for the object and its kind.
        past: Makes the rows as of an earlier moment; None if nothing is recorded of that.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    rows: Rows
    object: str = ""
    histories: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] | None = None
    separable: bool = False
    past: Past | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns, for Arrow."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def check_filter(self, where: Mapping[str, Scalar]) -> None:
        """Check that the columns can have the values of a filter; NULL any of them can have.

        Raises:
            InvalidUsage: There is no such column, or `INVALID_FILTER`: it has no values of that
                type, and no row would ever be found.
        """
        types = {column.name: column.type for column in self.columns}
        for name, value in where.items():
            if name not in types:
                raise unknown_name("column", name, types)
            # By the exact type: True is an int, and would select what 1 selects.
            if value is not None and type(value) not in _FILTERED.get(types[name], ()):
                raise InvalidUsage(
                    f"column '{name}' has no value {value!r}",
                    code="INVALID_FILTER",
                    hint=f"it is of type {types[name]}",
                )

    def rows_about(self, facts: Facts, now_ms: int, names: Collection[str] | None) -> list[Row]:
        """Make the rows, as they are at `now_ms`.

        Args:
            facts: All facts.
            now_ms: The present time.
            names: Objects, or shards, that rows are wanted of; others may be among them. None for
                all.
        """
        if names is not None and self.separable:
            facts = facts.about(names, self.histories)
        return list(self.rows(facts, now_ms))

    def table_of(self, made: Iterable[Row]) -> pa.Table:
        """Make a table of rows of this relation."""
        rows = list(made)
        assert all(len(row) == len(self.columns) for row in rows), self.name
        values = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        arrays = [
            pa.array(column_values, column.type)
            for column, column_values in zip(self.columns, values, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def instant(at_ms: int | None) -> int | None:
    """A time in ms as a value of a column of type `AT`."""
    return None if at_ms is None else at_ms * 1000
