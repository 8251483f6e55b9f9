"""Looks up rows of shards by key, in arrangements that all views of a process share.

A step of a view needs the few rows of its inputs that have a key in common with what has changed.
Parquet files cannot be asked for a thousand keys: each row group has some of them, and all are
read. Here the rows of a shard are an arrangement by the columns of the key, mapped from files where
they are many, of which the wanted rows are found by binary search.

    lookups = lookups_of(client, folder)
    lookups.rows(client, state, ("customer",), keys, as_of=…, user=…)    None: read all of the shard

An arrangement is a cache: made when it is first asked for, brought along by the shard's changes
since then, and lost at any time, which costs time only. The shard itself is what is durable. One is
kept for each shard, with an order of its rows for each key, whoever asks (Materialize shares
arrangements in the same way). Those that have not been asked for the longest go when there is no
room.

Of a shard of up to `_UPDATES_MAX` updates it is made by the request that needs it. A larger one is
made and kept by a thread (`large_arrangement`), one at a time: until it is there, and wherever it
does not answer, the shard is read whole. It is not given up for the time of one user, as a small
one is: a user that is behind it reads the shard whole until it is not.

Where a person has made an index of the shard by these columns, that is the arrangement, as long as
it has the time that is asked for: it is kept up to date by itself, so that the first look-up is as
fast as any, and the rows are there once. It is not held back for views: one that is further behind
than the index remembers has an arrangement of its own.

Invariants:
    What is found are the rows of the keys at `as_of`, and perhaps rows of other keys.
    None says nothing about the rows: a caller that gets it reads the shard in another way.
    No more than `_BYTES_MAX` are kept beside indexes, large runs of it in files (`mapped_table`).
    What is larger than that is not arranged, and not tried again until it is smaller.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import pyarrow as pa

from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.first_of_keys import FirstOfKeys
from shardline.app.compute.index.index import INDEXES, Index, IndexRegistry
from shardline.app.compute.index.large_arrangement import (
    LargeArrangement,
    Owner,
    TooLargeError,
    has_room,
    least_bytes,
)
from shardline.app.compute.index.mapped_table import mapped_if_large
from shardline.app.execution.stopped import Stopped
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.frames import updates_in_driver
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import ShardState, Volume

__all__ = ["ROWS_MAX", "ArrangedKey", "ShardLookups", "arranged_keys", "lookups_of"]

_log = logging.getLogger(__name__)

ROWS_MAX: Final = 500_000
"""Most updates that are looked at for one answer; above that Spark's scan is the faster way."""

_ANSWER_BYTES_MAX: Final = 256 << 20
"""Of one answer, in memory."""

_UPDATES_MAX: Final = 20_000_000
"""A shard with more updates is arranged by a thread: to read and sort it takes longer than a step
may."""

_BYTES_MAX: Final = 4 << 30
"""Of all arrangements together, most of it in files: the page cache holds what is used. A row takes
its columns, 16 bytes for time and diff, 8 for its hash, and 12 for each further key: 48 of three
numbers, so that a shard of 80 million of them has room."""

_IDLE_REQUESTS: Final = 10_000
"""A user without a request among so many does not hold history back any more: one that comes back
has the shard arranged anew."""

_APPENDED_ROWS_MAX: Final = 16_384
"""Rows of an append that are kept until a look-up; others are read then."""

_PAUSE_MAX: Final = 64
"""How many requests, at most, are answered by None after arranging a shard has failed."""


@dataclass(slots=True, eq=False)
class _LookedUpKey:
    """A key by which rows of a shard were looked up.

    Attributes:
        users: Who has done so.
        index: The index that has answered the last request; None if none has.
    """

    users: WeakSet[Hashable] = field(default_factory=WeakSet)
    index: ReferenceType[Index] | None = None


@dataclass(frozen=True, slots=True)
class _Appended:
    """What was appended to a shard last: all of its updates in `[lower, upper)`; its id."""

    shard: str
    lower: int | None
    upper: int
    rows: pa.Table

    def is_of(self, shard: str, lower: int, upper: int | None) -> bool:
        """True if it is all that was appended to a shard in `[lower, upper)`."""
        return (self.shard, self.lower, self.upper) == (shard, lower, upper)


