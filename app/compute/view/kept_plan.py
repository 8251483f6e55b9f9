"""A kept plan is a query's plan as Spark has analysed it once, over rows that change.

    plan = KeptPlan(session, query, columns)      the query is parsed and analysed
    plan.over(session, frames)                    the same query over these rows

To run a query by its text costs three SQL statements, each with its events, and an analysis, before
anything of it is done: its inputs are put into the session under their names, and taken away again.
Here the plan stays, and only its leaves are new: each becomes the union of an empty table, which
has the attributes that the plan knows, and of the input's rows. Spark drops the empty half when it
optimizes.

Invariants:
    Every expression of the query is the one of its analysed plan.
    Frames have the columns that the plan was made for: `fits` tells, nothing else does.
    Nothing is run here, and nothing is left in the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from shardline.app.compute.view.evaluate import analyse_query
from shardline.app.sql.strategy import INPUT
from shardline.datasource.spark_native.java_names import (
    java_class,
    read_sequence,
    scala_object,
    scala_sequence,
)
from shardline.datasource.spark_native.jvm import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KeptPlan", "Operator", "Operators", "input_of", "plan_of"]

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a query, over inputs without rows.

    Attributes:
        plan: Spark's operator.
        children: What it is over.
        input: Name of the input that it stands for; "" if it is an operator of the query.
    """

    plan: Any
    children: tuple[Operator, ...] = ()
    input: str = ""


class KeptPlan:
    """A query's plan, for inputs of certain columns."""

    def __init__(
        self, session: SparkSession, query: str, columns: Mapping[str, StructType]
    ) -> None:
        """Analyse the query.

        Args:
            session: The session in which the view runs.
            query: The view's query.
            columns: Columns of each input.
        """
        self._columns = dict(columns)
        self._operators = Operators(session)
        self.usable = True
        """True if `over` can be used: no expression has a query of its own."""
        self._root = self._analyse(session, query)

    def _analyse(self, session: SparkSession, query: str) -> Operator:
        """The last operator of the query, over inputs without rows."""
        empty = {name: session.createDataFrame([], given) for name, given in self._columns.items()}
        analysed = plan_of(analyse_query(session, query, empty))
        # Those inside of expressions have inputs, too, which are no leaves of the plan.
        self.usable = bool(analysed.subqueriesAll().isEmpty())
        return self._operator(analysed)

    def fits(self, frames: Mapping[str, DataFrame]) -> bool:
        """True if the frames have the columns that the plan was made for."""
        return {name: frame.schema for name, frame in frames.items()} == self._columns

    def over(self, session: SparkSession, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The query's result over these rows; nothing is run yet.

        Args:
            session: The one that the frames are of.
            frames: Rows of each input, with the columns that the plan was made for.
        """
        return self._operators.frame(session, self._root, frames)

    def _operator(self, plan: Any) -> Operator:
        name = input_of(plan)
        if name:
            return Operator(self._operators.empty(read_sequence(plan.output())), (), name)
        return Operator(
            plan, tuple(self._operator(child) for child in read_sequence(plan.children()))
        )


class Operators:
    """Makes operators of Spark in the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        """For sessions of the application of `spark`."""
        self._spark = spark
        self._none = scala_object(spark, "scala.None")

    def make(self, name: str, *fields: Any) -> Any:
        """A logical operator by the name of its class."""
        return java_class(self._spark, f"{_LOGICAL}.{name}")(*fields)

    def sequence(self, items: Iterable[Any]) -> Any:
        """A sequence of Scala."""
        return scala_sequence(self._spark, items)

    def empty(self, attributes: Iterable[Any]) -> Any:
        """A table without rows that has these attributes."""
        no_rows = self.sequence([])
        return self.make("LocalRelation", self.sequence(attributes), no_rows, False, self._none)

    def union(self, plans: Sequence[Any]) -> Any:
        """The rows of several plans with the same columns, under the attributes of the first."""
        return self.make("Union", self.sequence(plans), False, False)

    def frame(
        self, session: SparkSession, root: Operator, frames: Mapping[str, DataFrame]
    ) -> DataFrame:
        """The rows of an operator over those of its inputs."""
        plans = {name: plan_of(frame) for name, frame in frames.items()}
        java = session._jsparkSession  # noqa: SLF001 - no public door
        return frame_of(session, java, self._filled(root, plans))

    def _filled(self, operator: Operator, plans: Mapping[str, Any]) -> Any:
        """The plan of an operator over the rows of its inputs."""
        if operator.input:
            return self.union([operator.plan, plans[operator.input]])
        if not operator.children:
            return operator.plan
        children = [self._filled(child, plans) for child in operator.children]
        return operator.plan.withNewChildren(self.sequence(children))


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public door


def input_of(plan: Any) -> str:
    """Name of the input that an operator of an analysed plan stands for; "" if it is none."""
    if plan.getClass().getSimpleName() != INPUT:
        return ""
    return str(plan.desc().identifier().table())
