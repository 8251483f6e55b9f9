"""Repeats requests that are safe to repeat, a bounded number of times, with jittered pauses.

Stores refuse and drop single requests all the time; a caller should only see an error that lasts.

Reads, deletes and `put` are safe to repeat: a blob's key is written with one value only. `create`
is not: its caller must first find out if it happened. `InvalidUsage` and `Corrupt` are permanent,
and are raised at once.

A request for many keys is not repeated as a whole but in halves, each by itself: where one request
of seven fails, hardly any group of 64 would ever succeed as a whole.

Invariants:
    the last error is raised as it came;
    no single key is requested by itself more than `attempts_max` times;
    nothing is repeated later than `RETRY_LIMIT_MS` after the first attempt, so a server that
    accepts requests and never answers is given up after that time and the duration of one request.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from typing_extensions import override

from shardline.datasource.errors import Determinate, Indeterminate
from shardline.datasource.stores.objects import CreateOutcome, Objects
from shardline.datasource.waiting import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.location import BlobEntry

__all__ = ["ATTEMPTS_MAX", "RETRY_LIMIT_MS", "Retrying"]

T = TypeVar("T")

ATTEMPTS_MAX: Final = 6
"""Requests in all. With the pauses below some three seconds: a load balancer restarts in that."""

RETRY_LIMIT_MS: Final = 60_000.0
"""No repetition later than this after the first attempt; twice the default read time-out."""

_RETRIES: Final = RetryPolicy(
    first_ms=50, longest_ms=2000, grows=3, attempts_max=ATTEMPTS_MAX, limit_ms=RETRY_LIMIT_MS
)


class Retrying(Objects):
    """`inner`, with requests repeated.

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
        self._retries = replace(_RETRIES, attempts_max=attempts_max)

    def _with_retries(self, attempt: Callable[[], T], gives_up_at: float | None = None) -> T:
        budget = self._retries.begin(self._clock, self._ids, gives_up_at=gives_up_at)
        while True:
            try:
                return attempt()
            except (Determinate, Indeterminate):
                if not budget.pause():
                    raise

    def _in_halves(
        self,
        attempt: Callable[[Sequence[str]], list[T]],
        keys: Sequence[str],
        gives_up_at: float | None = None,
    ) -> list[T]:
        """The results for `keys`: one attempt for all, and after a failure one for each half."""
        # Counted for single keys only; the time is that of the request, not of each half.
        uncounted = replace(self._retries, attempts_max=None)
        budget = uncounted.begin(self._clock, self._ids, gives_up_at=gives_up_at)
        if len(keys) < 2:  # noqa: PLR2004 - what has no halves
            return self._with_retries(lambda: attempt(keys), budget.gives_up_at)
        try:
            return attempt(keys)
        except (Determinate, Indeterminate):
            if not budget.pause():
                raise
        half = len(keys) // 2
        return [
            *self._in_halves(attempt, keys[:half], budget.gives_up_at),
            *self._in_halves(attempt, keys[half:], budget.gives_up_at),
        ]

    @override
    def latest_ms(self) -> float:
        return self._inner.latest_ms()

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        return self._inner.create(key, value)

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        self._with_retries(lambda: self._inner.put(key, value))

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        return self._with_retries(lambda: self._inner.get(key, start, end))

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._in_halves(self._inner.get_many, keys)

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        return self._with_retries(lambda: self._inner.open(key, size_bytes, via or self))

    @override
    def delete(self, key: str) -> bool:
        # An attempt whose outcome is unknown may have removed it: the next one then finds nothing,
        # and the answer is still that it was there.
        deleted_before = False

        def attempt() -> bool:
            nonlocal deleted_before
            try:
                return self._inner.delete(key) or deleted_before
            except Indeterminate:
                deleted_before = True
                raise

        return self._with_retries(attempt)

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        def attempt(some: Sequence[str]) -> list[None]:
            self._inner.delete_many(some)
            return []

        self._in_halves(attempt, keys)

    @override
    def prune(self, prefix: str, before_ms: int) -> None:
        self._inner.prune(prefix, before_ms)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        # A listing that breaks off is continued after the last key that it gave.
        last, left = start_after, limit
        while True:
            entries, first = self._with_retries(partial(self._begin, prefix, last, left))
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
        return self._with_retries(self._inner.directories)

    @override
    def settle(self, directory: str) -> None:
        self._with_retries(lambda: self._inner.settle(directory))
