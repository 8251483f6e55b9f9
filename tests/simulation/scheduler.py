"""A deterministic scheduler: many fibers, one of them running, and a time that is made up.

The code under test is synchronous, so a *fiber* is a thread; but only the one that has the baton
runs. It hands the baton on wherever it meets the world: at each request to the store, at each wait
of its clock, at a lock. Who gets it is decided by virtual time alone: everybody who waits has a
moment at which it goes on, and the earliest is next. What decides an interleaving is therefore how
long each request takes, which is drawn from the seed, for each fiber by itself: when one of them
is left out, the others take as long as before. That is what makes a failing run shrink.

Invariants:
    One fiber runs at a time, so that a run is a function of its seed: no other thread, such as
        one of a pool, asks for anything.
    A killed fiber touches nothing any more: every call here raises `Crash`.
    A run ends: after `events_max` events it has failed to make progress.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from support.models.shards import Crash

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["EVENTS_MAX", "Fiber", "Scheduler", "SimLock", "Violation"]

EVENTS_MAX: Final = 60_000
"""Of one run; the longest ones that end take a tenth of it."""


class Violation(BaseException):
    """Something that must never be was seen. Nobody in the code under test may catch it."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class Fiber:
    """One thread of control of a simulated process."""

    def __init__(self, name: str, program: Callable[[], None], process: object) -> None:
        self.name = name
        self.process = process
        self.dead = False
        self.done = False
        self.ticket = 0
        self.paused_until_ms = 0.0
        self.signal: threading.Event | None = None
        self.joiners: list[Fiber] = []
        self.thread = 0
        self.program = program
        self.baton = threading.Lock()
        self.baton.acquire()


class Scheduler:
    """Runs fibers, one at a time, in the order of virtual time."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self.now_ms = 0.0
        self.events = 0
        self.failure: BaseException | None = None
        self.current: Fiber | None = None
        self._events_max = events_max
        self._strangers: set[str] = set()
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, Fiber | Callable[[], None], int]] = []
        self._fibers: list[Fiber] = []
        self._ended = threading.Lock()
        self._ended.acquire()

    # -- from outside of fibers ------------------------------------------------------------------

    def run(self) -> None:
        """Run until nobody has anything left to do, or something has failed."""
        first = self._next()
        if first is not None:
            first.baton.release()
            self._ended.acquire()
        self.current = None
        for fiber in self._fibers:
            self._bury(fiber)
        self._fibers.clear()
        self._queue.clear()
        # No failure of the code under test, which is what is looked for.
        assert not self._strangers, f"threads that are no fibers: {self._strangers}"

    def _bury(self, fiber: Fiber) -> None:
        """Let a fiber that is left over come to its end."""
        fiber.dead = True
        if not fiber.done:
            fiber.baton.release()
            self._ended.acquire()

    # -- from anywhere ---------------------------------------------------------------------------

    def spawn(
        self, name: str, program: Callable[[], None], process: object, delay_ms: float = 0.0
    ) -> Fiber:
        """A fiber that starts `delay_ms` from now."""
        fiber = Fiber(name, program, process)
        self._fibers.append(fiber)
        self._schedule(fiber, delay_ms)
        threading.Thread(target=self._live, args=(fiber,), name=name, daemon=True).start()
        return fiber

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        """Run `call` then, between the steps of fibers; it must not wait."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._numbers), call, 0))

    def kill(self, fiber: Fiber) -> None:
        """The fiber is gone: whatever it does next raises `Crash`."""
        if not fiber.done and not fiber.dead:
            fiber.dead = True
            if fiber is not self.current:
                self._schedule(fiber, 0.0)

    def fail(self, error: BaseException) -> None:
        """End the run with this failure; the first one counts."""
        if self.failure is None:
            self.failure = error

    def wake(self, fiber: Fiber) -> None:
        """Let a fiber that waits go on at once."""
        self._schedule(fiber, 0.0)

    # -- from the running fiber ------------------------------------------------------------------

    def sleep(self, delay_ms: float) -> None:
        """Let time pass, and others run."""
        self._schedule(self._me(), delay_ms)
        self._switch()

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        """Sleep until `signal` is set by `set_signal`, or the time is over."""
        me = self._me()
        if not signal.is_set():
            me.signal = signal
            self.sleep(timeout_ms)
            me.signal = None
        return signal.is_set()

    def set_signal(self, signal: threading.Event) -> None:
        """Set an event, and wake who waits for it."""
        signal.set()
        for fiber in self._fibers:
            if fiber.signal is signal:
                self.wake(fiber)

    def park(self) -> None:
        """Wait until somebody wakes this fiber."""
        self._me().ticket += 1
        self._switch()

    def join(self, fiber: Fiber) -> None:
        """Wait for the end of a fiber."""
        while not fiber.done:
            fiber.joiners.append(self._me())
            self.park()

    def _me(self) -> Fiber:
        me = self.current
        if me is None or me.dead or self.failure is not None:
            raise Crash("a killed process asked for something")
        if me.thread != threading.get_ident():
            # Two of them at once would hand the baton on twice.
            self._strangers.add(threading.current_thread().name)
            raise Crash("a thread that is no fiber asked for something")
        return me

    # -- the baton -------------------------------------------------------------------------------

    def _schedule(self, fiber: Fiber, delay_ms: float) -> None:
        fiber.ticket += 1
        when = self.now_ms + max(delay_ms, 0.0)
        heapq.heappush(self._queue, (when, next(self._numbers), fiber, fiber.ticket))

    def _next(self) -> Fiber | None:
        """Whose turn it is; None at the end of the run."""
        while self._queue and self.failure is None:
            when, _, what, ticket = heapq.heappop(self._queue)
            if isinstance(what, Fiber) and (what.done or what.ticket != ticket):
                continue
            self.now_ms = max(self.now_ms, when)
            self.events += 1
            if self.events > self._events_max:
                self.fail(Violation("progress", f"{self.events} events and no end"))
            elif not isinstance(what, Fiber):
                self.current = None
                self._guarded(what)
            elif what.paused_until_ms > self.now_ms and not what.dead:
                self._schedule(what, what.paused_until_ms - self.now_ms)
            else:
                self.current = what
                return what
        return None

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever started the run reports it
            self.fail(error)

    def _switch(self) -> None:
        me = self.current
        assert me is not None
        after = self._next()
        if after is not me:
            self._hand_to(after)
            me.baton.acquire()
        if me.dead or self.failure is not None:
            raise Crash(me.name)

    def _hand_to(self, fiber: Fiber | None) -> None:
        if fiber is None:
            self._ended.release()
        else:
            fiber.baton.release()

    def _live(self, fiber: Fiber) -> None:
        fiber.thread = threading.get_ident()
        fiber.baton.acquire()
        ended = self.failure is not None
        if not fiber.dead and not ended:
            self._guarded(fiber.program)
        fiber.done = True
        for joiner in fiber.joiners:
            if not joiner.done:
                self.wake(joiner)
        # One that is buried hands the baton back to the grave digger.
        self._hand_to(None if self.current is not fiber else self._next())


class SimLock:
    """A mutual exclusion between fibers, first come first served."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Fiber | None = None
        self._waiting: deque[Fiber] = deque()

    def __enter__(self) -> bool:
        me = self._scheduler.current
        if me is None:
            return True  # nobody else runs
        while self._owner is not None:
            self._waiting.append(me)
            self._scheduler.park()
        self._owner = me
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done and not waiting.dead:
                self._scheduler.wake(waiting)
                return
