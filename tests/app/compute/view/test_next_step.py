"""Steps of a view: whatever happens to the output, they lead to the right contents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.compute.view.next_step import (
    Done,
    FollowChanges,
    OutputProgress,
    Recompute,
    Unchanged,
    choose_next_step,
)

TIMES = st.lists(st.integers(0, 30), unique=True, max_size=8).map(sorted)


def right(times: list[int], time: int) -> int:
    """Stands for the query's result: how many changes there were up to `time`."""
    return sum(t <= time for t in times)


class Model:
    """An output: what it holds from each time on, who wrote last, and how far it is."""

    def __init__(self, upper: int, held: int, *, ours: bool) -> None:
        self.upper: int | None = upper
        self.changes = {0: held}
        self.ours = ours
        self.steps = 0

    def at(self, time: int) -> int:
        return self.changes[max(t for t in self.changes if t <= time)]

    def take(self, step: Unchanged | FollowChanges | Recompute, times: list[int]) -> None:
        assert step.lower == self.upper, (step, self.upper)
        self.steps += 1
        match step:
            case FollowChanges():
                base = self.at(step.lower)
                before = right(times, step.lower - 1)
                for time in times:
                    if time >= step.lower and (step.upper is None or time < step.upper):
                        self.changes[time] = base + right(times, time) - before
            case Recompute():
                assert step.lower <= step.at
                self.changes[step.at] = right(times, step.at)
        self.upper = step.upper
        self.ours = True


def drive(model: Model, times: list[int], floor: int, end: int | None, *, linear: bool) -> None:
    for _ in range(3 * len(times) + 3):
        output = OutputProgress(model.upper, model.ours, failing=False)
        known = [t for t in times if t >= max(floor, model.upper or 0)]
        known = [t for t in known if end is None or t < end]
        strategy = "linear" if linear else "recompute"
        step = choose_next_step(output, known, floor=floor, end=end, strategy=strategy)  # type: ignore[arg-type]
        if isinstance(step, Done):
            return
        model.take(step, times)
    raise AssertionError("no end")


@given(TIMES, st.integers(0, 30), st.integers(0, 30), st.integers(1, 31), st.booleans())
def test_a_foreign_output_becomes_right(
    times: list[int], upper: int, floor: int, length: int, linear: bool
) -> None:
    """Whatever somebody else left there, from the floor on contents are those of the query."""
    model = Model(upper, 99, ours=False)
    end = floor + length
    drive(model, times, floor, end, linear=linear)
    assert model.upper is not None
    assert model.upper >= end
    for time in range(max(upper, floor), end):
        assert model.at(time) == right(times, time)


@given(TIMES, st.integers(0, 30), st.integers(0, 5), st.integers(1, 31), st.booleans())
def test_an_output_of_ours_goes_on(
    times: list[int], upper: int, back: int, length: int, linear: bool
) -> None:
    """An output that is right stays right, and a linear view costs one step at most."""
    model = Model(upper, right(times, upper - 1), ours=True)
    floor = max(upper - back, 0)
    drive(model, times, floor, upper + length, linear=linear)
    for time in range(upper, upper + length):
        assert model.at(time) == right(times, time)
    news = sum(upper <= t < upper + length for t in times)
    assert model.steps == (1 if linear or not news else news)


@given(TIMES, st.integers(0, 30))
def test_finished_inputs_finish_the_output(times: list[int], floor: int) -> None:
    """With nothing more to come the output's upper is empty in the end."""
    model = Model(0, 0, ours=False)
    drive(model, times, floor, None, linear=False)
    assert model.upper is None


def test_a_failing_view_is_recomputed() -> None:
    """Changes add nothing to a result that is not there: the query is run anew."""
    failing = OutputProgress(10, ours=True, failing=True)
    assert choose_next_step(failing, [12], floor=5, end=20, strategy="linear") == Recompute(
        12, 10, 20
    )
    assert choose_next_step(failing, [], floor=5, end=20, strategy="linear") == Unchanged(10, 20)
    working = OutputProgress(10, ours=True, failing=False)
    assert choose_next_step(working, [12], floor=5, end=20, strategy="linear") == FollowChanges(
        10, 20
    )


def test_an_interval_before_the_as_of_is_done() -> None:
    """Before the first time at which it is to be right a view has nothing to do."""
    new = OutputProgress(0, ours=False, failing=False)
    assert choose_next_step(new, [], floor=10, end=8, strategy="recompute") == Done()
    assert choose_next_step(new, [], floor=10, end=11, strategy="recompute") == Recompute(10, 0, 11)
