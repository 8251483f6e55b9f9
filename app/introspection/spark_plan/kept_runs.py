"""Reads what kept plans have counted: steps of views over few rows, which are no SQL executions.

    reader = KeptRunReader(KeptRuns(spark), store.encode)
    reader.read()          the runs since the last call, each with its micro-batch, plan and counts

A view's small steps run plans that Spark has planned once (`spark_native.kept_job`), and Spark is
not told of them. They count rows all the same, by the same counters, under the description by which
an execution would be found.

Invariants:
    Each run is read once.
    A plan that was given up before it was first read is left out, with its runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from shardline.app.introspection.spark_plan.execution_plan import SparkPlan, parse_plan
from shardline.app.introspection.spark_plan.status_store import micro_batch_of
from shardline.datasource.frames import KeptRuns

__all__ = ["KeptRun", "KeptRunReader"]

_PLANS_MAX: Final = 4_096
"""Plans whose graph is remembered: of a hundred views, dozens each."""

_Run: TypeAlias = tuple[int, str, dict[str, str]]

_runs = msgspec.json.Decoder(list[_Run])


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run of a kept plan.

    Attributes:
        key: Run and number of its micro-batch.
        plan: Its plan, with the rows and times of this run.
    """

    key: tuple[str, int]
    plan: SparkPlan


class KeptRunReader:
    """Reads the runs of one application. Used by one thread."""

    def __init__(self, runs: KeptRuns, encode: Callable[[Any], str]) -> None:
        """Read nothing yet.

        Args:
            runs: What has been counted.
            encode: An object of Spark's user interface as JSON.
        """
        self._runs = runs
        self._encode = encode
        self._graphs: OrderedDict[int, str | None] = OrderedDict()

    def read(self) -> list[KeptRun]:
        """The runs in micro-batches since the last call, in their order.

        Raises:
            msgspec.DecodeError: They do not have the form that this version of Spark gives them.
            ValueError: The same.
        """
        found = []
        for plan, description, counts in _runs.decode(self._runs.counted()):
            key, graph = micro_batch_of(description), self._graph(plan)
            if key is not None and graph is not None:
                found.append(KeptRun(key, parse_plan(graph, counts)))
        return found

    def _graph(self, plan: int) -> str | None:
        if plan not in self._graphs:
            graph = self._runs.graph(plan)
            self._graphs[plan] = None if graph is None else self._encode(graph)
            if len(self._graphs) > _PLANS_MAX:
                self._graphs.popitem(last=False)
        return self._graphs[plan]
