"""Rows that no source of an application brings end its rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.compute.view.idle_news import end_rest_for
from shardline.app.execution.rest_pace import RestPace
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock


@pytest.fixture
def resting() -> RestPace:
    clock = ManualClock(1_000_000)
    rest = RestPace(clock, 1_000, 5_000)
    clock.advance(60_000)
    assert rest.is_resting
    return rest


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    """Inputs at different times: `old` has rows before 11, `rests` no rows, `new` rows at 20."""
    found = ShardClient.open(str(tmp_path / "lake"))
    columns = pa.schema([("k", pa.int64()), ("_ts", pa.int64())])
    for name, rows, upper in (("old", [5], 31), ("rests", [], 11), ("new", [20], 21)):
        found.create(name, ShardSchema.from_arrow(columns.remove(1)))
        table = pa.table({"k": rows, "_ts": rows}, columns)
        found.writer(name).compare_and_append(table, Frontier(0), Frontier(upper))
    return found


def view(upper: int | None, due_ms: int = 1 << 60) -> Any:
    """A view whose output is at `upper`, and of which rows go by themselves `due_ms` behind it."""
    output = None if upper is None else SimpleNamespace(upper=upper)
    return SimpleNamespace(
        reports=SimpleNamespace(output=output), is_due_within=lambda ms: ms > due_ms
    )


@pytest.mark.parametrize(
    ("inputs", "over", "rests"),
    [
        (["old", "rests"], view(11), True),
        (["new", "rests"], view(11), False),
        (["new", "rests"], view(None), True),
        (["old"], view(11, due_ms=10_000), True),
        (["old"], view(11, due_ms=9_999), False),
    ],
    ids=["nothing new", "rows ahead", "no output yet", "due later", "due soon"],
)
def test_a_rest_ends_for_rows_that_wait(
    client: ShardClient, resting: RestPace, inputs: list[str], over: Any, rests: bool
) -> None:
    """Written by somebody else while another input rests, or due before uppers move next."""
    end_rest_for(over, client.readable(*inputs), resting)
    assert resting.is_resting is rests


def test_nothing_rests_without_a_pace(client: ShardClient) -> None:
    end_rest_for(view(11), client.readable("new"), None)
