"""Starting streaming queries: a few at a time.

    with start_slot(clock, stopping):
        query = writer.start()
        until_initialised(query, clock, stopping)

A query over a Python source brings up processes of its own, and Spark gives up on one that does not
answer within ten seconds, which has no setting. A project of fifty objects that starts all of them
at once would make every one of them miss that; started in turn none does, and the whole is there
sooner. `start()` itself returns long before that, so the turn lasts until the query has begun.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from shardline.datasource.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["start_slot", "until_initialised"]

_SLOTS: Final = threading.BoundedSemaphore(2)
"""Starts under way in this process."""

_POLL_MS: Final = 50.0
_PATIENCE_MS: Final = 30_000.0
"""A start that takes longer gives up its turn and goes on."""

_BEGINNING: Final = ("Initializing", "Starting")
"""Beginnings of Spark's status messages of a query whose sources are not there yet."""


@contextmanager
def start_slot(clock: Clock, stopping: threading.Event) -> Iterator[None]:
    """A turn to start a query; waits for one, but not for longer than until `stopping` is set."""
    while not (taken := _SLOTS.acquire(blocking=False)) and not clock.wait(stopping, _POLL_MS):
        pass
    try:
        yield
    finally:
        if taken:
            _SLOTS.release()


def until_initialised(query: StreamingQuery, clock: Clock, stopping: threading.Event) -> None:
    """Wait until a query's sources are there, it has ended, or `stopping` is set."""
    deadline = clock.elapsed_ms() + _PATIENCE_MS
    while query.isActive and query.status["message"].startswith(_BEGINNING):
        if clock.wait(stopping, _POLL_MS) or clock.elapsed_ms() > deadline:
            return