@dataclass(slots=True, eq=False)
class _ArrangedShard:
    """The arrangement of one shard, for all keys.

    Attributes:
        lock: Held while it is made or brought along; look-ups take no lock.
        location: Where the shard is.
        shard: Id of the shard that the arrangement is of.
        arranged: It; None before the first request, and after it was given up.
        keys: What is known of each key.
        users: The last time that each user has read at, and the number of that request: they will
            not read at earlier ones.
        large: What makes and keeps it, if the shard is large; it has it then.
        rows: Updates of the shard when that was begun; 0 if others had room that it lacked.
        refused: As many are too many; 0 if none are known to be.
        pause: Requests that are still answered by None.
        failures: Failures in a row.
        asked: Number of the last request, of all.
        appended: Updates that the arrangement may lack; None if they have to be read.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    location: str = ""
    shard: str = ""
    arranged: Arrangement | None = None
    keys: dict[tuple[str, ...], _LookedUpKey] = field(default_factory=dict)
    users: WeakKeyDictionary[Hashable, tuple[int, int]] = field(default_factory=WeakKeyDictionary)
    large: LargeArrangement | None = None
    rows: int = 0
    refused: int = 0
    pause: int = 0
    failures: int = 0
    asked: int = 0
    appended: _Appended | None = None

    @property
    def shown(self) -> Arrangement | None:
        """The arrangement, whoever keeps it."""
        large = self.large
        return self.arranged if large is None else large.arranged

    @property
    def nbytes(self) -> int:
        arranged = self.shown
        return 0 if arranged is None else arranged.view.nbytes

    def give_up(self) -> None:
        """Have no arrangement any more; a thread that makes one ends."""
        large, self.large, self.arranged = self.large, None, None
        if large is not None:
            large.cancel()


@dataclass(frozen=True, slots=True)
class ArrangedKey:
    """What there is now of an arrangement, for one key.

    Attributes:
        updates: Updates in it.
        size_bytes: Their size, in memory and in mapped files together; rows are there once for all
            keys of a shard.
        users: Who has looked rows up in it and still may, sorted: names of views.
        index: Name of the index that it is; "" for one that views have made.
    """

    updates: int
    size_bytes: int
    users: tuple[str, ...]
    index: str = ""


class ShardLookups:
    """The arrangements of a location's shards. Safe for use by several threads."""

    def __init__(self, folder: Path, indexes: IndexRegistry = INDEXES) -> None:
        """Nothing is arranged yet.

        Args:
            folder: Files will be on its disk, without names.
            indexes: Those that may answer in the place of an arrangement.
        """
        self._folder = folder
        self._indexes = indexes
        self._doubted: WeakSet[Index] = WeakSet()
        self._lock = threading.Lock()
        self._arranged: dict[str, _ArrangedShard] = {}
        self._requests = 0

    def rows(
        self,
        client: ShardClient,
        state: ShardState,
        key: tuple[str, ...],
        keys: pa.Table | None,
        *,
        as_of: int,
        user: Hashable,
        first: FirstOfKeys | None = None,
    ) -> pa.Table | None:
        """The rows of a shard at `as_of` whose key is among `keys`; None if that is no good way.

        Args:
            client: Of the location.
            state: A state of the shard that is readable at `as_of`.
            key: Columns of the key; () if all rows are wanted.
            keys: Columns of these names, and perhaps others; a key may be there several times.
                None if all rows are wanted.
            as_of: The time; for one user and shard it never goes back.
            user: Whose times they are; while it lives, rows stay as of its last one.
            first: If only the first rows of each key are wanted: which; `keys` are those of its
                changes then.
        """
        found = self._entry(client.location.url, state.name)
        index = self._index_of(found.location, state, key)
        if index is not None and keys is not None:
            with index.hold(as_of) as readable:
                if readable:
                    _use_index(found, key, index, as_of, user)
                    return _answer(index.arranged, keys, as_of, first)
        with found.lock:
            mine = found.keys.setdefault(key, _LookedUpKey())
            mine.index = None
            if found.pause:
                found.pause -= 1
                return None
            # A thread that makes it asks whether anybody wants it.
            found.users[user] = as_of, found.asked
            try:
                arranged = self._brought_along(client, found, state, key, as_of)
            except OSError as error:
                self._pause_after(found, state.name, error)
                return None
            if arranged is None:
                return None
            found.failures = 0
            mine.users.add(user)
            # Before the lock is released: from here on nobody's compaction passes this time.
            lately = found.asked - _IDLE_REQUESTS
            arranged.compact(min(at for at, asked in found.users.values() if asked >= lately))
        rows = _answer(arranged.by(key) if key else arranged, keys, as_of, first)
        # Afterwards: the order of the key may be new.
        self._make_room(found)
        return rows

    def arranged(self) -> dict[tuple[str, tuple[str, ...]], ArrangedKey]:
        """All arrangements that there are, by shard and key."""
        with self._lock:
            entries = dict(self._arranged)
        found = {}
        for name, one in entries.items():
            for key, mine in list(one.keys.items()):
                index = None if mine.index is None else mine.index()
                if index is not None and index not in self._indexes.of(one.location, name):
                    index = None  # it was dropped since
                rows = one.shown  # once: it may be given up at any moment
                if index is not None:
                    arranged = index.arranged
                elif rows is not None and mine.index is None and set(key) <= {*rows.schema.names}:
                    arranged = rows.by(key) if key else rows
                else:
                    continue
                users = tuple(sorted(map(str, list(mine.users))))
                by = "" if index is None else index.name
                found[name, key] = ArrangedKey(arranged.view.records, arranged.nbytes, users, by)
        return found

    def note_appended(
        self, client: ShardClient, state: ShardState, upper: int, rows: pa.Table
    ) -> None:
        """Know what was appended to a shard that is arranged: the next look-up need not read it.

        Args:
            client: Of the location.
            state: The shard before the append.
            upper: Of the shard after it.
            rows: All updates from the upper of `state` until before `upper`, as they are read.
        """
        found = self._entry(client.location.url, state.name)
        with found.lock:
            found.appended = None
            if found.arranged is not None and rows.num_rows <= _APPENDED_ROWS_MAX:
                found.appended = _Appended(state.shard, state.upper.time, upper, rows)

    def forget(self, names: Iterable[str]) -> None:
        """Give up what is arranged of these shards; the next request arranges them anew.

        Indexes of theirs answer queries still, but no look-up any more.
        """
        wanted = set(names)
        with self._lock:
            for name, one in self._arranged.items():
                if name in wanted:
                    self._doubted.update(self._indexes.of(one.location, name))
            # The whole entry: a request that is under way would put its arrangement back.
            kept = {name: one for name, one in self._arranged.items() if name not in wanted}
            given_up = [one for name, one in self._arranged.items() if name in wanted]
            self._arranged = kept
        for one in given_up:
            one.give_up()

    def _entry(self, location: str, name: str) -> _ArrangedShard:
        with self._lock:
            found = self._arranged.setdefault(name, _ArrangedShard(location=location))
            self._requests += 1
            found.asked = self._requests
        return found

    def _index_of(self, location: str, state: ShardState, key: tuple[str, ...]) -> Index | None:
        """An index of just this shard by the columns of `key`; None if there is none."""
        for index in self._indexes.of(location, state.name):
            if (
                set(index.key) == set(key)
                and index.shard == state.shard
                and index not in self._doubted
                # One of earlier columns is about to be made anew.
                and index.arranged.schema == ShardSchema.parse(state.schemas[state.schema_id])
            ):
                return index
        return None

    def _brought_along(
        self,
        client: ShardClient,
        found: _ArrangedShard,
        state: ShardState,
        key: tuple[str, ...],
        as_of: int,
    ) -> Arrangement | None:
        """The arrangement, with contents at `as_of`; None if the shard is too large for one."""
        columns = ShardSchema.parse(state.schemas[state.schema_id])
        shown, is_other = found.shown, found.shard != state.shard
        if is_other or (shown is not None and shown.schema.arrow != columns.arrow):
            if shown is not None:
                found.keys = {key: found.keys[key]}  # the others were of other columns
            found.give_up()
            found.shard, found.refused = state.shard, 0
        if found.large is not None:
            return self._of_large(found, found.large, state, as_of)
        arranged = found.arranged
        if arranged is not None and as_of < arranged.view.since:
            arranged = None
        if arranged is not None and not arranged.view.is_readable(as_of):
            news, found.appended = found.appended, None
            arranged = _extended(client, arranged, state, news)
        if arranged is None:
            arranged = self._arrange(client, found, state, columns, key=key, as_of=as_of)
        found.arranged = arranged
        return arranged

    def _of_large(
        self, found: _ArrangedShard, large: LargeArrangement, state: ShardState, as_of: int
    ) -> Arrangement | None:
        """A large arrangement, with contents at `as_of`; None if it has not."""
        arranged = large.arranged
        if arranged is not None and not arranged.view.is_readable(as_of):
            try:
                arranged = large.bring_along()
            except Stopped:
                # For another view it was given up meanwhile, to make room or for a doubt. That
                # stops the thread, not the view whose request this is.
                return None
            except (ShardError, TooLargeError, OSError) as error:
                self._end_of_large(found, state.name, error)
                return None
        return arranged if arranged is not None and arranged.view.is_readable(as_of) else None

    def _begin_large(
        self,
        client: ShardClient,
        found: _ArrangedShard,
        state: ShardState,
        columns: ShardSchema,
        *,
        key: tuple[str, ...],
        as_of: int,
    ) -> None:
        """Let a thread make a large arrangement, if there is room for one beside other large ones.

        Raises:
            OSError: The disk has no room.
        """
        rows = _updates_of(state)
        if found.refused and rows >= found.refused:
            return
        with self._lock:
            if self._arranged.get(state.name) is not found:
                # It was given up since the request began: nobody would find it to end its thread.
                return
            others = [one for one in self._arranged.values() if one.large is not None]
            taken = sum(one.nbytes for one in others)
            needed = least_bytes(columns, rows)
            # One at a time: each takes a core and the memory of a piece.
            if any(one.shown is None for one in others) or taken + needed > _BYTES_MAX:
                return
            if not has_room(self._folder, needed):
                raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are too much for the disk")
            owner = Owner(
                found.lock,
                partial(self._is_wanted, found),
                partial(self._end_of_large, found, state.name),
            )
            room = _BYTES_MAX - taken
            large = LargeArrangement(
                client, state.name, key, as_of, owner, folder=self._folder, bytes_max=room
            )
            try:
                large.start()
            except RuntimeError as error:
                # There may be a thread later. One that does not run must not be taken for one that
                # makes it: while that is not done no other is begun.
                self._pause_after(found, state.name, error)
                return
            # Under the lock: who gives the entry up from here on finds it, and ends its thread.
            found.large, found.rows = large, 0 if taken else rows

    def _is_wanted(self, found: _ArrangedShard) -> bool:
        lately = self._requests - _IDLE_REQUESTS
        return any(asked >= lately for _, asked in list(found.users.values()))

    def _end_of_large(self, found: _ArrangedShard, name: str, error: Exception | None) -> None:
        """It is not there any more; the caller has the lock of `found`."""
        found.give_up()
        if isinstance(error, TooLargeError):
            found.refused = found.rows
        if error is not None:
            self._pause_after(found, name, error)

    def _arrange(
        self,
        client: ShardClient,
        found: _ArrangedShard,
        state: ShardState,
        columns: ShardSchema,
        *,
        key: tuple[str, ...],
        as_of: int,
    ) -> Arrangement | None:
        if _updates_of(state) > _UPDATES_MAX:
            self._begin_large(client, found, state, columns, key=key, as_of=as_of)
            return None
        keep = partial(mapped_if_large, folder=self._folder)
        arranged = Arrangement(columns, key, as_of, keep)
        rows = updates_in_driver(
            client, state.name, start=None, end=state.upper.time, rows_max=_UPDATES_MAX
        )
        # Asked after the read: a since beyond that time would have moved later updates to it.
        if rows is None or client.state(state.name).since > Frontier(as_of):
            return None
        arranged.append(rows, state.upper)
        return arranged if arranged.view.nbytes <= _BYTES_MAX else None

    def _pause_after(self, found: _ArrangedShard, name: str, error: Exception) -> None:
        """A disk that is full now may have room again later; trying costs what making does."""
        found.give_up()
        found.pause = min(2**found.failures, _PAUSE_MAX)
        found.failures += 1
        _log.warning(
            "a shard is read whole: its rows cannot be arranged by key",
            extra={"context": {"shard": name, "reason": str(error), "requests": found.pause}},
        )

    def _make_room(self, wanted: _ArrangedShard) -> None:
        """Give up arrangements that have not been asked for the longest, if all are too large.

        A request that reads one of them keeps it until it has its rows.
        """
        with self._lock:
            entries = sorted(self._arranged.values(), key=lambda one: one.asked)
            size = sum(one.nbytes for one in entries)
            for one in entries:
                if size <= _BYTES_MAX:
                    return
                if one is not wanted and one.nbytes:
                    size -= one.nbytes
                    one.give_up()


