"""A process whose sinks are killed by the system right after a step of a commit.

python -m support.processes.sink_worker <location> <checkpoints> <out> <victim> <step>

Two sinks of one input run side by side, to files and to a shard; one of them reaches the step, and
the other one is wherever it happens to be.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrameWriter

from shardline.app.execution.host import Incarnation
from shardline.app.protocol.objects import SinkDescription
from shardline.app.spark_session import open_session
from shardline.app.storage.sink_query import _SinkRun
from shardline.app.storage.sinks import shards
from shardline.app.storage.sinks.files import FileTarget
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.shards import ShardTarget
from support.spark.sinks import Input, host_of, running

__all__ = ["CHANGES", "STEPS", "described", "incarnation", "main"]

CHANGES = [
    (10, [(1, "a", 1), (2, "b", 2), (3, "c", 1)]),
    (20, [(1, "a", -1), (1, "A", 1), (4, "d", 1)]),
    (30, [(2, "b", -1), (4, "d", -1), (4, "D", 1)]),
    (40, [(3, "c", -1), (5, "e", 3)]),
    (50, [(5, "e", -1), (3, "c", 1)]),
    (60, [(1, "A", -1), (6, "f", 1)]),
    (70, [(6, "f", -1), (2, "b", -1), (7, "g", 2)]),
]
"""What happens to the input: the snapshot, and what comes while the sinks run, one by one."""

STEPS: dict[str, list[tuple[Any, str]]] = {
    "files": [(DataFrameWriter, "save"), (FileTarget, "write"), (SinkProgress, "record")],
    "shard": [(shards, "save"), (ShardTarget, "skip"), (SinkProgress, "record")],
}
"""What a commit calls, in this order, by the kind of the target."""


def described(out: str) -> dict[str, SinkDescription]:
    """The sinks, by the kind of their targets."""
    files = SinkDescription(name="files", on="in", format="parquet", options={"path": out})
    shard = SinkDescription(name="shard", on="in", format="shard", options={"shard": "copy"})
    return {"files": files, "shard": shard}


def incarnation(name: str, epoch: int) -> Incarnation:
    return Incarnation(name, f"u-{name}", 1, epoch, (1, 3))


def main(location: str, checkpoints: str, out: str, victim: str, step: str) -> None:
    """Run until it is killed, or 120 s: then the step was never reached."""
    ((place, name),) = [found for found in STEPS[victim] if found[1] == step]
    real: Callable[..., Any] = getattr(place, name)
    turn = threading.local()

    def killed(*args: Any, **named: Any) -> Any:
        result = real(*args, **named)
        if getattr(turn, "of", "") == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    commit = _SinkRun._commit

    def committed(self: _SinkRun, *args: Any) -> None:
        turn.of = self._sink.name
        commit(self, *args)

    _SinkRun._commit = committed  # type: ignore[assignment, method-assign]
    setattr(place, name, killed)
    spark = open_session("killed", {"spark.ui.enabled": "false"})
    host = host_of(spark, location, Path(checkpoints))
    given = Input(host.client)
    with ExitStack() as stack:
        told = [
            stack.enter_context(running(host, sink, incarnation(kind, 1)))
            for kind, sink in described(out).items()
        ]
        for time, updates in CHANGES:
            upper = host.client.state("in").upper
            if upper.is_beyond(time):
                continue
            assert upper.time is not None
            for reports in told:
                reports.reached(upper.time)
            given.step(time, *updates)
        threading.Event().wait(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
