"""Sources commit as often as views can follow."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardline.app.execution.commit_pacing import CommitPacing
from support.fakes.clock import ManualClock


class Line:
    """A simulated runtime: each step of its views takes so long, whatever is in it.

    Every second a look; the sources commit at the pace, and each commit is one step of each view.
    """

    def __init__(self, most_ms: int = 10_000) -> None:
        self.clock = ManualClock(0)
        self.done_ms = self.busy_ms = 0.0
        self.pace = CommitPacing(self.clock, 1000, most_ms, lambda _: self.busy_ms)
        self.next_ms = 0.0
        self.steps: list[float] = []

    def run(self, seconds: int, step_ms: float, view: str = "v") -> list[int]:
        """Let time pass; the interval after each second."""
        seen = []
        for _ in range(seconds):
            now_ms = self.clock.elapsed_ms()
            if now_ms >= self.next_ms:
                self.steps.append(now_ms)
                self.next_ms = now_ms + self.pace.interval_ms
            left_ms = 1000.0
            while self.steps and left_ms > 0:
                worked = min(left_ms, step_ms - self.done_ms)
                left_ms, self.done_ms = left_ms - worked, self.done_ms + worked
                self.busy_ms += worked
                if self.done_ms >= step_ms:
                    self.steps.pop(0)
                    self.done_ms = 0.0
            self.clock.advance(1000)
            oldest = self.steps[0] if self.steps else self.clock.elapsed_ms()
            self.pace.report_lag(view, int(self.clock.elapsed_ms() - oldest))
            seen.append(self.pace.interval_ms)
        return seen


def test_views_that_follow_leave_the_pace_alone() -> None:
    """A step that takes less than an interval is no reason to wait."""
    line = Line()
    assert set(line.run(300, step_ms=600)) == {1000}
    assert line.pace.commit_pause_ms() == 0


@pytest.mark.parametrize(("step_ms", "enough"), [(1500, 2000), (3000, 4000), (7000, 8000)])
def test_sources_slow_down_until_views_follow(step_ms: int, enough: int) -> None:
    """Then nobody falls behind any more: the backlog is made up, and stays so."""
    line = Line()
    seen = line.run(1200, step_ms=step_ms)
    assert enough in seen
    assert len(line.steps) <= 3
    assert min(seen[600:]) >= enough, "it is known that less is too little"


def test_there_is_an_end_to_it() -> None:
    """What no pace can help does not stop the sources; with the interval as the most, never."""
    assert max(Line().run(600, step_ms=60_000)) == 10_000
    assert set(Line(most_ms=1000).run(600, step_ms=60_000)) == {1000}


def test_it_comes_back() -> None:
    """When steps are short again the sources commit as often as before."""
    line = Line()
    assert line.run(120, step_ms=3000)[-1] >= 4000
    assert line.run(60, step_ms=100)[-1] == 1000


def test_it_comes_back_as_far_as_steps_allow() -> None:
    """Twice too slow at first, and then no slower than it must be."""
    seen = Line().run(300, step_ms=2400)
    assert max(seen) == 4000
    assert set(seen[100:]) == {3000}


def test_a_failed_attempt_is_not_repeated_at_once() -> None:
    """Where what keeps views behind is not seen in their steps, patience grows."""
    line = Line()
    line.pace = CommitPacing(line.clock, 1000, 10_000, lambda _: 0.0)
    seen = line.run(1200, step_ms=1500)
    assert sum(interval >= 2000 for interval in seen[600:]) > 0.7 * 600


def test_attempts_that_failed_while_steps_were_slow_count_no_more() -> None:
    """A JVM that has just started is slow: once it has warmed up, the pace is tried again soon."""
    line = Line()
    line.pace = CommitPacing(line.clock, 1000, 10_000, lambda _: line.busy_ms / 4)
    line.run(600, step_ms=2400)
    assert any(line.run(1, step_ms=2400)[-1] == 1000 for _ in range(300)), "another attempt"
    assert any(line.run(1, step_ms=2400)[-1] > 1000 for _ in range(300)), "which fails"
    assert line.run(60, step_ms=300)[-1] == 1000


def test_a_view_that_stands_still_slows_nobody_down() -> None:
    """It is blocked or fails: after a while only those that move count."""
    clock = ManualClock(0)
    pace = CommitPacing(clock, 1000, 10_000)
    for second in range(600):
        clock.advance(1000)
        pace.report_lag("blocked", 1000 * (second + 1))
        pace.report_lag("fine", 0)
    assert pace.interval_ms == 1000


def test_a_view_that_has_gone_counts_no_more() -> None:
    """What was said of it last is forgotten."""
    line = Line()
    line.run(60, step_ms=60_000)
    line.pace.forget("v")
    assert line.run(600, step_ms=100, view="w")[-1] == 1000


@pytest.mark.parametrize("commit_ms", [1, 400, 700, 1000, 1900, 9_999])
def test_sources_commit_once_in_each_interval(commit_ms: int) -> None:
    """All begin at the same moments, multiples of the interval, however long a commit takes."""
    line = Line()
    line.run(120, step_ms=12_000)
    assert line.pace.interval_ms == 10_000
    begun = []
    for _ in range(5):
        line.clock.advance(line.pace.commit_pause_ms())
        begun.append(line.clock.now_ms())
        line.clock.advance(commit_ms)
    assert [now_ms % 10_000 for now_ms in begun] == [0] * 5
    assert [b - a for a, b in pairwise(begun)] == [10_000] * 4
