"""Queries that need no Spark job: one object's columns, filtered by what shards understand.

    found = simple_select(query, "flights", schema, zone)     None: let Spark do it
    found.columns, found.where, found.limit     what to read
    keys_of(found, index.key, schema)           the keys that it can be looked up by
    spark_schema(schema)                        what `toArrow` would give; None: it is not sure

Taken is `SELECT * | column [AS name], … FROM object [AS alias] [WHERE …] [LIMIT n]` alone, where
the condition is one that `datasource.where` understands: its semantics are Spark's.

Invariants:
    For what is taken Spark would give the same rows under the same schema; where that is not
    certain from the text alone, the answer is None. No error is told here: Spark tells it better.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from datasource.errors import InvalidUsage
from datasource.predicate import And, Compare, In, Predicate
from datasource.schema import ShardSchema
from datasource.where import Condition, Where

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Select", "keys_of", "simple_select", "spark_schema"]

_KEYS_MAX: Final = 100
"""More keys than that are faster looked for in one scan."""

_CLAUSES: Final = frozenset({"kind", "expressions", "from_", "where", "limit"})


@dataclass(frozen=True, slots=True)
class Select:
    """A simple query.

    Attributes:
        columns: Of the object, in the order of the result; one may be there twice.
        names: What the result calls them.
        where: Rows that count; None for all.
        limit: At most so many rows, whichever; None for all.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    where: Where | None
    limit: int | None

    def shaped(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows that have the columns, as the result; `schema` is `spark_schema` of the object."""
        wanted = [schema.field(name).with_name(new) for name, new in self._pairs]
        # Only labels differ (time zones of timestamps): values stay as they are.
        columns = [
            table.column(name).cast(field.type)
            for (name, _), field in zip(self._pairs, wanted, strict=True)
        ]
        found = pa.Table.from_arrays(columns, schema=pa.schema(wanted))
        return found if self.limit is None else found.slice(0, self.limit)

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.columns, self.names, strict=True))


def simple_select(query: str, name: str, schema: ShardSchema, zone: str) -> Select | None:
    """What `query` asks of object `name`; None if it is for Spark to say.

    Args:
        query: SQL that reads `name` and nothing else.
        name: The object.
        schema: Its columns.
        zone: Time zone of the session.
    """
    # Loading the parser takes a third of a second.
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415
    from sqlglot.errors import SqlglotError  # noqa: PLC0415

    folded = [column.lower() for column in schema.names]
    if "\\" in query or len(set(folded)) < len(folded):
        return None
    try:
        found = sqlglot.parse(query, read="spark")
    except (SqlglotError, RecursionError):
        return None
    if len(found) != 1 or not isinstance(found[0], exp.Select):
        return None
    try:
        return _Reading(found[0], name, schema, zone).select()
    except (InvalidUsage, RecursionError):
        return None


class _Reading:
    """One query, taken apart."""

    def __init__(self, query: exp.Select, name: str, schema: ShardSchema, zone: str) -> None:
        self._query = query
        self._name = name
        self._schema = schema
        self._zone = zone

    def select(self) -> Select | None:
        """The query, if it is simple."""
        args = self._query.args
        alias = self._alias()
        items = self._items(alias) if alias is not None else None
        limit = self._limit()
        if any(args[key] for key in args if key not in _CLAUSES) or args.get("kind"):
            return None
        if alias is None or items is None or limit == -1:
            return None
        columns, names = tuple(c for c, _ in items), tuple(n for _, n in items)
        return Select(columns, names, self._where(alias), limit)

    def _alias(self) -> str | None:
        """What the query calls the object."""
        from sqlglot import exp  # noqa: PLC0415

        source = self._query.args.get("from_")
        table = source.this if source is not None else None
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            return None
        if any(table.args[key] for key in table.args if key not in ("this", "alias")):
            return None
        alias = table.args.get("alias")
        if table.name.lower() != self._name.lower() or (alias is not None and alias.columns):
            return None
        return str(table.alias or table.name)

    def _items(self, alias: str) -> list[tuple[str, str]] | None:
        """Columns and their names in the result."""
        from sqlglot import exp  # noqa: PLC0415

        items: list[tuple[str, str]] = []
        for item in self._query.expressions:
            inner = item.this if isinstance(item, exp.Alias) else item
            if isinstance(item, exp.Star) and not any(item.args.values()):
                items += [(name, name) for name in self._schema.names]
                continue
            column = self._column(inner, alias)
            if column is None:
                return None
            items.append((column, str(item.alias) if isinstance(item, exp.Alias) else column))
        return items

    def _column(self, node: exp.Expr, alias: str) -> str | None:
        """The column that `node` names, spelt as the object has it."""
        from sqlglot import exp  # noqa: PLC0415

        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        if node.args.get("db") or (node.table and node.table.lower() != alias.lower()):
            return None
        if node.table and self._is_column(node.table):
            return None
        return node.name if node.name in self._schema else None

    def _limit(self) -> int | None:
        """The limit; -1 if it is none that can be understood."""
        from sqlglot import exp  # noqa: PLC0415

        limit = self._query.args.get("limit")
        if limit is None:
            return None
        count = limit.expression if isinstance(limit, exp.Limit) else None
        if not isinstance(count, exp.Literal) or count.is_string or not count.name.isdigit():
            return -1
        return int(count.name)

    def _where(self, alias: str) -> Where | None:
        """The condition.

        Raises:
            InvalidUsage: It is not understood.
        """
        from sqlglot import exp  # noqa: PLC0415

        where = self._query.args.get("where")
        if where is None:
            return None
        condition = where.this.copy()
        for column in condition.find_all(exp.Column):
            if column.table and column.table.lower() == alias.lower():
                if self._is_column(alias) or column.args.get("db"):
                    raise InvalidUsage(f"'{alias}' is a table and a column")
                column.set("table", None)
        return Condition(condition.sql(dialect="spark"), self._zone).bind(self._schema)

    def _is_column(self, name: str) -> bool:
        return name.lower() in (column.lower() for column in self._schema.names)


def spark_schema(schema: ShardSchema) -> pa.Schema | None:
    """The Arrow schema of Spark's `toArrow` for rows of `schema`; None if values might differ."""
    # Both load pyspark, which pure parts of this package do not.
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    from datasource.native.types import struct_of  # noqa: PLC0415

    try:
        told = to_arrow_schema(
            struct_of(schema.record),
            error_on_duplicated_field_names_in_struct=True,
            timezone="UTC",
        )
    except Exception:  # noqa: BLE001 - a type that Spark has no Arrow form for: it will say so
        return None
    same = all(a.type.equals(b.type) for a, b in zip(schema.arrow, told, strict=True))
    return told if same else None


def keys_of(select: Select, key: Sequence[str], schema: ShardSchema) -> list[pa.Table] | None:
    """The keys, a table of one row each, that every row of the result has one of; None: no such.

    Args:
        select: Whose condition may ask for them.
        key: Columns that an index looks up by.
        schema: Of the object.
    """
    if select.where is None:
        return None
    asked: dict[str, Sequence[Any]] = {}
    for one in _conjuncts(select.where.predicate):
        match one:
            # Equal doubles may be two keys: -0.0 and 0.0.
            case Compare((column,), kind, "=", value) if kind != "float":
                asked[column] = (value,)
            case In((column,), kind, values) if kind != "float" and column not in asked:
                asked[column] = values
            case _:
                pass
    if any(name not in asked for name in key):
        return None
    choices = [dict.fromkeys(asked[name]) for name in key]
    if _product(map(len, choices)) > _KEYS_MAX:
        return None
    types = [schema.arrow.field(name).type for name in key]
    try:
        return [_key(values, key, types) for values in itertools.product(*choices)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _conjuncts(predicate: Predicate) -> list[Predicate]:
    if isinstance(predicate, And):
        return [one for part in predicate.parts for one in _conjuncts(part)]
    return [predicate]


def _product(sizes: map[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _key(values: Sequence[Any], key: Sequence[str], types: Sequence[pa.DataType]) -> pa.Table:
    arrays = [
        pa.array([bool(value) if pa.types.is_boolean(kind) else value], kind)
        for value, kind in zip(values, types, strict=True)
    ]
    return pa.table(arrays, names=list(key))
