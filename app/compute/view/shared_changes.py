"""Views that follow the same inputs read their changes once.

    changes = changes_of(client)
    changes.updates(client, state, lower, upper, columns)   None if they are many

The views of a group take the same step at about the same time, and each would decode the same parts
of its inputs. What has been read lately is kept for the others, up to `_BYTES_MAX` or the last one;
who comes while it is being read waits for it. The updates of an interval that is settled never
change, so what is kept is right for as long as it is kept.

Of a wide table most bytes may be text that no view looks at. So only those columns are decoded that
any view of the shard has asked for, so far: the views of a group, each with columns of its own, go
on to share one read.

Invariants:
    Updates are those of the interval, each at its own time, in all columns that were asked for.
    A reader that fails, or is stopped, ends no other's read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa

from shardline.app.compute.index.shard_lookups import ROWS_MAX
from shardline.datasource.client import ShardClient
from shardline.datasource.frames import updates_in_driver
from shardline.datasource.read import current_schema
from shardline.datasource.state import ShardState

__all__ = ["SharedChanges", "changes_of", "read_changes"]

_PARTS_BYTES_MAX: Final = 32 << 20
"""Of the parts that changes are read from; more is left to Spark, however few rows it has."""

_BYTES_MAX: Final = 64 << 20
_KEPT_MAX: Final = 64

_PATIENCE_S: Final = 30.0
"""A reader waits so long for another one, before it reads for itself."""

_Key: TypeAlias = tuple[str, int, int, int]
_Columns: TypeAlias = frozenset[str] | None
"""Names of columns; None for all."""

_SHARDS_MAX: Final = 1_024
"""Shards of which it is known what views read; one that is forgotten is learned again."""


class _Read(Future[pa.Table | None]):
    """A read, by one thread for all; its size in bytes, once it is done."""

    def __init__(self, columns: _Columns) -> None:
        """Of these columns."""
        super().__init__()
        self.columns = columns
        self.size_bytes = 0

    def has(self, columns: _Columns) -> bool:
        """True if these columns are read."""
        return self.columns is None or (columns is not None and columns <= self.columns)


class SharedChanges:
    """What has been read lately of one location. Safe for use by several threads."""

    def __init__(self) -> None:
        """Nothing has been read yet."""
        self._lock = threading.Lock()
        self._reads: OrderedDict[_Key, _Read] = OrderedDict()
        self._asked: OrderedDict[tuple[str, int], _Columns] = OrderedDict()

    def updates(
        self,
        client: ShardClient,
        state: ShardState,
        lower: int,
        upper: int | None,
        columns: _Columns = None,
    ) -> pa.Table | None:
        """The updates with `lower <= _ts < upper`; None if they are many (`ROWS_MAX`), or large.

        They have all columns of the shard; what nobody has asked for is NULL, if it may be.

        Args:
            client: Of the location.
            state: A state of the shard that is settled until `upper`.
            lower: Inclusive.
            upper: Exclusive; None for no end.
            columns: Those whose values are needed; None for all.

        Raises:
            InvalidUsage: There is no such shard, or its history is gone; see `updates_in_driver`.
        """
        if upper is None:
            return read_changes(client, state, lower, upper, columns)
        key = (state.shard, state.schema_id, lower, upper)
        with self._lock:
            mine = _Read(self._all_asked((state.shard, state.schema_id), columns))
            found = self._reads.get(key)
            if found is None or not found.has(columns):
                found = self._reads[key] = mine
            self._reads.move_to_end(key)
        if found is mine:
            return self._read_for_all(client, state, key, mine)
        try:
            return found.result(_PATIENCE_S)
        except Exception:  # noqa: BLE001 - another's, which may be stuck or have been stopped
            return read_changes(client, state, lower, upper, columns)

    def _read_for_all(
        self, client: ShardClient, state: ShardState, key: _Key, mine: _Read
    ) -> pa.Table | None:
        _, _, lower, upper = key
        try:
            table = read_changes(client, state, lower, upper, mine.columns)
            # It was read by its name: a shard that was made anew meanwhile is another one's.
            now = client.state(state.name)
            is_kept = (now.shard, now.schema_id) == (state.shard, state.schema_id)
            # Once: to add up the buffers of a table of many pieces takes long.
            mine.size_bytes = 0 if table is None else table.nbytes
        except BaseException:
            self._forget(key, mine)
            mine.set_exception(InterruptedError("the reader has failed, or was stopped"))
            raise
        if not is_kept:
            self._forget(key, mine)
        mine.set_result(table)
        self._make_room()
        return table

    def _all_asked(self, shard: tuple[str, int], columns: _Columns) -> _Columns:
        """All columns of a shard that were asked for so far, with these."""
        before = self._asked.pop(shard, frozenset())
        asked = None if before is None or columns is None else before | columns
        self._asked[shard] = asked
        if len(self._asked) > _SHARDS_MAX:
            self._asked.popitem(last=False)
        return asked

    def _forget(self, key: _Key, mine: _Read) -> None:
        with self._lock:
            # Another one, with more columns, may have taken its place.
            if self._reads.get(key) is mine:
                del self._reads[key]

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
    client: ShardClient,
    state: ShardState,
    lower: int,
    upper: int | None,
    columns: _Columns = None,
) -> pa.Table | None:
    """The updates of a shard, shared with nobody; see `SharedChanges.updates`."""
    given = current_schema(state).arrow
    if columns is not None:
        columns |= {field.name for field in given if not field.nullable}
    found = updates_in_driver(
        client,
        state.name,
        start=lower,
        end=upper,
        rows_max=ROWS_MAX,
        bytes_max=_PARTS_BYTES_MAX,
        columns=columns,
    )
    if found is None or columns is None:
        return found
    for place, field in enumerate(given):
        if field.name not in found.column_names:
            found = found.add_column(place, field, pa.nulls(found.num_rows, field.type))
    return found


_shared: WeakKeyDictionary[ShardClient, SharedChanges] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def changes_of(client: ShardClient) -> SharedChanges:
    """What all users of `client` have read."""
    with _shared_lock:
        if client not in _shared:
            _shared[client] = SharedChanges()
        return _shared[client]
