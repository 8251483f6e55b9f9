"""Checks determinism: a view's result must depend on its inputs' contents alone.

A view's contents at a time are promised to be a function of its inputs at that time. A query whose
result depends on the order of rows, on their distribution or on the clock breaks that: each
recomputation would give other rows, and a restart would show as a change.

    find_nondeterminism(plan) -> (what, hint) | None      order, layout, special date-times
    constants_read_as_times(plan) -> ids                  texts that are such by another name
    chosen_values("If", 3) -> (1, 2)                      where a CASE and its like have texts

Spark marks expressions that are not deterministic (`catalyst` asks it). This module finds what
Spark does not mark: aggregates that take the first row that comes, LIMIT without an order, samples,
and texts that a cast to a date or timestamp reads as the current time.

Invariants:
    A query that is refused here can give two results for the same inputs. One that passes still
    may: ties in an ORDER BY that ends in LIMIT, in a window's order, or in `max_by` are not looked
    for. They cost spurious changes, never rows that no run of the query gives.
    An order by constants is no order: all rows tie in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from sqlglot import TokenType

from shardline.app.sql.plan_tree import Node
from shardline.app.sql.strategy import INPUT
from shardline.app.sql.tokens import tokens_of, word_of
from shardline.app.sql.window_frames import (
    COLLECTED,
    find_unordered_function,
    is_order_insensitive,
)

__all__ = [
    "chosen_values",
    "constants_read_as_times",
    "find_clock_literal",
    "find_nondeterminism",
    "has_computed_times",
    "is_clock_text",
]

_SPECIAL: Final = re.compile(
    r"now|(today|tomorrow|yesterday)([^a-z].*)?", re.IGNORECASE | re.DOTALL
)
"""A time zone may follow, behind blanks or at once. What is no zone makes no date or timestamp."""
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""Characters that Spark takes off both ends of such a text: those of Java's `trim`."""
_OF_TODAY: Final = re.compile(r"T?\d{1,2}:\d{1,2}(:.*)?", re.IGNORECASE)

_STRINGS: Final = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_TIMES: Final = ("DATE", "TIMESTAMP")
_PARSED: Final = frozenset({"ParseToDate", "ParseToTimestamp"})
_REPLACED: Final = frozenset({"Decode", "Nvl", "Nvl2"})
"""Functions that Spark evaluates as another expression, their one child, that chooses a value."""
_FIRST: Final = frozenset({"First", "Last", "AnyValue"})
_APPROXIMATE: Final = {
    "ApproximatePercentile": ("approx_percentile", "use percentile, which is exact"),
    "ApproxTopK": ("approx_top_k", "count, and keep the first by ORDER BY … LIMIT"),
    "ApproxTopKAccumulate": ("approx_top_k_accumulate", "count rows by value"),
    "ApproxTopKCombine": ("approx_top_k_combine", "count rows by value"),
    "HistogramNumeric": ("histogram_numeric", "count rows by width_bucket"),
    "HllSketchAgg": ("hll_sketch_agg", "use approx_count_distinct or theta_sketch_agg"),
    "HllUnionAgg": ("hll_union_agg", "use approx_count_distinct or theta_union_agg"),
}
"""Aggregates whose approximation depends on the order of rows and partitions: SQL name, hint."""
_KLL: Final = ("KllSketchAgg", "KllMergeAgg")
_TRANSPARENT: Final = frozenset(
    {"GlobalLimit", "LocalLimit", "Offset", "PipeOperator", "Project", "SubqueryAlias"}
)
_NUMBER_ONLY: Final = _TRANSPARENT | {"Sort", "Window"}
"""Operators that give a number of rows which depends on the number of their input's alone."""


_COLUMNS: Final = {
    "Aggregate": "aggregateExpressions",
    "LocalRelation": "output",
    "Project": "projectList",
}
"""Fields with the columns of operators."""
_SAME_COLUMNS: Final = _TRANSPARENT - {"Project"} | {"Distinct", "Filter", "Sort", "Union"}
"""Operators with the columns of their first input."""


def find_nondeterminism(plan: Node) -> tuple[str, str] | None:
    """The first piece of a query whose result its inputs do not decide.

    Args:
        plan: The analysed plan.

    Returns:
        A sentence about it, and a hint; None if there is nothing.
    """
    for operator in _operators(plan):
        found = _operator(operator, plan)
        if found is not None:
            return found
    special = next((text for node in plan.walk() for text in _clock_texts(node)), None)
    if special is None:
        return None
    what = f"'{special}' as a date or timestamp means the time at which the query runs"
    return what, "write the date or timestamp itself"


