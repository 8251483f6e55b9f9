"""Processes of Spark, found and killed; and an application killed in the middle of a drop.

python -m support.faults.kills <folder> <step>: runs the project of `support.spark.projects`, drops
view `large` with its sink, and is killed by the system at a step: recorded, forgotten or dropped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardline.app.coordinator.application import Application
from shardline.app.lane.commands import DropDataflow
from shardline.app.runtime.runtime import Runtime
from shardline.app.settings.config import RuntimeSettings
from shardline.app.spark_session import open_session
from support.spark.projects import Place
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DROPPED",
    "EXECUTOR",
    "PLANNER",
    "executors_of",
    "jvm_of",
    "kill",
    "main",
    "processes_of",
]

PLANNER: Final = "python_streaming_source_runner"
"""Part of the command of a process in which Spark asks a Python source what is new."""

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""Part of the command of an executor."""

DROPPED: Final = ("large_out", "large")

_PATIENCE_S: Final = 120


def jvm_of(spark: SparkSession) -> int:
    """Process id of a session's JVM."""
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def processes_of(ancestor: int, *words: str) -> list[int]:
    """Ids of the processes below another one whose command has all of `words`, sorted."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid = int(status.parent.name)
            parents[pid] = int(status.read_text().rpartition(")")[2].split()[1])
            commands[pid] = (status.parent / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile

    def above(pid: int) -> Iterator[int]:
        while pid := parents.get(pid, 0):
            yield pid

    found = (pid for pid, command in commands.items() if all(word in command for word in words))
    return sorted(pid for pid in found if ancestor in above(pid))


def executors_of(jvm: int) -> list[int]:
    """Ids of the executors that a driver in local-cluster mode has."""
    return processes_of(jvm, EXECUTOR)


def kill(pid: int) -> None:
    """SIGKILL; a process that has ended by itself is as good."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(real: Callable[..., Any], fatal: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        if fatal(*args):
            _die()
        return real(self, *args, **named)

    return wrapped


def _arm() -> None:
    """Let this process die in a drop of `large` of which only the first phase is in the order."""
    patched: Any = Runtime
    wanted = DropDataflow(DROPPED[-1])
    patched.on_record = _before(Runtime.on_record, lambda r: r.command == wanted)


def main(folder: str) -> None:
    """Run until it is killed; ends by itself only if the step was never reached."""
    place = Place(Path(folder), made=True)
    spark = open_session("killed", {"spark.ui.enabled": "false"})
    settings = RuntimeSettings(interval_ms=500)
    with Application(spark, place.client(), settings, data=place.folder / "data") as application:
        application.apply(place.project().check(spark))
        wait_until(
            "what is to be dropped is there",
            lambda: (
                application.running().keys() >= {*DROPPED}
                and place.contents("large") == place.expected("large")
            ),
            _PATIENCE_S,
        )
        _arm()
        application.drop(DROPPED)
        threading.Event().wait(_PATIENCE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
