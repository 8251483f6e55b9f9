"""Waits with budgets: so many attempts, so long, with pauses that grow and differ."""

from __future__ import annotations

import threading

import pytest
from typing_extensions import override

from shardline.datasource.waiting import RetryPolicy, poll_until
from support.fakes.clock import RecordingClock, SeededIds


class Middle(SeededIds):
    """Jitter that changes nothing."""

    @override
    def jitter(self) -> float:
        return 0.5


def test_attempts_are_counted_and_pauses_grow_up_to_the_longest() -> None:
    """The first attempt counts: of five, there are four pauses; no pause comes after the last."""
    clock = RecordingClock()
    policy = RetryPolicy(first_ms=10, longest_ms=100, attempts_max=5, grows=3.0)
    budget = policy.begin(clock, Middle())
    assert [budget.pause() for _ in range(6)] == [True] * 4 + [False] * 2
    assert clock.waited == [10, 30, 90, 100]


def test_each_request_has_a_budget_of_its_own() -> None:
    """What one has spent, the next one has again."""
    clock = RecordingClock()
    policy = RetryPolicy(first_ms=10, longest_ms=40, attempts_max=3)
    for _ in range(2):
        assert list(policy.begin(clock, Middle()).attempts()) == [1, 2, 3]
    assert clock.waited == [10, 20, 10, 20]


def test_pauses_are_jittered_by_half() -> None:
    """Many clients that failed together do not come back together."""
    clock = RecordingClock()
    budget = RetryPolicy(first_ms=100, longest_ms=100, attempts_max=51).begin(clock, SeededIds(3))
    assert all(budget.pause() for _ in range(50))
    assert len(set(clock.waited)) == 50
    assert 50 <= min(clock.waited) < 70
    assert 130 < max(clock.waited) < 150


def test_the_last_attempt_is_at_the_limit_and_none_after_it() -> None:
    """Also when attempts are left: the pause that would go beyond the limit is cut."""
    clock = RecordingClock()
    clock.advance(7)
    budget = RetryPolicy(first_ms=10, longest_ms=10, limit_ms=25).begin(clock, Middle())
    assert [budget.pause() for _ in range(4)] == [True, True, True, False]
    assert clock.waited == [10, 10, 5]
    assert clock.elapsed_ms() == 32


def test_an_attempt_that_took_all_the_time_was_the_last() -> None:
    """A server that accepts requests and never answers is given up."""
    clock = RecordingClock()
    budget = RetryPolicy(first_ms=10, longest_ms=10, limit_ms=25).begin(clock, Middle())
    clock.advance(30)
    assert not budget.pause()
    assert clock.waited == []


def test_a_part_of_a_request_has_no_more_time_than_the_whole() -> None:
    """Its end counts, and not one that begins with the part."""
    clock = RecordingClock()
    policy = RetryPolicy(first_ms=10, longest_ms=10, limit_ms=25)
    whole = policy.begin(clock, Middle())
    clock.advance(20)
    part = policy.begin(clock, Middle(), gives_up_at=whole.gives_up_at)
    assert list(part.attempts()) == [1, 2]
    assert clock.waited == [5]


def test_pauses_grow_without_end_but_not_beyond_all_numbers() -> None:
    """After thousands of failures the pause is the longest one."""
    policy = RetryPolicy(first_ms=1, longest_ms=8, grows=10.0)
    assert policy.pause_ms(1, 0.5) == 1
    assert policy.pause_ms(5000, 0.5) == 8
    assert policy.pause_ms(5000, 0.0) == 4


def test_a_stop_ends_a_pause_and_the_attempts() -> None:
    """Who is to stop does not wait for a store that does not answer."""
    stopping = threading.Event()

    class Stopped(RecordingClock):
        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            if len(self.waited) == 1:
                stopping.set()
            return super().wait(signal, timeout_ms)

    clock = Stopped()
    policy = RetryPolicy(first_ms=10, longest_ms=10, attempts_max=9)
    assert list(policy.begin(clock, Middle(), stopping).attempts()) == [1, 2]
    assert clock.elapsed_ms() == 10, "the pause under way was ended"


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(first_ms=10, longest_ms=10),
        RetryPolicy(first_ms=0, longest_ms=10, attempts_max=9),
    ],
    ids=["without a limit", "without a pause"],
)
def test_no_retries_are_endless_or_busy(policy: RetryPolicy) -> None:
    """Every wait has a limit, and a store that fails is not asked all the time."""
    with pytest.raises(AssertionError):
        policy.begin(RecordingClock(), Middle())


def test_a_poll_looks_once_more_at_its_end_and_says_what_it_found() -> None:
    """Pauses double from a millisecond up to the longest; the last one ends with the time."""
    clock, looks = RecordingClock(), list[float]()

    def look() -> str | None:
        looks.append(clock.elapsed_ms())
        return None

    assert poll_until(look, clock, threading.Event(), timeout_ms=20, poll_ms=8) is None
    assert clock.waited == [1, 2, 4, 8, 5]
    assert looks == [0, 1, 3, 7, 15, 20]
    assert poll_until(lambda: "it", clock, threading.Event(), timeout_ms=0, poll_ms=8) == "it"


def test_a_look_that_took_longer_than_the_timeout_counts() -> None:
    """It has found something, whatever the time is."""
    clock = RecordingClock()

    def look() -> str:
        clock.advance(99)
        return "it"

    assert poll_until(look, clock, threading.Event(), timeout_ms=20, poll_ms=8) == "it"


def test_a_poll_without_a_timeout_ends_by_its_finding_only() -> None:
    """However long that takes."""
    clock = RecordingClock()
    day_ms = 86_400_000

    def look() -> str | None:
        return "it" if clock.elapsed_ms() > day_ms else None

    assert poll_until(look, clock, threading.Event(), poll_ms=60_000) == "it"
    assert max(clock.waited) == 60_000


def test_a_poll_that_is_cancelled_looks_no_more() -> None:
    """Whatever there would be to find."""
    cancelled = threading.Event()
    cancelled.set()
    assert poll_until(lambda: "it", RecordingClock(), cancelled, timeout_ms=9, poll_ms=8) is None