def is_clock_text(text: str) -> bool:
    """True if Spark reads this text as the current time, or as a time of today."""
    text = text.strip(_TRIMMED)
    return any(known.fullmatch(text) is not None for known in (_SPECIAL, _OF_TODAY))


def has_computed_times(plan: Node) -> bool:
    """True if a text that is computed from constants alone is read as a date or timestamp.

    Only an evaluation of the text can show if it `is_clock_text`.
    """
    return any(
        _makes_time(node) and any(map(_is_computed, _values(node.children[0])))
        for node in plan.walk()
    )


def constants_read_as_times(plan: Node) -> frozenset[object]:
    """Ids of columns made of constants alone that are read as dates or timestamps, by any name.

    Args:
        plan: Without definitions of CTEs: where these are read, their columns have other ids.
    """
    nodes = [*_above_inputs(plan)]
    sources: dict[object, list[object]] = {}
    for column, source in (pair for node in nodes for pair in _renamed(node)):
        sources.setdefault(column, []).append(source)
    constant = {column for node in nodes for column in _constant_columns(node)}
    times = [value for node in nodes if _makes_time(node) for value in _values(node.children[0])]
    ahead = [column for value in times for column in _columns(value)]
    found: set[object] = set()
    while ahead:
        column = ahead.pop()
        if column not in found:
            found.add(column)
            ahead += sources.get(column, ())
    return frozenset(found & constant)


def find_clock_literal(text: str) -> int | None:
    """Offset of the first `DATE 'today'` or `TIMESTAMP 'now'` of a query; None if there is none.

    Spark's parser replaces it by the present time, so no plan shows it: the text must be searched.
    """
    tokens = tokens_of(text)
    for place, token in enumerate(tokens):
        if word_of(token, text).startswith(_TIMES):
            # Adjacent literals are one to Spark.
            literal = [*takewhile(lambda one: one.token_type in _STRINGS, tokens[place + 1 :])]
            # No date needs a backslash, and `\u0074oday` is known as a word of Spark's only there.
            if is_clock_text("".join(one.text for one in literal)) or any(
                "\\" in text[one.start : one.end + 1] for one in literal
            ):
                return token.start
    return None


def _operators(plan: Node) -> Iterator[Node]:
    """Every operator, also of subqueries; of EXISTS those that decide if there is a row."""
    ahead = [plan]
    while ahead:
        node = ahead.pop()
        yield node
        below = node.expressions
        if node.kind == "Exists":
            below = tuple(found for tree in below for found in _deciding(tree))
        ahead += reversed((*below, *node.children))


def _deciding(plan: Node) -> tuple[Node, ...]:
    """What decides how many rows a plan has: it, without what only adds or chooses columns on top.

    Of LIMIT and OFFSET on top the number is the same, too, whichever rows they take. What is below
    anything else, such as a filter, decides by its rows.
    """
    definitions: list[Node] = []
    while plan.children and (plan.kind == "WithCTE" or plan.kind in _NUMBER_ONLY):
        *before, plan = plan.children
        definitions += before
    if plan.kind == "Aggregate":
        # A group is there whatever its aggregates give. HAVING is a filter above.
        return (*definitions, *plan.trees.get("groupingExpressions", ()), *plan.children)
    return (*definitions, plan)


def _operator(node: Node, plan: Node) -> tuple[str, str] | None:
    match node.kind:
        case "GlobalLimit" | "Offset" if not _is_ordered(node):
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
        case "Window":
            known = next((found for tree in node.expressions if (found := _rough(tree))), None)
            return known or find_unordered_function(node, plan)
        case _:
            return None


def _is_ordered(node: Node) -> bool:
    """True if the rows of a LIMIT come in an order, or are one at most."""
    while node.kind in _TRANSPARENT:
        if not node.children:
            return False
        node = node.children[0]
    if node.kind == "Aggregate":
        return node.fields.get("groupingExpressions") == []  # without GROUP BY: one row
    order = (inner for tree in node.expressions for inner in tree.walk())
    return node.kind == "Sort" and any(inner.kind == "AttributeReference" for inner in order)


def _calls(tree: Node) -> tuple[str, str] | None:
    """The first aggregate in `tree` whose result depends on the order of rows, and a hint."""
    ahead: list[tuple[Node, bool]] = [(tree, False)]
    while ahead:
        node, settled = ahead.pop()
        if node.kind in _FIRST:
            name = node.kind.lower().replace("anyvalue", "any_value")
            return (
                f"{name}() takes whichever row comes first",
                "use min, max, or min_by and max_by with an order",
            )
        if node.kind in COLLECTED and not settled:
            name = COLLECTED[node.kind]
            return (f"{name}() keeps rows as they come", f"write sort_array({name}(…))")
        if (rough := _approximate(node)) is not None:
            return rough
        if node.kind == "ListAgg" and not node.fields.get("orderExpressions", True):
            return (
                "listagg() without an order keeps rows as they come",
                "add WITHIN GROUP (ORDER BY …)",
            )
        below = is_order_insensitive(node) or (settled and node.kind == "AggregateExpression")
        ahead += [(child, below) for child in reversed((*node.expressions, *node.children))]
    return None


