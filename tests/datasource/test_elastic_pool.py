"""An elastic pool: one thread for calls that end at once, and more beside one that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from shardline.datasource.clock import SystemClock
from shardline.datasource.elastic_pool import ElasticPool
from support.fakes.clock import ManualClock
from support.waiting import wait_until

_PATIENCE_S = 60


@pytest.fixture
def pool() -> Iterator[ElasticPool]:
    found = ElasticPool("calls", 4, SystemClock())
    yield found
    found.shutdown()


def test_calls_that_end_at_once_share_a_thread() -> None:
    """By a clock that stands still none takes any time, however long the machine takes."""
    pool = ElasticPool("calls", 4, ManualClock())
    running, most, lock = 0, 0, threading.Lock()

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return number * 2

    for _ in range(5):
        assert pool.map(call, range(200)) == [number * 2 for number in range(200)]
    pool.shutdown()
    assert most == 1


def test_a_call_that_hangs_delays_no_other(pool: ElasticPool) -> None:
    """Up to as many as there may be threads; one more waits until one of them ends."""
    goes_on = threading.Event()
    begun: list[int] = []
    done = threading.Event()

    def hang(number: int) -> None:
        begun.append(number)
        goes_on.wait(_PATIENCE_S)

    for number in range(3):
        pool.submit(partial(hang, number))
    pool.submit(done.set)
    assert done.wait(_PATIENCE_S)
    assert begun == [0, 1, 2]
    pool.submit(lambda: hang(3))
    wait_until("all threads hang", lambda: len(begun) == 4, _PATIENCE_S)
    done.clear()
    pool.submit(done.set)
    goes_on.set()
    assert done.wait(_PATIENCE_S)


def test_a_call_that_hangs_delays_the_others_once() -> None:
    """Not each of them: time passes once, and all of them are run."""
    clock = ManualClock()
    pool = ElasticPool("calls", 4, clock)
    hangs, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait(_PATIENCE_S)

    pool.submit(hang)
    assert hangs.wait(_PATIENCE_S)
    ran: list[int] = []
    for number in range(50):
        pool.submit(partial(ran.append, number))
    pool.submit(done.set)
    assert ran == []
    clock.advance(20)
    assert done.wait(_PATIENCE_S)
    assert ran == list(range(50))
    goes_on.set()
    pool.shutdown()


def test_calls_that_wait_keep_all_threads() -> None:
    """Each of these waits for three others, again and again."""
    clock = ManualClock()
    pool = ElasticPool("calls", 4, clock)
    together = threading.Barrier(4, lambda: clock.advance(20))

    def call() -> None:
        # Whoever waits longest lets the next thread come.
        clock.advance(20)
        together.wait(_PATIENCE_S)

    for _ in range(5 * 4):
        pool.submit(call)
    pool.shutdown()
    assert not together.broken


def test_every_call_is_run_once_by_however_many_threads() -> None:
    """Submitted by several threads at once, while some hang; in the end few threads are left."""
    pool = ElasticPool("calls", 4, SystemClock())
    count = 3_000
    seen = [0] * count
    slow = threading.Event()

    def call(number: int) -> None:
        if number % 1_000 == 500:
            slow.wait(0.02)
        seen[number] += 1

    def submit(first: int) -> None:
        for number in range(first, count, 3):
            pool.submit(partial(call, number))

    submitters = [threading.Thread(target=submit, args=(first,)) for first in range(3)]
    for thread in submitters:
        thread.start()
    for thread in submitters:
        thread.join()
    wait_until("all were run", lambda: sum(seen) == count, _PATIENCE_S)
    assert set(seen) == {1}
    wait_until("few are left", lambda: len(pool._threads) <= 2, _PATIENCE_S)
    pool.shutdown()
    assert not pool._threads


def test_what_is_submitted_is_run_before_the_end(pool: ElasticPool) -> None:
    """And nothing after it."""
    ran: list[int] = []
    for number in range(50):
        pool.submit(partial(ran.append, number))
    pool.shutdown()
    assert ran == list(range(50))
    with pytest.raises(RuntimeError, match="'calls' was shut down"):
        pool.submit(lambda: None)


def test_a_call_that_fails_stops_nobody_else(pool: ElasticPool) -> None:
    """The first error of what `map` calls is raised once all others have ended."""
    done: list[int] = []

    def call(number: int) -> None:
        if number in {2, 4}:
            raise ValueError(f"call {number}")
        done.append(number)

    with pytest.raises(ValueError, match="call 2"):
        pool.map(call, range(6))
    assert sorted(done) == [0, 1, 3, 5]
    pool.submit(lambda: call(2))
    assert pool.map(str, [7]) == ["7"]
    assert pool.map(str, []) == []
