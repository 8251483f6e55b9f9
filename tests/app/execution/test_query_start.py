"""Turns to start queries: a few at a time, and nobody keeps one for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar, cast

from shardline.app.execution.query_start import start_slot, wait_until_initialised
from shardline.datasource.clock import SystemClock
from support.fakes.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


class _Blocked:
    """A streaming query whose source never opens."""

    isActive = True  # noqa: N815 - Spark's name
    status: ClassVar = {"message": "Initializing sources"}


BLOCKED = cast("StreamingQuery", _Blocked())


def test_a_start_that_hangs_gives_its_turn_up() -> None:
    """However many of them there are, the next one begins in the end."""
    clock, stopping = ManualClock(), threading.Event()
    for _ in range(5):
        with start_slot(clock, stopping):
            before = clock.elapsed_ms()
            wait_until_initialised(BLOCKED, clock, stopping)
            assert clock.elapsed_ms() > before, "it did wait"


def test_what_is_stopped_does_not_wait_for_a_turn() -> None:
    """While all turns are taken a start that is no longer wanted goes on, and gives none back."""
    clock, stopping, stopped = SystemClock(), threading.Event(), threading.Event()
    stopped.set()
    with start_slot(clock, stopping), start_slot(clock, stopping):
        with start_slot(clock, stopped):
            wait_until_initialised(BLOCKED, clock, stopped)
        third = threading.Thread(target=_take, args=(stopping,), daemon=True)
        third.start()
    third.join(60)
    assert not third.is_alive(), "a turn that was given back is there for others"


def _take(stopping: threading.Event) -> None:
    with start_slot(SystemClock(), stopping):
        pass
