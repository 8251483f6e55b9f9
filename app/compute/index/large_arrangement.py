"""A large shard's arrangement is made and kept by a thread, while views read the shard whole.

To read and sort thirty million updates takes a quarter of a minute: a step must not wait for it.

    large = LargeArrangement(client, name, key, as_of, owner, folder=…, bytes_max=…)
    large.start()
    large.arranged                  None until it is there: the shard is read whole meanwhile
    large.bring_along()             up to the shard's upper, under the owner's lock
    large.cancel()                  it is not wanted any more

The thread takes a lease at `as_of`, reads all updates, some megabytes at a time, and each piece is
sorted and put into a file before the next is read (`runs`). What comes meanwhile is taken in until
little is left; then the arrangement is there. From then on the thread brings it along every
`_FOLLOW_MS`, and moves the lease behind it. Without that, steps that look nothing up in this shard
would let its history go by, and the next one that does would find an arrangement that cannot be
brought along: a small one is made anew in a moment, a large one would never be ready in time.

Its files have no name (`mapped_table`): a process that is killed leaves none, and no other process
sees them, so that each has its own. The lease runs out by itself. Nothing is left to be repaired.

Invariants:
    An arrangement is shown only as a whole: all updates before its upper, as of its since.
    While it is shown the lease is no later than right before its upper, so it can be brought along.
    Whoever brings it along has the owner's lock. What is shown is taken back under it, before the
    lease goes.
    Who fails, is not wanted or finds it larger than allowed ends the thread; what is left is None.
    Memory is that of a few pieces while it is made, whatever the shard's size.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Final

import pyarrow as pa

from shardline.app.compute.index import runs
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.mapped_table import mapped_if_large
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.execution.stopped import Stopped
from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.schema import ShardSchema
from shardline.datasource.updates import update_schema

__all__ = ["LargeArrangement", "Owner", "TooLargeError", "has_room", "least_bytes"]

_log = logging.getLogger(__name__)

_FOLLOW_MS: Final = 10_000.0
"""The pause between two times at which it is brought along though nobody asks: history of the shard
is held back for as long, and each time its news are read."""

_LITTLE: Final = 500_000
"""So many updates may be left when it is shown: a step reads as many in half a second."""

_FREE_SHARE: Final = 0.5
"""At most this share of the free space on the disk is taken."""

_ORDER_BYTES: Final = 8
"""Of a row's hash."""


class TooLargeError(Exception):
    """The arrangement would exceed its limit, or what the disk has room for."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wants an arrangement.

    Attributes:
        lock: Held by whoever reads or changes `LargeArrangement.arranged`.
        is_wanted: Asked under the lock; False ends the thread.
        on_end: Called under the lock when the thread ends by itself, with its error; None if it
            is not wanted any more.
    """

    lock: threading.Lock
    is_wanted: Callable[[], bool]
    on_end: Callable[[Exception | None], object]


