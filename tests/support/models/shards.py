"""Shards for tests: worlds with one store and many clients, processes that die, and plain rows.

A `World` is one memory store with one clock and one source of ids. Each client that it makes has
caches of its own, as a process has; dropping it is a restart. `Mortal` is a store that fails or
kills its process at a chosen operation.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.memory import MemoryObjects, drop_store
from shardline.datasource.stores.objects import CreateOutcome, Objects, Unresolved
from shardline.datasource.stores.open import compose_location
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock, SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardline.datasource.shard.machine import Machine
    from shardline.datasource.shard.state import ShardState
    from shardline.datasource.stores.location import BlobEntry

__all__ = [
    "SETTINGS",
    "TINY",
    "Crash",
    "Effect",
    "Mortal",
    "World",
    "dangling",
    "rows",
    "schema_of",
    "table",
    "updates",
]

SETTINGS: Final = ShardSettings(validate=True)
"""As users have them, with every invariant checked at every transition."""

TINY: Final = dataclasses.replace(
    SETTINGS,
    part_buffer_bytes=512,
    row_group_rows=4,
    inline_part_bytes=400,
    inline_state_bytes=3000,
    stats_bytes=64,
    rollup_every=5,
)
"""Several parts, row groups, flushes and rollups out of a handful of rows."""

T = TypeVar("T")

_numbers = itertools.count()

_MARKER: Final = "_shardline"
_GRACE_MS: Final = 60_000


@functools.cache
def _marker() -> bytes:
    """The marker of a location: probing one memory store is enough for all worlds."""
    clock, ids = ManualClock(), SeededIds()
    objects = MemoryObjects("probed", clock)
    compose_location(objects, clock=clock, ids=ids, if_missing="create", grace_ms=_GRACE_MS)
    return objects.get(_MARKER) or b""


class World:
    """One store, one clock, one source of ids; as many clients as there are processes."""

    def __init__(self, seed: int = 0, objects: Callable[[World], Objects] | None = None) -> None:
        self.clock = ManualClock()
        self.ids = SeededIds(seed)
        self._seed = seed
        self._name = f"world-{next(_numbers)}"
        self._open = objects
        self.objects().put(_MARKER, _marker())

    def objects(self) -> Objects:
        """The bare store."""
        return self._open(self) if self._open else MemoryObjects(self._name, self.clock)

    def client(
        self, settings: ShardSettings = SETTINGS, objects: Objects | None = None
    ) -> ShardClient:
        """A client with caches of its own, over this world's store or a wrapper of it."""
        location = compose_location(
            objects or self.objects(),
            clock=self.clock,
            ids=self.ids,
            if_missing="refuse",
            grace_ms=_GRACE_MS,
        )
        return ShardClient(location, settings, self.clock, self.ids)

    def copy(self) -> World:
        """A world of its own, in memory as this one, that begins as this one is now."""
        here = self.objects()
        assert isinstance(here, MemoryObjects), "only what is in memory is copied"
        # Other tokens follow, so that none is drawn a second time.
        made = World(self._seed + 1)
        made.clock = ManualClock(self.clock.now_ms())
        there = made.objects()
        assert isinstance(there, MemoryObjects)
        there._store.objects.update(here._store.objects)
        return made

    def close(self) -> None:
        """Forget what is stored."""
        drop_store(self._name)


# --- processes that die --------------------------------------------------------------------------


class Crash(BaseException):
    """The process was killed: nobody catches this."""


Effect: TypeAlias = Literal["none", "done", "late"]
"""What became of the operation that failed: nothing, all of it, or all of it later."""


