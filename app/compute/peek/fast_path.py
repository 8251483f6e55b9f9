"""The fast path recognises queries that need no Spark job: columns of one object, with a filter.

To start a Spark job costs tens of milliseconds; a look-up by key takes well under one. Materialize
has the same distinction, and the same name for it.

    found = read_simple_select(query, "flights", schema, zone)     None: for Spark
    found.columns, found.where, found.limit     the rows to read
    lookup_keys(found, index.key, schema)       the keys to look up in an index
    spark_schema(schema)                        the schema of `toArrow`; None: values might differ

It takes `SELECT * | column [AS name], … FROM object [AS alias] [WHERE …] [LIMIT n]` alone, with a
condition that `shardline.datasource.filters.parser` understands: its semantics are Spark's.

Invariants:
    For a query that is taken Spark would give the same rows under the same schema. Where that is
    not certain from the text alone, the result is None.
    No query is refused here: errors are left to Spark, whose messages show the place in the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from shardline.app.compute.results import relabel
from shardline.datasource.conditions import (
    And,
    Compare,
    Condition,
    In,
    Predicate,
    UnsupportedSql,
    Where,
    bind_tree,
    kind_of_node,
    parse_sql,
)
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import ShardSchema

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Select", "lookup_keys", "read_simple_select", "spark_schema"]

_KEYS_MAX: Final = 100
"""Most keys that are looked up one by one; more are found faster by one scan."""

_LIMIT_MAX: Final = (1 << 31) - 1
"""Largest LIMIT that Spark takes."""


@dataclass(frozen=True, slots=True)
class Select:
    """A simple query.

    Attributes:
        columns: Columns of the object, in the order of the result; one may come twice.
        names: Their names in the result.
        where: The condition; None for all rows.
        limit: Most rows, no matter which; None for all.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    where: Where | None
    limit: int | None

    def shaped(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """The result, made of rows that have the columns; `schema` is the object's for Spark."""
        wanted = [schema.field(name).with_name(new) for name, new in self._pairs]
        picked = [table.column(name) for name, _ in self._pairs]
        found = relabel(picked, pa.schema(wanted))
        return found if self.limit is None else found.slice(0, self.limit)

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.columns, self.names, strict=True))


def read_simple_select(query: str, name: str, schema: ShardSchema, zone: str) -> Select | None:
    """The columns, condition and limit of a simple query; None if it must go to Spark.

    Args:
        query: SQL that reads object `name` and nothing else.
        name: Name of the object.
        schema: Its columns.
        zone: Time zone of the session.
    """
    # Columns that differ by case only are ambiguous for Spark, which then raises.
    folded = [column.lower() for column in schema.names]
    if len(set(folded)) < len(folded):
        return None
    try:
        tree = parse_sql(query)
        if kind_of_node(tree) != "Select":
            return None
        return _SelectReader(tree, query, name, schema, zone).select()
    except (UnsupportedSql, InvalidUsage, RecursionError):
        return None


class _SelectReader:
    """A query's syntax tree, read clause by clause."""

    def __init__(
        self, tree: exp.Expr, query: str, name: str, schema: ShardSchema, zone: str
    ) -> None:
        self._args = tree.args
        self._name = name
        self._schema = schema
        self._condition = Condition(query, zone)

    def select(self) -> Select | None:
        """The parts of the query if it is simple, else None."""
        alias = self._alias()
        items = self._items(alias) if alias is not None else None
        limit = self._limit()
        if alias is None or items is None or limit == -1:
            return None
        columns, names = tuple(c for c, _ in items), tuple(n for _, n in items)
        return Select(columns, names, self._where(alias), limit)

    def _alias(self) -> str | None:
        """The name of the object in the query; None if it reads anything else."""
        source = self._args.get("from_")
        table = source.this if source is not None else None
        if table is None or kind_of_node(table) != "Table":
            return None
        name = _name_of(table.this)
        if name is None or name.lower() != self._name.lower():
            return None
        alias = table.args.get("alias")
        if alias is None:
            return name
        return _name_of(alias.this) if kind_of_node(alias) == "TableAlias" else None

    def _items(self, alias: str) -> list[tuple[str, str]] | None:
        """Columns and their names in the result; None if an item is no plain column."""
        items: list[tuple[str, str]] = []
        for item in self._args["expressions"]:
            if kind_of_node(item) == "Star":
                items += [(name, name) for name in self._schema.names]
                continue
            renamed = kind_of_node(item) == "Alias"
            column = self._column(item.this if renamed else item, alias)
            name = _name_of(item.args.get("alias")) if renamed else column
            if column is None or name is None:
                return None
            items.append((column, name))
        return items

    def _column(self, node: exp.Expr, alias: str) -> str | None:
        """The column that `node` names, in the object's own spelling; None for all else."""
        if kind_of_node(node) != "Column" or node.args.get("db") is not None:
            return None
        name, table = _name_of(node.this), node.args.get("table")
        if table is not None:
            of = _name_of(table)
            if of is None or of.lower() != alias.lower() or self._is_column(of):
                return None
        return name if name in self._schema.names else None

    def _limit(self) -> int | None:
        """The limit; None if there is none, -1 if it is not understood."""
        limit = self._args.get("limit")
        if limit is None:
            return None
        count = limit.args.get("expression") if kind_of_node(limit) == "Limit" else None
        if count is None or kind_of_node(count) != "Literal" or count.args.get("is_string"):
            return -1
        text = str(count.this)
        if re.fullmatch(r"\d{1,10}", text, re.ASCII) is None or int(text) > _LIMIT_MAX:
            return -1
        return int(text)

    def _where(self, alias: str) -> Where | None:
        """The condition; None if there is none.

        Raises:
            InvalidUsage: It is not understood: the query goes to Spark.
        """
        where = self._args.get("where")
        if where is None:
            return None
        condition = where.this.copy()
        for node in list(condition.walk()):
            table = node.args.get("table") if kind_of_node(node) == "Column" else None
            of = _name_of(table)
            if of is not None and of.lower() == alias.lower():
                if self._is_column(alias) or node.args.get("db") is not None:
                    raise InvalidUsage(f"'{alias}' is a table and a column")
                node.set("table", None)
        return bind_tree(condition, self._condition, self._schema)

    def _is_column(self, name: str) -> bool:
        return name.lower() in (column.lower() for column in self._schema.names)


def _name_of(node: exp.Expr | None) -> str | None:
    """A name, without its backticks; None for anything else."""
    if node is None or kind_of_node(node) != "Identifier" or not isinstance(node.this, str):
        return None
    return node.this


def spark_schema(schema: ShardSchema) -> pa.Schema | None:
    """The Arrow schema of Spark's `toArrow` for rows of `schema`; None if values might differ."""
    # Both load pyspark, which pure parts of this package do not.
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    from shardline.datasource.frames import struct_of  # noqa: PLC0415

    try:
        result_schema = to_arrow_schema(
            struct_of(schema.record),
            error_on_duplicated_field_names_in_struct=True,
            timezone="UTC",
        )
    except Exception:  # noqa: BLE001 - a type that Spark has no Arrow form for: it will say so
        return None
    same = all(a.type.equals(b.type) for a, b in zip(schema.arrow, result_schema, strict=True))
    return result_schema if same else None


def lookup_keys(select: Select, key: Sequence[str], schema: ShardSchema) -> list[pa.Table] | None:
    """The keys of which every row of the result has one, a table of one row each; None: unknown.

    Args:
        select: The query, whose condition may fix the key.
        key: Key columns of an index.
        schema: Columns of the object.
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
