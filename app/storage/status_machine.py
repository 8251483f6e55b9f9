"""The status machine derives the status of a source or sink from the reports of its parts: pure.

An object has several parts that run and fail on their own: the query, the decoder, the ticks. Users
ask for one status, and for the history of its changes. As with Materialize's health operators, one
machine decides for all parts.

    created --> starting --> running <--> stalled, frozen     by reports and failures
    created                                                   again, once nothing of it is left and
                                                              another one is to take its place
    paused                                                    nothing runs it, for now or until
                                                              it is resumed
    ceased                                                    it has come to its end
    dropped                                                   nothing comes after it

A part is a namespace of the object. The worst of them decides: ceased before stalled before frozen
before running; of several errors that of the highest namespace is shown, with all hints. A side
channel may stall an object, and does not make it running.

What a caller relies on:
    Each call returns the changes that it makes, for a history to keep; no change, no update.
    An object that failed stays stalled, with its error, while it is started again, until it runs:
    an error that comes back every few seconds is one entry of the history.

Invariants:
    Within one round of reports the worst one of a part counts; the next round replaces it.
    Nothing follows `dropped`, and only reports of the current incarnation count: none between
    `paused` or `ceased` and the next start, however late they come.
    Times of an object's updates never go back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shardline.app.execution.observations import Failed, Health
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.storage import StatusUpdate

__all__ = ["NAMESPACES", "SIDE_CHANNELS", "HealthMachine"]

NAMESPACES: Final = (
    "generator", "kafka", "sink", "compute", "upsert", "decode", "files", "internal"
)  # fmt: skip
"""From the lowest to the highest; one that is not here is lower than all."""

SIDE_CHANNELS: Final = frozenset({"internal"})
"""Housekeeping: that it works says nothing of the data."""

_OF_ROWS: Final = frozenset({"decode"})
"""Errors of single rows, beside which everything else goes on: they end no incarnation."""

_WORSE: Final = {"running": 0, "frozen": 1, "stalled": 2, "ceased": 3}
"""Statuses that a part can report; the greater one decides."""


@dataclass(slots=True)
class _Object:
    """The state of one object.

    Attributes:
        newest: The newest update.
        epoch: The incarnation whose reports count; 0 before the first one.
        parts: The last report of each of its namespaces.
        failed: The error that ended the previous incarnation, until this one runs.
        resting: True while nothing runs it: after `paused` or `ceased`, until it is started.
    """

    newest: StatusUpdate
    epoch: int = 0
    parts: dict[str, Health] = field(default_factory=dict)
    failed: Health | None = None
    resting: bool = False


class HealthMachine:
    """Statuses of all objects of a worker. For one thread at a time."""

    def __init__(self, side_channels: frozenset[str] = SIDE_CHANNELS) -> None:
        """Begin without objects.

        Args:
            side_channels: Namespaces whose running does not make an object running.
        """
        self._side_channels = side_channels
        self._objects: dict[str, _Object] = {}

    # -- what happens to objects -------------------------------------------------------------

    def create(self, id: str, now_ms: int) -> list[StatusUpdate]:  # noqa: A002 - the protocol's
        """Add an object with status `created`; one that is known already stays as it is."""
        if id in self._objects:
            return []
        newest = StatusUpdate(id=id, status="created", at_ms=now_ms)
        self._objects[id] = _Object(newest)
        return [newest]

    def start(self, id: str, epoch: int, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        """Begin an incarnation: from here on only its reports count.

        Args:
            id: The object's name; added if it is not known.
            epoch: Greater than all before; a lesser one changes nothing.
            now_ms: When, ms since the epoch.
        """
        created = self.create(id, now_ms)
        known = self._objects[id]
        if epoch <= known.epoch:
            return created
        known.epoch, known.parts, known.resting = epoch, {}, False
        return created + self._decided(known, now_ms)

    def renew(self, id: str, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        """Set an object to `created` again: it is gone, and the next one of its name is expected.

        That one is another object, whose epochs begin at 1.
        """
        known = self._objects.get(id)
        if known is None:
            return []
        self._objects[id] = fresh = _Object(known.newest)
        return _changed(fresh, _update(fresh, "created", now_ms))

    def observe(self, reports: Iterable[Health], now_ms: int) -> list[StatusUpdate]:
        """Take one round of reports of any objects; those of other incarnations are ignored."""
        rounds: dict[str, dict[str, Health]] = {}
        for report in reports:
            known = self._objects.get(report.id)
            if known is None or known.resting or report.epoch != known.epoch:
                continue
            assert report.status in _WORSE, report
            parts = rounds.setdefault(report.id, {})
            before = parts.get(report.namespace)
            if before is None or _WORSE[before.status] <= _WORSE[report.status]:
                parts[report.namespace] = report
        updates = []
        for name, parts in rounds.items():
            known = self._objects[name]
            known.parts |= parts
            updates += self._decided(known, now_ms)
        return updates

    def failed(self, report: Failed, now_ms: int) -> list[StatusUpdate]:
        """Take the error that ended an incarnation: stalled until another one runs."""
        known = self._objects.get(report.id)
        if known is None or known.resting or report.epoch != known.epoch:
            return []
        ends_nothing = self._side_channels | _OF_ROWS
        if all(part.namespace in ends_nothing for part in _errors(known.parts)):
            # Any other part that has reported an error itself is closer to the cause.
            known.parts["internal"] = Health(
                id=report.id,
                epoch=report.epoch,
                namespace="internal",
                status="stalled",
                error=report.error,
                hint=report.hint,
            )
        updates = self._decided(known, now_ms)
        known.failed = _worst_part(known.parts)
        return updates

    def pause(self, id: str, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        """Set an object to `paused`: it was stopped on request; until it is started."""
        return self._set_resting(id, "paused", now_ms)

    def cease(self, id: str, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        """Set an object to `ceased`: it has come to its end; until it is started."""
        return self._set_resting(id, "ceased", now_ms)

    def drop(self, id: str, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        """Remove an object, with a last update `dropped`; later reports about it are ignored."""
        known = self._objects.pop(id, None)
        return [] if known is None else [_update(known, "dropped", now_ms)]

    # -- queries -------------------------------------------------------------------

    def latest(self, id: str) -> StatusUpdate | None:  # noqa: A002
        """The object's status; None if there is no such object."""
        known = self._objects.get(id)
        return None if known is None else known.newest

    def restamped(self, now_ms: int) -> list[StatusUpdate]:
        """All statuses, stamped with `now_ms`, for a controller that knows none of them."""
        for known in self._objects.values():
            newest = known.newest
            known.newest = _update(
                known,
                newest.status,
                now_ms,
                error=newest.error,
                hints=newest.hints,
                namespaced=newest.namespaced,
            )
        return [known.newest for known in self._objects.values()]

    # -- deciding ----------------------------------------------------------------------------

    def _set_resting(self, id: str, status: Status, now_ms: int) -> list[StatusUpdate]:  # noqa: A002
        known = self._objects.get(id)
        if known is None:
            return []
        known.parts, known.failed, known.resting = {}, None, True
        return _changed(known, _update(known, status, now_ms))

    def _decided(self, known: _Object, now_ms: int) -> list[StatusUpdate]:
        shown = _worst_part(known.parts)
        if shown is not None:
            known.failed = None
        elif any(namespace not in self._side_channels for namespace in known.parts):
            known.failed = None
            return _changed(known, _update(known, "running", now_ms))
        elif known.failed is None:
            return _changed(known, _update(known, "starting", now_ms))
        else:
            return []
        errors = _errors(known.parts)
        return _changed(
            known,
            _update(
                known,
                shown.status,
                now_ms,
                error=f"{shown.namespace}: {shown.error}",
                hints=tuple(dict.fromkeys(part.hint for part in errors if part.hint)),
                namespaced={part.namespace: part.error for part in errors},
            ),
        )


