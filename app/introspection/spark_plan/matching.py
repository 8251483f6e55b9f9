"""Matching finds the operator that each node of Spark's plan works for, and so its rows and times.

    work = match_execution(view, operators_of(view), plan)
    work.rows[receiver, port]      rows that have gone into an operator
    work.took_ms[operator]         time that Spark has spent on it

Spark rewrites a query, so most of its nodes have no counterpart. Some have: joins, aggregates,
windows, unions, and what is left of filters. If a query and the plan have equally many of a kind,
they are paired in the order of evaluation; if not, that kind stays unmatched. Each node between two
of them works for the next: Spark sorts and exchanges rows for it.

Rows are known at edges of matched operators, and along edges where their number cannot change.

Invariants:
    A pure function; nothing is guessed: a number that cannot be matched is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from shardline.app.introspection.spark_plan.execution_plan import PlanNode, SparkPlan
from shardline.app.introspection.spark_plan.operators import OperatorPlan
from shardline.app.protocol.objects import Description, ViewDescription

__all__ = ["Work", "match_execution"]

K = TypeVar("K")

_WRITES: Final = ("Execute ", "WriteFiles", "AppendData", "OverwriteByExpression", "MapInArrow")
_SEMI: Final = re.compile(r"\b(LeftSemi|LeftAnti|ExistenceJoin)\b")
_ONLY_NULLS: Final = re.compile(r"^Filter \(*isnotnull\([^()]*\)( AND isnotnull\([^()]*\))*\)*$")
_TIMES: Final = re.compile(r"keys=\[_ts#\d+L?\]")
"""A view looks at its inputs' times, too."""

_CORRECTS: Final = re.compile(r"NOT \(_diff#\d+L? = 0\)")
_SUMS_DIFFS: Final = re.compile(r"sum\(_diff#")
_REPEATS: Final = re.compile(r"\((sequence|array_repeat)\(0, ")
_PARTIAL: Final = re.compile(r"functions=\[(partial_|merge_)")
_NO_FUNCTIONS: Final = "functions=[]"

_STANDS_FOR: Final = {
    "Join": ("Join",),
    "Aggregate": ("Aggregate",),
    "Distinct": ("Aggregate",),
    "Window": ("Window",),
    "Generate": ("Generate",),
    "Filter": ("Filter",),
    "Except": ("SemiJoin", "Aggregate"),
    "Intersect": ("SemiJoin", "Aggregate"),
}
"""Kinds of Spark's nodes that each operator becomes, in the order of evaluation."""

_SAME_COUNT: Final = frozenset({"Project", "Sort", "Window"})
"""Operators that give as many rows as they take."""


@dataclass(frozen=True, slots=True)
class Work:
    """Rows and times by positions of operators in the plan; unknown ones are absent.

    Attributes:
        rows: By receiver and port: rows that have gone into it.
        took_ms: Time of Spark's tasks, by operator.
    """

    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    took_ms: dict[int, float] = field(default_factory=dict)


def match_execution(
    description: Description, operators: Sequence[OperatorPlan], plan: SparkPlan
) -> Work:
    """Match one SQL execution of an object's micro-batch with the object's operators."""
    if isinstance(description, ViewDescription):
        return _View(operators, plan).work()
    return _chain(operators, plan)


def _chain(operators: Sequence[OperatorPlan], plan: SparkPlan) -> Work:
    """Match a source or sink: nodes that read, nodes that write, and the envelope in between."""
    at = {operator.name: place for place, operator in enumerate(operators)}
    last = len(operators) - 1
    envelope, source = at.get("Envelope", last), at.get("Source", 0)
    owners = {
        number: last if _writes(node) else envelope if node.inputs else source
        for number, node in plan.nodes.items()
    }
    work = Work(took_ms=_times(plan, owners))
    leaves = [number for number, node in plan.nodes.items() if not node.inputs]
    if operators[envelope].inputs == (source,) and last in owners.values() and len(leaves) == 1:
        _set_known(work.rows, (envelope, 0), plan.rows_leaving(leaves[0]))
    return work