def _updates_of(state: ShardState) -> int:
    return Volume.of(part for batch in state.trace.batches for part in batch.parts).rows


def _answer(
    arranged: Arrangement, keys: pa.Table | None, as_of: int, first: FirstOfKeys | None
) -> pa.Table | None:
    """The rows of keys, or all; None if they are too many: one update may stand for any number."""
    try:
        if keys is None:
            return arranged.scan(as_of, bytes_max=_ANSWER_BYTES_MAX)
        if first is not None:
            rows = arranged.first(first, as_of, ROWS_MAX, bytes_max=_ANSWER_BYTES_MAX)
            if rows is not None:
                return rows
        return arranged.gather(keys, as_of, ROWS_MAX, bytes_max=_ANSWER_BYTES_MAX)
    except InvalidUsage as error:
        if error.code != "RESULT_TOO_LARGE":
            raise
        return None


def _use_index(
    found: _ArrangedShard, key: tuple[str, ...], index: Index, as_of: int, user: Hashable
) -> None:
    """Note that an index answers in the place of an arrangement."""
    with found.lock:
        if user in found.users:
            found.users[user] = as_of, found.asked
        mine = found.keys.setdefault(key, _LookedUpKey())
        mine.users.add(user)
        mine.index = ref(index)
        if all(one.index is not None for one in found.keys.values() if len(one.users)):
            found.give_up()


