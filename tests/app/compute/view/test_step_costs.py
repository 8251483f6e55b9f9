"""The way of a step, as it is chosen from what steps before have taken."""

from __future__ import annotations

import pytest

from shardline.app.compute.view.step_costs import StepCosts

SLOW_MS = 5_000.0
ROWS = 1_000_000


CHANGED = 1_000


def follows(
    costs: StepCosts, steps: int, rows: int = ROWS, times: int = 1, changed: int = CHANGED
) -> list[bool]:
    return [costs.follows(times, rows, changed) for _ in range(steps)]


def test_a_view_of_small_inputs_is_run_anew() -> None:
    """That is cheaper than the jobs of a step that follows changes."""
    costs = StepCosts()
    assert follows(costs, 2) == [False, False]  # nothing is known
    costs.note_anew(60.0, 100)
    assert follows(costs, 10, rows=100) == [False] * 10


def test_a_large_one_follows_its_changes_when_predictions_have_agreed() -> None:
    """And keeps to it, as long as that is not clearly dearer."""
    costs = StepCosts()
    costs.note_anew(SLOW_MS, ROWS)
    assert follows(costs, 4) == [False, False, True, True]
    for _ in range(5):
        costs.note_follow(SLOW_MS * 0.9, CHANGED)
    assert follows(costs, 5) == [True] * 5


def test_what_takes_very_long_is_not_done_again_to_be_sure() -> None:
    """The trial tells. Of few rows it may have been the start that was slow."""
    costs = StepCosts()
    costs.note_anew(40_000.0, ROWS)
    assert costs.follows(1, ROWS, CHANGED)
    costs.note_follow(90_000.0, CHANGED)
    assert follows(costs, 3) == [True, True, False]
    few = StepCosts()
    few.note_anew(40_000.0, 100)
    assert follows(few, 3, rows=100) == [False, False, True]


def test_what_is_predicted_can_be_compared_with_what_comes() -> None:
    """For both ways, whichever is taken; nothing is made up before a query was run."""
    costs = StepCosts()
    costs.follows(1, ROWS, CHANGED)
    assert costs.predictions["predicted_ms_recompute"] is None
    costs.note_anew(SLOW_MS, ROWS)
    costs.note_follow(40.0, CHANGED)
    costs.note_follow(90.0, CHANGED)
    costs.follows(2, ROWS, CHANGED)
    assert costs.predictions == {
        "predicted_ms_incremental": 40.0,
        "predicted_ms_recompute": 2 * SLOW_MS,
    }


def test_a_view_that_is_far_behind_follows_at_once() -> None:
    """To be asked at each of its times would give the same answer; not the other way round."""
    costs = StepCosts()
    costs.note_anew(150.0, ROWS)
    assert not costs.follows(1, ROWS, CHANGED)
    assert costs.follows(20, ROWS, CHANGED)
    costs.note_follow(150.0 * 50, CHANGED)
    assert follows(costs, 3, times=20) == [True, True, False]


def test_little_that_is_far_behind_follows_for_that_step_alone() -> None:
    """The one run anew may have been slow for another reason, and would not be measured again."""
    costs = StepCosts()
    costs.note_anew(8_000.0, 100)
    assert costs.follows(20, 100, 40)
    costs.note_follow(90.0, 40)
    assert not costs.follows(1, 100, 2)
    costs.note_anew(40.0, 100)
    assert follows(costs, 5, rows=100, changed=2) == [False] * 5


def test_one_slow_step_changes_nothing() -> None:
    """It may have waited for its turn."""
    costs = StepCosts()
    costs.note_anew(150.0, ROWS)
    assert not any(follows(costs, 5))
    costs.note_anew(SLOW_MS, ROWS)
    assert not costs.follows(1, ROWS, CHANGED)
    costs.note_anew(150.0, ROWS)
    assert not any(follows(costs, 5))


def test_to_follow_is_given_up_where_it_is_clearly_dearer() -> None:
    """By the best of the last steps."""
    costs = StepCosts()
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3)[-1]
    for _ in range(5):
        costs.note_follow(3_000.0, CHANGED)
    assert follows(costs, 4) == [True, True, False, False]


def test_the_prediction_grows_with_the_inputs_and_the_times() -> None:
    """The query is run once for each time, over all rows."""
    grown = StepCosts()
    grown.note_anew(150.0, ROWS)
    assert not any(follows(grown, 5))
    assert follows(grown, 3, rows=2 * ROWS)[-1]
    often = StepCosts()
    often.note_anew(150.0, ROWS)
    assert follows(often, 3, times=2)[-1]


def test_much_that_took_long_says_little_of_little() -> None:
    """A view that catches up is not taken for one that follows slowly."""
    costs = StepCosts()
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3)[-1]
    for _ in range(5):
        costs.note_follow(20_000.0, 400 * CHANGED)
    assert follows(costs, 5) == [True] * 5
    assert costs.predictions["predicted_ms_incremental"] == 100.0 + 19_900.0 / 400
    assert follows(costs, 3, changed=400 * CHANGED) == [True, True, False]


def test_what_is_not_done_is_tried_again() -> None:
    """Also if it was much too dear; then by what it costs now alone."""
    costs = StepCosts()
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3)[-1]
    costs.note_follow(20_000.0, CHANGED)
    assert follows(costs, 3) == [True, True, False]
    anew = 0
    while not costs.follows(1, ROWS, CHANGED):
        costs.note_anew(1_000.0, ROWS)
        anew += 1
    assert 100 < anew < 300
    costs.note_follow(20_000.0, CHANGED)
    assert follows(costs, 3) == [True, True, False]


def test_a_trial_that_is_cheap_is_kept_to() -> None:
    costs = StepCosts()
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3)[-1]
    costs.note_follow(20_000.0, CHANGED)
    assert not follows(costs, 3)[-1]
    while not costs.follows(1, ROWS, CHANGED):
        costs.note_anew(1_000.0, ROWS)
    costs.note_follow(200.0, CHANGED)
    assert follows(costs, 10) == [True] * 10


def test_an_attempt_that_is_given_up_is_not_made_again_and_again() -> None:
    """It costs what it took, and the query is run anew after all."""
    costs = StepCosts()
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3)[-1]
    costs.note_given_up(50.0, CHANGED)
    costs.note_anew(1_000.0, ROWS)
    assert follows(costs, 3) == [True, True, False]


def test_steps_tell_of_steps_like_them() -> None:
    """Much is not dear because one row was slow, and little is not cheap because much was not."""
    costs = StepCosts()
    costs.note_anew(60.0, ROWS)
    costs.follows(1, ROWS, 1)
    for _ in range(4):
        costs.note_follow(300.0, 10)
    costs.note_follow(500.0, 10_000)
    costs.follows(1, ROWS, 10)
    assert costs.predictions["predicted_ms_incremental"] == 300.0
    slow = StepCosts()
    slow.note_follow(400.0, 1)
    slow.follows(60, ROWS, 60)
    assert slow.predictions["predicted_ms_incremental"] == pytest.approx(405.9)
