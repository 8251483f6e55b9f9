"""Whom a soak kills: finds the processes of a session by what Linux says of them.

writer      appends known rows
keeper      merges, collects, truncates
session     the driver's Python
jvm         the driver's JVM, which has the executor in it unless there is a cluster
planner     the Python process that plans a query's micro-batches
worker      a Python process that reads, writes or plans for a task
executor    the JVM of an executor, if they have processes of their own
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Final, Literal, get_args

from bench.processes import belonging, below, find, processes
from shardline.datasource.clock import Clock

__all__ = ["KINDS", "Kind", "bury", "family", "kill", "members"]

Kind = Literal["writer", "keeper", "session", "jvm", "planner", "worker", "executor"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_WORDS: Final[dict[Kind, str]] = {
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "planner": "python_streaming_source_runner",
    "worker": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
}

_POLL_MS: Final = 50.0
_BURIAL_MS: Final = 20_000.0


def family(root: int) -> set[int]:
    """A process and everything below it, with the forks of its JVM, now."""
    return belonging(root, processes())


def members(kind: Kind, root: int) -> list[int]:
    """The processes of a kind below the session `root`, ascending; empty if there are none now."""
    table = processes()
    found = find(_WORDS[kind], below(root, table))
    if kind == "worker":
        # Not the daemons themselves: Spark starts them again, and each has workers below it.
        parents = {table[pid].parent for pid in found if pid in table}
        return [pid for pid in found if pid not in parents]
    return found


def kill(pids: Iterable[int]) -> int:
    """SIGKILL; how many of them were still there."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed


def bury(pids: set[int], clock: Clock) -> int:
    """Wait until the processes of a dead session have ended; kill those that do not.

    Returns:
        How many had to be killed.
    """
    gives_up_at = clock.elapsed_ms() + _BURIAL_MS
    while pids & processes().keys() and clock.elapsed_ms() < gives_up_at:
        clock.wait(threading.Event(), _POLL_MS)
    return kill(pids & processes().keys())
