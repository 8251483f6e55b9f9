"""Relations are read here by name, as they are at that moment.

    relations = Relations(sink)
    relations.relation("frontiers")              a pyarrow.Table, for peeks
    relations.rows("frontiers", object="delays") plain values, for JSON

Safe to use from any thread. Each answer is consistent in itself; two answers are of two moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa

from shardline.app.introspection.registry import relations_with
from shardline.app.introspection.relation import Relation
from shardline.app.introspection.sink import Sink
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["Relations"]


class Relations:
    """All relations of one sink.

    Attributes:
        declared: By name: columns, types and meanings.
    """

    def __init__(self, sink: Sink) -> None:
        """Declare all relations over the facts of a sink."""
        self._sink = sink
        self.declared: Mapping[str, Relation] = relations_with(sink.inbox)

    def relation(self, name: str) -> pa.Table:
        """Read all rows of a relation, as of now.

        Raises:
            InvalidUsage: `UNKNOWN_RELATION`, with the nearest name.
        """
        return self._sink.read(self._declared(name).table)

    def rows(self, name: str, *, object: str | None = None) -> list[dict[str, object]]:  # noqa: A002 - the filter is called so in the JSON interface
        """Read rows of a relation as values of JSON; times of the clock are ISO 8601.

        Args:
            name: Of the relation.
            object: Only rows about this object.

        Raises:
            InvalidUsage: There is no such relation, or its rows are not about objects.
        """
        declared = self._declared(name)
        table = self.relation(name)
        if object is not None:
            if not declared.object:
                raise InvalidUsage(
                    f"rows of relation '{name}' are not about one object",
                    code="NO_OBJECT_COLUMN",
                    hint="leave the filter out",
                )
            wanted = [value == object for value in table[declared.object].to_pylist()]
            table = table.filter(pa.array(wanted, pa.bool_()))
        return [{key: _plain(value) for key, value in row.items()} for row in table.to_pylist()]

    def _declared(self, name: str) -> Relation:
        if name not in self.declared:
            raise unknown_name("relation", name, self.declared)
        return self.declared[name]


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
