"""Made tables stand in the place of relations: shards, holds, the lane, in any number and kind.

    tables = MadeTables(life.relations, {"shards": lambda now_ms: [{"name": "flights", …}]}, now_ms)
    Services(relations=tables, …)

What is made has the columns of the relation that it stands for; those that are left out are NULL.
Times of the clock are given in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relation import AT, Column, Relation, Row, instant
from shardline.app.introspection.store import Relations

__all__ = ["MadeRows", "MadeTables"]

MadeRows: TypeAlias = Callable[[int], Iterable[Mapping[str, Any]]]
"""Makes the rows of a relation as of a time, in ms since the epoch."""

_TYPES: Final = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}


class MadeTables(Relations):
    """Relations of which some are made; `made` may be changed while they are read."""

    def __init__(self, relations: Relations, made: Mapping[str, MadeRows], now_ms: int) -> None:
        """Take all other relations from `relations`.

        Args:
            relations: Those that are not made.
            made: Rows by name.
            now_ms: The time that made rows are of for ever: they change only if `made` does.
        """
        self._sink = relations._sink
        self._now_ms = now_ms
        self.made = dict(made)
        declared = dict(relations.declared)
        for name in made:
            declared[name] = self._declare(name, relations.declared.get(name))
        self.declared = declared

    def _declare(self, name: str, real: Relation | None) -> Relation:
        if real is None:
            (first, *_) = self.made[name](0)
            columns = tuple(Column(key, _TYPES[type(value)], "") for key, value in first.items())
            real = Relation(name, "", columns, lambda _facts, _now_ms: ())
        columns = real.columns

        def rows(_facts: Facts, _now_ms: int) -> Iterable[Row]:
            for row in self.made[name](self._now_ms):
                unknown = row.keys() - {column.name for column in columns}
                assert not unknown, f"{name} has no columns {unknown}"
                yield tuple(_value(column, row.get(column.name)) for column in columns)

        return replace(real, rows=rows)


def _value(column: Column, value: Any) -> object:
    return instant(value) if column.type == AT else value
