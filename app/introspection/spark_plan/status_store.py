"""The status store reads SQL executions from Spark's own store: their counts and their plans.

    store = StatusStore(spark)
    store.since(17)            executions from number 17 on, as they are now
    store.execution(17)        one of them, read again
    store.plan(execution)      its plan, with rows and times

Spark's store is no public interface. Its objects are read as JSON, many by one call: a call for
each field of each object took longer than all that is done with them. Fields that are not used here
are left out: settings, texts of plans and places in code are nine tenths of an execution.

Invariants:
    An execution is as it was when it was read; one that has ended changes no more.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JJavaError

from shardline.app.introspection.spark_plan.execution_plan import SparkPlan, parse_plan
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Execution", "StatusStore", "micro_batch_of"]

_LOOK_MIN: Final = 16
"""Fewest executions that one call requests."""

_MEANWHILE: Final = 64
"""Further executions requested, for those that begin during the call."""

_JACKSON: Final = "com.fasterxml.jackson"

_PACKAGE: Final = "org.apache.spark.sql.execution.ui"

_UNREAD: Final = {
    "SQLExecutionUIData": {
        "details",
        "jobTags",
        "jobs",
        "metrics",
        "modifiedConfigs",
        "physicalPlanDescription",
        "queryId",
        "rootExecutionId",
        "stages",
        "submissionTime",
    },
    # Each node once more: `nodes` has them all.
    "SparkPlanGraph": {"allNodes"},
}
"""Fields of Spark's classes that are left out. One that Spark does not have does no harm."""

_FORGOTTEN: Final = "java.util.NoSuchElementException"
"""The exception of the store for an execution that it has evicted."""


_DESCRIBED: Final = re.compile(r"runId = (\S+)\s+batch = (\d+)")


def micro_batch_of(description: str) -> tuple[str, int] | None:
    """Run and number of the micro-batch that an execution is described by; None if by none."""
    found = _DESCRIBED.search(description)
    return None if found is None else (found[1], int(found[2]))


class Execution(msgspec.Struct, frozen=True):
    """One SQL execution.

    Attributes:
        number: Ascending.
        description: Text of the job group that it ran in.
        ended_ms: When it ended, ms since the epoch; None while it runs.
        error: Why it failed; empty if it did not.
        values: Counts as text for people, by the number of the counter; None if Spark has not
            summed them up yet. Empty for an execution that only wraps others.
    """

    number: int = msgspec.field(name="executionId")
    description: str = ""
    ended_ms: int | None = msgspec.field(name="completionTime", default=None)
    error: str | None = msgspec.field(name="errorMessage", default=None)
    values: dict[str, str] | None = msgspec.field(name="metricValues", default=None)

    @property
    def went_well(self) -> bool:
        """True if it has ended without an error."""
        return self.ended_ms is not None and not self.error

    @property
    def has_counted(self) -> bool:
        """True if it may have counted something."""
        return self.values is None or bool(self.values)


_executions = msgspec.json.Decoder(list[Execution])
_perhaps = msgspec.json.Decoder(Execution | None)
_values = msgspec.json.Decoder(dict[str, str])


class StatusStore:
    """The store of one application. Used by one thread."""

    def __init__(self, spark: SparkSession) -> None:
        """Open the store of a session's application; no call into the JVM yet, so nothing fails."""
        self._spark: Any = spark
        self._look = _LOOK_MIN

    def since(self, first: int) -> list[Execution]:
        """Read all executions from number `first` on that the store still has, in order."""
        count: int = self._store.executionsCount()
        while True:
            start = max(count - self._look, 0)
            text = self.encode(self._store.executionsList(start, self._look + _MEANWHILE))
            found = _executions.decode(text)
            if start == 0 or not found or found[0].number <= first:
                break
            self._look *= 4
        new = [execution for execution in found if execution.number >= first]
        self._look = max(2 * len(new), _LOOK_MIN)
        return new

    def execution(self, number: int) -> Execution | None:
        """Read one execution; None if the store has evicted it."""
        found: Execution | None = _perhaps.decode(self.encode(self._store.execution(number)))
        return found

    def plan(self, execution: Execution) -> SparkPlan | None:
        """Read the plan of an execution that has ended; None if the store has evicted it.

        Raises:
            msgspec.DecodeError: It does not have the form that this version of Spark gives it.
            ValueError: The same.
        """
        number, values = execution.number, execution.values
        try:
            if values is None:
                values = _values.decode(self.encode(self._store.executionMetrics(number)))
            graph = self._store.planGraph(number)
        except Py4JJavaError as error:
            # To ask first whether it is there would not do: Spark may evict it right after.
            if error.java_exception.getClass().getName() != _FORGOTTEN:
                raise
            return None
        return parse_plan(self.encode(graph), values)

    @cached_property
    def _store(self) -> Any:
        return self._spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001 - PySpark has no other door to it

    @cached_property
    def _mapper(self) -> Any:
        mapper = java_class(self._spark, f"{_JACKSON}.databind.ObjectMapper")()
        mapper.registerModule(
            scala_object(self._spark, f"{_JACKSON}.module.scala.DefaultScalaModule")
        )
        ignored = java_class(self._spark, f"{_JACKSON}.annotation.JsonIgnoreProperties$Value")
        loader = self._store.getClass().getClassLoader()
        for name, fields in _UNREAD.items():
            override = mapper.configOverride(loader.loadClass(f"{_PACKAGE}.{name}"))
            override.setIgnorals(ignored.forIgnoredProperties(fields))
        return mapper

    def encode(self, found: object) -> str:
        """An object of Spark's user interface as JSON."""
        text: str = self._mapper.writeValueAsString(found)
        return text
