"""An index keeps an object's contents in memory, up to date with the object's shard.

Point look-ups over a shard read parts, and by Spark they start a job: tens of milliseconds at best.
An index answers them from memory, or from files that are mapped into it. So it does for steps of
views that look rows up by its key (`shard_lookups`).

    running = run_index(host, incarnation, description, indexes)
    index = indexes.of(location, "delays")[0]     for reads: any index of the object
    index.lookup(("AA",), as_of)                  well under a millisecond, no Spark job
    index.frame(as_of)                            a cached DataFrame, where that pays

One thread per index follows the shard by plain Python. It is no streaming query, so it costs next
to nothing while nothing changes; and it has no checkpoint, since all of it can be made from the
shard again. It reports like every other dataflow.

Invariants:
    An answer at a time equals the shard's contents at that time; times outside of the arrangement's
    frontiers are refused (`Arrangement`).
    An index that grows beyond its limit ends with an error; it never answers from a part of it.
    History behind the upper is kept for `history_ms`, and for as long as a reader holds it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.compute.cached_frames import CachedFrame, cache_frame
from shardline.app.compute.holds import find_first_time
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.mapped_table import mapped_if_large
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import (
    Ended,
    Failed,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.execution.spark_errors import describe_failure
from shardline.app.execution.stopped import Stopped
from shardline.app.protocol.objects import IndexDescription
from shardline.app.settings.live import (
    LiveSetting,
    LiveSettings,
    parse_positive_ms,
    parse_size_bytes,
)
from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import latest_readable
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.state import ShardState
from shardline.datasource.updates import update_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "INDEXES",
    "INDEX_KNOBS",
    "Index",
    "IndexRegistry",
    "IndexSettings",
    "RunningIndex",
    "run_index",
]

_log = logging.getLogger(__name__)

_MIB: Final = 1 << 20

_POLL_FIRST_MS: Final = 1.0
"""The first pause between two looks; each is twice the one before."""

_SHARE: Final = 4
"""A cached frame is used with at most 1/4 of the object's rows added to it by a union."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Settings of indexes.

    Attributes:
        limit_bytes: Most memory of one index, its history included. An index that needs more ends
            with an error. While two runs are merged it takes up to as much again. 512 MiB.
        history_ms: Times that stay readable behind the upper, by the shard's times. More lets older
            reads use the index, less saves memory where much changes. 60 s.
        poll_ms: Longest pause between two looks at a shard that another process writes, and so
            about the index's lag. 100 ms.
        frame_every_ms: Shortest pause between two makings of a cached frame. 10 s.
    """

    limit_bytes: int = 512 * _MIB
    history_ms: int = 60_000
    poll_ms: int = 100
    frame_every_ms: int = 10_000


_DEFAULTS: Final = IndexSettings()

INDEX_KNOBS: Final[LiveSettings] = {
    "index_limit": LiveSetting("limit_bytes", parse_size_bytes),
    "index_history": LiveSetting("history_ms", parse_positive_ms),
}
"""Settings that may change while indexes run."""


class Index:
    """The readers' half of an index; safe to use from any thread.

    Attributes:
        name: Its name.
        on: The object that it is of.
        shard: Id of the object's shard.
        arranged: The contents, which its owner keeps up to date.
    """

    def __init__(
        self,
        host: Host,
        description: IndexDescription,
        shard: str,
        arranged: Arrangement,
        settings: IndexSettings,
    ) -> None:
        """An index over `arranged`, the contents of the shard of this id."""
        self.name = description.name
        self.on = description.on
        self.shard = shard
        self.arranged = arranged
        self._frames = _Frames(host, description.on, settings)
        self._lock = threading.Lock()
        self._held: Counter[int] = Counter()

    @property
    def key(self) -> tuple[str, ...]:
        """Columns whose values a look-up must give."""
        return self.arranged.key

    def is_readable(self, as_of: int) -> bool:
        """True if reads at `as_of` are answered."""
        return self.arranged.view.is_readable(as_of)

    @contextmanager
    def hold(self, as_of: int) -> Iterator[bool]:
        """Keep `as_of` readable in this index within the block; yields False if it is not now.

        A capability of the process: it is lost with the index only, and the read then fails. It
        does not hold the shard.
        """
        # Question and hold under one lock, which `compact` takes, too: between the two the time
        # could be compacted away. Held in any case: a time beyond the upper becomes readable soon.
        with self._lock:
            readable = self.is_readable(as_of)
            self._held[as_of] += 1
        try:
            yield readable
        finally:
            with self._lock:
                self._held[as_of] -= 1
                if not self._held[as_of]:
                    del self._held[as_of]

    def lookup(self, values: Iterable[Any] | pa.Table, as_of: int) -> pa.Table:
        """The rows of one key; see `Arrangement.lookup`."""
        given = values if isinstance(values, pa.Table) else tuple(values)
        return self.arranged.lookup(given, as_of)

    def frame(self, as_of: int) -> DataFrame | None:
        """A frame of the contents at `as_of`, mostly cached; None if none can be given cheaply."""
        return self._frames.at(self.arranged, as_of)

    def compact(self, since: int) -> None:
        """Let times before `since` be merged, as far as no reader holds them."""
        with self._lock:
            self.arranged.compact(min([since, *self._held]))
        self._frames.forget_before(self.arranged.view.since)

    def close(self) -> None:
        """Give up the cached frame."""
        self._frames.close()


class IndexRegistry:
    """A registry of the indexes that answer reads now, by location and object."""

    def __init__(self) -> None:
        """An empty registry."""
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], tuple[Index, ...]] = {}

    def add(self, location: str, index: Index) -> None:
        """Let `index` answer reads."""
        with self._lock:
            key = (location, index.on)
            self._found[key] = (*self._found.get(key, ()), index)

    def remove(self, location: str, index: Index) -> None:
        """Let `index` answer no more reads; does nothing if it does not."""
        with self._lock:
            key = (location, index.on)
            left = tuple(one for one in self._found.get(key, ()) if one is not index)
            self._found[key] = left
            if not left:
                del self._found[key]

    def of(self, location: str, on: str) -> tuple[Index, ...]:
        """All indexes of an object."""
        with self._lock:
            return self._found.get((location, on), ())


INDEXES: Final = IndexRegistry()
"""The indexes of this process. All of one object answer alike, whichever runtime keeps them."""


def run_index(
    host: Host,
    incarnation: Incarnation,
    description: IndexDescription,
    indexes: IndexRegistry = INDEXES,
    settings: IndexSettings = _DEFAULTS,
) -> RunningIndex:
    """Start to keep an index.

    Args:
        host: Shared by all objects that run.
        incarnation: Its life; `as_of` is the first time that it will answer, None for the latest.
        description: The object and the key.
        indexes: The registry in which reads find it, once it is hydrated.
        settings: Limits of its size and history.

    Raises:
        InvalidUsage: The object has no shard, its history at `as_of` is gone, or the key names a
            column that it lacks.
    """
    purpose = f"index {incarnation.id}"
    as_of = incarnation.as_of
    if as_of is not None:
        as_of = find_first_time(host.client, as_of, [description.on])
    shard = ShardFollower.open(host.client, description.on, since=as_of, purpose=purpose)
    try:
        state = shard.look()
        as_of = latest_readable(state) if as_of is None else as_of
        keep = partial(_store_run, folder=host.checkpoints)
        arranged = Arrangement(shard.schema, description.key, as_of, keep)
    except BaseException:
        shard.close()
        raise
    index = Index(host, description, state.shard, arranged, settings)
    running = RunningIndex(
        host, incarnation, shard=shard, index=index, indexes=indexes, settings=settings
    )
    running.start()
    return running


def _store_run(run: pa.Table, folder: Path) -> pa.Table:
    """A run of the arrangement where it is to stay: a large one in a file, if the disk has room."""
    try:
        return mapped_if_large(run, folder)
    except OSError as error:
        context = {"bytes": run.nbytes, "reason": str(error)}
        _log.warning("an index keeps rows in memory", extra={"context": context})
        return run


class RunningIndex:
    """An index and the thread that keeps it; made by `run_index`.

    Attributes:
        index: The readers' half.
    """

    def __init__(
        self,
        host: Host,
        incarnation: Incarnation,
        *,
        shard: ShardFollower,
        index: Index,
        indexes: IndexRegistry,
        settings: IndexSettings,
    ) -> None:
        """Prepare it; `start` starts it. It closes `shard` at its end."""
        self.index = index
        self._host = host
        self._incarnation = incarnation
        self._shard = shard
        self._indexes = indexes
        self._settings = settings
        self._thread = BackgroundThread(f"index-{incarnation.query_name}", self._run)
        self._stopped = self._thread.stopping
        self._is_woken = False
        host.client.machine(shard.name).watch(self._thread.wake)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it and free its memory; may be repeated."""
        self._thread.stop()

    def tune(self, settings: IndexSettings) -> None:
        """Apply changed settings, from the next step on."""
        self._settings = settings

    def allow_compaction(self, frontier: int) -> None:
        """Let times before `frontier` go: no new reader will begin there."""
        self.index.compact(frontier)

    def _run(self) -> None:
        host, life = self._host, self._incarnation
        host.report(Started(id=life.id, epoch=life.epoch, run=life.query_name))
        url = host.client.location.url
        try:
            with closing(self._shard):
                try:
                    self._follow(url)
                finally:
                    # Before the lease is given up, which may take long: what has ended or is being
                    # stopped answers nothing.
                    self._indexes.remove(url, self.index)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the lane must hear of it
            if not isinstance(error, ShardError):
                _log.exception("an index failed", extra={"context": {"index": life.id}})
            said, hint = describe_failure(error)
            host.report(Failed(id=life.id, epoch=life.epoch, error=said, hint=hint))
        finally:
            self.index.close()

    def _follow(self, url: str) -> None:
        host, shard, arranged = self._host, self._shard, self.index.arranged
        began = host.clock.elapsed_ms()
        since = arranged.view.since
        state = self._next(since)
        if state is None:
            return
        contents = self._table(shard.contents(state, since))
        arranged.append(contents, Frontier(since + 1))
        # The arrangement has its own sorted copy: two of them would be twice the limit.
        del contents
        self._advance(state)
        # Only now: reads that found it before would wait for a hydration, where a read of the shard
        # takes milliseconds.
        self._indexes.add(url, self.index)
        took = int(host.clock.elapsed_ms() - began)
        host.report(Hydrated(id=self._incarnation.id, epoch=self._incarnation.epoch, took_ms=took))
        while (upper := arranged.view.upper.time) is not None:
            state = self._next(upper)
            if state is None:
                return
            self._advance(state)
        host.report(Ended(id=self._incarnation.id, epoch=self._incarnation.epoch))
        # It goes on answering: an object that changes no more is a good one to have an index of.
        self._stopped.wait()

    def _next(self, time: int) -> ShardState | None:
        """Wait for a state of the shard that is settled at `time`; None if stopped before.

        A writer of this process wakes the index. If the last new state came so, the index looks
        by itself only once an interval. If it came by a look, another process may write the
        shard, of which nobody wakes the index: it looks after pauses that grow up to `poll_ms`.
        """
        clock, wake = self._host.clock, self._thread.wake
        pause_ms, was_woken = _POLL_FIRST_MS, False
        while True:
            # Before both: a stop, and what comes after the look, set it again.
            wake.clear()
            if self._stopped.is_set():
                return None
            state = self._shard.look()
            if state.upper.is_beyond(time):
                self._is_woken = was_woken
                return state
            if self._is_woken:
                was_woken = clock.wait(wake, self._host.interval_ms)
            else:
                was_woken = clock.wait(wake, pause_ms)
                pause_ms = min(pause_ms * 2, self._settings.poll_ms)

    def _advance(self, state: ShardState) -> None:
        """Take in all updates that `state` has beyond the upper."""
        arranged, upper = self.index.arranged, state.upper
        lower = arranged.view.upper.time
        assert lower is not None, self._incarnation
        if upper > Frontier(lower):
            arranged.append(self._table(self._shard.changes(state, lower, upper.time)), upper)
        if upper.time is not None:
            self.index.compact(upper.time - 1 - self._settings.history_ms)
            # After the compaction, and by the arrangement's own since: readers may hold it back,
            # and a cached frame is read from the shard at a time that the index still answers.
            self._shard.release_before(arranged.view.since, state)
        self._report_progress(upper.time)

    def _report_progress(self, upper: int | None) -> None:
        life, view = self._incarnation, self.index.arranged.view
        on = {self.index.on: upper}
        report = self._host.report
        report(Progress(id=life.id, epoch=life.epoch, write=upper, read=upper, inputs=on))
        sizes: dict[str, float | None] = {
            "records": view.records,
            "size": view.nbytes,
            "batches": len(view.runs),
        }
        report(Measured(id=life.id, epoch=life.epoch, now=sizes))

    def _table(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """The updates of `batches` as one table.

        Raises:
            InvalidUsage: `INDEX_TOO_LARGE`: with them the index would exceed its limit.
            Stopped: It is being stopped.
        """
        size, found = self.index.arranged.view.nbytes, []
        for batch in batches:
            size += batch.nbytes
            if size > self._settings.limit_bytes:
                raise InvalidUsage(
                    f"index '{self._incarnation.id}' of '{self.index.on}' needs more than its "
                    f"{self._settings.limit_bytes >> 20} MiB",
                    code="INDEX_TOO_LARGE",
                    hint="index a view with fewer rows or columns, or raise the limit of indexes",
                )
            found.append(batch)
            if self._stopped.is_set():
                raise Stopped  # with a part of the rows it must answer nothing
        schema = update_schema(self._shard.schema.arrow)
        return pa.Table.from_batches([batch.select(schema.names) for batch in found], schema)


def _few_additions(updates: pa.Table, records: int) -> bool:
    """True if a cached frame of about `records` rows pays with these updates added by a union.

    Retractions cannot be added by a union: then it never does.
    """
    few = updates.num_rows * _SHARE < records
    return few and bool(pc.all(pc.equal(updates.column(DIFF), 1)).as_py())


@dataclass(slots=True)
class _Frames:
    """A cached frame of an object at one time, the base, and frames of later times made of it."""

    host: Host
    on: str
    settings: IndexSettings
    base: CachedFrame | None = None
    as_of: int = 0
    made_ms: float = 0.0
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def clock(self) -> Clock:
        return self.host.clock

    def at(self, arranged: Arrangement, as_of: int) -> DataFrame | None:
        """The contents at `as_of`: the base with the rows added since, or a new base; or None."""
        with self.lock:
            if self.closed:
                return None
            if self.base is not None and self.as_of <= as_of:
                found = arranged.view.changed(self.as_of, as_of)
                if found is not None and not found.num_rows:
                    return self.base.rows
                if found is not None and _few_additions(found, arranged.view.records):
                    added = self._added(arranged.schema, as_of)
                    if added is not None:
                        return self.base.rows.unionAll(added)
            if self.base is not None and not self._due():
                return None
            return self._cache_contents(as_of)

    def forget_before(self, since: int) -> None:
        """Give up a cached frame of an earlier time than the index has: nothing is made of it now.

        It would hold back the shard's history, under its lease, until somebody asks again.
        """
        # Not waited for: a frame is made under the lock, and the next compaction asks again.
        if self.lock.acquire(blocking=False):
            try:
                if self.base is not None and self.as_of < since:
                    self._drop()
            finally:
                self.lock.release()

    def close(self) -> None:
        """Give up the cached frame; queries that still run on it read the shard instead."""
        with self.lock:
            # A reader may have found the index before its end: nobody would ever give up a frame
            # that it makes now, which would hold the shard's history as well.
            self.closed = True
            self._drop()

    def _due(self) -> bool:
        return self.clock.elapsed_ms() - self.made_ms >= self.settings.frame_every_ms

    def _cache_contents(self, as_of: int) -> DataFrame:
        from shardline.datasource.frames import snapshot  # noqa: PLC0415 - loads pyspark

        self._drop()
        self.base = cache_frame(
            snapshot(
                self.host.spark,
                location=self.host.client.location.url,
                shard=self.on,
                as_of=as_of,
                storage=self.host.storage,
                pads=False,
            )
        )
        self.as_of, self.made_ms = as_of, self.clock.elapsed_ms()
        return self.base.rows

    def _added(self, schema: ShardSchema, as_of: int) -> DataFrame | None:
        """The rows that came since the base, each copy of them.

        None if Spark cannot sum them, or they are known no more: then the base is given up.
        """
        # Both load pyspark.
        from shardline.datasource.frames import (  # noqa: PLC0415
            can_consolidate,
            changes,
            net_changes,
            repeat_rows,
        )

        if not can_consolidate(schema):
            return None
        try:
            updates = changes(
                self.host.spark,
                location=self.host.client.location.url,
                shard=self.on,
                start=self.as_of + 1,
                end=as_of + 1,
                storage=self.host.storage,
                pads=False,
            )
        except InvalidUsage as error:
            if error.code != "HISTORY_GONE":
                raise
            # Readers hold the time that they ask for, and nobody the base's: the index has gone
            # past it since it was asked, as one that is compacted now does without waiting.
            self._drop()
            return None
        # The shard may have updates that cancel at one time: a row that a view hands on as removed
        # and added again. The arrangement, by which these are additions only, does not show them.
        # Equal rows that came at one time are one net change, whose diff is their number.
        return repeat_rows(net_changes(updates, schema).drop(TS))

    def _drop(self) -> None:
        base, self.base = self.base, None
        if base is not None:
            base.release()