class _View:
    """Matches a view's query with the plan that Spark has made of it."""

    def __init__(self, operators: Sequence[OperatorPlan], plan: SparkPlan) -> None:
        self._operators = operators
        self._plan = plan
        self._aside: set[int] = set()
        self._result = self._find_result()
        self._groups = self._find_groups()
        self._of = self._pair_operators()

    def work(self) -> Work:
        """Rows and times of the view's operators."""
        return Work(self._rows(), _times(self._plan, self._owners()))

    # --- the query's result ----------------------------------------------------------------------

    def _find_result(self) -> int | None:
        """The node whose rows are the query's result; None if this plan is no run of the query.

        Nodes that write stand above it; there are none if a small result is collected.
        """
        spine = list(self._spine())
        written = [at for at, one in enumerate(spine) if _writes(self._plan.nodes[one])]
        top = written[-1] + 1 if written else 0
        if top == len(spine) or any(_TIMES.search(self._plan.nodes[n].detail) for n in spine):
            return None
        self._aside.update(spine[:top])
        corrected = False
        for at in range(top, len(spine)):
            node = self._plan.nodes[spine[at]]
            if _CORRECTS.search(node.detail):
                corrected = True
            elif corrected and _aggregates(node):
                self._aside.update(spine[top:at])
                return self._compared(spine[at:])
            elif not _passes(node):
                break
        return spine[top]

    def _spine(self) -> Iterator[int]:
        """Nodes from the root downwards, along the first inputs."""
        below = self._plan.roots[:1]
        while below:
            yield below[0]
            below = self._plan.nodes[below[0]].inputs[:1]

    def _compared(self, spine: Sequence[int]) -> int:
        """The input of the correction that is the query's result, beside the present output.

        Args:
            spine: Nodes downwards from the correction's aggregate.
        """
        *_, last = _group(self._plan, spine[0])
        self._aside.update(spine[: spine.index(last) + 1])
        return self._beside_held(self._plan.nodes[last].inputs[0])

    def _beside_held(self, number: int) -> int:
        nodes = self._plan.nodes
        inner = number
        while _passes(nodes[inner]) and nodes[inner].inputs:
            inner = nodes[inner].inputs[0]
        if nodes[inner].name != "Union" or not any(
            "_diff#" in nodes[one].detail for one in nodes[inner].inputs[1:]
        ):
            return number
        self._aside.add(inner)
        for held in nodes[inner].inputs[1:]:
            self._aside.update(_under(self._plan, held))
        return nodes[inner].inputs[0]

    # --- pairs of nodes and operators ------------------------------------------------------------

    def _find_groups(self) -> list[tuple[str, tuple[int, ...]]]:
        """Groups of nodes by kind, in the order of evaluation; within a group the last first."""
        found: list[tuple[str, tuple[int, ...]]] = []
        within: set[int] = set()
        if self._result is None:
            return found
        mine = _under(self._plan, self._result)
        tops: dict[int, tuple[int, ...]] = {}
        for number in reversed(mine):
            if _kind(self._plan.nodes[number]) == "Aggregate" and number not in within:
                tops[number] = tuple(_group(self._plan, number))
                within.update(tops[number])
        for number in mine:
            kind = _kind(self._plan.nodes[number])
            if number in tops:
                found.append(("Aggregate", tops[number]))
            elif kind is not None and kind != "Aggregate":
                found.append((kind, (number,)))
        return found

    def _pair_operators(self) -> dict[int, tuple[int, ...]]:
        """Nodes by position of the operator that they stand for."""
        wanted: dict[str, list[int]] = {}
        for place, operator in enumerate(self._operators):
            for kind in _node_kinds(operator):
                wanted.setdefault(kind, []).append(place)
        there: dict[str, list[tuple[int, ...]]] = {}
        for kind, nodes in self._groups:
            there.setdefault(kind, []).append(nodes)
        pairs: dict[int, tuple[int, ...]] = {}
        for kind, places in wanted.items():
            groups = there.get(kind, [])
            if len(groups) == len(places):
                for place, nodes in zip(places, groups, strict=True):
                    # An operator of several steps has the nodes of all of them, the last first.
                    pairs[place] = (*nodes, *pairs.get(place, ()))
        return pairs

    # --- rows and times --------------------------------------------------------------------------

    def _owners(self) -> dict[int, int]:
        """The operator that each node works for, by node."""
        names = [operator.name for operator in self._operators]
        persist, correction = names.index("Persist"), names.index("Correction")
        last = self._operators[correction].inputs[0]
        owners: dict[int, int] = {}
        for number in self._aside:
            owners[number] = persist if _writes(self._plan.nodes[number]) else correction
        if self._result is None:
            return owners
        at = {node: place for place, nodes in self._of.items() for node in nodes}
        waiting: list[tuple[int, int]] = [(self._result, last)]
        while waiting:
            number, owner = waiting.pop()
            owner = at.get(number, owner)
            if number in owners:
                continue
            owners[number] = owner
            for port, below in enumerate(self._plan.nodes[number].inputs):
                waiting.append((below, self._reader(number, owner, port, below)))
        return owners

    def _reader(self, number: int, owner: int, port: int, below: int) -> int:
        """The operator that nodes from `below` downwards work for; a source if they only read."""
        inputs = self._operators[owner].inputs
        port = port if number in self._of.get(owner, ()) and len(inputs) > 1 else 0
        source = inputs[port] if port < len(inputs) else None
        if source is None or self._operators[source].name != "Source":
            return owner
        kinds = {_kind(self._plan.nodes[one]) for one in _under(self._plan, below)} - {None}
        if not any("Union" in _node_kinds(operator) for operator in self._operators):
            kinds.discard("Union")  # parts that are read in several ways
        return owner if kinds else source

    def _rows(self) -> dict[tuple[int, int], int]:
        """Rows by receiver and port."""
        leaving: dict[int, int] = {}
        entering: dict[tuple[int, int], int] = {}
        joined = any(operator.name == "Join" for operator in self._operators)
        for place, nodes in self._of.items():
            operator = self._operators[place]
            if operator.name == "Filter" and joined:
                continue  # Spark filters before it joins: other rows than those of the query
            _set_known(leaving, place, self._plan.rows_leaving(nodes[0]))
            below = self._plan.nodes[nodes[-1]].inputs
            for port, number in enumerate(below[: len(operator.inputs)]):
                _set_known(entering, (place, port), self._plan.rows_leaving(number))
        names = [operator.name for operator in self._operators]
        if self._result is not None and "Limit" not in names:
            _set_known(
                entering, (names.index("Correction"), 0), self._plan.rows_leaving(self._result)
            )
            self._from_one_source(leaving)
        self._spread(leaving, entering)
        return entering

    def _from_one_source(self, leaving: dict[int, int]) -> None:
        """Match the plan's only leaf with the only source, if all operators are matched."""
        assert self._result is not None
        if any(_node_kinds(one) and at not in self._of for at, one in enumerate(self._operators)):
            return
        mine = _under(self._plan, self._result)
        leaves = [number for number in mine if not self._plan.nodes[number].inputs]
        sources = [at for at, one in enumerate(self._operators) if one.name == "Source"]
        if len(leaves) == len(sources) == 1:
            _set_known(leaving, sources[0], self._plan.rows_leaving(leaves[0]))

    def _spread(self, leaving: dict[int, int], entering: dict[tuple[int, int], int]) -> None:
        """Copy numbers of rows along edges that must have the same number."""
        for _ in self._operators:
            before = len(leaving) + len(entering)
            for place, operator in enumerate(self._operators):
                for port, sender in enumerate(operator.inputs):
                    if sender in leaving:
                        entering.setdefault((place, port), leaving[sender])
                    elif (place, port) in entering:
                        leaving[sender] = entering[place, port]
                if operator.name in _SAME_COUNT and len(operator.inputs) == 1:
                    if (place, 0) in entering:
                        leaving.setdefault(place, entering[place, 0])
                    elif place in leaving:
                        entering[place, 0] = leaving[place]
            if len(leaving) + len(entering) == before:
                return


