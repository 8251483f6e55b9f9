"""An execution plan is Spark's plan of one SQL execution, with its rows and times.

    plan = parse_plan(graph, values)    Spark's plan graph as JSON, and its counts
    plan.rows_leaving(node)             rows that have left a node, as far as that is known

Spark writes times for people ("1.2 s"), so they are no more exact than that; counts are exact. A
pipeline of operators that are compiled together has one time: a `Pipeline`.

Invariants:
    A number that Spark does not count is None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

__all__ = ["Pipeline", "PlanNode", "SparkPlan", "parse_plan"]

_TIME: Final = re.compile(r"([\d.,]+)\s*(ms|s|m|h)\b")
_UNIT_MS: Final = {"ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
_NOT_OWN: Final = ("time to collect", "remote reqs duration", "remote merged reqs duration")
"""Times in which a node waits for others, and which are not its own."""

_EMPTY: Final = "EmptyRelation"

_KEEPS: Final = frozenset(
    {
        "AQEShuffleRead",
        "AdaptiveSparkPlan",
        "BroadcastExchange",
        "Coalesce",
        "CollectLimit",
        "ColumnarToRow",
        "Exchange",
        "InputAdapter",
        "LogicalQueryStage",
        "Project",
        "Sort",
        "Window",
        "WriteFiles",
    }
)
"""Nodes that give as many rows as they take."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One physical operator.

    Attributes:
        name: Spark's name of it.
        detail: Its line of the plan.
        rows: Its output rows; None if Spark does not count them.
        took_ms: Time of its own tasks; 0 if it is in a pipeline, which has the time.
        inputs: Numbers of the nodes that it takes rows from, subqueries last.
    """

    name: str
    detail: str
    rows: int | None
    took_ms: float
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Nodes that are compiled together.

    Attributes:
        nodes: Their numbers, the last in the flow of rows first.
        took_ms: Time of all tasks in it, and in what it pulls rows from.
    """

    nodes: tuple[int, ...]
    took_ms: float


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """The plan of one execution.

    Attributes:
        nodes: By number.
        roots: Numbers of nodes whose rows no other node takes.
        pipelines: Those that were timed.
    """

    nodes: Mapping[int, PlanNode]
    roots: tuple[int, ...]
    pipelines: tuple[Pipeline, ...]

    def rows_leaving(self, number: int) -> int | None:
        """Rows that have left node `number`; None if that is not known."""
        node = self.nodes[number]
        if node.rows is not None:
            return node.rows
        if node.name == _EMPTY:
            return 0
        if node.name in _KEEPS and node.inputs:
            return self.rows_leaving(node.inputs[0])
        return None

    def bottom_up(self) -> Iterator[int]:
        """All nodes, each after its inputs, and inputs in their order."""
        done: set[int] = set()
        waiting: list[tuple[int, bool]] = [(root, False) for root in reversed(self.roots)]
        while waiting:
            number, entered = waiting.pop()
            if entered:
                yield number
            elif number not in done:
                done.add(number)
                waiting.append((number, True))
                waiting += [(one, False) for one in reversed(self.nodes[number].inputs)]


class _Metric(msgspec.Struct):
    name: str
    counter: int = msgspec.field(name="accumulatorId")
    kind: str = msgspec.field(name="metricType")


class _Node(msgspec.Struct):
    """A node; or a pipeline, which has nodes."""

    number: int = msgspec.field(name="id")
    name: str
    detail: str = msgspec.field(name="desc")
    metrics: list[_Metric]
    nodes: list[_Node] = msgspec.field(default_factory=list)


class _Edge(msgspec.Struct):
    start: int = msgspec.field(name="fromId")
    end: int = msgspec.field(name="toId")


class _Graph(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge]


_graph = msgspec.json.Decoder(_Graph)


def parse_plan(graph: str, values: Mapping[str, str]) -> SparkPlan:
    """Parse Spark's `SparkPlanGraph`.

    Args:
        graph: The graph as JSON, edges in Spark's order.
        values: Counts as Spark writes them for people, by the number of the counter.

    Raises:
        msgspec.DecodeError: It does not have the form that this version of Spark gives it.
        ValueError: The same.
    """
    decoded = _graph.decode(graph)
    inputs: dict[int, list[int]] = {}
    for edge in decoded.edges:
        inputs.setdefault(edge.end, []).append(edge.start)
    found = {node.number: node for one in decoded.nodes for node in (one.nodes or [one])}
    pipelines = tuple(
        Pipeline(tuple(child.number for child in one.nodes), took)
        for one in decoded.nodes
        if one.nodes and (took := _took_ms(one.metrics, values)) is not None
    )
    within = {number for pipeline in pipelines for number in pipeline.nodes}
    nodes = {
        number: PlanNode(
            name=one.name.strip(),
            detail=one.detail,
            rows=_rows(one.metrics, values),
            took_ms=0.0 if number in within else _took_ms(one.metrics, values) or 0.0,
            inputs=tuple(i for i in inputs.get(number, ()) if i in found),
        )
        for number, one in found.items()
    }
    taken = {number for node in nodes.values() for number in node.inputs}
    return SparkPlan(nodes, tuple(n for n in sorted(nodes) if n not in taken), pipelines)


def _rows(metrics: list[_Metric], values: Mapping[str, str]) -> int | None:
    for metric in metrics:
        if metric.name == "number of output rows" and str(metric.counter) in values:
            return int(values[str(metric.counter)].replace(",", ""))
    return None


def _took_ms(metrics: list[_Metric], values: Mapping[str, str]) -> float | None:
    """The sum of the times among metrics; None if there are none."""
    found = [
        _time_ms(values[str(metric.counter)])
        for metric in metrics
        if metric.kind in {"timing", "nsTiming"}
        and metric.name not in _NOT_OWN
        and str(metric.counter) in values
    ]
    return sum(found) if found else None


def _time_ms(text: str) -> float:
    """Milliseconds of a time as Spark writes it, of which the first is the sum over all tasks."""
    found = _TIME.search(text.rsplit("\n", 1)[-1])
    if found is None:
        return 0.0
    return float(found[1].replace(",", "")) * _UNIT_MS[found[2]]