class LargeArrangement:
    """The arrangement of a large shard, and the thread that makes and keeps it.

    Attributes:
        arranged: It; None until it is made, and after the end. Read it under the owner's lock.
        schema: The columns of its rows.
        ready: Set when it is there, and at the end.
    """

    def __init__(
        self,
        client: ShardClient,
        name: str,
        key: tuple[str, ...],
        as_of: int,
        owner: Owner,
        *,
        folder: Path,
        bytes_max: int,
    ) -> None:
        """Nothing is read yet.

        Args:
            client: Of the shard's location.
            name: Of the shard.
            key: Columns by which its rows are sorted; () for all.
            as_of: The first time that will be readable.
            owner: Who wants it.
            folder: Files will be on its disk, without names.
            bytes_max: The most that it may take.
        """
        self.arranged: Arrangement | None = None
        self.ready = threading.Event()
        self._client, self._name, self._key, self._as_of = client, name, key, as_of
        self._owner = owner
        self._folder = folder
        self._bytes_max = bytes_max
        self._follower: ShardFollower | None = None
        self._thread = BackgroundThread(f"arrange-{name}", self._run)
        self.wake = self._thread.wake

    def start(self) -> None:
        """Begin to make it."""
        self._thread.start()

    def cancel(self) -> None:
        """Let the thread end; does not wait. The caller shows it to nobody any more."""
        self._thread.cancel()

    def join(self, timeout_ms: float) -> bool:
        """Wait for the thread's end; True if it has ended."""
        return self._thread.join(timeout_ms)

    def bring_along(self) -> Arrangement | None:
        """Take in what the shard has beyond the upper; the caller has the owner's lock.

        Returns:
            The arrangement; None if it is not there, or not any more.

        Raises:
            TooLargeError: It has grown beyond its limit.
            ShardError: The shard cannot be read, or has other columns; or the lease is gone.
            OSError: The disk is full.
        """
        arranged = self.arranged
        if arranged is not None:
            assert self._follower is not None
            self._take_in(arranged, self._follower)
        return arranged

    def _run(self) -> None:
        error: Exception | None = None
        try:
            with closing(self._open()) as follower:
                try:
                    self._make(follower)
                    self._follow(follower)
                except Stopped:
                    pass
                except Exception as caught:  # noqa: BLE001 - whatever it is, the owner hears of it
                    error = caught
                # Before the lease is given up: nobody may bring it along without.
                self._end(error)
        except Exception as caught:  # noqa: BLE001 - as above
            self._end(caught)

    def _open(self) -> ShardFollower:
        purpose = f"rows of '{self._name}' by key"
        return ShardFollower.open(self._client, self._name, since=self._as_of, purpose=purpose)

    def _end(self, error: Exception | None) -> None:
        with self._owner.lock:
            self.arranged = None
            if not self._thread.stopping.is_set():
                self._thread.cancel()
                self._owner.on_end(error)
        self.ready.set()

    def _make(self, follower: ShardFollower) -> None:
        keep = partial(mapped_if_large, folder=self._folder)
        arranged = Arrangement(follower.schema, self._key, self._as_of, keep)
        state = follower.look()
        batches = follower.every_update(state, self._as_of)
        arranged.append_chunks(self._chunks(batches, arranged), state.upper)
        # Without the lock, as long as it is much: nobody else knows it yet.
        while self._take_in(arranged, follower) > _LITTLE:
            pass
        with self._owner.lock:
            self._follower, self.arranged = follower, arranged
        self.ready.set()
        context = {"shard": self._name, "updates": arranged.view.records}
        _log.info("a large shard's rows are arranged by key", extra={"context": context})

    def _follow(self, follower: ShardFollower) -> None:
        thread = self._thread
        while not thread.stopping.is_set():
            self._client.clock.wait(thread.wake, _FOLLOW_MS)
            thread.wake.clear()
            with self._owner.lock:
                if thread.stopping.is_set() or not self._owner.is_wanted():
                    return
                arranged, state = self.bring_along(), follower.look()
            upper = None if arranged is None else arranged.view.upper.time
            if upper is not None:
                follower.release_before(upper - 1, state)

    def _take_in(self, arranged: Arrangement, follower: ShardFollower) -> int:
        """Bring `arranged` up to the shard's upper; returns the number of updates that were new."""
        state, lower = follower.look(), arranged.view.upper.time
        if lower is None or not state.upper.is_beyond(lower):
            return 0
        count = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in follower.changes(state, lower, state.upper.time):
                count += batch.num_rows
                yield batch

        arranged.append_chunks(self._chunks(counted(), arranged), state.upper)
        return count

    def _chunks(
        self, batches: Iterable[pa.RecordBatch], arranged: Arrangement
    ) -> Iterator[pa.Table]:
        """The updates of `batches` in tables for pieces.

        Raises:
            TooLargeError: With them the arrangement exceeds its limit.
            Stopped: It is not wanted any more.
        """
        schema = update_schema(arranged.schema.arrow)
        held: list[pa.RecordBatch] = []
        held_bytes, total = 0, arranged.view.nbytes
        for batch in batches:
            if self._thread.stopping.is_set():
                raise Stopped
            size = batch.nbytes
            total += size + batch.num_rows * _ORDER_BYTES
            if total > self._bytes_max:
                raise TooLargeError(f"more than {self._bytes_max >> 20} MiB")
            if held and held_bytes + size > runs.PIECE_BYTES:
                yield from runs.cut(pa.Table.from_batches(held, schema))
                held, held_bytes = [], 0
            held.append(batch.select(schema.names))
            held_bytes += size
        if held:
            yield from runs.cut(pa.Table.from_batches(held, schema))


def least_bytes(schema: ShardSchema, rows: int) -> int:
    """How many bytes so many rows take, at least: text and lists take more than is known before."""
    widths = [_width(field.type) for field in update_schema(schema.arrow)]
    return rows * (sum(widths) + _ORDER_BYTES)


def _width(kind: pa.DataType) -> int:
    try:
        bits: int = kind.bit_width
    except ValueError:
        return 4  # its offset
    return max(bits // 8, 1)


def has_room(folder: Path, size_bytes: int) -> bool:
    """True if so many bytes are no more than `_FREE_SHARE` of the disk's free space."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return size_bytes <= disk_usage(there).free * _FREE_SHARE
