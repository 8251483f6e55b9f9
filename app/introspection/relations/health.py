"""Relations of health show statuses with their history, statistics, and counts of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from shardline.app.introspection.definitions import format_of
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.histories import newest
from shardline.app.introspection.relation import (
    AT,
    MS,
    REAL,
    TEXT,
    Column,
    Metric,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.app.protocol.object_state import UNCREATED

__all__ = ["HEALTH"]

_SOURCE_STATISTICS: Final = {
    "messages_received": "rows that came from outside",
    "bytes_received": "their size in bytes",
    "updates_staged": "updates written, committed or not",
    "updates_committed": "updates that can be read",
    "records_indexed": "keys kept for upserts",
    "bytes_indexed": "their size in bytes",
    "rehydration_latency": "time until the last restart had caught up, in ms",
    "rows_skipped": "rows that could not be decoded and were left out (onBadRow)",
    "snapshot_records_known": "rows of the first snapshot, as far as known",
    "snapshot_records_staged": "rows of it that have been read",
    "snapshot_committed": "1 once the first snapshot can be read, else 0",
    "offset_known": "how far the outside is, as one number",
    "offset_committed": "how far of it can be read",
    "files_waiting": "files that were found outside and are not read yet",
    "bytes_waiting": "their size in bytes",
}
_SINK_STATISTICS: Final = {
    "messages_staged": "messages written, committed or not",
    "messages_committed": "messages that are committed outside",
    "bytes_staged": "size of those written, in bytes",
    "bytes_committed": "size of those committed, in bytes",
}


_SUMS: Final = frozenset(
    {
        "messages_received",
        "bytes_received",
        "updates_staged",
        "updates_committed",
        "rows_skipped",
        "messages_staged",
        "messages_committed",
        "bytes_staged",
        "bytes_committed",
    }
)
"""Statistics that only grow while the object lives."""


def _statistics_columns(kind: str, names: Mapping[str, str]) -> Iterator[Column]:
    for name, comment in names.items():
        text = f"{comment.removesuffix(', in ms')}.".capitalize()
        in_ms = name.endswith("_latency")
        family = f"{kind}_{name}_seconds" if in_ms else f"{kind}_{name}"
        metric = Metric(family, text, MS if in_ms else 1.0, grows=name in _SUMS)
        yield Column(name, REAL, comment, metric)


def _statistics(facts: Facts, kind: str, names: Mapping[str, str]) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.kind == kind and found.statistics:
            yield (found.id, *(found.statistics.get(name) for name in names))


def _source_statistics(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _statistics(facts, "source", _SOURCE_STATISTICS)


def _sink_statistics(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _statistics(facts, "sink", _SINK_STATISTICS)


def _statuses(facts: Facts, kind: str) -> Iterator[Row]:
    for found in facts.objects.values():
        if found.kind == kind:
            condition = found.condition
            details = _details(condition.hints, condition.namespaced)
            yield (
                found.id,
                found.id,
                format_of(found.installed.description),
                instant(found.condition_ms),
                condition.status,
                condition.error or None,
                details,
            )


def _statuses_past(facts: Facts, at_ms: int, kind: str) -> Iterator[Row]:
    """Statuses as the history has them; formats only since definitions are recorded."""
    there = facts.existing_at(at_ms)
    defined = {name: row for name, (_, row) in newest(facts.definitions.rows).items()}
    formats = {name: row[7] for name, row in defined.items()}
    there -= {name for name, row in defined.items() if row[2] == UNCREATED}
    for name, (since_ms, row) in newest(facts.statuses.rows).items():
        _, its_kind, status, error, hints, spaces = row
        if its_kind == kind and name in there and status != "dropped":
            known = (name, name, formats.get(name), instant(since_ms), status)
            yield (*known, error or None, _details(hints, spaces))


def _source_statuses_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    return _statuses_past(facts, at_ms, "source")


def _sink_statuses_past(facts: Facts, at_ms: int) -> Iterator[Row]:
    return _statuses_past(facts, at_ms, "sink")


def _source_statuses(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _statuses(facts, "source")


def _sink_statuses(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return _statuses(facts, "sink")


def _history(facts: Facts) -> Iterator[tuple[str, Row]]:
    for at_ms, (name, kind, status, error, hints, spaces) in facts.statuses.rows:
        yield str(kind), (instant(at_ms), name, status, error or None, _details(hints, spaces))


def _source_history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return (row for kind, row in _history(facts) if kind == "source")


def _sink_history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return (row for kind, row in _history(facts) if kind == "sink")


def _status_history(facts: Facts, _now_ms: int) -> Iterator[Row]:
    return ((at, name, kind, *rest) for kind, (at, name, *rest) in _history(facts))


def _details(hints: object, namespaced: object) -> str | None:
    """Hints, and errors by namespace, as JSON; None if there are none."""
    if not hints and not namespaced:
        return None
    assert isinstance(namespaced, tuple), namespaced
    return msgspec.json.encode({"hints": hints, "namespaced": dict(namespaced)}).decode()


_STATUS: Final = (
    Column("status", TEXT, "as in `objects`, or dropped"),
    Column("error", TEXT, "what is wrong"),
    Column("details", TEXT, "JSON: hints, and errors by where they come from (namespaced)"),
)
_NAMED: Final = (
    Column("id", TEXT, "the object"),
    Column("name", TEXT, "its name"),
    Column("type", TEXT, "its format"),
    Column("last_status_change_at", AT, "since when it has this status"),
    *_STATUS,
)

_OF: Final = ("status_history",)

HEALTH: Final = (
    Relation(
        "source_statuses",
        "A source's status",
        _NAMED,
        _source_statuses,
        "id",
        past=Past(_source_statuses_past, _OF),
    ),
    Relation(
        "sink_statuses",
        "A sink's status",
        _NAMED,
        _sink_statuses,
        "id",
        past=Past(_sink_statuses_past, _OF),
    ),
    Relation(
        "source_status_history",
        "A source's status has changed",
        (Column("occurred_at", AT, "when"), Column("source_id", TEXT, "the source"), *_STATUS),
        _source_history,
        "source_id",
        _OF,
        separable=True,
        past=Past(_source_history, _OF),
    ),
    Relation(
        "sink_status_history",
        "A sink's status has changed",
        (Column("occurred_at", AT, "when"), Column("sink_id", TEXT, "the sink"), *_STATUS),
        _sink_history,
        "sink_id",
        _OF,
        separable=True,
        past=Past(_sink_history, _OF),
    ),
    Relation(
        "status_history",
        "An object's status has changed, of any kind but a subscription",
        (
            Column("occurred_at", AT, "when"),
            Column("object_id", TEXT, "the object"),
            Column("type", TEXT, "source, view, index, sink or subscribe"),
            *_STATUS,
        ),
        _status_history,
        "object_id",
        _OF,
        separable=True,
        past=Past(_status_history, _OF),
    ),
    Relation(
        "source_statistics",
        "What has come in through a source; NULL is not known",
        (
            Column("id", TEXT, "the source"),
            *_statistics_columns("source", _SOURCE_STATISTICS),
        ),
        _source_statistics,
        "id",
    ),
    Relation(
        "sink_statistics",
        "What has gone out through a sink; NULL is not known",
        (
            Column("id", TEXT, "the sink"),
            *_statistics_columns("sink", _SINK_STATISTICS),
        ),
        _sink_statistics,
        "id",
    ),
)
