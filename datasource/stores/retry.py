"""Repeats what is safe to repeat, a bounded number of times, with jittered exponential pauses.

Reads, deletes and `put` are: a blob's key is written with one value only. `create` is not: whether
it happened must be found out first, which its caller does. `InvalidUsage` and `Corrupt` cannot get
better and pass through.

Invariants: the last error is raised as it came; nothing is tried more than `attempts_max` times.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from typing_extensions import override

from datasource.errors import Determinate, Indeterminate
from datasource.stores.objects import CreateOutcome, Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from datasource.clock import Clock, IdGenerator
    from datasource.location import BlobEntry

__all__ = ["ATTEMPTS_MAX", "Retrying"]

T = TypeVar("T")

ATTEMPTS_MAX: Final = 6
"""With the pauses below, some three seconds: what a restart of a load balancer takes."""

_PAUSE_MS: Final = 50.0
_PAUSE_MAX_MS: Final = 2000.0


class Retrying(Objects):
    """`inner`, with patience.

    Args:
        inner: The store.
        clock: Waits between attempts.
        ids: Jitter, so that many clients do not come back at once.
        attempts_max: The first attempt included; >= 1.
    """

    def __init__(
        self, inner: Objects, *, clock: Clock, ids: IdGenerator, attempts_max: int = ATTEMPTS_MAX
    ) -> None:
        self.url = inner.url
        self._inner = inner
        self._clock = clock
        self._ids = ids
        self._attempts_max = attempts_max

    def _patiently(self, attempt: Callable[[], T]) -> T:
        pause_ms = _PAUSE_MS
        for _ in range(self._attempts_max - 1):
            try:
                return attempt()
            except (Determinate, Indeterminate):
                self._clock.wait(threading.Event(), pause_ms * (0.5 + self._ids.jitter()))
                pause_ms = min(3 * pause_ms, _PAUSE_MAX_MS)
        return attempt()

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        return self._inner.create(key, value)

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        self._patiently(lambda: self._inner.put(key, value))

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        return self._patiently(lambda: self._inner.get(key, start, end))

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._patiently(lambda: self._inner.get_many(keys))

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        return self._patiently(lambda: self._inner.open(key, size_bytes, via or self))

    @override
    def delete(self, key: str) -> bool:
        # An earlier attempt may have been the one that removed it: then this one did the work.
        deleted_before = False

        def attempt() -> bool:
            nonlocal deleted_before
            try:
                return self._inner.delete(key) or deleted_before
            except Indeterminate:
                deleted_before = True
                raise

        return self._patiently(attempt)

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        self._patiently(lambda: self._inner.delete_many(keys))

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        # A listing that breaks off goes on behind the last key that it gave.
        last, left = start_after, limit
        while True:
            entries, first = self._patiently(partial(self._begin, prefix, last, left))
            if first is None:
                return
            try:
                for entry in itertools.chain([first], entries):
                    yield entry
                    last, left = entry.key, None if left is None else left - 1
            except (Determinate, Indeterminate):
                continue
            return

    def _begin(
        self, prefix: str, start_after: str, limit: int | None
    ) -> tuple[Iterator[BlobEntry], BlobEntry | None]:
        entries = self._inner.entries(prefix, start_after, limit)
        return entries, next(entries, None)

    @override
    def directories(self) -> list[str]:
        return self._patiently(self._inner.directories)

    @override
    def settle(self, directory: str) -> None:
        self._patiently(lambda: self._inner.settle(directory))
