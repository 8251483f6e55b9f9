"""Counts and times the requests of a store, for the monitoring page and for tests.

Wraps the backend directly, below the retries: each attempt counts as one call, because the store
charges for each.

Invariants: requests and answers pass through unchanged.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shardline.datasource.stores.location import OperationStatistics, StoreStatistics
from shardline.datasource.stores.objects import EXISTS, CreateOutcome, Objects, Unresolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.clock import Clock
    from shardline.datasource.stores.location import BlobEntry

__all__ = ["Metered"]

_OPERATIONS: Final = ("create", "delete", "get", "list", "open", "put", "settle")


class _Meter:
    """Running totals of one operation."""

    __slots__ = ("bytes", "calls", "conflicts", "elapsed_ms", "elapsed_ms_max", "errors", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = self.errors = self.conflicts = self.bytes = 0
        self.elapsed_ms = self.elapsed_ms_max = 0.0

    def add(self, elapsed_ms: float, calls: int, size: int, errors: int, conflicts: int) -> None:
        with self.lock:
            self.calls += calls
            self.bytes += size
            self.errors += errors
            self.conflicts += conflicts
            self.elapsed_ms += elapsed_ms
            self.elapsed_ms_max = max(self.elapsed_ms_max, elapsed_ms)

    def snapshot(self, operation: str) -> OperationStatistics:
        with self.lock:
            return OperationStatistics(
                operation,
                calls=self.calls,
                errors=self.errors,
                conflicts=self.conflicts,
                bytes=self.bytes,
                elapsed_ms=self.elapsed_ms,
                elapsed_ms_max=self.elapsed_ms_max,
            )


class _Measurement:
    """The measurements of one call, filled in while it runs."""

    __slots__ = ("bytes", "calls", "conflicts", "errors")

    def __init__(self) -> None:
        self.calls = 1
        self.bytes = self.errors = self.conflicts = 0


class Metered(Objects):
    """`inner`, counted.

    Args:
        inner: The store.
        clock: Measures latencies with `elapsed_ms`.
    """

    def __init__(self, inner: Objects, clock: Clock) -> None:
        self.url = inner.url
        self._inner = inner
        self._clock = clock
        self._meters = {operation: _Meter() for operation in _OPERATIONS}

    def statistics(self) -> StoreStatistics:
        """Totals since this object was made; consistent within each operation, not across them."""
        return StoreStatistics(
            tuple(meter.snapshot(operation) for operation, meter in self._meters.items())
        )

    @contextmanager
    def _measure_call(self, operation: str) -> Iterator[_Measurement]:
        reading = _Measurement()
        began_at = self._clock.elapsed_ms()
        try:
            yield reading
        except BaseException:
            reading.errors = 1
            raise
        finally:
            self._meters[operation].add(
                self._clock.elapsed_ms() - began_at,
                reading.calls,
                reading.bytes,
                reading.errors,
                reading.conflicts,
            )

    @override
    def latest_ms(self) -> float:
        return self._inner.latest_ms()

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        with self._measure_call("create") as reading:
            reading.bytes = len(value)
            outcome = self._inner.create(key, value)
            reading.conflicts = int(outcome is EXISTS)
            reading.errors = int(isinstance(outcome, Unresolved))
        return outcome

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        with self._measure_call("put") as reading:
            reading.bytes = len(value) if isinstance(value, bytes) else value.nbytes
            self._inner.put(key, value)

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        with self._measure_call("get") as reading:
            value = self._inner.get(key, start, end)
            reading.bytes = len(value or b"")
        return value

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        with self._measure_call("get") as reading:
            reading.calls = len(keys)
            values = self._inner.get_many(keys)
            reading.bytes = sum(len(value or b"") for value in values)
        return values

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        with self._measure_call("open"):
            return self._inner.open(key, size_bytes, via or self)

    @override
    def delete(self, key: str) -> bool:
        with self._measure_call("delete"):
            return self._inner.delete(key)

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        with self._measure_call("delete") as reading:
            reading.calls = len(keys)
            self._inner.delete_many(keys)

    @override
    def prune(self, prefix: str, before_ms: int) -> None:
        with self._measure_call("delete"):
            self._inner.prune(prefix, before_ms)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        # Only the first page is timed: between the others the caller's own work would be counted.
        with self._measure_call("list"):
            entries = self._inner.entries(prefix, start_after, limit)
            first = next(entries, None)
        if first is not None:
            yield first
            yield from entries

    @override
    def directories(self) -> list[str]:
        with self._measure_call("list"):
            return self._inner.directories()

    @override
    def settle(self, directory: str) -> None:
        with self._measure_call("settle"):
            self._inner.settle(directory)
