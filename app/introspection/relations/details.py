"""Relations of details show one object to somebody who has chosen it.

They have more rows, or longer values, than an overview of all objects wants to carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from shardline.app.introspection.facts import Facts, ObjectFacts
from shardline.app.introspection.relation import AT, NUMBER, TEXT, Column, Relation, Row, instant
from shardline.app.introspection.relations.structure import uncreated_objects
from shardline.app.introspection.spark_plan.operators import PHASES
from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SubscribeDescription,
    ViewDescription,
)

__all__ = ["DETAILS"]

_STATELESS: Final = (IndexDescription, SubscribeDescription)
"""Kinds of objects that keep no checkpoint: they are built anew by each start."""


def _details(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        description = found.installed.description
        yield (
            found.id,
            *_strategy(description),
            _schema(facts, found),
            _checkpoint(facts, found),
            _spark_page(facts, found),
            found.group or None,
        )
    for one in uncreated_objects(facts):
        yield (one.id, *_strategy(one.description), None, None, None, None)


def _strategy(description: Description) -> tuple[str | None, str | None]:
    """The way a view is maintained, and why in no better one."""
    if not isinstance(description, ViewDescription):
        return None, None
    return description.strategy, description.reason or None


def _schema(facts: Facts, found: ObjectFacts) -> str | None:
    """Columns of an object's contents, as JSON: of what it is on, if it has none of its own."""
    description = found.installed.description
    if isinstance(description, IndexDescription | SinkDescription | SubscribeDescription):
        on = facts.objects.get(description.on)
        columns = None if on is None else on.columns
    else:
        columns = found.columns
    if columns is None:
        return None
    return msgspec.json.encode([{"name": name, "type": kind} for name, kind in columns]).decode()


def _checkpoint(facts: Facts, found: ObjectFacts) -> str | None:
    started, installed = facts.process.started, found.installed
    if started is None or found.group or isinstance(installed.description, _STATELESS):
        return None
    # As `Incarnation.checkpoint` names it.
    return f"{started.checkpoints}/{installed.global_id}-{installed.dataflow}"


def _spark_page(facts: Facts, found: ObjectFacts) -> str | None:
    """Address of the query's run in Spark's tab of structured streaming."""
    if not facts.process.spark_ui or not found.run:
        return None
    # A view in a group runs as part of the group's run, which is what Spark shows.
    run = found.run.partition("/")[0]
    return f"{facts.process.spark_ui}/StreamingQuery/statistics/?id={run}"


def _step_phases(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        for step in found.steps:
            for phase in sorted(step.phases_ms, key=_position):
                yield (
                    found.id,
                    step.number,
                    instant(step.at_ms),
                    step.took_ms,
                    phase,
                    step.phases_ms[phase],
                )


def _position(phase: str) -> tuple[int, str]:
    """Places a phase in Spark's order; one that is not known comes last."""
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


DETAILS: Final = (
    Relation(
        "object_details",
        "An object: how it is kept up to date, its columns, and where its query is",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "strategy",
                TEXT,
                "of a view: linear, by changes alone; incremental, by changes joined with what is "
                "there; recompute, by its query run anew",
            ),
            Column("reason", TEXT, "why a view has no better strategy"),
            Column(
                "schema",
                TEXT,
                "columns of its contents, or of what it is on, as JSON: a list of name and type",
            ),
            Column("checkpoint", TEXT, "folder of its query's checkpoint; NULL: it keeps none"),
            Column(
                "spark_ui",
                TEXT,
                "address of its query in Spark's UI; NULL if that is off, or no query runs",
            ),
            Column(
                "view_group",
                TEXT,
                "of a view: the group whose query triggers its steps; NULL: a query of its own",
            ),
        ),
        _details,
        "object_id",
    ),
    Relation(
        "step_phases",
        "A phase of a micro-batch: of the newest sixty of each object since it was started",
        (
            Column("object_id", TEXT, "the object"),
            Column("batch", NUMBER, "number of the micro-batch, from 0"),
            Column("started_at", AT, "when it was triggered"),
            Column("took", NUMBER, "how long all of it took, in ms"),
            Column("phase", TEXT, "which phase, as Spark names it"),
            Column("elapsed", NUMBER, "how long that took, in ms"),
        ),
        _step_phases,
        "object_id",
        separable=True,
    ),
)
