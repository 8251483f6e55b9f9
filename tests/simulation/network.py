"""The store as one process sees it, over a network.

Invariants:
    What is stored is linearizable, and many reads in one call are many reads.
    A request of a process that has died takes effect at most once more, later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.errors import Corrupt, Determinate, Indeterminate, InvalidUsage
from shardline.datasource.stores.faulty import with_damaged_byte
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import EXISTS, CreateOutcome, Objects, Unresolved
from simulation.knobs import DAMAGE, WRITES
from support.models.shards import Crash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simulation.world import Process

__all__ = ["SimObjects"]

T = TypeVar("T")


class SimObjects(Objects):
    """The world's objects, as one process reaches them."""

    def __init__(self, process: Process) -> None:
        self.url = "memory://simulation"
        self._process = process
        self._world = process.world

    def _request(self, operation: str, key: str, effect: Callable[[], T]) -> tuple[str, T | None]:
        """Send a request: what went wrong with it, and its answer if it took effect by now."""
        process, world = self._process, self._world
        process.ops += 1
        number = process.ops
        fault = world.fault_of(process, operation, number)
        where = process.dice.roll(number, 5)
        there, back = self._times(fault, number, where)
        world.note(f"{operation} {key}")
        try:
            world.scheduler.sleep(there)
        except Crash:
            # The process died with the request on its way.
            if operation in WRITES and where < 0.5 and not world.calm:
                self._later(number, key, effect)
            raise
        if fault == "late" or (fault == "crash" and where < 0.34 and operation in WRITES):
            self._later(number, key, effect)
        if fault == "crash" and where < 0.67:
            process.crash()
            raise Crash(process.name)
        if fault in {"before", "late", "phantom"}:
            return fault, None
        answer = effect()
        if operation in WRITES:
            # The way back: others see the effect before this process does.
            world.scheduler.sleep(back)
        if fault == "crash":
            process.crash()
            raise Crash(process.name)
        return fault, answer

    def _times(self, fault: str, number: int, where: float) -> tuple[float, float]:
        """How long the request is on its way, there and back; what goes wrong with time does."""
        process, world = self._process, self._world
        there = world.latency_ms(process, number)
        back = there / 4
        if fault == "pause":
            process.pause(world.stall_ms(process, number))
        elif fault == "jump":
            process.clock.skew_ms += int((where - 0.5) * 2 * world.knobs.skew)
        elif fault == "slow" and where < 0.6:
            there += world.stall_ms(process, number)
        elif fault == "slow":
            back += world.stall_ms(process, number)
        return there, back

    def _later(self, number: int, key: str, effect: Callable[[], object]) -> None:
        world = self._world
        delay = world.stall_ms(self._process, number) + 5.0

        def arrive() -> None:
            world.note(f"LATE {self._process.name}#{number} {key}")
            effect()

        if world.scheduler.failure is None:
            world.scheduler.call_later(delay, arrive)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        fault, answer = self._request("create", key, partial(self._world.created, key, value))
        if fault in {"before", "after", "late"}:
            return Unresolved(f"simulated: {fault}")
        if fault == "refused":
            refusal = InvalidUsage("simulated: denied", code="ACCESS_DENIED")
            return Unresolved("simulated: denied", refusal)
        if fault in DAMAGE:
            self._process.unread[key] = fault
            return Unresolved("simulated: the answer is lost")
        if fault in {"phantom", "self-retry"}:
            return EXISTS
        assert answer is not None
        return answer

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        kept = bytes(value)
        fault, _ = self._request("put", key, partial(self._world.stored, key, kept))
        self._raise(fault)

    @override
    def delete(self, key: str) -> bool:
        fault, answer = self._request("delete", key, partial(self._world.deleted, key))
        self._raise(fault)
        return bool(answer)

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        pending = list(keys)
        if len(pending) > 1 and self._process.dice.roll(self._process.ops, 6) < 0.5:
            pending.reverse()
        for key in pending:
            self.delete(key)

    def _raise(self, fault: str) -> None:
        if fault in {"before", "after", "late"}:
            raise Indeterminate(f"simulated: {fault}")

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        fault, found = self._request("get", key, partial(self._look, key))
        if fault == "before":
            raise Determinate("simulated: no answer")
        return None if found is None else self._arrived(fault, key, found)[start:end]

    def _arrived(self, fault: str, key: str, stored: bytes) -> bytes:
        """What a reader gets of an object: it is whole, but not all that is read of it is."""
        process = self._process
        fault = process.unread.pop(key, fault)
        if self._world.calm or fault not in DAMAGE:
            return stored
        process.damages += 1
        if fault == "unreadable":
            raise Corrupt(f"simulated: '{key}' cannot be read back")
        return with_damaged_byte(stored)

    def _look(self, key: str) -> bytes | None:
        stored = self._world.objects.get(key)
        return None if stored is None else stored[0]

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        found: dict[str, bytes | None] = {}
        whole = self._process.dice.roll(self._process.ops, 7) < 0.8
        if whole or len(keys) == 1:
            fault, many = self._request(
                "get", f"{keys[0]} +{len(keys) - 1}", partial(self._all, keys)
            )
            if fault == "before":
                raise Determinate("simulated: no answer")
            assert many is not None
            return self._all_arrived(fault, keys, many)
        # Some of them now, and the others a little later, the last ones first.
        fault = ""
        for key in reversed(keys):
            if len(found) % 3 == 0:
                fault, _ = self._request("get", key, partial(self._look, key))
                if fault == "before":
                    raise Determinate("simulated: no answer")
            found[key] = self._look(key)
        return self._all_arrived(fault, keys, [found[key] for key in keys])

    def _all_arrived(
        self, fault: str, keys: Sequence[str], found: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """As `_arrived`; of many objects the first one suffers what befell the request."""
        faults = [fault, *[""] * len(keys)]
        return [
            None if value is None else self._arrived(each, key, value)
            for each, key, value in zip(faults, keys, found, strict=False)
        ]

    def _all(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._look(key) for key in keys]

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        value = self.get(key)
        return None if value is None else pa.BufferReader(value)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        page = 1 + int(self._process.dice.roll(self._process.ops, 8) * 6)
        last, left = start_after, limit
        while left is None or left > 0:
            fault, found = self._request("list", prefix, partial(self._page, prefix, last, page))
            if fault == "before":
                raise Determinate("simulated: no listing")
            assert found is not None
            for entry in found[:left]:
                yield entry
                if fault == "cut":
                    raise Determinate("simulated: the listing broke off")
            if len(found) < page:
                return
            last, left = found[-1].key, None if left is None else left - len(found)
            page = 1000

    def _page(self, prefix: str, last: str, size: int) -> list[BlobEntry]:
        keys = sorted(k for k in self._world.objects if k > last and k.startswith(prefix))
        some = ((key, *self._world.objects[key]) for key in keys[:size])
        return [BlobEntry(key, len(value), modified) for key, value, modified in some]

    @override
    def directories(self) -> list[str]:
        return sorted({key.partition("/")[0] for key in self._world.objects if "/" in key})

    @override
    def settle(self, directory: str) -> None:
        pass
