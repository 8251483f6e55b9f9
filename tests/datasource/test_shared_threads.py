"""Turns: given when they are due or asked for, one at a time for each, until they are over."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.clock import SystemClock
from shardline.datasource.shared_threads import TURNS, Turn, _Workers, in_few_threads
from support.fakes.clock import ManualClock
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NEVER_MS = 3_600_000.0


@pytest.fixture
def added() -> Iterator[Callable[[Callable[[], float | None]], Turn]]:
    """Adds turns, and takes them away."""
    made: list[Turn] = []

    def add(act: Callable[[], float | None]) -> Turn:
        turn = Turn(SystemClock(), act)
        made.append(turn)
        TURNS.add(turn)
        return turn

    yield add
    for turn in made:
        TURNS.remove(turn)


def test_the_first_turn_comes_at_once_and_the_next_when_it_is_due(
    added: Callable[[Callable[[], float | None]], Turn],
) -> None:
    taken: list[int] = []

    def act() -> float:
        taken.append(len(taken))
        return 1.0 if len(taken) < 5 else NEVER_MS

    added(act)

    wait_until("five turns", lambda: len(taken) == 5, 30)


def test_who_is_woken_has_a_turn_and_nobody_else(
    added: Callable[[Callable[[], float | None]], Turn],
) -> None:
    counts = {"one": 0, "other": 0}

    def act_of(name: str) -> Callable[[], float]:
        def act() -> float:
            counts[name] += 1
            return NEVER_MS

        return act

    one = added(act_of("one"))
    added(act_of("other"))
    wait_until("the first turns", lambda: counts == {"one": 1, "other": 1}, 30)

    one.set()

    wait_until("another turn", lambda: counts["one"] == 2, 30)
    assert counts["other"] == 1


def test_what_sets_a_turn_while_it_is_taken_causes_another_one_behind_it(
    added: Callable[[Callable[[], float | None]], Turn],
) -> None:
    inside, go_on, running, taken = threading.Event(), threading.Event(), [0], [0]

    def act() -> float:
        running[0] += 1
        assert running[0] == 1, "one at a time"
        inside.set()
        assert go_on.wait(30)
        running[0] -= 1
        taken[0] += 1
        return NEVER_MS

    turn = added(act)
    assert inside.wait(30)
    turn.set()
    turn.set()
    go_on.set()

    wait_until("the second turn", lambda: taken[0] == 2, 30)


def test_one_that_raises_is_called_again(
    added: Callable[[Callable[[], float | None]], Turn], caplog: pytest.LogCaptureFixture
) -> None:
    taken = [0]

    def act() -> float | None:
        taken[0] += 1
        if taken[0] == 1:
            raise RuntimeError("of the moment")
        return None

    added(act)

    wait_until("another turn", lambda: taken[0] == 2, 30)
    assert "a turn has failed" in caplog.text


def test_the_thread_ends_with_the_last_turn(
    added: Callable[[Callable[[], float | None]], Turn],
) -> None:
    ended, taken = added(lambda: None), [0]

    def act() -> float:
        taken[0] += 1
        return NEVER_MS

    removed = added(act)
    wait_until("both turns", lambda: taken[0] == 1 and ended.is_over, 30)
    TURNS.remove(removed)

    wait_until("the end of the thread", _are_gone, 30)
    added(act)
    wait_until("a turn by a new one", lambda: taken[0] == 2, 30)


def test_a_thread_that_cannot_be_started_is_an_error_and_no_lasting_one(
    added: Callable[[Callable[[], float | None]], Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a limit of processes that was reached for a moment nothing must be left."""
    taken = [0]

    def act() -> None:
        taken[0] += 1

    wait_until("the end of all threads", _are_gone, 30)
    for left in (0, 1):
        with monkeypatch.context() as patch:
            _few_threads(patch, left)
            with pytest.raises(RuntimeError, match="can't start"):
                added(act)
    added(act)

    wait_until("a turn", lambda: taken[0] >= 1, 30)


