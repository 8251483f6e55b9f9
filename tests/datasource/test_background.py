"""Background threads: stopped for certain, woken without delay, and never ended without a word."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from typing_extensions import override

from shardline.datasource.background import BackgroundThread, DaemonPool, PeriodicThread
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate
from support.fakes.clock import ManualClock, RecordingClock

HOUR_MS = 3600 * 1000.0
SOON_MS = 30_000.0


def steps(*answers: float | Exception | None) -> Callable[[], float | None]:
    """A step that returns or raises these, one after the other."""
    left = list(answers)

    def step() -> float | None:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return step


@pytest.mark.parametrize(
    ("error", "level"), [(ValueError("a bug"), "ERROR"), (Determinate("no answer"), "WARNING")]
)
def test_a_step_that_raises_is_logged_and_tried_again(
    error: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After the pause for that; the error is reported, and kept until a step succeeds."""
    clock, found, kept = RecordingClock(), list[Exception](), list[Exception | None]()
    answers = steps(7.0, error, 5.0, None)

    def step() -> float | None:
        kept.append(thread.error)
        return answers()

    thread = PeriodicThread(
        "a keeper", step, clock, retry_ms=3.0, first_ms=11.0, on_error=found.append
    )
    thread.start()
    assert thread.join(SOON_MS)
    assert clock.waited == [11.0, 7.0, 3.0, 5.0]
    assert kept == [None, None, error, None]
    assert found == [error]
    (record,) = caplog.records
    assert record.levelname == level
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert record.__dict__["context"] == {"thread": "a keeper"}


def test_whoever_is_told_of_an_error_cannot_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What `on_error` raises is logged, too, and the next step is taken."""

    def refuse(_: Exception) -> None:
        raise KeyError("told")

    step = steps(ValueError("one"), ValueError("two"), None)
    thread = PeriodicThread("a keeper", step, RecordingClock(), retry_ms=1.0, on_error=refuse)
    thread.start()
    assert thread.join(SOON_MS)
    assert [r.message for r in caplog.records] == [
        "a background run failed",
        "an error was not taken",
    ] * 2


def test_a_function_that_raises_ends_its_thread_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ran once: whoever waits for its work must hear that there is none."""
    found = list[Exception]()

    def run() -> None:
        raise ValueError("a bug")

    thread = BackgroundThread("a follower", run, on_error=found.append)
    thread.start()
    assert thread.join(SOON_MS)
    assert [str(error) for error in found] == ["a bug"]
    assert thread.error is found[0]
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("ERROR", "a background run failed")
    ]


