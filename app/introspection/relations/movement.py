"""Relations of movement show where time goes, how many rows pass, and how much is kept.

Micro-batches and their phases have times of the clock. Operators inside of `addBatch` have the time
of Spark's tasks, which run side by side: it may be more than that of the phase. Rows are those that
an object reports itself, else those of Spark's plans: see `spark_plan.matching`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.introspection.facts import Facts, ObjectFacts
from shardline.app.introspection.relation import (
    BYTES,
    NUMBER,
    REAL,
    TEXT,
    Column,
    Metric,
    Relation,
    Row,
)
from shardline.app.introspection.relations.structure import channels
from shardline.app.introspection.spark_plan.operators import PHASES

__all__ = ["MOVEMENT"]

_WHOLE: Final = "triggerExecution"

_LEAVING: Final = {
    ("source", "Source"): "messages_received",
    ("source", "Reclock"): "messages_received",
    ("source", "Envelope"): "updates_staged",
    ("sink", "Envelope"): "messages_staged",
    ("view", "Correction"): "updates_out",
}
"""The counter of the rows that leave an operator, by kind of object and operator."""

_KEPT: Final = {"Envelope": "records_indexed", "Arrange": "records"}
_KEPT_BYTES: Final = {"Envelope": "bytes_indexed", "Arrange": "size"}
"""The gauges of what an operator keeps in memory, by operator."""


def _phase_numbers(found: ObjectFacts) -> Iterator[tuple[int, str]]:
    """Numbers of the operators that are phases of a micro-batch, with Spark's names of them."""
    for number, operator in found.operators():
        if operator.parent is None:
            yield number, _WHOLE
        elif operator.lir is None and operator.name in PHASES:
            yield number, operator.name


def _elapsed(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, phase in _phase_numbers(found):
            if phase in found.elapsed_ms:
                yield (number, found.elapsed_ms[phase] * 1_000_000)
        first, _ = found.installed.operators
        for place, took_ms in sorted(found.worked_ms.items()):
            yield (first + place, took_ms * 1_000_000)


def _durations(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        numbers = {phase: number for number, phase in _phase_numbers(found)}
        for (phase, bound), count in found.durations.items():
            if phase in numbers:
                yield (numbers[phase], bound, count)
        first, _ = found.installed.operators
        for (place, bound), count in sorted(found.worked.items()):
            yield (first + place, bound, count)


def _messages(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, sender, receiver, port in channels(found):
            counter = _LEAVING.get((found.kind, found.plan[sender].name), "")
            sent = found.counters.get(counter)
            if sent is not None:
                rows, all_of_them = int(sent), found.micro_batches
                yield (number, rows, rows, all_of_them, all_of_them, all_of_them)
            elif (receiver, port) in found.moved:
                rows, micro_batches = found.moved[receiver, port]
                yield (number, rows, rows, micro_batches, micro_batches, found.harvested)


def _kept(found: ObjectFacts) -> Iterator[tuple[int, int, int | None, int | None]]:
    """Arrangements and state stores of an object: operator, rows, bytes, and pieces."""
    for number, operator in found.operators():
        records = _number(found, _KEPT.get(operator.name, ""))
        if records is not None:
            size = _number(found, _KEPT_BYTES[operator.name])
            yield (number, records, size, _number(found, "batches"))
        if operator.name == "addBatch" and found.states:
            yield (
                number,
                sum(state.rows for state in found.states),
                sum(state.memory_bytes for state in found.states),
                sum(state.stores for state in found.states),
            )


def _number(found: ObjectFacts, name: str) -> int | None:
    value = found.gauges.get(name, found.statistics.get(name))
    return None if value is None else int(value)


def _arrangements(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, records, size, stores in _kept(found):
            yield (number, records, stores, size)


def _per_dataflow(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        kept = list(_kept(found))
        if kept:
            sizes = [size for _, _, size, _ in kept if size is not None]
            yield (
                found.installed.dataflow,
                f"Dataflow: {found.id}",
                sum(records for _, records, _, _ in kept),
                sum(sizes) if sizes else None,
            )


def _measurements(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        for name, value in sorted(found.counters.items()):
            yield (found.id, name, "counter", value)
        for name, now in sorted(found.gauges.items()):
            yield (found.id, name, "gauge", now)
        if found.progress_ms is not None:
            yield (found.id, "micro_batches", "counter", float(found.micro_batches))


MOVEMENT: Final = (
    Relation(
        "scheduling_elapsed",
        "Time that an operator has taken, parts and what it pulls rows from included",
        (
            Column(
                "id",
                NUMBER,
                "of the operator; of a phase by the clock, of others the sum over Spark's tasks",
            ),
            Column("elapsed_ns", NUMBER, "in nanoseconds, in whole milliseconds"),
        ),
        _elapsed,
    ),
    Relation(
        "operator_durations_histogram",
        "How often an operator took how long, by micro-batch",
        (
            Column("id", NUMBER, "of the operator"),
            Column("duration_ns", NUMBER, "at most so long: a power of two"),
            Column("count", NUMBER, "so often, and longer than half of it"),
        ),
        _durations,
    ),
    Relation(
        "message_counts",
        "Rows that have gone through a channel, where that is known",
        (
            Column("channel_id", NUMBER, "of the channel"),
            Column("sent", NUMBER, "rows that left the sender"),
            Column("received", NUMBER, "rows that reached the receiver"),
            Column("batch_sent", NUMBER, "micro-batches whose rows are counted"),
            Column("batch_received", NUMBER, "micro-batches whose rows are counted"),
            Column(
                "batch_observed",
                NUMBER,
                "micro-batches that were looked at: the rows of more than batch_sent are not known",
            ),
        ),
        _messages,
    ),
    Relation(
        "arrangement_sizes",
        "What an operator keeps in memory",
        (
            Column("operator_id", NUMBER, "of the operator; addBatch for Spark's own state"),
            Column("records", NUMBER, "rows, or keys"),
            Column("batches", NUMBER, "runs of an index, or instances of Spark's state store"),
            Column("size", BYTES, "in bytes; NULL if not known"),
        ),
        _arrangements,
    ),
    Relation(
        "records_per_dataflow",
        "What a dataflow keeps in memory",
        (
            Column("id", NUMBER, "of the dataflow"),
            Column("name", TEXT, "its name"),
            Column("records", NUMBER, "rows, or keys"),
            Column("size", BYTES, "in bytes; NULL if not known"),
        ),
        _per_dataflow,
    ),
    Relation(
        "measurements",
        "A number that an object reports of itself",
        (
            Column("object_id", TEXT, "the object"),
            Column("name", TEXT, "of the number"),
            Column("type", TEXT, "counter: a sum since the start; gauge: as it is now"),
            Column(
                "value",
                REAL,
                "the number; NULL if it is not known now",
                Metric("object_measurement", "A number that the object reports of itself."),
            ),
        ),
        _measurements,
        "object_id",
        labels=(("object", "object_id"), ("kind", ""), ("name", "name")),
    ),
)
