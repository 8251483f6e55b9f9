"""Views that follow the same inputs read their changes once.

    changes = changes_of(client)
    changes.updates(client, state, lower, upper)   those of [lower, upper); None if they are many

The views of a group take the same step at about the same time, and each would decode the same parts
of its inputs. What has been read lately is kept for the others, up to `_BYTES_MAX` or the last one;
who comes while it is being read waits for it. The updates of an interval that is settled never
change, so what is kept is right for as long as it is kept.

Invariants:
    Updates are those of the interval, each at its own time.
    A reader that fails, or is stopped, ends no other's read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final
from weakref import WeakKeyDictionary

import pyarrow as pa

from shardline.app.compute.index.shard_lookups import ROWS_MAX
from shardline.datasource.client import ShardClient
from shardline.datasource.frames import updates_in_driver
from shardline.datasource.state import ShardState

__all__ = ["SharedChanges", "changes_of", "read_changes"]

_PARTS_BYTES_MAX: Final = 32 << 20
"""Of the parts that changes are read from; more is left to Spark, however few rows it has."""

_BYTES_MAX: Final = 64 << 20
_KEPT_MAX: Final = 64

_PATIENCE_S: Final = 30.0
"""A reader waits so long for another one, before it reads for itself."""

_Key = tuple[str, int, int, int]


class _Read(Future[pa.Table | None]):
    """A read, by one thread for all; its size in bytes, once it is done."""

    size_bytes = 0


class SharedChanges:
    """What has been read lately of one location. Safe for use by several threads."""

    def __init__(self) -> None:
        """Nothing has been read yet."""
        self._lock = threading.Lock()
        self._reads: OrderedDict[_Key, _Read] = OrderedDict()

    def updates(
        self, client: ShardClient, state: ShardState, lower: int, upper: int | None
    ) -> pa.Table | None:
        """The updates with `lower <= _ts < upper`; None if they are many (`ROWS_MAX`), or large.

        Args:
            client: Of the location.
            state: A state of the shard that is settled until `upper`.
            lower: Inclusive.
            upper: Exclusive; None for no end.

        Raises:
            InvalidUsage: There is no such shard, or its history is gone; see `updates_in_driver`.
        """
        if upper is None:
            return read_changes(client, state, lower, upper)
        key = (state.shard, state.schema_id, lower, upper)
        mine = _Read()
        with self._lock:
            found = self._reads.setdefault(key, mine)
            self._reads.move_to_end(key)
        if found is mine:
            return self._read_for_all(client, state, key, mine)
        try:
            return found.result(_PATIENCE_S)
        except Exception:  # noqa: BLE001 - another's, which may be stuck or have been stopped
            return read_changes(client, state, lower, upper)

    def _read_for_all(
        self, client: ShardClient, state: ShardState, key: _Key, mine: _Read
    ) -> pa.Table | None:
        _, _, lower, upper = key
        try:
            table = read_changes(client, state, lower, upper)
            # It was read by its name: a shard that was made anew meanwhile is another one's.
            now = client.state(state.name)
            is_kept = (now.shard, now.schema_id) == (state.shard, state.schema_id)
            # Once: to add up the buffers of a table of many pieces takes long.
            mine.size_bytes = 0 if table is None else table.nbytes
        except BaseException:
            self._forget(key)
            mine.set_exception(InterruptedError("the reader has failed, or was stopped"))
            raise
        if not is_kept:
            self._forget(key)
        mine.set_result(table)
        self._make_room()
        return table

    def _forget(self, key: _Key) -> None:
        with self._lock:
            self._reads.pop(key, None)

    def _make_room(self) -> None:
        """Forget what was used the longest ago; never what was used last."""
        with self._lock:
            total = sum(read.size_bytes for read in self._reads.values())
            for key, read in list(self._reads.items())[:-1]:
                if total <= _BYTES_MAX and len(self._reads) <= _KEPT_MAX:
                    return
                if read.done():
                    del self._reads[key]
                    total -= read.size_bytes


def read_changes(
    client: ShardClient, state: ShardState, lower: int, upper: int | None
) -> pa.Table | None:
    """The updates of a shard that is shared with nobody; see `SharedChanges.updates`."""
    return updates_in_driver(
        client,
        state.name,
        start=lower,
        end=upper,
        rows_max=ROWS_MAX,
        bytes_max=_PARTS_BYTES_MAX,
    )


_shared: WeakKeyDictionary[ShardClient, SharedChanges] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def changes_of(client: ShardClient) -> SharedChanges:
    """What all users of `client` have read."""
    with _shared_lock:
        if client not in _shared:
            _shared[client] = SharedChanges()
        return _shared[client]
