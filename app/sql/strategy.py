"""Chooses the strategy of a view: computed from changes, or recomputed; with the reason.

To recompute is always right, and costs as much as the whole input at each change. A query is linear
when its result over a sum of changes is the sum of its results over each: then the inputs' changes
alone give the view's change. That holds for operators that look at one row at a time (projections,
filters, generators), and for UNION ALL of such. With joins of such it is incremental: the change of
one side is joined with what is on the other one. So it is with aggregates that can be kept
(`kept_aggregates`): a state has what they have added up. Other aggregates, window functions and the
padding of outer joins are computed anew for the keys that rows have changed of (`touched_keys`).
A LIMIT needs the first rows of an order, which are a state, too (`first_rows`). What is left can be
run anew over states, which are smaller than the inputs, if it reads nothing else: the LIMIT itself,
a window over all groups. Where more is above a LIMIT, what it lets through is a state as well.
Everything else is run anew over the inputs, and compared.

    choose_strategy(plan_tree(…), judge(…))    ("linear", "")
                                               ("incremental", "a join of two inputs")
                                               ("recompute", "LIMIT")

Invariants:
    An operator is linear because it is in the list, never because it is in no other: unknown ones
    are recomputed. So is an expression with a subquery.
    A branch of a union that reads no input has no changes: it does not stand in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shardline.app.protocol.objects import STATES_MAX, Strategy
from shardline.app.sql.plan_tree import Node

__all__ = [
    "CLOCKS",
    "CONSTANT",
    "INPUT",
    "JOIN_SIDES",
    "JUDGED",
    "LIMITS",
    "LINEAR",
    "REASONS",
    "Verdict",
    "choose_strategy",
    "keeps_limits",
]

CLOCKS: Final = frozenset({"CurrentTimestamp", "Now"})
"""Spark's expressions of now(), by their classes; `current_timestamp` is the first of them.

A filter with one is a temporal filter (`temporal_filters`)."""

LINEAR: Final = frozenset(
    {
        "CTERelationDef",
        "CTERelationRef",
        "Expand",
        "Filter",
        "Generate",
        "PipeOperator",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "Union",
        "WithCTE",
    }
)
"""Operators that treat each row by itself, and those of order and distribution: a view has none."""

INPUT: Final = "View"
"""The analyzer's operator for a temporary view: a view's inputs are such views."""

LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset"})
"""Operators that let rows through by their number in an order."""

CONSTANT: Final = frozenset({"LocalRelation", "OneRowRelation", "Range"})
"""Operators that read no input: their rows are always the same."""

REASONS: Final = {
    "AsOfJoin": "a join of two inputs",
    "Deduplicate": "duplicates dropped",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "GlobalLimit": "LIMIT",
    "Intersect": "INTERSECT",
    "LateralJoin": "a lateral join",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Pivot": "PIVOT",
    "Sample": "TABLESAMPLE",
    "ScriptTransformation": "a script",
    "UnionLoop": "a recursive query",
    "UnionLoopRef": "a recursive query",
    "Window": "a window function",
}
"""Operators that need more than changed rows, by Spark's names, in words."""

_REASONS_MAX: Final = 5
"""Most reasons that are shown."""

_SUBQUERIES: Final = {
    "OuterReference": "a subquery with outer columns",
    "Exists": "a subquery in EXISTS",
    "LateralSubquery": "a lateral join",
    "ListQuery": "a subquery in IN",
    "ScalarSubquery": "a scalar subquery",
}
_WHOLE: Final = frozenset({"PythonUDTF", "UnresolvedPolymorphicPythonUDTF"})
_SPOKEN: Final = {"Average": "avg", "ListAgg": "listagg"}
_JOINED: Final = {
    "Cross": "a cross join of two inputs",
    "ExistenceJoin": "a subquery in EXISTS or IN (run anew where its inputs change)",
    "Inner": "a join of two inputs",
    "LeftAnti": "an anti join, as NOT EXISTS is (run anew where its right side changes)",
    "LeftOuter": "a left outer join (run anew where its right side changes)",
    "LeftSemi": "a semi join, as IN is (run anew where its right side changes)",
    "RightOuter": "a right outer join (run anew where its left side changes)",
}
"""Joins whose change follows from the change of a side and from what is on the other one."""

JOIN_SIDES: Final = {
    "ExistenceJoin": "left",
    "LeftAnti": "left",
    "LeftOuter": "left",
    "LeftSemi": "left",
    "RightOuter": "right",
}
"""Joins that follow the changes of one side without an equality: that one."""

