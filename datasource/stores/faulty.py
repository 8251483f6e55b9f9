"""Makes a store fail on purpose, reproducibly: for simulation and for users' own tests.

A real store shows these faults too seldom to test what they do to commits. Each has a name:

    `BEFORE`      an error, and nothing happened
    `AFTER`       an error, though it happened: a lost acknowledgement
    `LATE`        an error, and it happens later, at any time
    `SELF_RETRY`  it happened, was repeated on the way, and the repetition's refusal is reported:
                  "exists" about our own object
    `PHANTOM`     "exists" though nothing is there: some clients report a 409 like this
    `REFUSED`     it happened, was repeated on the way, and the repetition was refused for a reason
                  that has nothing to do with the key, such as a token that has expired meanwhile
    `DAMAGED`     a read returns other bytes than are stored; a create happens, its acknowledgement
                  is lost, and the next read of the object is damaged in this way
    `UNREADABLE`  the same, and the store itself reports the damage of the read (EIO)
    `TRUNCATED`   a read breaks off in the middle
    `SLOW`        it works, after `slow_ms`

Faults are scripted one by one with `fail`, or drawn with a probability. Reads know `BEFORE`,
`TRUNCATED`, `SLOW`, `DAMAGED` and `UNREADABLE`; creates all but `TRUNCATED`; other writes `BEFORE`,
`AFTER`, `LATE`, `SLOW`. Damage of a plain read is never drawn at random, because a reader is right
to stop at it; one of a log is when it meets it twice. Damage of the read that follows a create is:
the outcome of the create must be found out in spite of it.

A refusal is an outcome here (`Unresolved.refusal`) as in every store, and is never raised: by the
contract of `create`, an exception means that it did not happen.

Invariants:
    without a fault everything passes through unchanged;
    stored objects stay intact: damage lasts for one read;
    equal seeds and equal calls give equal faults.
"""

from __future__ import annotations

import enum
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from typing_extensions import override

from shardline.datasource.errors import Corrupt, Determinate, Indeterminate, InvalidUsage
from shardline.datasource.stores.objects import EXISTS, CreateOutcome, Objects, Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.location import BlobEntry

__all__ = ["Fault", "Faulty", "Operation", "with_damaged_byte"]

T = TypeVar("T")

Operation: TypeAlias = Literal["create", "put", "get", "delete", "list"]


class Fault(enum.Enum):
    """One way to fail; the module's docstring describes each."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"
    SELF_RETRY = "self-retry"
    PHANTOM = "phantom"
    REFUSED = "refused"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    SLOW = "slow"


_DAMAGE: Final = (Fault.DAMAGED, Fault.UNREADABLE)
_READ: Final = (Fault.BEFORE, Fault.TRUNCATED, Fault.SLOW)
_WRITE: Final = (Fault.BEFORE, Fault.AFTER, Fault.LATE, Fault.SLOW)
_DRAWN: Final[dict[Operation, tuple[Fault, ...]]] = {
    "create": (
        Fault.BEFORE,
        Fault.AFTER,
        Fault.LATE,
        Fault.SELF_RETRY,
        Fault.PHANTOM,
        Fault.REFUSED,
        *_DAMAGE,
        Fault.SLOW,
    ),
    "put": _WRITE,
    "delete": _WRITE,
    "get": _READ,
    "list": _READ,
}
_SCRIPTED: Final[dict[Operation, tuple[Fault, ...]]] = {**_DRAWN, "get": (*_READ, *_DAMAGE)}


def with_damaged_byte(value: bytes) -> bytes:
    """`value` with its middle byte changed; in a log entry, one that the checksum covers."""
    at = len(value) // 2
    return value[:at] + bytes(byte ^ 0xFF for byte in value[at : at + 1]) + value[at + 1 :]


class Faulty(Objects):
    """`inner`, with faults.

    Args:
        inner: The store.
        clock: Used by `SLOW` to wait.
        ids: Its `jitter()` draws the faults.
        probability: Probability of a fault in each call without a scripted one; in [0, 1].
        slow_ms: How long `SLOW` waits.
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
        self._damaged_once: dict[str, Fault] = {}

    def fail(self, operation: Operation, *faults: Fault) -> None:
        """Script the faults of the next calls of `operation`, in this order."""
        for fault in faults:
            assert fault in _SCRIPTED[operation], f"{operation} cannot fail by {fault}"
        with self._lock:
            self._script[operation].extend(faults)

    def deliver(self) -> int:
        """Run all postponed (`LATE`) calls now; their number, refused ones included."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            effect()
        return len(late)

    def injected(self) -> dict[Fault, int]:
        """The number of injected faults by kind."""
        with self._lock:
            return dict(self._injected)

    def _draw(self, operation: Operation) -> Fault | None:
        with self._lock:
            fault: Fault | None = None
            if self._script[operation]:
                fault = self._script[operation].popleft()
            elif self.probability and self._ids.jitter() < self.probability:
                known = _DRAWN[operation]
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
    def latest_ms(self) -> float:
        return self._inner.latest_ms()

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
        return outcome if fault is None else self._misreported(fault, key, outcome)

    def _misreported(self, fault: Fault, key: str, outcome: CreateOutcome) -> CreateOutcome:
        """The answer to a create that has already taken effect or was refused."""
        if fault is Fault.SELF_RETRY:
            return EXISTS
        if fault is Fault.REFUSED:
            refusal = InvalidUsage(
                f"injected: '{key}' cannot be created at '{self.url}'",
                code="ACCESS_DENIED",
                hint="this was injected",
            )
            return Unresolved("injected: AccessDenied (403)", refusal)
        if fault in _DAMAGE:
            with self._lock:
                self._damaged_once[key] = fault
        if fault is Fault.SLOW:
            return outcome
        return Unresolved("injected: acknowledgement lost")

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
        fault = self._before_reading("get")
        return self._damage_if_due(key, self._inner.get(key, start, end), fault)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        fault = self._before_reading("get")
        values = self._inner.get_many(keys)
        faults = [fault, *[None] * len(keys)]
        return [self._damage_if_due(*one) for one in zip(keys, values, faults, strict=False)]

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        if self._before_reading("get") in _DAMAGE:
            raise self._unreadable(key)
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

    def _before_reading(self, operation: Operation) -> Fault | None:
        """Draw a fault: raise it, or return one that damages what is read."""
        fault = self._draw(operation)
        # A backend turns a response that was cut short into an error, so both look alike here.
        if fault in {Fault.BEFORE, Fault.TRUNCATED}:
            raise Determinate(f"injected: {operation} failed")
        return fault

    def _damage_if_due(self, key: str, value: bytes | None, fault: Fault | None) -> bytes | None:
        """`value` as it reaches the reader: damaged if a fault is due for `key`."""
        with self._lock:
            fault = self._damaged_once.pop(key, fault)
        if fault is Fault.UNREADABLE:
            raise self._unreadable(key)
        return with_damaged_byte(value) if fault is Fault.DAMAGED and value else value

    def _unreadable(self, key: str) -> Corrupt:
        return Corrupt(f"injected: '{key}' at '{self.url}' cannot be read back")
