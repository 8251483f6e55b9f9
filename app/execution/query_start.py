"""The query start limits how many streaming queries start at a time.

A query over a Python source starts Python processes, and Spark gives up on one that does not answer
within ten seconds, which no setting changes. If fifty objects started at once, all would miss that;
a few at a time none does, and the last is ready sooner. `start()` itself returns long before the
processes are up, so the slot is kept until the query is initialised.

    with start_slot(clock, stopping):
        query = writer.start()
        wait_until_initialised(query, clock, stopping)

A query that nobody may wait for is ended by `end_in_background`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["end_in_background", "start_slot", "wait_until_initialised"]

_log = logging.getLogger(__name__)

_SLOTS: Final = threading.BoundedSemaphore(2)
"""Slots for starts of this process: two at a time."""

_POLL_MS: Final = 50.0
_PATIENCE_MS: Final = 30_000.0
"""A start that takes longer frees its slot and goes on."""

_BEGINNING: Final = ("Initializing", "Starting")
"""Prefixes of Spark's status message while a query's sources are not initialised."""


@contextmanager
def start_slot(clock: Clock, stopping: threading.Event) -> Iterator[None]:
    """Wait for a slot to start a query, and keep it; without one once `stopping` is set."""
    while not (taken := _SLOTS.acquire(blocking=False)) and not clock.wait(stopping, _POLL_MS):
        pass
    try:
        yield
    finally:
        if taken:
            _SLOTS.release()


def wait_until_initialised(query: StreamingQuery, clock: Clock, stopping: threading.Event) -> None:
    """Wait until a query is initialised, has ended, has taken 30 s, or `stopping` is set."""
    deadline = clock.elapsed_ms() + _PATIENCE_MS
    while query.isActive and query.status["message"].startswith(_BEGINNING):
        if clock.wait(stopping, _POLL_MS) or clock.elapsed_ms() > deadline:
            return


def end_in_background(query: StreamingQuery) -> None:
    """Stop a query without waiting for it: Spark waits for a micro-batch under way."""

    def end() -> None:
        try:
            query.stop()
        except Exception:  # noqa: BLE001 - it has failed, or its JVM is gone: it has ended
            _log.info("a query that was stopped had ended", exc_info=True)

    BackgroundThread(f"stop {query.name}", end).start()