def _rough(tree: Node) -> tuple[str, str] | None:
    return next((found for node in tree.walk() if (found := _approximate(node))), None)


def _approximate(node: Node) -> tuple[str, str] | None:
    """A sentence and a hint for an aggregate that depends on the order of rows in any window."""
    if node.kind == "Mode" and node.fields.get("reverseOpt") is None:
        return (
            "mode() takes whichever of the most frequent values comes first",
            "write mode(x, true), which takes the least of them",
        )
    name, hint = _APPROXIMATE.get(node.kind, ("", "use percentile, which is exact"))
    if not name and not node.kind.startswith(_KLL):
        return None
    what = f"{name or 'a KLL sketch'}{'()' if name else ''} depends on the order of the rows"
    return what, hint


def _clock_texts(node: Node) -> Iterator[str]:
    """The literals that an expression reads as the current time."""
    if _makes_time(node):
        for value in _values(node.children[0]):
            text = value.fields.get("value")
            if value.kind == "Literal" and isinstance(text, str) and is_clock_text(text):
                yield text


def _values(node: Node) -> Iterator[Node]:
    """The expressions of which an expression has the value of one as it is: itself for most."""
    if not (places := chosen_values(node.kind, len(node.children))):
        yield node
    for place in places:
        yield from _values(node.children[place])


def chosen_values(kind: str, children: int) -> tuple[int, ...]:
    """Which of its children an expression chooses its value among; none if it makes one.

    Args:
        kind: What it is.
        children: How many it has.
    """
    match kind:
        case "CaseWhen":  # a condition before each value, and what is left last
            values = range(1, children, 2)
            return (*values, children - 1) if children % 2 else tuple(values)
        case "If":
            return (1, 2)
        case "Coalesce" | "Greatest" | "Least":
            return tuple(range(children))
        case kind if kind in _REPLACED and children == 1:
            return (0,)
        case _:
            return ()


def _makes_time(node: Node) -> bool:
    """True if an expression makes a date or timestamp of its child; of two, one is a format."""
    to = str(node.fields.get("dataType", "")).upper()
    timed = node.kind in _PARSED or (node.kind == "Cast" and to.startswith(_TIMES))
    return timed and len(node.children) == 1


def _above_inputs(plan: Node) -> Iterator[Node]:
    """It and everything below it but what inputs are made of."""
    ahead = [plan]
    while ahead:
        node = ahead.pop()
        if node.kind != INPUT:
            yield node
            ahead += (*node.expressions, *node.children)


def _renamed(node: Node) -> Iterator[tuple[object, object]]:
    """The ids of columns to which a node gives others' values as they are, with those others'."""
    if node.kind == "Alias":
        for value in _values(node.children[0]):
            yield from ((node.identity, column) for column in _columns(value))
    elif node.kind == "Union":
        for child in node.children[1:]:
            yield from zip(_output(node), _output(child), strict=False)


def _constant_columns(node: Node) -> Iterator[object]:
    """The ids of columns that a node makes of constants."""
    if node.kind == "LocalRelation":
        yield from _output(node)
    elif node.kind == "Alias" and any(map(_is_constant, _values(node.children[0]))):
        yield node.identity


def _columns(node: Node) -> list[object]:
    """Ids of the columns whose values an expression has as they are."""
    match node.kind:
        case "AttributeReference":
            return [node.identity]
        case "OuterReference":
            return [column for inner in node.expressions for column in _columns(inner)]
        case "ScalarSubquery":
            return [column for inner in node.expressions for column in _output(inner)[:1]]
        case _:
            return []


def _output(node: Node) -> list[object]:
    """Ids of the columns that an operator gives, in order; none if they are not known."""
    while node.kind in _SAME_COLUMNS and node.children:
        node = node.children[0]
    columns = node.trees.get(_COLUMNS.get(node.kind, ""), ())
    return [column.identity for column in columns]


def _is_constant(node: Node) -> bool:
    return node.kind == "Literal" or _is_computed(node)


def _is_computed(node: Node) -> bool:
    """True if it is no literal, but made of literals alone, one of them a text."""
    leaves = [inner for inner in node.walk() if not inner.children]
    return (
        bool(node.children)
        and all(leaf.kind == "Literal" and not leaf.expressions for leaf in leaves)
        and any(leaf.fields.get("dataType") == "string" for leaf in leaves)
    )