_KEYED_JOINS: Final = {
    "ExistenceJoin": "a subquery in EXISTS or IN",
    "FullOuter": "a full outer join",
    "Inner": "a join",
    "LeftAnti": "an anti join, as NOT EXISTS is,",
    "LeftOuter": "a left outer join",
    "LeftSemi": "a semi join, as IN is,",
    "LeftSingle": "a subquery of one row",
    "RightOuter": "a right outer join",
}
"""Joins that have an equality, by which each of their sides tells which rows meet."""

_OTHER_JOINS: Final = {"FullOuter": "a full outer join", "LeftSingle": "a subquery of one row"}
JUDGED: Final = LIMITS | {"Aggregate", "Join", "Sort", "Window"}
"""Operators of which more must be known than their kind."""

_KEYS: Final = {"Aggregate": "group", "Join": "key", "Window": "partition"}
_NOTHING: Final[tuple[str, Strategy, object]] = ("", "linear", None)
_STATE: Final = object()
_LIMITED: Final = object()
_ABOVE: Final = object()
_INPUT: Final = object()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What there is to say of an aggregate, a window, a join or an order.

    Attributes:
        refused: Why it must be computed anew; "" if it need not, or if its kind says why.
        by_key: True if it is computed anew for the keys that rows have changed of.
        first_rows: True of an order of which the rows in front are a state, and of a LIMIT of it.
        can_be_state: True of a LIMIT if what it lets through can be a state.
        is_state: True if what is computed anew for keys is a state, from which it goes again.
    """

    refused: str = ""
    by_key: bool = False
    first_rows: bool = False
    can_be_state: bool = False
    is_state: bool = False


def choose_strategy(plan: Node, verdicts: Sequence[Verdict]) -> tuple[Strategy, str]:
    """The strategy for a query, and the reason if it is not the best one.

    Args:
        plan: The query's analysed plan, over inputs that are temporary views, in its normal form.
        verdicts: On each of its aggregates, windows, joins and orders (`touched_keys.judge`).

    Returns:
        `linear` and ""; or `incremental` and its joins, aggregates and windows; or `recompute` and
        the pieces of the query that demand it.
    """
    kept = keeps_limits(plan, verdicts)
    obstacles = list(_obstacles(plan, verdicts, keeps_limits=kept))
    states = sum(one is _STATE for *_, one in obstacles)
    reads_states_only = states > 0 and all(one is not _INPUT for *_, one in obstacles)
    found: list[tuple[str, Strategy]] = []
    for reason, way, one in obstacles:
        if one is _ABOVE and reads_states_only:
            found.append((f"{reason}, run anew over states", "incremental"))
        elif way != "linear":
            found.append((reason, way))
    found = list(dict.fromkeys(found))
    if states > STATES_MAX:
        kinds = "aggregates, temporal filters and first rows"
        found.append((f"more than {STATES_MAX} {kinds}", "recompute"))
    reasons = [reason for reason, way in found if way == "recompute"]
    if not found and not any(node.kind == INPUT for node in plan.walk()):
        reasons = ["rows that come from no input"]
    if reasons:
        return "recompute", ", ".join(reasons[:_REASONS_MAX])
    if found:
        return "incremental", ", ".join(reason for reason, _ in found[:_REASONS_MAX])
    return "linear", ""


def keeps_limits(plan: Node, verdicts: Sequence[Verdict]) -> bool:
    """True if what a LIMIT lets through is a state: more is above it than reads states alone.

    Args:
        plan: As of `choose_strategy`.
        verdicts: As there.
    """
    if not any(one.can_be_state for one in verdicts):
        return False
    obstacles = list(_obstacles(plan, verdicts))
    return any(one is _INPUT or one is _LIMITED for _, _, one in obstacles)


def _obstacles(
    plan: Node, verdicts: Sequence[Verdict], *, keeps_limits: bool = False
) -> Iterator[tuple[str, Strategy, object]]:
    """All that is not linear, above the inputs in the order of the plan, with the best way left.

    The last of each is `_STATE` if the way needs a state, `_ABOVE` of what must be run anew and is
    not below a state, and `_INPUT` of an input that is read by what is not below a state. A LIMIT
    that is below a state and could be one has `_LIMITED`, unless `keeps_limits` makes it one.
    """
    ahead, judged = [(plan, False, False)], iter(verdicts)
    while ahead:
        node, is_below, is_inner = ahead.pop()
        if node.kind == INPUT:
            if not is_below:
                yield "", "linear", _INPUT
            continue
        mine: object = None
        if node.kind in LIMITS:
            verdict = next(judged)
            is_kept = verdict.can_be_state and keeps_limits
            if not is_kept:
                yield _limited(node, verdict, is_below=is_below)
            elif not is_inner:
                mine, is_inner = _STATE, True
                yield "a LIMIT", "incremental", mine
        elif node.kind in JUDGED:
            reason, way, mine = _judged(node, next(judged))
            above = way == "recompute" and not is_below
            yield reason, way, _ABOVE if above else mine
        elif _is_temporal(node):
            mine = _STATE
            yield "a temporal filter", "incremental", mine
        elif node.kind not in LINEAR | CONSTANT:
            yield REASONS.get(node.kind, f"the operator {node.kind}"), "recompute", None
        yield from _in_expressions(node)
        is_below = is_below or mine is _STATE
        ahead += [(child, is_below, is_inner) for child in reversed(node.children)]


def _in_expressions(node: Node) -> Iterator[tuple[str, Strategy, object]]:
    for expression in (inner for tree in node.expressions for inner in tree.walk()):
        if expression.kind in _SUBQUERIES:
            yield _SUBQUERIES[expression.kind], "recompute", None
        elif expression.kind in _WHOLE:
            what = "a table function in Python, which may look at many rows"
            yield what, "recompute", None


def _limited(node: Node, verdict: Verdict, *, is_below: bool) -> tuple[str, Strategy, object]:
    mine: object = None
    if is_below:
        mine = _LIMITED if verdict.can_be_state else None
    elif _keeps_order(node):
        mine = _ABOVE
    return REASONS[node.kind], "recompute", mine


def _keeps_order(limit: Node) -> bool:
    """True unless a temporal filter is between a LIMIT and its order: its state has none."""
    node = limit
    while node.kind != "Sort" and node.children:
        if _is_temporal(node):
            return False
        node = node.children[0]
    return True


def _is_temporal(node: Node) -> bool:
    if node.kind != "Filter":
        return False
    return any(inner.kind in CLOCKS for tree in node.expressions for inner in tree.walk())


def _judged(node: Node, verdict: Verdict) -> tuple[str, Strategy, object]:
    way: Strategy = "incremental"
    if node.kind == "Sort":
        return ("the first rows of an order", way, _STATE) if verdict.first_rows else _NOTHING
    if verdict.by_key:
        mine = _STATE if verdict.is_state else None
        return f"{_spoken(node)} anew for each {_KEYS[node.kind]} that changes", way, mine
    kind = join_type(node)
    if node.kind == "Join":
        if kind in _JOINED:
            return _JOINED[kind], way, None
        return f"{_OTHER_JOINS.get(kind, 'a join')} of two inputs", "recompute", None
    if node.kind == "Window" or verdict.refused:
        return verdict.refused or _spoken(node), "recompute", None
    return _spoken(node), way, _STATE


def _spoken(node: Node) -> str:
    """An operator in words."""
    match node.kind:
        case "Aggregate":
            return _aggregate(node)
        case "Window":
            return _window(node)
    return _KEYED_JOINS.get(join_type(node), "a join")


def _aggregate(node: Node) -> str:
    functions = {
        _sql_name(call.children[0].kind)
        for tree in node.expressions
        for call in tree.walk()
        if call.kind == "AggregateExpression" and call.children
    }
    return f"an aggregate ({', '.join(sorted(functions))})" if functions else "distinct rows"


def _window(node: Node) -> str:
    functions = {
        _sql_name(_function(call.children[0]).kind)
        for tree in node.expressions
        for call in tree.walk()
        if call.kind == "WindowExpression" and call.children
    }
    return f"a window function ({', '.join(sorted(functions))})" if functions else "a window"


def _function(node: Node) -> Node:
    """A function, which stands in an `AggregateExpression` if it is one over many rows."""
    return node.children[0] if node.kind == "AggregateExpression" and node.children else node


def join_type(node: Node) -> str:
    """Spark's name for the type of a join: `LeftOuter`."""
    kind = node.fields.get("joinType")
    found = kind if isinstance(kind, dict) else {}
    # One without columns is an object to Scala, and any other a class.
    name = str(found.get("object") or found.get("product-class") or "")
    return name.rstrip("$").rsplit(".", 1)[-1]


def _sql_name(kind: str) -> str:
    """A function's name as in SQL: `CollectList` becomes `collect_list`."""
    if kind in _SPOKEN:
        return _SPOKEN[kind]
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).lstrip("_")