class Mortal(Objects):
    """A store of a process that fails, or fails its process, at its `at`-th operation (from 0).

    Args:
        inner: The store.
        at: Which operation; None for never.
        effect: What becomes of that operation.
        lasts: None kills the process there: no other operation of it ever happens. Otherwise this
            operation and those after it, `lasts` in all, report an error, as an outage does; the
            ones after have no effect.
    """

    def __init__(
        self,
        inner: Objects,
        at: int | None = None,
        effect: Effect = "none",
        *,
        lasts: int | None = None,
    ) -> None:
        self.url = inner.url
        self.count = 0
        self.failed = ""
        self._inner = inner
        self._at = at
        self._effect = effect
        self._lasts = lasts
        self._late: list[Callable[[], object]] = []

    def deliver(self) -> None:
        """Let what is late happen now."""
        late, self._late = self._late, []
        for effect in late:
            effect()

    def _run(self, name: str, operation: Callable[[], T], unknown: Callable[[], T]) -> T:
        number, self.count = self.count, self.count + 1
        if self._at is None or number < self._at:
            return operation()
        if number == self._at:
            self.failed = name
            if self._effect == "done":
                operation()
            elif self._effect == "late":
                self._late.append(operation)
        if self._lasts is None:
            raise Crash(self.failed)
        return operation() if number >= self._at + self._lasts else unknown()

    def _read(self, name: str, operation: Callable[[], T]) -> T:
        def refuse() -> T:
            raise Determinate("connection lost")

        return self._run(name, operation, refuse)

    def _write(self, name: str, operation: Callable[[], T]) -> T:
        def drop_store() -> T:
            raise Indeterminate("connection lost")

        return self._run(name, operation, drop_store)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        return self._run(
            f"create {key}",
            lambda: self._inner.create(key, value),
            lambda: Unresolved("connection lost"),
        )

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        kept = bytes(value)
        self._write(f"put {key}", lambda: self._inner.put(key, kept))

    @override
    def delete(self, key: str) -> bool:
        return self._write(f"delete {key}", lambda: self._inner.delete(key))

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        self._write("delete_many", lambda: self._inner.delete_many(keys))

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        return self._read(f"get {key}", lambda: self._inner.get(key, start, end))

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._read(f"get_many {keys[0]}", lambda: self._inner.get_many(keys))

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        return self._read(f"open {key}", lambda: self._inner.open(key, size_bytes, via or self))

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        return self._read(
            f"entries {prefix}", lambda: self._inner.entries(prefix, start_after, limit)
        )

    @override
    def directories(self) -> list[str]:
        return self._read("directories", self._inner.directories)

    @override
    def settle(self, directory: str) -> None:
        self._read(f"settle {directory}", lambda: self._inner.settle(directory))


# --- rows ----------------------------------------------------------------------------------------

_DEFAULT: Final = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])


def schema_of(arrow: pa.Schema = _DEFAULT) -> ShardSchema:
    """The schema of an Arrow schema; `id long, v string` by default."""
    return ShardSchema.from_arrow(arrow)


def table(*some: tuple[int | None, str | None]) -> pa.Table:
    """Rows `(id, v)`."""
    columns = [pa.array([row[i] for row in some], _DEFAULT.field(i).type) for i in (0, 1)]
    return pa.Table.from_arrays(columns, schema=_DEFAULT)


def updates(*some: tuple[int | None, str | None, int, int]) -> pa.Table:
    """Updates `(id, v, time, diff)`."""
    result = table(*((row[0], row[1]) for row in some))
    for position, name in ((2, "_ts"), (3, "_diff")):
        result = result.append_column(name, pa.array([row[position] for row in some], pa.int64()))
    return result


def rows(contents: pa.Table) -> Counter[tuple[Any, ...]]:
    """A table as a multiset of its rows."""
    columns = (contents.column(i).to_pylist() for i in range(contents.num_columns))
    return Counter(zip(*columns, strict=True))


def dangling(machine: Machine, state: ShardState | None = None) -> list[str]:
    """Keys of blobs that a shard's state refers to and that are not there or not whole."""
    state = state or machine.state()
    blob = machine.location.blob
    parts = [part for batch in state.trace.batches for part in batch.parts]
    wanted = {part.key: part.size_bytes for part in parts if part.inline is None}
    wanted |= {rollup.key: rollup.size_bytes for rollup in state.rollups.values()}
    return [key for key, size in wanted.items() if len(blob.get(key) or b"") != size]
