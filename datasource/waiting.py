"""Waiting repeats a look, or a request that failed, until it succeeds or its budget is spent.

    found = poll_until(look, clock, cancelled, timeout_ms=60_000, poll_ms=100)

    _RETRIES: Final = RetryPolicy(first_ms=50, longest_ms=2000, attempts_max=6)

    budget = _RETRIES.begin(clock, ids, stopping)
    while True:
        try:
            return store.get(key)
        except Determinate:
            if not budget.pause():
                raise

    for _ in _RETRIES.begin(clock, ids).attempts():
        …                                                   return, or fall through to try again
    raise Determinate("…")

A loop made by hand has a count, a deadline, a pause that grows and jitter, each a little different,
and mostly one of them is missing. What may be repeated at all is for the caller to know, and so is
what to raise in the end: a budget only says that there must not be another attempt. It takes no
errors, so that none can be lost in it. One whose outcome is unknown outlives the attempts after it.

Two things are no such loops. A race for the next record of a log: whoever doubles the pauses there
loses it again and again (`shard.backoff`). And a step that begins again, at once, from a newer
state because the one it saw has moved on: nothing failed, there is nothing to wait for, and the
loop only counts how often (`_RACES_MAX`, `_LOOKS_MAX` and the like).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from shardline.datasource.clock import Clock, IdGenerator

__all__ = ["RetryBudget", "RetryPolicy", "poll_until"]

T = TypeVar("T")

_POLL_FIRST_MS: Final = 1.0

_GROWTHS_MAX: Final = 64
"""A pause grows no more after so many failures; a number that went on growing would overflow."""


def poll_until(
    look: Callable[[], T | None],
    clock: Clock,
    cancelled: threading.Event,
    *,
    poll_ms: float,
    timeout_ms: float = math.inf,
) -> T | None:
    """Call `look` until it returns a value; None after `timeout_ms`, or when cancelled.

    Args:
        look: Called at once, then after pauses that double from 1 ms up to `poll_ms`.
        clock: Measures and waits.
        cancelled: Ends the waiting when it is set.
        poll_ms: Longest pause between two calls, > 0.
        timeout_ms: Longest wait; 0 looks once.
    """
    deadline = clock.elapsed_ms() + timeout_ms
    pause_ms = _POLL_FIRST_MS
    while not cancelled.is_set():
        # Before the deadline is compared: a timeout of 0 means one look, not none; and a look that
        # took longer than the timeout counts.
        found = look()
        if found is not None:
            return found
        left_ms = deadline - clock.elapsed_ms()
        if left_ms <= 0:
            return None
        clock.wait(cancelled, min(pause_ms, left_ms))
        pause_ms = min(pause_ms * 2, poll_ms)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how long and with which pauses a kind of request is attempted.

    Attributes:
        first_ms: The pause after the first failure, before jitter.
        longest_ms: No pause is longer, before jitter. Equal to `first_ms`: all pauses are equal.
        grows: Each pause is so many times the one before.
        attempts_max: Attempts in all, the first one included; None for any number.
        limit_ms: No attempt begins later than this after the first one.
    """

    first_ms: float
    longest_ms: float
    grows: float = 2.0
    attempts_max: int | None = None
    limit_ms: float = math.inf

    def pause_ms(self, failures: int, jitter: float) -> float:
        """The pause after so many failures in a row, times 0.5 to 1.5.

        Args:
            failures: >= 1.
            jitter: A random number in [0, 1): clients that failed together must not come back
                together.
        """
        grown = self.first_ms * self.grows ** min(failures - 1, _GROWTHS_MAX)
        return min(grown, self.longest_ms) * (0.5 + jitter)

    def begin(
        self,
        clock: Clock,
        ids: IdGenerator,
        stopping: threading.Event | None = None,
        *,
        gives_up_at: float | None = None,
    ) -> RetryBudget:
        """The budget of one request, whose first attempt begins now.

        Args:
            clock: Measures and waits.
            ids: Where the jitter comes from.
            stopping: Ends a pause, and allows no attempt after it, when it is set.
            gives_up_at: The end of a request that this one is a part of, by the clock's
                `elapsed_ms`; None for `limit_ms` from now.
        """
        # Every wait has a limit, and no loop is a busy one.
        assert self.attempts_max is not None or self.limit_ms < math.inf, self
        assert 0 < self.first_ms <= self.longest_ms, self
        if gives_up_at is None:
            gives_up_at = clock.elapsed_ms() + self.limit_ms
        return RetryBudget(self, clock, ids, stopping or threading.Event(), gives_up_at)


@dataclass(slots=True)
class RetryBudget:
    """What is left of the attempts at one request; made by `RetryPolicy.begin`.

    Attributes:
        policy: Says how many there are.
        clock: Measures and waits.
        ids: Where the jitter comes from.
        stopping: Ends it.
        gives_up_at: Nothing is attempted after this, by the clock's `elapsed_ms`.
        failures: Attempts that failed.
    """

    policy: RetryPolicy
    clock: Clock
    ids: IdGenerator
    stopping: threading.Event
    gives_up_at: float
    failures: int = 0

    def pause(self) -> bool:
        """Wait after an attempt that failed; False if there must not be another one.

        It is False at once when attempts or time are spent, and as soon as `stopping` is set.
        """
        self.failures += 1
        attempts_max, left_ms = self.policy.attempts_max, self.gives_up_at - self.clock.elapsed_ms()
        if left_ms <= 0 or (attempts_max is not None and self.failures >= attempts_max):
            return False
        pause_ms = self.policy.pause_ms(self.failures, self.ids.jitter())
        # Cut, so that the last attempt is at the limit and not up to a pause after it.
        return not self.clock.wait(self.stopping, min(pause_ms, left_ms))

    def attempts(self) -> Iterator[int]:
        """Number the attempts from 1, with a pause before each but the first."""
        yield 1
        while self.pause():
            yield self.failures + 1
