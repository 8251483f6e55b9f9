"""Relations of structure show objects, dataflows, their operators, and channels between operators.

All of them are known before anything runs: from the descriptions, and from the numbers that the
lane has allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.introspection.definitions import created_at, definition_of
from shardline.app.introspection.events import WantedObject
from shardline.app.introspection.facts import Facts, ObjectFacts, object_kind
from shardline.app.introspection.histories import newest
from shardline.app.introspection.relation import (
    AT,
    FRONTIER,
    NUMBER,
    NUMBERS,
    TEXT,
    TEXTS,
    Column,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.app.introspection.spark_plan.operator_strategy import explain_operator
from shardline.app.lane.commands import kind_of
from shardline.app.protocol.object_state import SHOWN_STATUSES, UNCREATED
from shardline.app.protocol.objects import (
    SubscribeDescription,
    inputs_of,
)

__all__ = ["STRUCTURE", "channels", "uncreated_objects"]

_PORTS: Final = 1000
"""Most inputs of one operator that have channels: the numbers of channels are made with it."""


def _objects(facts: Facts, _now_ms: int) -> Iterator[Row]:
    # By the histories: an object that a start has found was installed when it started, and created
    # some days before that.
    histories = (facts.definitions, facts.runs)
    created = facts.derive("created", histories, lambda: created_at(facts))
    for found in facts.objects.values():
        installed, condition = found.installed, found.condition
        yield (
            installed.id,
            installed.global_id,
            found.kind,
            installed.domain,
            found.phase,
            found.epoch,
            condition.status,
            condition.error or None,
            "; ".join(condition.hints) or None,
            instant(found.condition_ms),
            instant(installed.at_ms if found.is_subscription else created.get(found.id)),
            installed.as_of,
            definition_of(installed.description),
            found.query or None,
            found.run or None,
        )
    for one in uncreated_objects(facts):
        yield (
            one.id,
            None,
            object_kind(one.description),
            kind_of(one.description),
            UNCREATED,
            0,
            "stalled" if one.error else "created",
            one.error or None,
            one.hint or None,
            None,
            None,
            None,
            definition_of(one.description),
            None,
            None,
        )


def uncreated_objects(facts: Facts) -> Iterator[WantedObject]:
    """Objects that wait to be created; one that is being changed is there already."""
    return (one for name, one in facts.desired.items() if name not in facts.objects)


def _objects_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    """Objects as the histories have them; phase, epoch and query are not recorded."""
    there = facts.existing_at(at_ms)
    statuses, defined = newest(facts.statuses.rows), newest(facts.definitions.rows)
    created = created_at(facts)
    for name in sorted(there, key=lambda name: created.get(name) or 0):
        _, definition = defined.get(name, (0, _NOT_DEFINED))
        _, kind, state, domain, global_id, as_of, text, _, _, *problem = definition
        if state == UNCREATED:
            condition = (UNCREATED, 0, "stalled" if problem[0] else "created", *problem, None, None)
        else:
            since_ms, status = statuses.get(name, (None, _NO_STATUS))
            _, kind, word, error, hints, _ = status
            assert isinstance(hints, tuple), hints
            since, began = instant(since_ms), instant(created.get(name))
            text_of_hints = "; ".join(hints) or None
            condition = (None, None, word, error or None, text_of_hints, since, began)
        yield (name, global_id, kind, domain, *condition, as_of, text, None, None)


_NOT_DEFINED: Final[tuple[object, ...]] = ("",) + (None,) * 10
_NO_STATUS: Final[tuple[object, ...]] = ("", None, None, None, (), ())


def _dependencies_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    there = facts.existing_at(at_ms)
    for name, (_, row) in newest(facts.definitions.rows).items():
        inputs = row[8]
        if name in there and isinstance(inputs, tuple):
            for other in inputs:
                yield (name, other)


def _definition_history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, (name, kind, state, domain, global_id, as_of, *rest) in facts.definitions.rows:
        text, form, inputs, error, hint = rest
        named = None if inputs is None else list(inputs)  # type: ignore[call-overload]
        known = (kind, state, domain, global_id, as_of, text, form, named, error, hint)
        yield (instant(at_ms), name, *known)


def _dependencies(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        for name in inputs_of(found.installed.description):
            yield (found.id, name)
    for one in uncreated_objects(facts):
        for name in inputs_of(one.description):
            yield (one.id, name)


def _dataflows(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        yield (found.installed.dataflow, f"Dataflow: {found.id}")


def _global_ids(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        yield (found.installed.dataflow, found.installed.global_id)


def _compute_exports(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _exports(facts, "compute")


def _storage_exports(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _exports(facts, "storage")


def _exports(facts: Facts, domain: str) -> Iterator[Row]:
    for found in facts.watched():
        if found.installed.domain == domain:
            yield (found.id, found.installed.dataflow)


def _operators(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, operator in found.operators():
            name = f"Dataflow: {found.id}" if operator.parent is None else operator.name
            yield (number, name)


def _operator_dataflows(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, operator in found.operators():
            yield (number, operator.name, found.installed.dataflow, f"Dataflow: {found.id}")


def _addresses(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        paths: list[list[int]] = []
        children: dict[int, int] = {}
        for number, operator in found.operators():
            if operator.parent is None:
                paths.append([found.installed.dataflow])
            else:
                place = children[operator.parent] = children.get(operator.parent, 0) + 1
                paths.append([*paths[operator.parent], place])
            yield (number, paths[-1])


def _parents(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        first, _ = found.installed.operators
        for number, operator in found.operators():
            if operator.parent is not None:
                yield (number, first + operator.parent)


def channels(found: ObjectFacts) -> Iterator[tuple[int, int, int, int]]:
    """Channels of an object: number, positions of sender and receiver, port of the receiver."""
    for at, (number, operator) in enumerate(found.operators()):
        for port, sender in enumerate(operator.inputs[:_PORTS]):
            yield (number * _PORTS + port, sender, at, port)


def _channels(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, sender, receiver, port in channels(found):
            # All operators of a dataflow are in one scope: a place in it is a position.
            yield (number, sender, 0, receiver, port, "rows")


def _channel_operators(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        first, _ = found.installed.operators
        for number, sender, receiver, _port in channels(found):
            yield (number, first + sender, first + receiver, "rows")


def _lir(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.watched():
        for number, operator in found.operators():
            if operator.lir is not None:
                yield (
                    found.installed.global_id,
                    operator.lir,
                    operator.name,
                    None,
                    0,
                    number,
                    number + 1,
                    operator.detail or None,
                    *explain_operator(found.installed.description, operator),
                )


def _subscriptions(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        if isinstance(found.installed.description, SubscribeDescription):
            inputs = list(inputs_of(found.installed.description))
            yield (found.id, instant(found.installed.at_ms), inputs)


STRUCTURE: Final = (
    Relation(
        "objects",
        "An object: a source, view, index, sink or subscription, with its status",
        (
            Column("id", TEXT, "its name, which is its id in both protocols"),
            Column("global_id", TEXT, "its id for ever, from the one allocator; NULL: not created"),
            Column("type", TEXT, "source, view, index, sink or subscribe"),
            Column("domain", TEXT, "which protocol created it: storage or compute"),
            Column("phase", TEXT, f"where the lane has it; {UNCREATED}: it waits to be created"),
            Column("epoch", NUMBER, "number of its incarnation, from 1; 0 before the first"),
            Column("status", TEXT, ", ".join(SHOWN_STATUSES)),
            Column("error", TEXT, "what is wrong"),
            Column("hint", TEXT, "what to do about it"),
            Column("last_status_change_at", AT, "since when it has this status"),
            Column("created_at", AT, "when it was created; NULL: before any history of it"),
            Column("as_of", FRONTIER, "first time at which its output is to be right"),
            Column("definition", TEXT, "a view's query, a source's format, else what it is on"),
            Column("query_id", TEXT, "Spark's id of its streaming query, kept over restarts"),
            Column("run_id", TEXT, "Spark's id of the query's run"),
        ),
        _objects,
        "id",
        past=Past(_objects_past, ("status_history",)),
    ),
    Relation(
        "object_dependencies",
        "An object reads another one",
        (
            Column("object_id", TEXT, "which reads"),
            Column("referenced_object_id", TEXT, "which is read"),
        ),
        _dependencies,
        "object_id",
        past=Past(_dependencies_past, ("definition_history",)),
    ),
    Relation(
        "definition_history",
        "An object was defined, changed or dropped",
        (
            Column("occurred_at", AT, "when"),
            Column("object_id", TEXT, "the object"),
            Column("type", TEXT, "source, view, index, sink or subscribe"),
            Column("state", TEXT, f"created, {UNCREATED} (it waits for that) or dropped"),
            Column("domain", TEXT, "which protocol creates it: storage or compute"),
            Column("global_id", TEXT, "its id for ever"),
            Column("as_of", FRONTIER, "first time at which its output is to be right"),
            Column("definition", TEXT, "a view's query, a source's format, else what it is on"),
            Column("format", TEXT, "of a source or sink; else its type"),
            Column("inputs", TEXTS, "the objects that it reads"),
            Column("error", TEXT, "what keeps it from being created"),
            Column("hint", TEXT, "what to do about that"),
        ),
        _definition_history,
        "object_id",
        ("definition_history",),
        separable=True,
        past=Past(_definition_history, ("definition_history",)),
    ),
    Relation(
        "dataflows",
        "A dataflow that is installed, of storage or of compute",
        (Column("id", NUMBER, "of the dataflow"), Column("name", TEXT, "for people")),
        _dataflows,
    ),
    Relation(
        "dataflow_global_ids",
        "A dataflow makes an object",
        (
            Column("id", NUMBER, "of the dataflow"),
            Column("global_id", TEXT, "of the object, for ever"),
        ),
        _global_ids,
    ),
    Relation(
        "compute_exports",
        "A view, index or subscription and the dataflow that makes it",
        (Column("export_id", TEXT, "the object"), Column("dataflow_id", NUMBER, "the dataflow")),
        _compute_exports,
        "export_id",
    ),
    Relation(
        "storage_exports",
        "A source or sink and the dataflow that runs it",
        (Column("export_id", TEXT, "the object"), Column("dataflow_id", NUMBER, "the dataflow")),
        _storage_exports,
        "export_id",
    ),
    Relation(
        "dataflow_operators",
        "An operator: the dataflow itself, a phase of its micro-batches, or what rows go through",
        (Column("id", NUMBER, "of the operator"), Column("name", TEXT, "what it does")),
        _operators,
    ),
    Relation(
        "dataflow_operator_dataflows",
        "An operator and its dataflow",
        (
            Column("id", NUMBER, "of the operator"),
            Column("name", TEXT, "what it does"),
            Column("dataflow_id", NUMBER, "the dataflow"),
            Column("dataflow_name", TEXT, "its name"),
        ),
        _operator_dataflows,
    ),
    Relation(
        "dataflow_addresses",
        "Where an operator stands",
        (
            Column("id", NUMBER, "of the operator"),
            Column("address", NUMBERS, "the dataflow, then places among siblings, from 1"),
        ),
        _addresses,
    ),
    Relation(
        "dataflow_operator_parents",
        "An operator is a part of another one",
        (Column("id", NUMBER, "of the part"), Column("parent_id", NUMBER, "of the whole")),
        _parents,
    ),
    Relation(
        "dataflow_channels",
        "Rows go from one operator to another",
        (
            Column("id", NUMBER, "of the channel"),
            Column("from_index", NUMBER, "place of the sender, as the end of its address"),
            Column("from_port", NUMBER, "output of the sender"),
            Column("to_index", NUMBER, "place of the receiver"),
            Column("to_port", NUMBER, "input of the receiver"),
            Column("type", TEXT, "what goes through"),
        ),
        _channels,
    ),
    Relation(
        "dataflow_channel_operators",
        "A channel with the operators at its ends",
        (
            Column("id", NUMBER, "of the channel"),
            Column("from_operator_id", NUMBER, "the sender"),
            Column("to_operator_id", NUMBER, "the receiver"),
            Column("type", TEXT, "what goes through"),
        ),
        _channel_operators,
    ),
    Relation(
        "lir_mapping",
        "A node of an object's plan and the operators that stand for it",
        (
            Column("global_id", TEXT, "of the object"),
            Column("lir_id", NUMBER, "of the node, from 1"),
            Column("operator", TEXT, "what the node does"),
            Column("parent_lir_id", NUMBER, "the node that it is a part of"),
            Column("nesting", NUMBER, "how deep it is"),
            Column("operator_id_start", NUMBER, "first operator"),
            Column("operator_id_end", NUMBER, "right after the last operator"),
            Column("detail", TEXT, "the piece of SQL, or what is read or written"),
            Column(
                "strategy",
                TEXT,
                "of a view: the best that this node allows by itself, linear, incremental or "
                "recompute; NULL: it computes nothing, or is not known",
            ),
            Column("reason", TEXT, "why no better one, or how the output is written"),
        ),
        _lir,
    ),
    Relation(
        "subscriptions",
        "A client follows an object",
        (
            Column("id", TEXT, "of the subscription"),
            Column("created_at", AT, "since when"),
            Column("referenced_object_ids", TEXTS, "what it follows"),
        ),
        _subscriptions,
        "id",
    ),
)
