"""A view's health is told by its output, too, whoever has written that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardline.app.compute.view.next_step import OutputProgress
from shardline.app.compute.view.reports import ViewReports
from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Health
from shardline.app.protocol.objects import ViewDescription
from support.fakes.clock import ManualClock
from support.fakes.lane import host

if TYPE_CHECKING:
    from shardline.app.execution.observations import Observation

VIEW = ViewDescription(name="v", query="SELECT 1", inputs=("a",), schema="id BIGINT")
LIFE = Incarnation(id="v", global_id="u1", dataflow=1, epoch=1, operators=(1, 1), as_of=0)

WORKS = OutputProgress(10, ours=True, failing=False)
FAILS = OutputProgress(20, ours=True, failing=True, error="[DIVIDE_BY_ZERO]")


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ([FAILS, FAILS, replace(FAILS, upper=30)], ["[DIVIDE_BY_ZERO]"]),
        ([FAILS, replace(FAILS, error="[CAST]")], ["[DIVIDE_BY_ZERO]", "[CAST]"]),
        ([WORKS, FAILS, replace(WORKS, upper=30)], ["[DIVIDE_BY_ZERO]", ""]),
        ([WORKS, replace(WORKS, upper=30)], []),
        ([replace(FAILS, ours=False)], []),  # the error of another definition
        ([FAILS, replace(FAILS, error="")], ["[DIVIDE_BY_ZERO]"]),  # in the middle of a step
    ],
)
def test_an_output_tells_whether_its_query_fails(
    outputs: list[OutputProgress], told: list[str]
) -> None:
    """Once for each error, and that it works only if it has failed before."""
    seen: list[Observation] = []
    reports = ViewReports(replace(host(ManualClock()), report=seen.append), LIFE, VIEW, as_of=0)
    for output in outputs:
        reports.note_output(output)
    health = [one for one in seen if isinstance(one, Health)]
    assert [one.error for one in health] == told
    assert all((one.status == "stalled") == bool(one.error) for one in health)
    assert reports.output == outputs[-1]
