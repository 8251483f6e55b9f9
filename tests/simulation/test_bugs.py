"""A test of the tests: every bug that was planted on purpose is found."""

from __future__ import annotations

import pyarrow as pa
import pytest

from simulation.bugs import BUGS, Bug, planted
from simulation.knobs import Plan
from simulation.run import simulate
from support.profiles import one_of

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("bug", one_of(3, BUGS), ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """Within its seeds, some run of the wrong code breaks an invariant."""
    pa.set_cpu_count(1)
    with planted(bug):
        found = next(
            (
                seed
                for seed in bug.order()
                if simulate(Plan(seed, theme=bug.theme)).failure is not None
            ),
            None,
        )
    assert found is not None, f"{bug.name}: {bug.seeds} seeds have seen nothing"
