"""Parses SQL text to a tree, and refuses every node and argument that readers do not know.

    tree = parse_sql("price > 10 and not s like 'a%'")      one expression or query
    READ_ARGUMENTS["Like"]                                  {"this", "expression", "negate"}

The parser is another project's (sqlglot). It puts the meaning of a text into arguments of its
nodes, and each release may add some: `s NOT LIKE 'a%'` was once a Not around a Like, and then a
Like with an argument `negate`, so that a reader that knew only the first form gave the opposite
rows. So there is one list of what is read (`READ_ARGUMENTS`), and one place that compares whole
trees with
it: a node that is not in the list, or an argument of one that is set and not in it, is refused
before any reader sees the tree.

Invariants:
    Every reader of a tree looks at every argument that the list has for the nodes that it accepts,
    and refuses nodes of other types there: an argument is listed only if all readers do so.
    Texts for which the parser gives the same tree, and Spark different meanings or an error, are
    refused by their tokens.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlglot import Token, exp

__all__ = ["READ_ARGUMENTS", "UnsupportedSql", "kind_of_node", "parse_sql"]


class UnsupportedSql(ValueError):
    """Raised for a text, or a piece of it, whose meaning in Spark is not certain; says why."""


_BOTH: Final = frozenset({"this", "expression"})
_THIS: Final = frozenset({"this"})

READ_ARGUMENTS: Final[Mapping[str, frozenset[str]]] = {
    # Conditions.
    "Paren": _THIS,
    "Not": _THIS,
    "And": _BOTH,
    "Or": _BOTH,
    "EQ": _BOTH,
    "NEQ": _BOTH,
    "LT": _BOTH,
    "LTE": _BOTH,
    "GT": _BOTH,
    "GTE": _BOTH,
    "NullSafeEQ": _BOTH,
    "NullSafeNEQ": _BOTH,
    "Is": _BOTH,
    "Between": frozenset({"this", "low", "high"}),
    "In": frozenset({"this", "expressions"}),
    "Like": frozenset({"this", "expression", "negate"}),
    "StartsWith": _BOTH,
    "IsNan": _THIS,
    "Anonymous": frozenset({"this", "expressions"}),
    # Columns.
    "Identifier": frozenset({"this", "quoted"}),
    "Column": frozenset({"this", "table", "db", "catalog"}),
    "Dot": _BOTH,
    # Literals.
    "Null": frozenset(),
    "Boolean": _THIS,
    "Literal": frozenset({"this", "is_string"}),
    "Neg": _THIS,
    "HexString": _THIS,
    "Interval": frozenset({"this", "unit"}),
    "IntervalSpan": _BOTH,
    "Var": _THIS,
    # `safe` is try_cast: casts that can fail are no literals, whichever of the two they are.
    "Cast": frozenset({"this", "to", "safe"}),
    "TryCast": frozenset({"this", "to", "safe"}),
    "DataType": frozenset({"this", "expressions"}),
    "DataTypeParam": _THIS,
    # Simple queries.
    "Select": frozenset({"expressions", "from_", "where", "limit"}),
    "Star": frozenset(),
    "Alias": frozenset({"this", "alias"}),
    "From": _THIS,
    "Table": frozenset({"this", "alias"}),
    "TableAlias": _THIS,
    "Where": _THIS,
    "Limit": frozenset({"expression"}),
}
"""The arguments that are read of each node, by class name of the node: using the classes themselves
would load the parser."""


def kind_of_node(node: object) -> str:
    """The name of a node's class; the name of another class if it is not a node."""
    return type(node).__name__


def parse_sql(text: str) -> exp.Expr:
    """Parse one expression or query in Spark's SQL.

    Raises:
        UnsupportedSql: It is not one, or has a piece that is not in `READ_ARGUMENTS`.
    """
    if "\\" in text:
        raise UnsupportedSql("it has a backslash, and escapes are not understood")
    if "${" in text:
        raise UnsupportedSql("it has '${', where Spark puts the value of a setting")
    spark = _spark()
    try:
        tokens = spark.tokenize(text)
        _check_tokens(tokens, text)
        found = spark.parser().parse(tokens, text)
    except UnsupportedSql:
        raise
    except Exception as error:  # for some texts the parser fails, instead of refusing them
        lines = re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()
        why = lines[0] if lines else error
        raise UnsupportedSql(f"it is no SQL expression: {why}") from error
    if len(found) != 1 or found[0] is None:
        raise UnsupportedSql("it is not one SQL expression")
    tree: exp.Expr = found[0]
    _check_nodes(tree)
    return tree


@functools.cache
def _spark() -> Any:
    # Loading the parser takes a third of a second, which only its users should pay.
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415

    return Spark()


def _check_tokens(tokens: Sequence[Token], text: str) -> None:
    """Refuse tokens of which the tree shows no trace.

    Raises:
        UnsupportedSql: Names the token.
    """
    for place, token in enumerate(tokens):
        kind, written = token.token_type.name, text[token.start : token.end + 1]
        following = tokens[place + 1].token_type.name if place + 1 < len(tokens) else ""
        if written.endswith('"'):
            # A column to a session with spark.sql.ansi.doubleQuotedIdentifiers: there Spark would
            # filter rows by another condition than the one by which parts are left out.
            raise UnsupportedSql(f"{written} may be text or a column: write '…' or `…`")
        if kind == "UNKNOWN":
            # Spark casts its operand to a boolean first. To the parser it is another NULL.
            raise UnsupportedSql("'unknown' is not understood: write is null")
        if kind == "HEX_STRING" and written.startswith("0"):
            raise UnsupportedSql(f"'{written}' is no number: write X'…' for bytes")
        if kind == "PIPE_GT":
            # Its clause works on what is before it, and in the tree is one of the SELECT before it.
            raise UnsupportedSql("'|>' is not understood")
        if kind == "COMMA" and following == "R_PAREN":
            raise UnsupportedSql("a list ends with a comma")


def _check_nodes(tree: exp.Expr) -> None:
    """Refuse a tree with nodes or arguments that its readers do not look at.

    Raises:
        UnsupportedSql: Names the piece.
    """
    for node in tree.walk():
        read = READ_ARGUMENTS.get(kind_of_node(node))
        if read is None:
            raise UnsupportedSql(f"{_shown(node)} is not understood")
        for name, value in node.args.items():
            if name not in read and not _is_default(value):
                raise UnsupportedSql(
                    f"{_shown(node)} is not understood: {kind_of_node(node)} has '{name}'"
                )


def _is_default(value: object) -> bool:
    return value is None or value is False or value == []


def _shown(node: exp.Expr) -> str:
    """The piece as SQL if the parser can write it, otherwise the name of its type."""
    try:
        return f"'{node.sql(dialect='spark'):.150}'"
    except Exception:  # noqa: BLE001 - it is refused whatever it looks like
        return f"a piece of type {kind_of_node(node)}"
