"""A store that fails on purpose, reproducibly: for simulation and for users' own tests.

    `BEFORE`      an error, and nothing happened
    `AFTER`       an error, though it happened: a lost acknowledgement
    `LATE`        an error, and it happens later, out of the blue
    `SELF_RETRY`  it happened, was repeated on the way, and the repetition's refusal is reported:
                  "exists" about our own object
    `PHANTOM`     "exists" though nothing is there: some clients say so of a 409
    `TRUNCATED`   a read breaks off in the middle
    `SLOW`        it works, after `slow_ms`

Faults are scripted one by one with `fail`, or drawn with a probability. Reads know `BEFORE`,
`TRUNCATED` and `SLOW`; creates all but `TRUNCATED`; other writes `BEFORE`, `AFTER`, `LATE`, `SLOW`.

Invariants: without a fault everything passes through unchanged; equal seeds and equal calls give
equal faults.
"""

from __future__ import annotations

import enum
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from typing_extensions import override

from datasource.errors import Determinate, Indeterminate
from datasource.stores.objects import EXISTS, CreateOutcome, Objects, Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from datasource.clock import Clock, IdGenerator
    from datasource.location import BlobEntry

__all__ = ["Fault", "Faulty", "Operation"]

T = TypeVar("T")

Operation: TypeAlias = Literal["create", "put", "get", "delete", "list"]


class Fault(enum.Enum):
    """One way to fail; see the module."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"
    SELF_RETRY = "self-retry"
    PHANTOM = "phantom"
    TRUNCATED = "truncated"
    SLOW = "slow"


_READ: Final = (Fault.BEFORE, Fault.TRUNCATED, Fault.SLOW)
_WRITE: Final = (Fault.BEFORE, Fault.AFTER, Fault.LATE, Fault.SLOW)
_KNOWN: Final[dict[Operation, tuple[Fault, ...]]] = {
    "create": (
        Fault.BEFORE,
        Fault.AFTER,
        Fault.LATE,
        Fault.SELF_RETRY,
        Fault.PHANTOM,
        Fault.SLOW,
    ),
    "put": _WRITE,
    "delete": _WRITE,
    "get": _READ,
    "list": _READ,
}


class Faulty(Objects):
    """`inner`, unreliable.

    Args:
        inner: The store.
        clock: `SLOW` waits with it.
        ids: Draws faults with its `jitter()`.
        probability: Of a fault in each call that no script decides; in [0, 1].
        slow_ms: What `SLOW` waits.
    """

    def __init__(
        self,
        inner: Objects,
        *,
        clock: Clock,
        ids: IdGenerator,
        probability: float = 0.0,
        slow_ms: float = 1_000.0,
    ) -> None:
        self.url = inner.url
        self.probability = probability
        self._inner = inner
        self._clock = clock
        self._ids = ids
        self._slow_ms = slow_ms
        self._lock = threading.Lock()
        self._script: dict[Operation, deque[Fault]] = defaultdict(deque)
        self._late: list[Callable[[], object]] = []
        self._injected: dict[Fault, int] = defaultdict(int)

    def fail(self, operation: Operation, *faults: Fault) -> None:
        """The next calls of `operation` fail like this, in this order."""
        for fault in faults:
            assert fault in _KNOWN[operation], f"{operation} cannot fail by {fault}"
        with self._lock:
            self._script[operation].extend(faults)

    def deliver(self) -> int:
        """Let what is `LATE` happen now; the number of calls that took effect or were refused."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            effect()
        return len(late)

    def injected(self) -> dict[Fault, int]:
        """How often each fault was injected."""
        with self._lock:
            return dict(self._injected)

    def _draw(self, operation: Operation) -> Fault | None:
        with self._lock:
            fault: Fault | None = None
            if self._script[operation]:
                fault = self._script[operation].popleft()
            elif self.probability and self._ids.jitter() < self.probability:
                known = _KNOWN[operation]
                fault = known[int(self._ids.jitter() * len(known))]
            overdue = None
            if self._late and self.probability and self._ids.jitter() < self.probability:
                overdue = self._late.pop(int(self._ids.jitter() * len(self._late)))
            if fault is not None:
                self._injected[fault] += 1
        if overdue is not None:
            overdue()
        if fault is Fault.SLOW:
            self._clock.wait(threading.Event(), self._slow_ms)
        return fault

    def _postpone(self, effect: Callable[[], object]) -> None:
        with self._lock:
            self._late.append(effect)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        fault = self._draw("create")
        if fault is Fault.BEFORE:
            return Unresolved("injected: error before the effect")
        if fault is Fault.PHANTOM:
            return EXISTS
        if fault is Fault.LATE:
            self._postpone(lambda: self._inner.create(key, value))
            return Unresolved("injected: late effect")
        outcome = self._inner.create(key, value)
        if fault is Fault.AFTER:
            return Unresolved("injected: acknowledgement lost")
        return EXISTS if fault is Fault.SELF_RETRY else outcome

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        kept = bytes(value)
        self._write("put", lambda: self._inner.put(key, kept))

    @override
    def delete(self, key: str) -> bool:
        return self._write("delete", lambda: self._inner.delete(key))

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        self._write("delete", lambda: self._inner.delete_many(keys))

    def _write(self, operation: Operation, effect: Callable[[], T]) -> T:
        fault = self._draw(operation)
        if fault is Fault.LATE:
            self._postpone(effect)
        if fault in {Fault.BEFORE, Fault.LATE}:
            raise Indeterminate(f"injected: {operation} failed")
        result = effect()
        if fault is Fault.AFTER:
            raise Indeterminate(f"injected: acknowledgement of {operation} lost")
        return result

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        self._before_reading("get")
        return self._inner.get(key, start, end)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self._before_reading("get")
        return self._inner.get_many(keys)

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        self._before_reading("get")
        return self._inner.open(key, size_bytes, via or self)

    @override
    def prune(self, prefix: str, before_ms: int) -> None:
        self._inner.prune(prefix, before_ms)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        fault = self._draw("list")
        if fault is Fault.BEFORE:
            raise Determinate("injected: list failed")
        for number, entry in enumerate(self._inner.entries(prefix, start_after, limit)):
            if fault is Fault.TRUNCATED and number == 1:
                raise Determinate("injected: list broke off")
            yield entry

    @override
    def directories(self) -> list[str]:
        self._before_reading("list")
        return self._inner.directories()

    @override
    def settle(self, directory: str) -> None:
        self._inner.settle(directory)

    def _before_reading(self, operation: Operation) -> None:
        # A backend turns a response that was cut short into an error, so both look alike here.
        if self._draw(operation) in {Fault.BEFORE, Fault.TRUNCATED}:
            raise Determinate(f"injected: {operation} failed")
