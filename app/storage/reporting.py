"""An ingestion reports its state and its numbers, where they have changed.

A source commits every second, and a controller, a history and introspection read each report: only
news is worth one. So what was reported last is remembered here, and nowhere else.

Invariants:
    Rows are counted where they are staged, never by Spark's `numInputRows`, which counts a
    micro-batch that is read twice twice.
    A number that is not known is not reported: Spark knows the size of files only.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import (
    Failed,
    Health,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.execution.spark_errors import describe_failure
from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.source_look import SourceSeen
from shardline.datasource.errors import Fenced

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from shardline.app.storage.commit import StagedMicroBatch, Timeline
    from shardline.app.storage.reading import Counts

__all__ = ["SourceReports", "position"]

_log = logging.getLogger(__name__)

_UNKNOWN: Final = -1
"""Stands for a number of errors that was not reported yet."""


class SourceReports:
    """Reports of one incarnation of a source. Safe to use from any thread."""

    def __init__(
        self, host: Host, incarnation: Incarnation, description: SourceDescription
    ) -> None:
        """Report nothing yet; the time that hydration takes is counted from here."""
        self._host = host
        self._id, self._epoch = incarnation.id, incarnation.epoch
        self._description = description
        self._begun_ms = host.clock.elapsed_ms()
        self._lock = threading.Lock()
        self._hydrated = False
        self._upper = 0
        self._errors = _UNKNOWN
        self._said: dict[str, str] = {"files": ""}
        self._waiting: tuple[int | None, int | None] = (None, None)

    def started(self, query: StreamingQuery) -> None:
        """Report that a query runs."""
        started = Started(id=self._id, epoch=self._epoch, query=query.id, run=query.runId)
        self._host.report(started)

    def upper(self, upper: int) -> None:
        """Report the source's upper if it has advanced; the first time is its hydration."""
        with self._lock:
            moved, self._upper = upper > self._upper, max(upper, self._upper)
            first, self._hydrated = not self._hydrated, True
        if moved:
            self._host.report(Progress(id=self._id, epoch=self._epoch, write=upper))
        if first:
            took_ms = int(self._host.clock.elapsed_ms() - self._begun_ms)
            self._host.report(Hydrated(id=self._id, epoch=self._epoch, took_ms=took_ms))
            self._measure({}, {"rehydration_latency": float(took_ms)})

    def progress(self, timeline: Timeline) -> None:
        """Report the upper and the number of live errors, if they have changed."""
        self.upper(timeline.upper)
        self.health(_namespace(self._description))
        count = timeline.live_errors
        with self._lock:
            known, self._errors = self._errors, count
        if count == known:
            return
        if count:
            self.health(
                "decode",
                f"{count} row{'s' if count > 1 else ''} cannot be decoded",
                f"`errors {self._description.name}` shows them, and retracts or skips them"
                f"{'; or send the rows again with their keys' if self._is_keyed else ''}",
            )
        elif known != _UNKNOWN:
            self.health("decode")

    def seen(self, seen: SourceSeen) -> None:
        """Report what a look at the source has found, if that has changed."""
        self.health("files", seen.error, seen.hint)
        waiting = (seen.files, seen.size_bytes)
        with self._lock:
            known, self._waiting = self._waiting, waiting
        if waiting != known:
            names = ("files_waiting", "bytes_waiting")
            now = {n: None if v is None else float(v) for n, v in zip(names, waiting, strict=True)}
            self._measure({}, now)

    def health(self, namespace: str, error: str = "", hint: str = "") -> None:
        """Report the state of one part of the source, if it has changed.

        Args:
            namespace: The part.
            error: The reason for which it stalls; "" if it runs.
            hint: What to do about it.
        """
        with self._lock:
            if self._said.get(namespace) == error:
                return
            self._said[namespace] = error
        self._host.report(
            Health(
                id=self._id,
                epoch=self._epoch,
                namespace=namespace,
                status="stalled" if error else "running",
                error=error,
                hint=hint,
            )
        )

    def measured(
        self,
        counts: Counts,
        staged: StagedMicroBatch,
        timeline: Timeline,
        query: StreamingQuery | None,
        *,
        first: bool,
    ) -> None:
        """Report the numbers of a committed micro-batch.

        Args:
            counts: Its size as it was read.
            staged: Its rows and errors as they were committed.
            timeline: Of the source, after it.
            query: The query.
            first: True for the snapshot.
        """
        updates = float(staged.rows.rows)
        messages = updates if counts.messages is None else float(counts.messages)
        added = {
            "messages_received": messages,
            "updates_staged": updates,
            "updates_committed": updates,
        }
        if staged.skipped is not None:
            added["rows_skipped"] = float(counts.errors)
        if counts.size_bytes is not None:
            added["bytes_received"] = float(counts.size_bytes)
        now: dict[str, float | None] = {"snapshot_committed": 1.0}
        if first:
            now |= {"snapshot_records_known": messages, "snapshot_records_staged": messages}
        last = timeline.bound.last
        reached = None if last is None or last.offset is None else position(last.offset)
        if reached is not None:
            now |= {"offset_committed": reached, "offset_known": _known(query, reached)}
        if self._is_keyed:
            now["records_indexed"] = float(timeline.records)
        self._measure(added, now)

    @property
    def _is_keyed(self) -> bool:
        return self._description.envelope in ("upsert", "debezium")

    def failed(self, error: BaseException) -> None:
        """Report the error that has ended the ingestion."""
        _log.error("an ingestion failed", exc_info=error)
        sentence, hint = describe_failure(error)
        fenced = isinstance(error, Fenced)
        failed = Failed(id=self._id, epoch=self._epoch, error=sentence, hint=hint, fenced=fenced)
        self._host.report(failed)

    def _measure(self, added: dict[str, float], now: dict[str, float | None]) -> None:
        self._host.report(Measured(id=self._id, epoch=self._epoch, added=added, now=now))


def position(offset: str) -> float | None:
    """An offset as one number that grows: the sum of its numbers; None if it has anything else.

    Args:
        offset: JSON text, as Spark's offset log has it.
    """
    try:
        numbers = _numbers(msgspec.json.decode(offset))
    except msgspec.MsgspecError:
        return None
    return None if numbers is None else float(sum(numbers))


def _numbers(value: object) -> list[float] | None:
    match value:
        case bool():
            return None
        case int() | float():
            return [value]
        case dict() if value:
            found = [_numbers(part) for part in value.values()]
            if None in found:
                return None
            return [number for part in found if part is not None for number in part]
        case _:
            return None


def _known(query: StreamingQuery | None, reached: float) -> float:
    """The newest offset that the source reports, as a number; `reached` if it reports none."""
    progress = None if query is None else query.lastProgress
    latest = None if progress is None else progress["sources"][0]["latestOffset"]
    text = latest if isinstance(latest, str) else msgspec.json.encode(latest).decode()
    return max(reached, position(text) or reached)


def _namespace(description: SourceDescription) -> str:
    return "kafka" if description.format.lower() == "kafka" else "generator"