def _extended(
    client: ShardClient, arranged: Arrangement, state: ShardState, known: _Appended | None
) -> Arrangement | None:
    """The arrangement up to the upper of `state`; None if its changes are not known any more.

    If reading fails it is left as it was.
    """
    lower, upper = arranged.view.upper.time, state.upper.time
    assert lower is not None, state.name  # else it would be readable at all times
    if known is not None and known.is_of(state.shard, lower, upper):
        arranged.append(known.rows, state.upper)
        return arranged
    # Up to what making it anew would read at least: many changes, or few of them in a part that was
    # merged of many, would else have it made anew, step after step, for as long as they come.
    rows_max = max(ROWS_MAX, arranged.view.records)
    try:
        news = updates_in_driver(client, state.name, start=lower, end=upper, rows_max=rows_max)
    except InvalidUsage as error:
        if error.code != "HISTORY_GONE":
            raise
        return None
    if news is None:
        return None
    arranged.append(news, state.upper)
    return arranged


_shared: WeakKeyDictionary[ShardClient, ShardLookups] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def arranged_keys(client: ShardClient) -> dict[tuple[str, tuple[str, ...]], ArrangedKey]:
    """The arrangements that users of `client` have in this process, by shard and key."""
    with _shared_lock:
        found = _shared.get(client)
    return {} if found is None else found.arranged()


def lookups_of(client: ShardClient, folder: Path) -> ShardLookups:
    """The look-ups that all users of `client` share; `folder` is of the first one."""
    with _shared_lock:
        if client not in _shared:
            _shared[client] = ShardLookups(folder)
        return _shared[client]
