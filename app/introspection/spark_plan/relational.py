"""Relational nodes are the steps of a query, in the order in which they are evaluated.

    relational_nodes("SELECT a, count(*) FROM t JOIN u USING (a) GROUP BY a", ("t", "u"))
    Join(t, u) -> Aggregate -> Project

They follow the query as it is written, not as Spark optimises it: a reader of the query recognises
them, and they are the same on every version of Spark.

Invariants:
    The last node is the result; a node's inputs are inputs of the query or earlier nodes.
    A query that cannot be parsed has no nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

__all__ = ["Input", "Node", "relational_nodes"]

Input: TypeAlias = str | int
"""An input of the query, by name; or a node, by its position."""

_DETAIL: Final = 200
"""Characters of SQL kept with a node."""


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a query.

    Attributes:
        name: Its kind, such as `Join`.
        inputs: Inputs of the query and earlier nodes that it takes rows from.
        detail: Its piece of SQL, cut at 200 characters.
    """

    name: str
    inputs: tuple[Input, ...]
    detail: str


def relational_nodes(query: str, inputs: Collection[str]) -> tuple[Node, ...]:
    """The relational nodes of a query; () if it cannot be parsed, or is nested too deeply.

    Args:
        query: SQL in Spark's dialect.
        inputs: Names that it may read; any other table is read by a node of its own.
    """
    walk = _Walk({name.lower(): name for name in inputs})
    try:
        tree = sqlglot.parse_one(query, dialect="spark")
        top = walk.query(tree, {})
    except (SqlglotError, RecursionError):
        return ()
    if isinstance(top, str):
        walk.add("Project", [top], tree)
    return tuple(walk.nodes)


class _Walk:
    """Collects the nodes of a query on a walk through its syntax tree."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        self.nodes: list[Node] = []
        self._inputs = inputs

    def add(self, name: str, inputs: Sequence[Input], piece: exp.Expr | str) -> int:
        """Add a node; returns its position."""
        text = piece if isinstance(piece, str) else piece.sql(dialect="spark", comments=False)
        short = text if len(text) <= _DETAIL else text[: _DETAIL - 1] + "…"
        self.nodes.append(Node(name, tuple(dict.fromkeys(inputs)), short))
        return len(self.nodes) - 1

    def query(self, tree: exp.Expr, known: Mapping[str, Input]) -> Input:
        """Add a query; returns the input or node with its result.

        Args:
            tree: The query.
            known: Common table expressions in scope, by name.
        """
        scope = dict(known)
        with_ = tree.args.get("with_") or tree.args.get("with")
        for table in with_.expressions if isinstance(with_, exp.With) else ():
            scope[table.alias.lower()] = self.query(table.this, scope)
        match tree:
            case exp.Subquery():
                result = self.query(tree.this, scope)
            case exp.SetOperation():
                sides = [self.query(tree.left, scope), self.query(tree.right, scope)]
                result = self.add(type(tree).__name__, sides, _words(tree))
            case exp.Select():
                return self._select(tree, scope)
            case exp.Table():
                result = self._table(tree, scope)
            case _:
                result = self.add(type(tree).__name__, [], tree)
        return self._ordered(tree, result)

    def _select(self, select: exp.Select, scope: Mapping[str, Input]) -> Input:
        current = self._from(select, scope)
        for lateral in select.args.get("laterals") or ():
            current = self.add("Generate", [current], lateral)
        for key, name in (("where", "Filter"), ("group", "Aggregate"), ("having", "Filter")):
            piece = select.args.get(key)
            if piece is not None:
                current = self.add(name, [current, *self._nested(piece, scope)], piece)
            elif key == "group" and _aggregates(select):
                current = self.add("Aggregate", [current], _columns(select))
        if any(True for _ in _own(select.expressions, exp.Window)):
            current = self.add("Window", [current], _columns(select))
        nested = [i for column in select.expressions for i in self._nested(column, scope)]
        current = self.add("Project", [current, *nested], _columns(select))
        if select.args.get("distinct"):
            current = self.add("Distinct", [current], "DISTINCT")
        return self._ordered(select, current)

    def _from(self, select: exp.Select, scope: Mapping[str, Input]) -> Input:
        source = select.args.get("from_") or select.args.get("from")
        current: Input = (
            self.add("Constant", [], "") if source is None else self._table(source.this, scope)
        )
        for join in select.args.get("joins") or ():
            current = self.add("Join", [current, self._table(join.this, scope)], join)
        return current

    def _table(self, table: exp.Expr, scope: Mapping[str, Input]) -> Input:
        if isinstance(table, exp.Subquery):
            return self.query(table.this, scope)
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            return self.add("Generate", [], table)
        name = table.name.lower()
        found = scope.get(name, self._inputs.get(name))
        current: Input = self.add("Scan", [], table.name) if found is None else found
        for join in table.args.get("joins") or ():
            current = self.add("Join", [current, self._table(join.this, scope)], join)
        return current

    def _nested(self, piece: exp.Expr, scope: Mapping[str, Input]) -> list[Input]:
        """Add the subqueries inside of an expression; returns the nodes with their results."""
        found = (exp.Select, exp.SetOperation)
        inside = piece.walk(prune=lambda node: isinstance(node, found))
        return [self.query(query, scope) for query in inside if isinstance(query, found)]

    def _ordered(self, tree: exp.Expr, current: Input) -> Input:
        for key, name in (("order", "Sort"), ("limit", "Limit")):
            piece = tree.args.get(key)
            if piece is not None:
                current = self.add(name, [current], piece)
        return current


def _own(pieces: Sequence[exp.Expr], kind: type[exp.Expr]) -> list[exp.Expr]:
    """Expressions of `kind` in `pieces`, without those of subqueries."""
    return [
        node
        for piece in pieces
        for node in piece.walk(prune=lambda n: isinstance(n, exp.Query))
        if isinstance(node, kind)
    ]


def _aggregates(select: exp.Select) -> bool:
    """True if a SELECT without GROUP BY aggregates all its rows."""
    return any(
        not isinstance(found.parent, exp.Window) for found in _own(select.expressions, exp.AggFunc)
    )


def _columns(select: exp.Select) -> str:
    return ", ".join(column.sql(dialect="spark", comments=False) for column in select.expressions)


def _words(tree: exp.SetOperation) -> str:
    return f"{type(tree).__name__.upper()}{'' if tree.args.get('distinct') else ' ALL'}"
