"""What makes a query's result depend on more than its inputs' contents, found in its plan.

    undetermined(plan) -> (what, hint) | None      order, layout, special date-times

Spark itself says of an expression whether it is deterministic (`analyze` asks it); here is what it
does not say: aggregates that take whichever row comes first, LIMIT without an order, samples, and
the texts that a cast to a date or timestamp reads as the current time.

Invariants:
    What is found here can give two results for the same inputs. What is not found may still: ties
    in an ORDER BY that ends in LIMIT, or in a window's order, are not looked for. They cost
    spurious changes, never rows that no run of the query gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from sqlglot import TokenType

from app.project.plantree import Node
from app.project.tokens import tokens_of, word_of

__all__ = ["SPECIAL_TIMES", "special_literal", "undetermined"]

SPECIAL_TIMES: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts that Spark reads as the current time where a date or timestamp is wanted."""

_TIMES: Final = ("DATE", "TIMESTAMP")
_PARSED: Final = frozenset({"ParseToDate", "ParseToTimestamp"})
_FIRST: Final = frozenset({"First", "Last", "AnyValue"})
_COLLECTED: Final = frozenset({"CollectList", "CollectSet"})
_UNORDERED: Final = frozenset({"ArraySize", "Cardinality", "Size", "SortArray"})
"""Functions of an array whose result does not depend on its order."""
_TRANSPARENT: Final = frozenset(
    {"GlobalLimit", "LocalLimit", "Offset", "PipeOperator", "Project", "SubqueryAlias"}
)


def undetermined(plan: Node) -> tuple[str, str] | None:
    """The first thing in a query that its inputs do not decide.

    Args:
        plan: The analysed plan.

    Returns:
        What it is, and a hint; None if there is nothing.
    """
    for operator in _operators(plan):
        found = _operator(operator)
        if found is not None:
            return found
    special = next((node for node in plan.walk() if _special(node)), None)
    if special is None:
        return None
    text = special.children[0].fields["value"]
    what = f"'{text}' as a date or timestamp means the time at which the query runs"
    return what, "write the date or timestamp itself"


def special_literal(text: str) -> int | None:
    """Offset of the first `DATE 'today'` or `TIMESTAMP 'now'` of a query.

    Spark's parser puts the time in its place, so that no plan shows it.
    """
    for before, token in pairwise(tokens_of(text)):
        if (
            token.token_type is TokenType.STRING
            and token.text.strip().lower() in SPECIAL_TIMES
            and word_of(before, text).startswith(_TIMES)
        ):
            return before.start
    return None


def _operators(plan: Node) -> Iterator[Node]:
    """Every operator, also of subqueries, but not of EXISTS: it asks for any row."""
    ahead = [plan]
    while ahead:
        node = ahead.pop()
        if node.kind != "Exists":
            yield node
            ahead += reversed((*node.expressions, *node.children))


def _operator(node: Node) -> tuple[str, str] | None:
    match node.kind:
        case "GlobalLimit" | "Offset" if not _ordered(node):
            return (
                "LIMIT or OFFSET without ORDER BY takes whichever rows come first",
                "add an ORDER BY that decides each row's place",
            )
        case "Sample":
            return (
                "a sample depends on how rows are distributed",
                "filter by a hash of a key, such as pmod(xxhash64(id), 10) = 0",
            )
        case "Aggregate":
            return next((found for tree in node.expressions if (found := _calls(tree))), None)
        case _:
            return None


def _ordered(node: Node) -> bool:
    """Whether the rows of a LIMIT come in an order, or are one at most."""
    while node.kind in _TRANSPARENT:
        if not node.children:
            return False
        node = node.children[0]
    if node.kind == "Aggregate":
        return node.fields.get("groupingExpressions") == []  # without GROUP BY: one row
    return node.kind == "Sort"


def _calls(tree: Node) -> tuple[str, str] | None:
    """The first aggregate below `tree` that takes rows as they come."""
    ahead: list[tuple[Node, bool]] = [(tree, False)]
    while ahead:
        node, settled = ahead.pop()
        if node.kind in _FIRST:
            name = node.kind.lower().replace("anyvalue", "any_value")
            return (
                f"{name}() takes whichever row comes first",
                "use min, max, or min_by and max_by with an order",
            )
        if node.kind in _COLLECTED and not settled:
            name = "collect_list" if node.kind == "CollectList" else "collect_set"
            return (f"{name}() keeps rows as they come", f"write sort_array({name}(…))")
        if node.kind == "ListAgg" and not node.fields.get("orderExpressions", True):
            return (
                "listagg() without an order keeps rows as they come",
                "add WITHIN GROUP (ORDER BY …)",
            )
        below = node.kind in _UNORDERED or (settled and node.kind == "AggregateExpression")
        ahead += [(child, below) for child in reversed((*node.expressions, *node.children))]
    return None


def _special(node: Node) -> bool:
    to = str(node.fields.get("dataType", "")).upper()
    if node.kind not in _PARSED and not (node.kind == "Cast" and to.startswith(_TIMES)):
        return False
    if not node.children:
        return False
    child = node.children[0]
    text = child.fields.get("value")
    return (
        child.kind == "Literal" and isinstance(text, str) and text.strip().lower() in SPECIAL_TIMES
    )
