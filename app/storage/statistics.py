"""Statistics sum up the numbers of sources and sinks over micro-batches and incarnations: pure.

A micro-batch reports what it did, an incarnation begins at zero; a user asks for totals of the
object. What a report, and what a new incarnation, does to a number depends on its kind, as in
Materialize's source and sink statistics:

| kind | a report | a new incarnation |
|---|---|---|
| counter | is added | goes on |
| total that resets | replaces | 0, if it was known |
| latency, nullable total | replaces, also by "not known" | not known |
| flag | may become true, never false again | stays |
| total | replaces, never by less, nor by "not known" | stays |
| greatest | replaces, if it is more | stays |

`offset_known` is a greatest: a query that has just begun knows less of the outside than the one
before. What is committed is a total. Both go back where a report says that less is committed than
before: what the source reads was made again, or a part of it is gone.

What a caller relies on:
    Missing is not zero: a number that was never measured is absent.
    Counters are best effort, since a process that dies has not reported all: use them for rates.

Invariants:
    Reports of an earlier incarnation than the newest one known change nothing.
    `offset_known` is never before `offset_committed`: a lag is never negative.
"""

# ruff: noqa: A005 - imported as shardline.app.storage.statistics: its folder is never on sys.path
from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from shardline.app.execution.observations import Measured
from shardline.app.protocol.storage import StatisticsUpdates

__all__ = ["ObjectKind", "Statistics"]

_log = logging.getLogger(__name__)

ObjectKind: TypeAlias = Literal["source", "sink"]

_Kind: TypeAlias = Literal["counter", "resetting", "nullable", "flag", "total", "greatest"]

_SOURCE: Final[dict[str, _Kind]] = {
    "messages_received": "counter",
    "bytes_received": "counter",
    "updates_staged": "counter",
    "updates_committed": "counter",
    "records_indexed": "resetting",
    "bytes_indexed": "resetting",
    "rehydration_latency": "nullable",
    "rows_skipped": "counter",
    "snapshot_records_known": "nullable",
    "snapshot_records_staged": "nullable",
    "snapshot_committed": "flag",
    "offset_known": "greatest",
    "offset_committed": "total",
    "files_waiting": "nullable",
    "bytes_waiting": "nullable",
}
"""The numbers of a source. `rehydration_latency` is in ms, bytes are bytes."""

_SINK: Final[dict[str, _Kind]] = {
    "messages_staged": "counter",
    "messages_committed": "counter",
    "bytes_staged": "counter",
    "bytes_committed": "counter",
}


_OFFSETS: Final = ("offset_known", "offset_committed")


@dataclass(slots=True)
class _Object:
    """The numbers of one object."""

    kind: ObjectKind
    epoch: int
    values: dict[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, _Kind]:
        return _SOURCE if self.kind == "source" else _SINK


class Statistics:
    """Statistics of all objects of a worker. For one thread at a time."""

    def __init__(self) -> None:
        """Begin without objects."""
        self._objects: dict[str, _Object] = {}

    def start(self, id: str, kind: ObjectKind, epoch: int) -> None:  # noqa: A002 - the protocol's
        """Begin incarnation `epoch` of an object; one before the newest known changes nothing."""
        known = self._objects.get(id)
        if known is None:
            self._objects[id] = _Object(kind, epoch)
            return
        assert known.kind == kind, (id, known.kind, kind)
        self._advance(known, epoch)

    def observe(self, report: Measured) -> None:
        """Add the numbers of a micro-batch; those of an unknown object are ignored."""
        known = self._objects.get(report.id)
        if known is None or report.epoch < known.epoch:
            return
        self._advance(known, report.epoch)
        for name, more in report.added.items():
            if known.metrics.get(name) == "counter" and more >= 0:
                known.values[name] = known.values.get(name, 0) + more
            else:
                _refuse(report, name, more)
        if _begins_anew(known.values, report):
            for name in _OFFSETS:
                known.values.pop(name, None)
        for name, value in report.now.items():
            self._replace(known, report, name, value)

    def drop(self, id: str) -> None:  # noqa: A002
        """Forget an object."""
        self._objects.pop(id, None)

    def updates(self) -> StatisticsUpdates:
        """All statistics, for the controller."""
        found: dict[ObjectKind, dict[str, dict[str, float]]] = {"source": {}, "sink": {}}
        for name, known in self._objects.items():
            found[known.kind][name] = _consistent(known.values)
        return StatisticsUpdates(sources=found["source"], sinks=found["sink"])

    def _advance(self, known: _Object, epoch: int) -> None:
        if epoch <= known.epoch:
            return
        known.epoch = epoch
        for name, kind in known.metrics.items():
            if kind == "nullable":
                known.values.pop(name, None)
            elif kind == "resetting" and name in known.values:
                known.values[name] = 0

    def _replace(self, known: _Object, report: Measured, name: str, value: float | None) -> None:
        match known.metrics.get(name):
            case "resetting" if value is not None:
                known.values[name] = value
            case "nullable":
                known.values.pop(name, None)
                if value is not None:
                    known.values[name] = value
            case "greatest":
                if value is not None:
                    known.values[name] = max(value, known.values.get(name, value))
            case "flag" | "total":
                if value is None:
                    return
                if value < known.values.get(name, value):
                    _refuse(report, name, value)
                else:
                    known.values[name] = value
            case _:
                _refuse(report, name, value)


def _begins_anew(values: Mapping[str, float], report: Measured) -> bool:
    """True if a report has both offsets, and less is committed than before."""
    known, committed = (report.now.get(name) for name in _OFFSETS)
    if known is None or committed is None:
        return False
    return committed < values.get("offset_committed", committed)


def _consistent(values: dict[str, float]) -> dict[str, float]:
    """`values`, with `offset_known` raised to `offset_committed` if it is behind it."""
    known, committed = values.get("offset_known"), values.get("offset_committed")
    if known is None or committed is None or known >= committed:
        return dict(values)
    return {**values, "offset_known": committed}


def _refuse(report: Measured, name: str, value: float | None) -> None:
    """Log a wrong statistic and ignore it: it must not stop the object that it measures."""
    _log.error(
        "a statistic was refused: it is not known, of another kind, or goes back",
        extra={
            "context": {
                "object": report.id,
                "epoch": report.epoch,
                "statistic": name,
                "value": value,
            }
        },
    )
