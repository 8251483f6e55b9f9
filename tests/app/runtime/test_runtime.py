"""The runtime's loop: what it takes, and in which order."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Hydrated
from shardline.app.lane.holder import describe_process
from shardline.app.lane.log import LaneLog
from shardline.app.lane.process_state import PhaseChange
from shardline.app.protocol.compute import (
    ComputeCommand,
    ComputeResponse,
    CreateDataflow,
    CreateInstance,
    Hydration,
    InitializationComplete,
    Schedule,
)
from shardline.app.protocol.objects import IndexDescription
from shardline.app.runtime.runtime import Runtime
from shardline.app.runtime.settings import RuntimeOptions
from shardline.app.transport.in_process import InProcessClient
from support.fakes.reads import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INDEX = IndexDescription(name="i", on="t")


class Counted(queue.SimpleQueue[PhaseChange]):
    """A queue in which something happens right after its items have been counted."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = [then]

    @override
    def qsize(self) -> int:
        count = super().qsize()
        if self._then:
            self._then.pop()()
        return count


def made(place: Place, checkpoints: Path) -> Runtime:
    """A runtime that holds a location, and is not started."""
    client, clock, ids = place.client, place.client.clock, place.client.ids
    session: Any = SimpleNamespace()
    return Runtime(
        {"compute": session, "storage": session},
        client,
        LaneLog.open(client, describe_process("test", clock, ids)),
        RuntimeOptions(checkpoints=checkpoints),
        clock=clock,
        ids=ids,
    )


def test_the_location_is_given_up_whatever_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would keep the next application waiting."""
    place = Place()
    runtime = made(place, tmp_path)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(runtime._peeks, "stop", fail)
    runtime.start()
    with pytest.raises(ZeroDivisionError):
        runtime.stop()
    again = made(place, tmp_path)
    assert again._order.role == "holder"
    again.stop()
    place.close()


def test_a_round_that_fails_loses_nobody_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one says that all has been given to the lane."""
    place = Place()
    runtime = made(place, tmp_path)
    passed = runtime.pass_on()

    def fail() -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(runtime.compute, "take", fail)
    with pytest.raises(ZeroDivisionError):
        runtime._step()
    assert not passed.is_set()
    runtime._step()
    assert passed.is_set()
    runtime.stop()
    place.close()


def test_a_hydration_that_arrives_amid_a_step_is_not_lost(tmp_path: Path) -> None:
    """An index that is ready in a millisecond: its phase and its report arrive within one step."""
    place = Place()
    place.put("t", [((1, "a"), 1, 1)], 10, pa.schema([("k", pa.int64()), ("s", pa.string())]))
    runtime = made(place, tmp_path)
    connected: InProcessClient[ComputeCommand, ComputeResponse] = InProcessClient(
        runtime.compute, "c", place.client.clock
    )
    for command in (
        CreateInstance(),
        CreateDataflow(dataflow=INDEX, as_of=5),
        Schedule("i"),
        InitializationComplete(),
    ):
        connected.send(command)
    runtime._step()

    def begin_and_hydrate() -> None:
        life = Incarnation(id="i", global_id="u1", dataflow=1, epoch=1, as_of=5, operators=(1, 1))
        runtime.on_phase(PhaseChange("i", "compute", "starting", life, INDEX, at_ms=1))
        runtime.report(Hydrated(id="i", epoch=1, took_ms=1))

    runtime._phases = Counted(begin_and_hydrate)
    runtime._step()
    runtime._step()
    assert connected.receive(0) == Hydration("i", hydrated=True)
    runtime.stop()
    place.close()