def _times(plan: SparkPlan, owners: Mapping[int, int]) -> dict[int, float]:
    """Times by operator; that of a pipeline counts for the operator at its end."""
    took: dict[int, float] = {}
    for number, node in plan.nodes.items():
        if node.took_ms and number in owners:
            took[owners[number]] = took.get(owners[number], 0.0) + node.took_ms
    for pipeline in plan.pipelines:
        owner = next((owners[one] for one in pipeline.nodes if one in owners), None)
        if owner is not None:
            took[owner] = took.get(owner, 0.0) + pipeline.took_ms
    return took


def _set_known(found: dict[K, int], key: K, rows: int | None) -> None:
    if rows is not None:
        found[key] = rows


def _node_kinds(operator: OperatorPlan) -> tuple[str, ...]:
    if operator.name == "Union":
        return ("Union",) if operator.detail.endswith("ALL") else ("Union", "Aggregate")
    return _STANDS_FOR.get(operator.name, ()) if operator.lir is not None else ()


def _kind(node: PlanNode) -> str | None:
    """The kind of operator that a node may stand for; None if for none."""
    if _aggregates(node):
        return None if _SUMS_DIFFS.search(node.detail) else "Aggregate"
    if "Join" in node.name or node.name == "CartesianProduct":
        return "SemiJoin" if _SEMI.search(node.detail) else "Join"
    if node.name == "Filter":
        return None if _ONLY_NULLS.match(node.detail) or "_diff#" in node.detail else "Filter"
    if node.name == "Generate" and _REPEATS.search(node.detail):
        return None
    return node.name if node.name in {"Window", "Generate", "Union"} else None


def _aggregates(node: PlanNode) -> bool:
    return node.name.endswith("Aggregate")


def _writes(node: PlanNode) -> bool:
    return node.name.startswith(_WRITES)


def _passes(node: PlanNode) -> bool:
    """True if a node has one input and stands for no operator."""
    return len(node.inputs) == 1 and _kind(node) is None


def _under(plan: SparkPlan, number: int) -> list[int]:
    """A node and all below it, in the order of evaluation."""
    return list(SparkPlan(plan.nodes, (number,), ()).bottom_up())


def _group(plan: SparkPlan, number: int) -> Iterator[int]:
    """The nodes of one aggregate, from its last step to its first."""
    yield number
    top = plan.nodes[number]
    whole = "distinct" in top.detail
    while len(plan.nodes[number].inputs) == 1:
        number = plan.nodes[number].inputs[0]
        node = plan.nodes[number]
        if not _aggregates(node) and _kind(node) is None:
            continue
        begins = bool(_PARTIAL.search(node.detail))
        bare = _is_bare(node)
        if not _aggregates(node) or not (begins or (bare and (whole or _is_bare(top)))):
            return
        yield number
        if not whole and (begins or bare):
            return


def _is_bare(node: PlanNode) -> bool:
    return _NO_FUNCTIONS in node.detail