def _errors(parts: dict[str, Health]) -> list[Health]:
    """The parts that do not run, from the highest namespace to the lowest."""
    bad = [part for part in parts.values() if part.status != "running"]
    return sorted(bad, key=lambda part: (_rank(part.namespace), part.namespace), reverse=True)


def _worst_part(parts: dict[str, Health]) -> Health | None:
    """The part whose error is shown: of the worst ones the highest; None if all of them run."""
    return max(_errors(parts), key=lambda part: _WORSE[part.status], default=None)


def _rank(namespace: str) -> int:
    return NAMESPACES.index(namespace) if namespace in NAMESPACES else -1


def _update(
    known: _Object,
    status: Status,
    now_ms: int,
    *,
    error: str = "",
    hints: tuple[str, ...] = (),
    namespaced: dict[str, str] | None = None,
) -> StatusUpdate:
    return StatusUpdate(
        id=known.newest.id,
        status=status,
        at_ms=max(now_ms, known.newest.at_ms),
        error=error,
        hints=hints,
        namespaced=namespaced or {},
    )


def _changed(known: _Object, update: StatusUpdate) -> list[StatusUpdate]:
    """Remember and return `update` if it differs in more than its time; else nothing."""
    if _without_time(update) == _without_time(known.newest):
        return []
    known.newest = update
    return [update]


def _without_time(update: StatusUpdate) -> tuple[object, ...]:
    return update.status, update.error, update.hints, tuple(sorted(update.namespaced.items()))
