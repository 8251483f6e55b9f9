"""Stores objects in this process's memory, by the name in the URL: `memory://name`.

Two locations with one name share their objects, as two processes share a bucket; so a test can open
a shard twice and restart its client. A forked child process gets a copy and shares nothing.

Invariants: every operation is atomic under one lock per store.
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome, Objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.clock import Clock

__all__ = ["MemoryObjects", "drop_store"]


class _Store:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}


_stores: dict[str, _Store] = {}


def drop_store(name: str) -> None:
    """Drop the store called `name`; locations that are still open go on with the old one."""
    _stores.pop(name, None)


class MemoryObjects(Objects):
    """Objects of the process-wide store called `name`."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.url = f"memory://{name}"
        self._clock = clock
        self._store = _stores.setdefault(name, _Store())

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        stored = (bytes(value), self._clock.now_ms())
        with self._store.lock:
            if self._store.objects.setdefault(key, stored) is not stored:
                return EXISTS
        return CREATED

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        stored = (bytes(value), self._clock.now_ms())
        with self._store.lock:
            self._store.objects[key] = stored

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        with self._store.lock:
            stored = self._store.objects.get(key)
        return None if stored is None else stored[0][start:end]

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        del size_bytes, via
        import pyarrow as pa  # noqa: PLC0415 - a log needs no Arrow; loading it takes 100 ms

        value = self.get(key)
        return None if value is None else pa.BufferReader(value)

    @override
    def delete(self, key: str) -> bool:
        with self._store.lock:
            return self._store.objects.pop(key, None) is not None

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        with self._store.lock:
            found = [
                BlobEntry(key, len(value), modified_ms)
                for key, (value, modified_ms) in self._store.objects.items()
                if key > start_after and key.startswith(prefix)
            ]
        if limit is None:
            found.sort(key=_key)
            return iter(found)
        return iter(heapq.nsmallest(limit, found, key=_key))

    @override
    def directories(self) -> list[str]:
        with self._store.lock:
            keys = list(self._store.objects)
        return sorted({key.partition("/")[0] for key in keys if "/" in key})

    @override
    def settle(self, directory: str) -> None:
        pass


def _key(entry: BlobEntry) -> str:
    return entry.key
