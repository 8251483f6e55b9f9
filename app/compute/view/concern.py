"""A view is concerned by those updates of an input without which its query would give other rows.

    found = concerns(trees, known)          of each input of a query, given as its operators
    found["orders"].of(updates)             the updates of a step that can matter
    found["orders"].without_unread(rows)    the same rows, with NULL in columns that are not read

An update whose row satisfies no filter that the query has over the input comes to nothing. And an
update of columns that the query does not read is a row that goes and the same one that comes. Most
updates of wide tables are of that kind for most views, which then have nothing to look up, and no
step to take. (Materialize's optimizer pushes both down into its sources: filters, and demand.)

Invariants:
    At every time the query gives the same over these updates as over all of them.
    Rows are told apart as a shard tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.view.column_trace import inputs_of
from shardline.app.compute.view.row_conditions import Conditions, rows_that_satisfy
from shardline.app.sql.plan_nodes import KNOWN_BY_ID
from shardline.datasource.frames import number_of, numbers_read, read_sequence
from shardline.datasource.schema import DIFF, TS
from shardline.datasource.updates import consolidate

if TYPE_CHECKING:
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["Concern", "concerns"]


@dataclass(frozen=True, slots=True)
class Concern:
    """What a query reads of an input.

    Attributes:
        columns: Names of the columns.
        conditions: What it knows of the rows, for each place at which it reads the input.
    """

    columns: frozenset[str]
    conditions: tuple[Conditions, ...]

    def of(self, updates: pa.Table) -> pa.Table:
        """The updates that can matter; the very table if none can be left out."""
        wanted = rows_that_satisfy(updates, *self.conditions)
        unread = [name for name in wanted.column_names if name not in {*self.columns, TS, DIFF}]
        if not unread or not pc.any(pc.less(wanted.column(DIFF), 0)).as_py():
            return wanted
        left = consolidate(wanted.drop_columns(unread))
        if left.num_rows == wanted.num_rows:
            return wanted
        # Any value of an unread column will do; NULL may be none.
        filled = wanted.select(unread).take(pa.array([0] * left.num_rows, pa.int64()))
        for name in unread:
            left = left.append_column(wanted.schema.field(name), filled.column(name))
        return left.select(wanted.column_names)

    def without_unread(self, rows: pa.Table) -> pa.Table:
        """The same rows; columns that are not read are NULL, if they may be.

        Rows are handed over from process to process, and most of their bytes may be text that
        nobody looks at.
        """
        for place, field in enumerate(rows.schema):
            if field.name not in self.columns and field.name not in {TS, DIFF} and field.nullable:
                rows = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
        return rows


def concerns(
    trees: Iterable[QueryNode],
    known: Mapping[QueryNode, Conditions],
    added_up: Iterable[Any] = (),
) -> dict[str, Concern]:
    """What a query reads of each input.

    Args:
        trees: Its operators: all that is computed of it.
        known: What it knows of the rows of an input, at each place.
        added_up: Columns by which rows of before a step and of the step are added up: their values
            have to be those of the rows, even if nothing reads them afterwards.
    """
    always = {number_of(one) for one in added_up}
    read: set[int] = set()
    places: dict[str, list[QueryNode]] = {}
    for tree in trees:
        read |= _read(tree, always | set(tree.numbers))
        for node in inputs_of(tree):
            places.setdefault(node.input, []).append(node)
    return {
        name: Concern(
            frozenset(
                str(one.name()) for node in nodes for one in node.output if number_of(one) in read
            ),
            tuple(known.get(node, ()) for node in nodes),
        )
        for name, nodes in places.items()
    }


def _read(node: QueryNode, wanted: set[int]) -> set[int]:
    """Ids of all columns that an operator or any below it reads; with those that are wanted of it.

    Of a projection's columns only those count that are wanted, as Spark computes no others. Many
    let all columns through, and few of them are read: one that computes what an aggregate groups by
    is put below it with the whole table.
    """
    if node.input:
        return wanted
    if node.kind == "Project":
        columns = read_sequence(node.plan.projectList())
        readers = [one for one in columns if number_of(one) in wanted]
    else:
        readers = [node.plan]
    found = wanted.union(*map(numbers_read, readers))
    for child in node.children:
        more = set() if node.kind in KNOWN_BY_ID else set(child.numbers)
        found |= _read(child, found | more)
    return found
