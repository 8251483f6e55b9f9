"""Uppers move less often while nothing happens, and all of them at the same moments."""

from __future__ import annotations

import pytest

from shardline.app.execution.rest_pace import RestPace
from support.fakes.clock import ManualClock


def moments(rest: RestPace, clock: ManualClock, seconds: int) -> list[int]:
    """The distinct moments of the seconds that pass, in seconds."""
    seen: list[int] = []
    for _ in range(seconds):
        seen.append(rest.moment(clock.now_ms()) // 1000)
        clock.advance(1_000)
    return sorted(set(seen))


def test_uppers_move_every_second_until_a_minute_was_quiet() -> None:
    """Then at every fifth; with the first news of anything at each again."""
    clock = ManualClock(1_000_000)
    rest = RestPace(clock, 1_000, 5_000)
    assert moments(rest, clock, 60) == [*range(1000, 1060)]
    assert moments(rest, clock, 20) == [1060, 1065, 1070, 1075]
    assert rest.is_resting
    rest.note_news()
    assert not rest.is_resting
    assert moments(rest, clock, 60) == [*range(1080, 1140)]
    assert moments(rest, clock, 2) == [1140]


def test_whoever_asks_late_has_the_same_moment() -> None:
    """A view over two sources waits for neither: both are at one time."""
    clock = ManualClock(1_000_000)
    rest = RestPace(clock, 1_000, 5_000)
    clock.advance(61_234)
    assert {rest.moment(clock.now_ms() + late) for late in (0, 1_000, 3_765)} == {1_060_000}


def test_a_rest_begins_for_all_at_one_moment() -> None:
    """Sources that ask before and after a minute was quiet have one upper: no read waits for it."""
    clock = ManualClock(1_001_300)
    rest, seen = RestPace(clock, 1_000, 5_000), set[int]()
    clock.advance(59_750)
    for _ in range(9):
        seen.add(rest.moment(clock.now_ms()))
        clock.advance(100)
    assert rest.is_resting
    assert seen == {1_061_000}
    clock.advance(1_000)
    assert rest.moment(clock.now_ms()) == 1_060_000


def test_a_source_that_moves_without_news_takes_the_others_along() -> None:
    """At their next tick, once, and not beyond the clock."""
    clock = ManualClock(1_000_000)
    rest = RestPace(clock, 1_000, 5_000)
    clock.advance(61_500)
    rest.note_time(1_062_000)
    assert rest.moment(clock.now_ms()) == 1_061_000
    clock.advance(500)
    assert moments(rest, clock, 9) == [1062, 1065, 1070]
    assert rest.is_resting


@pytest.mark.parametrize("interval_ms", [700, 1_500, 2_000, 3_000, 4_000])
def test_uppers_of_any_interval_are_no_further_behind_than_the_rest(interval_ms: int) -> None:
    """By a source that ticks at multiples of its interval and rounds down to one."""
    clock = ManualClock(0)
    rest, upper_ms, behind_ms = RestPace(clock, interval_ms, 5_000), 0, 0
    while clock.now_ms() < 200_000:
        clock.advance(interval_ms)
        now_ms = clock.now_ms()
        if now_ms > 80_000:
            behind_ms = max(behind_ms, now_ms - upper_ms)
        upper_ms = rest.moment(now_ms) // interval_ms * interval_ms
    assert rest.is_resting
    assert behind_ms <= 5_000


def test_a_longer_interval_stays() -> None:
    """Rest never makes uppers move more often."""
    clock = ManualClock(1_000_000)
    rest = RestPace(clock, 10_000, 5_000)
    clock.advance(61_000)
    assert (rest.rest_ms, rest.moment(clock.now_ms())) == (10_000, 1_060_000)