def test_a_clock_that_fails_ends_the_thread_with_an_entry_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a pause the step would be repeated without one: it ends, and not in silence."""

    class Broken(ManualClock):
        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            raise OSError("no clock")

    thread = PeriodicThread("a keeper", steps(1.0), Broken(), retry_ms=1.0)
    thread.start()
    assert thread.join(SOON_MS)
    assert isinstance(thread.error, OSError)
    assert [r.levelname for r in caplog.records] == ["ERROR"]


def test_a_stop_ends_a_pause_and_may_be_repeated() -> None:
    """It returns once the thread has ended, and returns the same when asked again."""
    stepped = threading.Event()

    def step() -> float:
        stepped.set()
        return HOUR_MS

    thread = PeriodicThread("a keeper", step, SystemClock(), retry_ms=1.0)
    assert not thread.is_running
    thread.start()
    assert stepped.wait(30)
    assert thread.is_running
    assert thread.stop(SOON_MS)
    assert thread.stop(SOON_MS)
    assert not thread.is_running


def test_what_was_stopped_before_its_start_takes_no_step() -> None:
    """A stop needs no thread, and one that starts after it ends at once."""
    thread = PeriodicThread("a keeper", steps(), SystemClock(), retry_ms=1.0, first_ms=HOUR_MS)
    assert thread.stop()
    thread.start()
    assert thread.join(SOON_MS)
    assert thread.error is None


def test_a_thread_may_stop_itself() -> None:
    """It does not wait for its own end, and takes no further step."""
    said = list[bool]()

    def step() -> float:
        said.append(thread.stop())
        return 0.0

    thread = PeriodicThread("a keeper", step, SystemClock(), retry_ms=1.0)
    thread.start()
    assert thread.join(SOON_MS)
    assert said == [False]


def test_a_stop_that_takes_too_long_says_so() -> None:
    """The thread runs on, and is waited for by the next stop."""
    begun, gate = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        gate.wait(30)

    thread = BackgroundThread("a follower", run)
    thread.start()
    assert begun.wait(30)
    assert not thread.stop(1.0)
    assert thread.stopping.is_set()
    gate.set()
    assert thread.stop(SOON_MS)


def test_a_signal_during_a_step_causes_another_one() -> None:
    """Whatever the pause was to be; one between two steps causes one, and not two."""
    taken = list[int]()
    second = threading.Event()

    def step() -> float:
        taken.append(len(taken))
        if len(taken) == 1:
            thread.wake.set()
        else:
            second.set()
        return HOUR_MS

    thread = PeriodicThread("a keeper", step, SystemClock(), retry_ms=1.0)
    thread.start()
    assert second.wait(30)
    assert thread.stop(SOON_MS)
    assert taken == [0, 1]


def test_a_step_that_clears_the_signal_loses_no_stop() -> None:
    """The flag is asked before each pause: the signal of `stop` may be gone by then."""
    begun, gate = threading.Event(), threading.Event()

    def step() -> float:
        begun.set()
        gate.wait(30)
        thread.wake.clear()
        return HOUR_MS

    thread = PeriodicThread("a keeper", step, SystemClock(), retry_ms=1.0)
    thread.start()
    assert begun.wait(30)
    thread.cancel()
    gate.set()
    assert thread.join(SOON_MS)


def test_the_flag_is_set_before_the_signal() -> None:
    """A thread that is woken by a stop must find that it is one."""
    seen = list[bool]()

    class Signal(threading.Event):
        @override
        def set(self) -> None:
            seen.append(flag.is_set())
            super().set()

    flag = threading.Event()
    thread = BackgroundThread("a follower", lambda: None, stopping=flag, wake=Signal())
    thread.stop()
    assert seen == [True]


@pytest.mark.parametrize("how", ["stopped", "ended"])
def test_what_is_left_over_is_finished_after_the_last_step(how: str) -> None:
    """Once, when it is stopped; a step that ends the thread has left nothing over."""
    acts = list[str]()

    def step() -> float | None:
        acts.append("step")
        thread.cancel() if how == "stopped" else None
        return HOUR_MS if how == "stopped" else None

    thread = PeriodicThread(
        "a keeper", step, SystemClock(), retry_ms=1.0, last=lambda: acts.append("last")
    )
    thread.start()
    assert thread.join(SOON_MS)
    assert acts == (["step", "last"] if how == "stopped" else ["step"])


def test_the_clock_of_tests_stands_still_for_threads_in_the_background() -> None:
    """A test's own wait lets time pass; a timer's takes until it is woken, and no time."""
    clock, waited = ManualClock(), list[bool]()

    class WokenAtOnce(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return super().wait(timeout)

    def wait() -> None:
        waited.append(clock.wait(WokenAtOnce(), HOUR_MS))

    timer = BackgroundThread("a timer", wait)
    timer.start()
    assert timer.join(SOON_MS)
    assert (waited, clock.elapsed_ms()) == ([True], 0)
    wait()
    assert (waited, clock.elapsed_ms()) == ([True, False], HOUR_MS)


def test_a_pool_acts_in_order_and_is_not_ended_by_what_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, seen, ended = DaemonPool("one", 1), list[int](), threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    pool.run(fail)
    for number in range(5):
        pool.run(lambda number=number: seen.append(number))  # type: ignore[misc]
    pool.run(ended.set)

    assert ended.wait(30)
    assert seen == [0, 1, 2, 3, 4]
    assert "what a pool runs has raised" in caplog.text
    pool.close()


def test_a_pool_has_as_many_threads_as_it_needs_up_to_a_bound() -> None:
    """One that hangs takes its own thread from the others, and none keeps the process."""
    pool, go_on = DaemonPool("few", 2), threading.Event()
    threads, ended = list[threading.Thread](), threading.Event()
    both = threading.Barrier(2)

    def hang() -> None:
        threads.append(threading.current_thread())
        both.wait(30)
        go_on.wait(30)

    pool.run(hang)
    pool.run(hang)
    pool.run(ended.set)
    assert not ended.wait(0.05)
    assert not pool.wait_until_done(0)
    go_on.set()

    assert ended.wait(30)
    assert len({one.ident for one in threads}) == 2
    assert all(one.daemon for one in threads)
    assert pool.wait_until_done(30)
    pool.close()


def test_a_pool_makes_do_with_the_threads_that_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was refused is not called later, and what was accepted is."""
    start, left, done = threading.Thread.start, [0], list[str]()

    def refuse(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool, ended = DaemonPool("few", 4), threading.Event()
    with pytest.raises(RuntimeError, match="can't start"):
        pool.run(lambda: done.append("refused"))
    left[0] = 1
    for number in range(4):
        pool.run(lambda number=number: done.append(str(number)))  # type: ignore[misc]
    pool.run(ended.set)

    assert ended.wait(30)
    assert done == ["0", "1", "2", "3"]
    pool.close()
