"""A result table shows the rows of a query on a terminal.

result_table(table)     at most a thousand rows, with a caption that counts the others
"""

from __future__ import annotations

import pyarrow as pa
from rich.markup import escape
from rich.table import Table

from shardline.app.cli.tables import plain_table
from shardline.app.compute.results import rows_of, value_text
from shardline.app.printable import printable

__all__ = ["result_table"]


def result_table(table: pa.Table, rows_max: int = 1000) -> Table:
    """Lay out the rows of a query; numbers to the right, null as `NULL`.

    Args:
        table: The rows.
        rows_max: Most rows to show; the caption has the number of the others.
    """
    # By position: a result may have two columns of one name.
    view = plain_table(*(escape(printable(name)) for name in table.column_names))
    for column, field in zip(view.columns, table.schema, strict=True):
        column.justify = "right" if _is_number(field.type) else "left"
    for row in rows_of(table.slice(0, rows_max)):
        view.add_row(*("NULL" if value is None else _cell(value) for value in row))
    more = table.num_rows - rows_max
    view.caption = f"and {more:,} more" if more > 0 else None
    return view


def _cell(value: object) -> str:
    return escape(printable(value_text(value), keep="\n\t"))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
