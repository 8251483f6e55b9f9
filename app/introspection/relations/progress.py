"""Relations of progress show how far objects are: frontiers, lag and hydration.

Lag is computed when it is read, so it grows while everything stands still. NULL is the empty
frontier; an object whose frontier was never observed has no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from shardline.app.introspection.facts import MINUTE_MS, Facts, lag_ms
from shardline.app.introspection.histories import newest
from shardline.app.introspection.input_lag import (
    behind_ms,
    earliest,
    earliest_sources,
    slowest,
    slowest_sources,
)
from shardline.app.introspection.relation import (
    AT,
    FLAG,
    FRONTIER,
    MS,
    NUMBER,
    TEXT,
    Column,
    Metric,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.app.protocol.objects import inputs_of

__all__ = ["PROGRESS"]


def _frontiers(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.since is not UNSET and found.write is not UNSET:
            yield (found.id, found.since, found.write)


def _compute_frontiers(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.installed.domain == "compute" and found.reached is not UNSET:
            yield (found.id, found.reached)


def _import_frontiers(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        for name, time in found.inputs.items():
            yield (found.id, name, time)


def _materialization_lag(facts: Facts, _now_ms: int) -> Iterator[Row]:
    sources = slowest_sources(facts)
    for found in facts.objects.values():
        direct = inputs_of(found.installed.description)
        if not direct or found.write is UNSET:
            continue
        local, global_ = slowest(facts, direct), sources.get(found.id)
        yield (
            found.id,
            behind_ms(facts, found.write, local),
            behind_ms(facts, found.write, global_),
            local,
            global_,
        )


def _materialization_lag_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    """Who was the slowest, by the largest lags of the minute; by how much is not recorded.

    The largest lags of two objects are of two moments: what lies between them is no lag.
    """
    uppers: dict[str, int | None] = {
        str(name): at_ms - lag
        for name, lag in _wallclock_lag_past(facts, at_ms)
        if isinstance(lag, int)
    }
    there = facts.existing_at(at_ms)
    reads: dict[str, tuple[str, ...]] = {
        name: row[8] or ()  # type: ignore[misc]  # the inputs, a tuple of names
        for name, (_, row) in newest(facts.definitions.rows).items()
        if name in there
    }
    sources = earliest_sources(reads, uppers)
    for name, inputs in reads.items():
        if inputs and name in uppers:
            local = earliest({each: uppers[each] for each in inputs if each in uppers})
            yield (name, None, None, local, sources.get(name))


def _wallclock_lag(facts: Facts, now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.write is not UNSET:
            yield (found.id, lag_ms(found.write, now_ms))


def _wallclock_lag_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    """The largest lag of the minute that the moment is in: that is what is recorded."""
    for began_ms, (name, lag) in facts.lags.rows:
        if began_ms <= at_ms < began_ms + MINUTE_MS:
            yield (name, lag)


def _wallclock_lag_history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, (name, lag) in facts.lags.rows:
        yield (name, lag, instant(at_ms))


def _wallclock_lag_history_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    """Minutes that were over: the one that the moment is in was being measured."""
    for began_ms, (name, lag) in facts.lags.rows:
        if began_ms + MINUTE_MS <= at_ms:
            yield (name, lag, instant(began_ms))


def _hydration_statuses(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.epoch:
            yield (found.id, found.is_hydrated())


def _hydration_times(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.hydration_ms is not None:
            yield (found.id, found.hydration_ms)


PROGRESS: Final = (
    Relation(
        "frontiers",
        "How far back an object can be read, and how far it is",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "read_frontier",
                FRONTIER,
                "reads at this time and later are exact",
                Metric(
                    "object_since_seconds",
                    "Since of the object's contents, as a time since the epoch.",
                    MS,
                ),
            ),
            Column(
                "write_frontier",
                FRONTIER,
                "nothing before this time can change any more",
                Metric(
                    "object_upper_seconds",
                    "Upper of the object's contents, as a time since the epoch.",
                    MS,
                ),
            ),
        ),
        _frontiers,
        "object_id",
    ),
    Relation(
        "compute_frontiers",
        "The next time at which the output of a view, index or subscription may change",
        (Column("export_id", TEXT, "the object"), Column("time", FRONTIER, "its upper")),
        _compute_frontiers,
        "export_id",
    ),
    Relation(
        "import_frontiers",
        "What a dataflow has read of an input",
        (
            Column("export_id", TEXT, "the object"),
            Column("import_id", TEXT, "the input"),
            Column("time", FRONTIER, "everything before it has been read"),
        ),
        _import_frontiers,
        "export_id",
    ),
    Relation(
        "materialization_lag",
        "How far an object is behind what it reads, and who is to blame",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "local_lag",
                NUMBER,
                "behind its slowest input, in ms; NULL if not comparable",
                Metric(
                    "object_input_lag_seconds",
                    "How far the object is behind its slowest input.",
                    MS,
                ),
            ),
            Column(
                "global_lag",
                NUMBER,
                "behind the slowest source below it, in ms",
                Metric(
                    "object_source_lag_seconds",
                    "How far the object is behind the slowest source below it.",
                    MS,
                ),
            ),
            Column("slowest_local_input_id", TEXT, "that input"),
            Column("slowest_global_input_id", TEXT, "that source"),
        ),
        _materialization_lag,
        "object_id",
        past=Past(_materialization_lag_past, ("wallclock_lag_history", "definition_history")),
    ),
    Relation(
        "wallclock_lag",
        "How far an object is behind the clock, right now",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "lag",
                NUMBER,
                "in ms; 0 if it is finished, NULL if it was never written",
                Metric("object_lag_seconds", "How far the object is behind the clock.", MS),
            ),
        ),
        _wallclock_lag,
        "object_id",
        past=Past(_wallclock_lag_past, ("wallclock_lag_history",)),
    ),
    Relation(
        "wallclock_lag_history",
        "How far an object was behind the clock, at most, within a minute",
        (
            Column("object_id", TEXT, "the object"),
            Column("lag", NUMBER, "in ms"),
            Column("occurred_at", AT, "beginning of the minute"),
        ),
        _wallclock_lag_history,
        "object_id",
        ("wallclock_lag_history",),
        separable=True,
        past=Past(_wallclock_lag_history_past, ("wallclock_lag_history",)),
    ),
    Relation(
        "hydration_statuses",
        "Whether an object has caught up with its as_of since it was last started",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "hydrated",
                FLAG,
                "whether it has",
                Metric("object_hydrated", "Whether the object has caught up with its as_of."),
            ),
        ),
        _hydration_statuses,
        "object_id",
    ),
    Relation(
        "hydration_times",
        "How long an object took to catch up, the last time that it did",
        (
            Column("object_id", TEXT, "the object"),
            Column(
                "hydration_time",
                NUMBER,
                "in ms, from its start",
                Metric("object_hydration_seconds", "How long the object took to catch up.", MS),
            ),
        ),
        _hydration_times,
        "object_id",
    ),
)
