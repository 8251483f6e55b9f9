"""The progress of a query is read for each of its micro-batches."""

from __future__ import annotations

from typing import Any

from bench.micro import total_ms


def progress(number: int, **durations: int) -> dict[str, Any]:
    return {"batchId": number, "durationMs": durations}


def test_only_micro_batches_that_ran_count() -> None:
    """A look for news that found none has progress, too, under the number of the next one."""
    events = [
        progress(1, triggerExecution=20, addBatch=9),
        progress(0, triggerExecution=500, addBatch=400),
        progress(2, triggerExecution=3, latestOffset=2),
    ]
    assert total_ms(events) == [500.0, 20.0]


def test_progress_that_is_told_again_counts_once() -> None:
    """Spark reports the last micro-batch anew while a query waits."""
    again = [progress(0, triggerExecution=20, addBatch=9)] * 2
    assert total_ms(again) == [20.0]