def test_fewer_threads_than_wanted_serve_all(
    added: Callable[[Callable[[], float | None]], Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [0] * 5
    wait_until("the end of all threads", _are_gone, 30)
    _few_threads(monkeypatch, 2)

    def act_of(number: int) -> Callable[[], float]:
        def act() -> float:
            taken[number] += 1
            return NEVER_MS  # the threads end when nobody is left

        return act

    for number in range(5):
        added(act_of(number))

    wait_until("a turn of each", lambda: min(taken) == 1, 30)


def test_what_is_done_soon_is_done_by_one_thread_and_others_join_when_it_is_not() -> None:
    clock, names, go_on = ManualClock(0), list[str](), threading.Event()
    workers = _Workers("few", clock)

    def act() -> None:
        names.append(threading.current_thread().name)

    try:
        workers.due.extend([act] * 40)
        wait_ms = workers.hand_over()
        wait_until("all acts", lambda: len(names) == 40, 30)
        assert set(names) == {"few-1"}

        clock.advance(int(wait_ms))
        wait_until("the end of the work", lambda: workers.hand_over() == inf, 30)
        workers.due.extend([lambda: _wait(go_on), *[act] * 3])
        wait_ms = workers.hand_over()
        wait_until("the first act", lambda: len(workers.due) == 3, 30)
        assert 0 < workers.hand_over() <= wait_ms, "nobody joins yet"
        clock.advance(int(wait_ms))
        workers.hand_over()
        wait_until("the other acts", lambda: len(names) == 43, 30)
        assert set(names[40:]) == {"few-2"}
    finally:
        go_on.set()
        workers.close()


def test_an_act_that_hangs_keeps_no_other_waiting(
    added: Callable[[Callable[[], float | None]], Turn],
) -> None:
    go_on, taken = threading.Event(), [0]

    def act() -> float:
        taken[0] += 1
        return NEVER_MS

    try:
        for _ in range(3):
            added(lambda: _wait(go_on))
        added(act)
        wait_until("the turn of the last", lambda: taken[0] == 1, 30)
    finally:
        go_on.set()


def test_each_item_is_done_once_also_while_one_hangs() -> None:
    done, last = list[int](), threading.Event()

    def act(item: int) -> None:
        if item == 0:
            _wait(last)
        done.append(item)
        if item == 99:
            last.set()

    with ThreadPoolExecutor(8) as pool:
        in_few_threads(pool, act, range(100))

    assert sorted(done) == list(range(100))


def test_the_error_of_an_item_is_raised_when_all_others_are_done() -> None:
    done = list[float]()
    with ThreadPoolExecutor(8) as pool, pytest.raises(ZeroDivisionError):
        in_few_threads(pool, lambda item: done.append(1 / item), [0, 1, 2])

    assert done == [1, 0.5]


def test_items_are_done_where_no_other_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, tried = list[int](), threading.Event()
    submit = ThreadPoolExecutor.submit

    def refuse(pool: ThreadPoolExecutor, act: Callable[[], None]) -> Future[None]:
        if pool._threads:
            tried.set()
            raise RuntimeError("can't start new thread")
        return submit(pool, act)

    def act(item: int) -> None:
        if item == 0:
            _wait(tried)
        done.append(item)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    with ThreadPoolExecutor(8) as pool:
        in_few_threads(pool, act, range(3))

    assert done == [0, 1, 2]


def test_a_thread_that_could_not_be_started_comes_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One act hangs, and for a while there are no threads for the others."""
    clock, done, go_on = ManualClock(0), list[int](), threading.Event()
    workers = _Workers("few", clock)
    try:
        workers.due.extend([lambda: _wait(go_on), lambda: done.append(1)])
        workers.hand_over()
        wait_until("the first act", lambda: len(workers.due) == 1, 30)
        with monkeypatch.context() as patch:
            _few_threads(patch, 0)
            for _ in range(20):
                clock.advance(50)
                workers.hand_over()
        clock.advance(50)
        workers.hand_over()
        wait_until("the other act", lambda: done == [1], 30)
    finally:
        go_on.set()
        workers.close()


def _wait(for_it: threading.Event) -> None:
    assert for_it.wait(60)


def _are_gone() -> bool:
    return not any(one.name == "turns" for one in threading.enumerate())


def _few_threads(patch: pytest.MonkeyPatch, left: int) -> None:
    """So many threads more can be started."""
    start = threading.Thread.start
    counts = [left]

    def refuse(thread: threading.Thread) -> None:
        if not counts[0]:
            raise RuntimeError("can't start new thread")
        counts[0] -= 1
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)
