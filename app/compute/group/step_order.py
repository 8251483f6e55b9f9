"""Makes calls in the order of their dependencies, as many at a time as a pool has threads.

    left = call_in_order({"a": (), "b": ("a",)}, call, pool, clock, patience_ms=5_000)

A call that does not return must not keep the others: when nothing has ended for as long as the
patience, all that have begun have taken that long, and the caller goes on without them. They are
not interrupted, which nobody can do.

Invariants:
    No call begins before all that it depends on have returned.
    After the return no call begins any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from shardline.app.lane.effects import Pool
from shardline.datasource.clock import Clock

__all__ = ["Left", "call_in_order"]


@dataclass(frozen=True, slots=True)
class Left:
    """The calls of a round that have not returned.

    Attributes:
        late: Calls that have begun and not returned.
        waiting: Calls that have not begun.
    """

    late: frozenset[str]
    waiting: frozenset[str]


def call_in_order(
    depends: Mapping[str, Iterable[str]],
    call: Callable[[str], None],
    pool: Pool,
    clock: Clock,
    *,
    patience_ms: float,
) -> Left:
    """Make all calls; return those that are left when nothing has ended for `patience_ms`.

    Args:
        depends: Names of what each depends on, in the order in which those begin that can; names
            that are no keys do not count. Without circles.
        call: Called with each name, in threads of the pool; must not raise.
        pool: Runs the calls.
        clock: Of the wait.
        patience_ms: How long nothing may end.
    """
    return _Round(depends, call).run(pool, clock, patience_ms)


class _Round:
    """The calls of one round. What their threads change is changed under the lock."""

    def __init__(self, depends: Mapping[str, Iterable[str]], call: Callable[[str], None]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self._begun: set[str] = set()
        self._returned: set[str] = set()
        self._needs = {
            name: {needed for needed in needs if needed in depends}
            for name, needs in depends.items()
        }

    def run(self, pool: Pool, clock: Clock, patience_ms: float) -> Left:
        asked: set[str] = set()
        while True:
            with self._lock:
                self._ended.clear()
                returned = frozenset(self._returned)
            if len(returned) == len(self._needs):
                break
            for name, needs in self._needs.items():
                if name not in asked and needs <= returned:
                    asked.add(name)
                    pool.run(partial(self._one, name))
            if not clock.wait(self._ended, patience_ms):
                with self._lock:
                    # Under the lock: what ends at this moment is counted, or was not in time.
                    self._given_up = not self._ended.is_set()
                if self._given_up:
                    break
        with self._lock:
            late = frozenset(self._begun - self._returned)
            return Left(late, frozenset(self._needs.keys() - self._begun))

    def _one(self, name: str) -> None:
        with self._lock:
            if self._given_up:
                return
            self._begun.add(name)
        try:
            self._call(name)
        finally:
            with self._lock:
                self._returned.add(name)
                self._ended.set()
