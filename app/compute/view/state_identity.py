"""A state is known by what it is of, not by the view's definition: it outlives other changes of it.

    names = StateNames(spark, writer, inputs)
    names.of(plan)          a writer's name for each state of the plan, in order

A state of groups is decided by what it groups and by how it adds up. Both are told by a text
(`plan_identity` of `shardline.datasource.frames`), in which an input stands for its shard and a
state below for what that is of. With the settings and versions that decide what a query means, a
hash of it is the name of the state's durable writer. So a definition that differs above a state, or
beside it, has a state of the same name, and goes on from it (Materialize and Feldera start such a
dataflow anew).

Other states belong to their definition. Those of LIMITs are a choice among equal rows, which the
output has made as well; and what is not told whole by its text may have changed without it.

An input that gets a column is the same one, unless the query has that column somewhere: Spark
writes all columns of both sides above a join with USING. Then its states are made anew.

Invariants:
    Two states of one name have the same contents at each time at which both have any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from shardline.app.compute.view.aggregate_rule import GroupState
from shardline.app.compute.view.state_shard import WRITERS
from shardline.datasource.frames import plan_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.compute.view.change_plan import ChangePlan
    from shardline.app.compute.view.state_rules import State
    from shardline.app.compute.view.view_inputs import ViewInputs
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["StateNames"]

_FORM: Final = 1
"""Version of what states have: a greater one where the same program means other contents now."""


class StateNames:
    """Names the writers of the states of one definition. Keeps nothing of a plan."""

    def __init__(self, spark: SparkSession, writer: str, inputs: ViewInputs) -> None:
        """For one definition; no I/O.

        Args:
            spark: A session of the application.
            writer: Name of its own durable writer.
            inputs: Of the view.
        """
        self._spark = spark
        self._writer = writer
        self._inputs = inputs

    def of(self, plan: ChangePlan) -> tuple[str, ...]:
        """Names of the writers of the states of a plan of the definition, in their order."""
        shards = self._inputs.shards_by_name
        known = {name: f"shard {shard}" for name, shard in shards.items()}
        # Of the whole query: Spark's operators are over their own, in which no state is read.
        leaves = {leaf.numbers[0]: known[leaf.input] for leaf in _leaves(plan.query)}
        found: list[str] = []
        for place, state in enumerate(plan.states, 1):
            told = known[state.name] = self._name_of(state, known, leaves)
            found.append(told or f"{self._writer}:{place}")
        # Two aggregates of one query may be one and the same: each keeps a shard of its own.
        return tuple(
            name if name not in found[:place] else f"{name}:{place}"
            for place, name in enumerate(found)
        )

    def _name_of(self, state: State, known: Mapping[str, str], inputs: Mapping[int, str]) -> str:
        """The name of a state by what it is of; "" if that is not told whole.

        Args:
            state: The state.
            known: The same of those below it, and of inputs.
            inputs: Inputs of the query, by the number of the first column.
        """
        if not isinstance(state, GroupState):
            return ""
        read = {leaf.numbers[0]: known[leaf.input] for leaf in _leaves(state.source)}
        text = plan_identity(self._spark, state.source.plan, {**inputs, **read})
        if text is None or not all(read.values()):
            return ""
        parts = (_FORM, text, state.program, state.schema.json(), *self._inputs.determinants)
        encoded = msgspec.json.encode(parts)
        return f"{WRITERS[0]}{hashlib.blake2b(encoded, digest_size=16).hexdigest()}"


def _leaves(node: QueryNode) -> Iterator[QueryNode]:
    """The leaves of a query that stand for rows of inputs and states."""
    if node.input:
        yield node
    for child in node.children:
        yield from _leaves(child)
