"""Translates SQL text to filters: the option `where`, read as Spark reads it, bound to a schema.

    Condition(text, zone)            the user's text
    condition.bind(schema) -> Where  its predicate over a shard's columns, types checked

Understood are: `=` `==` `<>` `!=` `<` `<=` `>` `>=` `<=>` between a column and a literal, in either
order; `in`, `between`, `is [not] null`, `is [not] true/false`, `is [not] distinct from`, `like
'prefix%'`, `startswith`, `isnull`, `isnotnull`, `isnan`, boolean columns, `and`, `or`, `not`. A
column is a name, or a path into structs. Literals: numbers with Spark's suffixes, text, `true`,
`false`, `null`, `date '…'`, `timestamp '…'`, `timestamp_ntz '…'`, `time '…'`, `interval '…' hour`
and `day to second`, `X'…'`, casts of those. Text is a date or a timestamp where the column is one;
in a list only a date is. Everything else is refused, by name: a filter with another meaning than in
Spark would lose rows without an error.

Invariants:
    A tree of the parser is read only if `sql_tree` knows every argument in it.
    Numbers are compared by their exact value, and with float and double columns as doubles, as
    Spark does. Where Spark would round a column to compare it (a long or a decimal with a double, a
    whole number with a float in some sessions), a literal for which that could matter is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.filters.comparisons import (
    Column,
    Literal,
    NotComparable,
    compare,
    compare_in,
)
from shardline.datasource.filters.predicates import (
    And,
    ColumnLookup,
    Constant,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    may_be_true,
)
from shardline.datasource.filters.sql_literals import literal_of
from shardline.datasource.filters.sql_tree import UnsupportedSql, kind_of_node, parse_sql
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Record, path_text

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

__all__ = ["Condition", "Where", "bind_tree"]


@dataclass(frozen=True, slots=True)
class Where:
    """A filter that is bound to a shard's columns: plain data, pickled into tasks.

    Attributes:
        text: The SQL that it was made from, for messages and for Spark's own filter.
        predicate: The bound form. A row passes only if it is true, not if it is null.
        in_case: False if the text names a column in another case than the schema does.
    """

    text: str
    predicate: Predicate
    in_case: bool = True

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns that it needs."""
        return self.predicate.columns

    def passes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch`, which has its columns, for which it is true."""
        return batch.filter(self.predicate.mask(batch))

    def may_pass(self, known: ColumnLookup) -> bool:
        """True if some row that `known` describes may pass; False proves that none does."""
        return may_be_true(self.predicate, known)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter as its user wrote it; not parsed before `bind`.

    Attributes:
        text: A boolean SQL expression.
        zone: Time zone of timestamps without one, by a name that Spark takes for a session's.
    """

    text: str
    zone: str = "UTC"

    def bind(self, schema: ShardSchema) -> Where:
        """The filter over rows of `schema`.

        Raises:
            InvalidUsage: `INVALID_WHERE`, naming the piece that is not understood or whose types
                cannot be compared; `UNKNOWN_COLUMN` with the nearest name.
        """
        return _bound(self, schema.json)


@functools.lru_cache(maxsize=64)
def _bound(condition: Condition, schema: str) -> Where:
    """`Condition.bind`, cached: a stream binds the same filter at each micro-batch."""
    try:
        tree = parse_sql(condition.text)
    except UnsupportedSql as error:
        raise _refused(condition.text, str(error)) from error
    return bind_tree(tree, condition, ShardSchema.parse(schema))


def bind_tree(tree: exp.Expr, condition: Condition, schema: ShardSchema) -> Where:
    """Bind a piece of a parsed query as a filter.

    Args:
        tree: A piece of a result of `parse_sql`, which has refused nodes that are not read here.
        condition: The text that `tree` is a part of, for messages, and the time zone.
        schema: Schema of the rows.

    Raises:
        InvalidUsage: As `Condition.bind`.
    """
    binder = _Binder(condition, schema)
    found = binder.predicate(tree)
    if kind_of_node(tree.unnest()) == "Null":
        raise _refused(condition.text, "it is null, and no condition")
    return Where(condition.text, found, binder.in_case)


class _Binder:
    """Translates the expressions of one condition."""

    def __init__(self, condition: Condition, schema: ShardSchema) -> None:
        self._zone = condition.zone
        self._schema = schema
        self._text = condition.text
        self.in_case = True

    def predicate(self, node: exp.Expr) -> Predicate:
        """Translate a boolean expression."""
        translate = _TRANSLATE.get(kind_of_node(node))
        if translate is None:
            raise self._refused(node, "is not understood in a filter")
        try:
            return translate(self, node)
        except RecursionError:
            raise _refused(self._text, "it is nested too deeply") from None

    # Each of these takes the node of the type that it is named after.

    def paren(self, node: exp.Expr) -> Predicate:
        return self.predicate(node.this)

    def not_(self, node: exp.Expr) -> Predicate:
        return Not(self.predicate(node.this))

    def and_(self, node: exp.Expr) -> Predicate:
        return And(tuple(map(self.predicate, _flattened(node))))

    def or_(self, node: exp.Expr) -> Predicate:
        return Or(tuple(map(self.predicate, _flattened(node))))

    def constant(self, node: exp.Expr) -> Predicate:
        literal = self._literal(node)
        return Constant(bool(literal.value) if literal.kind == "boolean" else None)

    def boolean_column(self, node: exp.Expr) -> Predicate:
        return self._compare(node, self._column(node), "=", Literal("boolean", True))

    def comparison(self, node: exp.Expr) -> Predicate:
        name = kind_of_node(node)
        left, right = node.this, node.expression
        if self._names_column(left):
            column, operator, literal = left, _OPERATORS[name], right
        elif self._names_column(right):
            column, operator, literal = right, _FLIPPED[name], left
        else:
            raise self._refused(node, "compares no column")
        return self._compare(node, self._column(column), operator, self._literal(literal))

    def different(self, node: exp.Expr) -> Predicate:
        return Not(self.comparison(node))

    def same(self, node: exp.Expr) -> Predicate:
        left, right = node.this, node.expression
        column = self._column(left if self._names_column(left) else right)
        literal = self._literal(right if self._names_column(left) else left)
        if literal.kind == "null":
            return IsNull(column.path)
        return self._known(column, self._compare(node, column, "=", literal))

    def not_same(self, node: exp.Expr) -> Predicate:
        return Not(self.same(node))

    def between(self, node: exp.Expr) -> Predicate:
        column = self._column(node.this)
        low, high = self._literal(node.args["low"]), self._literal(node.args["high"])
        return And(
            (self._compare(node, column, ">=", low), self._compare(node, column, "<=", high))
        )

    def in_(self, node: exp.Expr) -> Predicate:
        if not node.expressions:
            raise self._refused(node, "is not understood in a filter")
        column = self._column(node.this)
        literals = [self._literal(one) for one in node.expressions]
        given = [one for one in literals if one.kind != "null"]
        if not given:
            return Constant(None)
        null = len(given) < len(literals)
        return self._fitting(node, lambda: compare_in(column, given, self._zone, null=null))

    def like(self, node: exp.Expr) -> Predicate:
        column, pattern = self._text_and_pattern(node)
        prefix = pattern.rstrip("%")
        if "%" in prefix or "_" in prefix:
            raise self._refused(node, "has a pattern other than 'prefix%'")
        found: Predicate = StartsWith(column.path, prefix)
        if prefix == pattern:
            found = self._compare(node, column, "=", Literal("string", pattern))
        return Not(found) if node.args.get("negate") else found

    def starts_with(self, node: exp.Expr) -> Predicate:
        column, prefix = self._text_and_pattern(node)
        return StartsWith(column.path, prefix)

    def is_nan(self, node: exp.Expr) -> Predicate:
        column = self._column(node.this)
        if column.kind != "float":
            raise self._refused(node, "is only understood for float and double columns")
        nan = self._compare(node, column, "=", Literal("double", "NaN"))
        return self._known(column, nan)

    def function(self, node: exp.Expr) -> Predicate:
        name = node.this.lower() if isinstance(node.this, str) else ""
        if name not in ("isnull", "isnotnull") or len(node.expressions) != 1:
            raise self._refused(node, "is not understood in a filter")
        null = IsNull(self._column(node.expressions[0]).path)
        return null if name == "isnull" else Not(null)

    # Pieces.

    @staticmethod
    def _known(column: Column, predicate: Predicate) -> Predicate:
        """`predicate`, but false instead of null where the column is null."""
        return And((Not(IsNull(column.path)), predicate))

    def _text_and_pattern(self, node: exp.Expr) -> tuple[Column, str]:
        column, pattern = self._column(node.this), self._literal(node.expression)
        if column.kind != "str" or pattern.kind != "string":
            raise self._refused(node, "is only understood for plain text and a literal")
        return column, str(pattern.value)

    def _compare(
        self, node: exp.Expr, column: Column, operator: Operator, literal: Literal
    ) -> Predicate:
        if literal.kind == "null":
            return Constant(None)
        return self._fitting(node, lambda: compare(column, operator, literal, self._zone))

    def _fitting(self, node: exp.Expr, make: Callable[[], Predicate]) -> Predicate:
        try:
            return make()
        except NotComparable as error:
            raise self._refused(node, f"compares what does not go together: {error}") from error

    @staticmethod
    def _names_column(node: exp.Expr) -> bool:
        return kind_of_node(node) in ("Column", "Dot")

    def _column(self, node: exp.Expr) -> Column:
        """The column that `node` names, in any case, as Spark finds it."""
        names = _names_of(node) if self._names_column(node) else None
        if names is None:
            raise self._refused(node, "stands where a column is needed")
        record, field = self._schema.record, None
        path: list[str] = []
        for name in names:
            field = next((f for f in record.fields if f.name.lower() == name.lower()), None)
            if field is None:
                known = [path_text((*path, f.name)) for f in record.fields]
                raise unknown_name("column", path_text(tuple(names)), known)
            path.append(field.name)
            record = field.type if isinstance(field.type, Record) else Record(())
        assert field is not None, node
        self.in_case = self.in_case and path == list(names)
        return Column(tuple(path), field)

    def _literal(self, node: exp.Expr) -> Literal:
        try:
            found = literal_of(node)
        except UnsupportedSql as error:
            raise self._refused(node, f"is no literal: {error}") from error
        if found is None:
            raise self._refused(node, "stands where a literal is needed")
        return found

    def _refused(self, node: exp.Expr, why: str) -> InvalidUsage:
        return _refused(self._text, f"'{node.sql(dialect='spark'):.150}' {why}")


def _names_of(node: exp.Expr) -> list[str] | None:
    """The parts of a column's name; None if something else is among them."""
    kind = kind_of_node(node)
    if kind == "Identifier":
        return [node.this] if isinstance(node.this, str) else None
    found: list[str] = []
    for key in _NAME_PARTS.get(kind, ()):
        if (part := node.args.get(key)) is not None:
            names = _names_of(part)
            if names is None:
                return None
            found += names
    return found or None


_NAME_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Column": ("catalog", "db", "table", "this"),
    "Dot": ("this", "expression"),
}


def _flattened(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a chain of one connective, which the parser nests to the left."""
    parts: list[exp.Expr] = []
    while kind_of_node(node.this) == kind_of_node(node):
        parts.append(node.expression)
        node = node.this
    return [node.this, node.expression, *reversed(parts)]


_OPERATORS: Final[Mapping[str, Operator]] = {
    "EQ": "=",
    "NEQ": "=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
}
_FLIPPED: Final[Mapping[str, Operator]] = {
    "EQ": "=",
    "NEQ": "=",
    "LT": ">",
    "LTE": ">=",
    "GT": "<",
    "GTE": "<=",
}

_TRANSLATE: Final[Mapping[str, Callable[[_Binder, exp.Expr], Predicate]]] = {
    "Paren": _Binder.paren,
    "Not": _Binder.not_,
    "And": _Binder.and_,
    "Or": _Binder.or_,
    "Boolean": _Binder.constant,
    "Null": _Binder.constant,
    "Column": _Binder.boolean_column,
    "Dot": _Binder.boolean_column,
    "EQ": _Binder.comparison,
    "NEQ": _Binder.different,
    "LT": _Binder.comparison,
    "LTE": _Binder.comparison,
    "GT": _Binder.comparison,
    "GTE": _Binder.comparison,
    "NullSafeEQ": _Binder.same,
    "NullSafeNEQ": _Binder.not_same,
    "Is": _Binder.same,
    "Between": _Binder.between,
    "In": _Binder.in_,
    "Like": _Binder.like,
    "StartsWith": _Binder.starts_with,
    "IsNan": _Binder.is_nan,
    "Anonymous": _Binder.function,
}
"""Translators by class name of the node: using the classes themselves would load the parser."""


def _refused(text: str, why: str) -> InvalidUsage:
    return InvalidUsage(
        f"option 'where' cannot be used: {why}, in \"{text:.300}\"",
        code="INVALID_WHERE",
        hint="compare columns with literals (= <> < <= > >= <=> in between like 'prefix%' "
        "is null), joined by and, or, not; do the rest in Spark after the read",
    )
