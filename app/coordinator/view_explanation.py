"""Explains views: the plan of each, and for `EXPLAIN VIEW` what it keeps and what its steps took.

    with_view_plans(spark, plan, …)            a project's plan with those of the views it makes
    ViewExplanations(…).table("busy")          `EXPLAIN VIEW busy`: part, item, detail

`plan` and `EXPLAIN VIEW` show the same rows of the same plan. The second adds what is known of a
view that runs: rows and bytes of its states and arrangements, who shares these, for each of its
last steps which way was taken, what it came to, and what both ways were predicted to take, and what
self-checks have found.

Invariants:
    Nothing is changed, and no row is read: sizes are those of shards' states.
    A plan is made with the settings of the session of compute, as they are at that moment.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from shardline.app.compute.index.shard_lookups import ArrangedKey, arranged_keys
from shardline.app.introspection.store import Relations
from shardline.app.introspection.verdicts.wording import amount
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import Plan
from shardline.app.project.project import CheckedProject
from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.objects import Description, ViewDescription
from shardline.app.protocol.view_plan import LookUpPlan, PlanRow, StatePlan, ViewPlan, plan_rows
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import unknown_name
from shardline.datasource.frames import struct_of
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import Volume

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["EXPLAINED_MAX", "ViewExplanations", "with_view_plans"]

EXPLAINED_MAX: Final = 16
"""Most views of a project's plan whose own plan is made: each takes about a second."""

_STEPS_SHOWN: Final = 5
_KIB: Final = 1024


def with_view_plans(
    spark: SparkSession, plan: Plan, resolved: CheckedProject, allowed: Permissions
) -> Plan:
    """A project's plan, with those of the views that it makes or changes, the first ones if many.

    Args:
        spark: A session with the settings of the one that will run them.
        plan: The plan. Without views where another project runs: it is refused, and to plan them
            can take minutes.
        resolved: The project.
        allowed: What is not refused.
    """
    if plan.owner and not allowed.adopt:
        return plan
    from pyspark.sql.types import StructType  # noqa: PLC0415 - not for projects without views

    steps = [one.description for one in plan.steps if one.act != "drop"]
    views = [one for one in steps if isinstance(one, ViewDescription)][:EXPLAINED_MAX]
    columns = {
        name: StructType.fromJson(json.loads(text)) for name, text in resolved.columns.items()
    }
    explained = [
        _planned(spark, view, {name: columns[name] for name in view.inputs}) for view in views
    ]
    return replace(plan, views=tuple(explained))


class ViewExplanations:
    """Explains the views of an application. Safe to use from any thread."""

    def __init__(
        self,
        spark: SparkSession,
        client: ShardClient,
        running: Callable[[], Mapping[str, Description]],
        relations: Relations | None,
    ) -> None:
        """No I/O.

        Args:
            spark: The session of compute.
            client: Of the location.
            running: Returns the descriptions of all objects, by name.
            relations: Those of introspection; None without it.
        """
        self._spark = spark
        self._client = client
        self._running = running
        self._relations = relations
        self._lock = threading.Lock()
        self._plans: dict[str, tuple[str, ViewPlan]] = {}

    def table(self, name: str) -> pa.Table:
        """The rows of `EXPLAIN VIEW name`: part, item, detail.

        Raises:
            InvalidUsage: There is no such view.
        """
        running = self._running()
        view = running.get(name)
        if not isinstance(view, ViewDescription):
            views = [n for n, one in running.items() if isinstance(one, ViewDescription)]
            raise unknown_name("view", name, views)
        rows = [*self._rows(view)]
        columns = zip(*rows, strict=True)
        return pa.table(dict(zip(PlanRow._fields, map(list, columns), strict=True)))

    def _rows(self, view: ViewDescription) -> Iterator[PlanRow]:
        plan = self._plan(view)
        arranged = arranged_keys(self._client)
        details = {one.shard: self._of_state(one) for one in plan.states}
        # In the order of their rows.
        found = iter([_of_arrangement(view.name, one, arranged) for one in plan.look_ups])
        for row in plan_rows(plan):
            match row.part:
                case "state":
                    yield row._replace(detail=f"{row.detail}; {details[row.item]}")
                case "look-up":
                    yield row._replace(detail=f"{row.detail}; {next(found)}")
                case _:
                    yield row
        for name in view.inputs:
            yield PlanRow("input", name, self._of_shard(name))
        yield from self._steps(view.name)

    def _plan(self, view: ViewDescription) -> ViewPlan:
        """The plan of a view over its inputs as they are now; made again when these change."""
        states = self._client.readable(*view.inputs)
        schemas = [state.schemas[state.schema_id] for state in states]
        version = f"{fingerprint(view)} {schemas}"
        with self._lock:
            known = self._plans.get(view.name)
        if known is not None and known[0] == version:
            return known[1]
        parsed = [struct_of(ShardSchema.parse(one).record) for one in schemas]
        plan = _planned(self._spark, view, dict(zip(view.inputs, parsed, strict=True)))
        with self._lock:
            self._plans[view.name] = version, plan
        return plan

    def _of_state(self, state: StatePlan) -> str:
        if not self._client.exists(state.shard):
            return "not made yet"
        return self._of_shard(state.shard)

    def _of_shard(self, name: str) -> str:
        batches = self._client.state(name).trace.batches
        volume = Volume.of(part for batch in batches for part in batch.parts)
        return f"{volume.rows:,} updates, {_size(volume.size_bytes)}"

    def _steps(self, name: str) -> Iterator[PlanRow]:
        if self._relations is None:
            return
        for row in self._relations.rows("view_steps", object=name)[-_STEPS_SHOWN:]:
            yield PlanRow("step", str(row["occurred_at"]), _of_step(row))
        for row in self._relations.rows("self_check_history", object=name)[-_STEPS_SHOWN:]:
            text = f"{row['finding']} of {row['shard']}: {row['detail'] or 'it was made anew'}"
            yield PlanRow("finding", str(row["occurred_at"]), text)


def _planned(
    spark: SparkSession, view: ViewDescription, columns: Mapping[str, StructType]
) -> ViewPlan:
    from shardline.app.compute.view.view_plan import plan_view  # noqa: PLC0415 - as above

    return plan_view(spark, view.name, view.query, columns)


def _of_arrangement(
    view: str, one: LookUpPlan, arranged: Mapping[tuple[str, tuple[str, ...]], ArrangedKey]
) -> str:
    """What there is of an arrangement, and who else uses it."""
    found = arranged.get((one.shard, one.arranged_by))
    if found is None:
        return "not arranged now"
    others = [name for name in found.users if name != view]
    by = f", those of index {found.index}" if found.index else ""
    shared = f", shared with {', '.join(others)}" if others else ""
    return f"{found.updates:,} updates, {_size(found.size_bytes)}{by}{shared}"


def _of_step(row: Mapping[str, object]) -> str:
    changed = "" if row["rows_changed"] is None else f"{row['rows_changed']:,} changed, "
    rows = f"{changed}{row['rows_looked_up']:,} looked up, {row['updates_out']:,} out"
    guesses = [
        f"{word} {guess:,.0f} ms"
        for word, guess in (
            ("incremental", row["predicted_ms_incremental"]),
            ("recompute", row["predicted_ms_recompute"]),
        )
        if isinstance(guess, float)
    ]
    predicted = f"; predicted: {', '.join(guesses)}" if guesses else ""
    reason = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['way']}{reason} in {row['took_ms']:,.0f} ms: {rows}{predicted}"


def _size(count: int) -> str:
    return f"{count} B" if count < _KIB else amount(count)
