"""Hundreds of runs of many actors under faults, and what the simulation itself promises."""

from __future__ import annotations

import pyarrow as pa
import pytest

from simulation.bugs import BUGS, planted
from simulation.knobs import Plan
from simulation.report import command_of, parse_plan, told
from simulation.run import simulate
from simulation.shrink import shrink
from support.profiles import some_of

pytestmark = pytest.mark.sim

SEEDS = 120
EACH = 30


@pytest.mark.parametrize("first", some_of(range(0, SEEDS, EACH), {0}))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    """Whatever the schedule and the faults, every invariant holds after every step."""
    pa.set_cpu_count(1)
    for seed in range(first, first + EACH):
        outcome = simulate(Plan(seed))
        if outcome.failure is not None:
            pytest.fail(told(simulate(shrink(outcome, runs_max=150).plan, traced=True)))


@pytest.mark.parametrize("seed", [3, 17, 101])
def test_a_seed_repeats_its_run_to_the_letter(seed: int) -> None:
    """Two runs of one seed do the same things at the same times."""
    one, other = (simulate(Plan(seed), traced=True) for _ in range(2))
    assert one.trace == other.trace
    assert one.events == other.events


def test_a_command_repeats_a_plan() -> None:
    """What is printed of a small run makes the same run again."""
    plan = Plan(7, frozenset({"late", "gc-1#12:crash"}), (("now-1", 2),))
    text = command_of(plan)
    without, actions = (
        text.partition(f"--{name} '")[2].partition("'")[0] for name in ("without", "actions")
    )
    assert parse_plan(7, without, actions) == plan


def test_a_failing_run_is_made_small() -> None:
    """What is left fails alike, with fewer actors and faults, and tells its whole schedule."""
    bug = next(bug for bug in BUGS if bug.name == "since moved beyond critical holds")
    with planted(bug):
        runs = (simulate(Plan(seed)) for seed in range(bug.seeds))
        found = next(outcome for outcome in runs if outcome.failure is not None)
        small = shrink(found, runs_max=60)
        again = simulate(small.plan, traced=True)
    assert again.kind == found.kind
    assert len(small.cast) < len(found.cast)
    assert len(small.faults) <= len(found.faults)
    assert command_of(small.plan) in told(again)
