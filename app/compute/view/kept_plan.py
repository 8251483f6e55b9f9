"""A kept plan is a query's plan as Spark has analysed it once, over rows that change.

    plan = KeptPlan(session, query, columns)      the query is parsed and analysed
    plan.over(session, frames)                    the same query over these rows

To run a query by its text costs an analysis before anything of it is done. Here the plan stays, and
only its leaves are new: each becomes the union of an empty table, which has the attributes that the
plan knows, and of the input's rows. Spark drops the empty half when it optimizes.

Invariants:
    Every expression of the query is the one of its analysed plan.
    Frames have the columns that the plan was made for: `fits` tells, nothing else does.
    Nothing is run here, and nothing is left in the session.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from shardline.app.sql.names_apart import with_names_apart
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.datasource.frames import (
    analyse_query,
    empty_frame,
    frame_of,
    scala_sequence,
)
from shardline.datasource.java_names import java_class, scala_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = [
    "KeptPlan",
    "Leaf",
    "Operator",
    "Operators",
    "columns_of",
    "plan_of",
    "shared_plan",
    "state_leaf",
]

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"

_SHARED_MAX: Final = 512
"""Plans that are shared: those of a hundred views with states of other types each. They hold the
sessions that they were analysed in."""

_shared: Final[OrderedDict[Hashable, KeptPlan]] = OrderedDict()
_shared_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows of an input that a plan is over.

    Attributes:
        name: The input.
        before: True of its contents before a step; else what a caller of the plan says.
        place: Number of the look-up that finds those rows of them that are needed; 0 for all.
    """

    name: str
    before: bool = False
    place: int = 0


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a query, over inputs without rows.

    Attributes:
        plan: Spark's operator.
        children: What it is over.
        leaf: The rows that it stands for; None if it is an operator of the query.
    """

    plan: Any
    children: tuple[Operator, ...] = ()
    leaf: Leaf | None = None

    def leaves(self) -> Iterator[Leaf]:
        """All rows that it reads, some of them several times."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()


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
        self.columns: StructType
        """Columns of the result."""
        self._root = self._analyse(session, query)

    def _analyse(self, session: SparkSession, query: str) -> Operator:
        """The last operator of the query, over inputs without rows."""
        empty = {name: empty_frame(session, given) for name, given in self._columns.items()}
        result = analyse_query(session, query, empty)
        self.columns, analysed = result.schema, plan_of(result)
        # Those inside of expressions have inputs, too, which are no leaves of the plan.
        self.usable = bool(analysed.subqueriesAll().isEmpty())
        return self._operators.over(query_tree(with_names_apart(session, analysed)))

    def fits(self, frames: Mapping[str, DataFrame]) -> bool:
        """True if the frames have the columns that the plan was made for."""
        return {name: frame.schema for name, frame in frames.items()} == self._columns

    def over(self, session: SparkSession, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The query's result over these rows; nothing is run yet.

        Args:
            session: The one that the frames are of.
            frames: Rows of each input, with the columns that the plan was made for.
        """
        leaves = {Leaf(name): frame for name, frame in frames.items()}
        return self._operators.frame(session, self._root, leaves)


def shared_plan(session: SparkSession, text: str, columns: Mapping[str, StructType]) -> KeptPlan:
    """The plan of a program over tables of our own, analysed once for all views with such states.

    To analyse those of a state took half of what it took to make the plan of a view with an
    aggregate. They are run by themselves, so that it does not matter if columns of two states have
    the same ids; and `exact` sessions have the same settings in all views.
    """
    key = (
        session.sparkContext,
        text,
        *((name, given.json()) for name, given in sorted(columns.items())),
    )
    with _shared_lock:
        found = _shared.get(key)
        if found is not None:
            _shared.move_to_end(key)
            return found
    made = KeptPlan(session, text, columns)
    with _shared_lock:
        _shared[key] = made
        if len(_shared) > _SHARED_MAX:
            _shared.popitem(last=False)
    return made


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

    def projected(self, columns: Iterable[Any], below: QueryNode) -> QueryNode:
        """A projection of an operator of a query."""
        plan = self.make("Project", self.sequence(columns), below.plan)
        return QueryNode(plan, "Project", "", (below,), below.inputs)

    def over(
        self,
        node: QueryNode,
        *,
        before: bool = False,
        found: Mapping[QueryNode, Leaf] | None = None,
    ) -> Operator:
        """An operator of a query, and all that it is over.

        Args:
            node: The operator.
            before: True if its inputs stand for their contents before a step.
            found: Inputs of it that stand for rows that are looked up.
        """
        if node.input:
            leaf = (found or {}).get(node, Leaf(node.input, before))
            return Operator(self.empty(node.output), (), leaf)
        children = (self.over(child, before=before, found=found) for child in node.children)
        return Operator(node.plan, tuple(children))

    def frame(
        self, session: SparkSession, root: Operator, frames: Mapping[Leaf, DataFrame]
    ) -> DataFrame:
        """The rows of an operator over those of its leaves."""
        plans = {leaf: plan_of(frame) for leaf, frame in frames.items()}
        java = session._jsparkSession  # noqa: SLF001 - no public door
        return frame_of(session, java, self._filled(root, plans))

    def _filled(self, operator: Operator, plans: Mapping[Leaf, Any]) -> Any:
        """The plan of an operator over the rows of its leaves."""
        if operator.leaf is not None:
            return self.union([operator.plan, plans[operator.leaf]])
        if not operator.children:
            return operator.plan
        children = [self._filled(child, plans) for child in operator.children]
        return operator.plan.withNewChildren(self.sequence(children))


def state_leaf(session: SparkSession, name: str, schema: StructType) -> QueryNode:
    """The operator that stands for the rows of a state, as if it were an input of this name."""
    empty = empty_frame(session, schema)
    return QueryNode(plan_of(empty), "State", name, (), frozenset([name]))


def columns_of(plan: Any) -> StructType:
    """The columns of a plan, as Python has them."""
    return StructType.fromJson(json.loads(plan.schema().json()))


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public door
