"""Ends Spark's Python processes without a stack trace when Spark closes their socket.

Spark closes the socket of a worker that has been idle for a minute, and that of a stream's planner
when its query is stopped. PySpark 4.3 takes both for an error, tries to report it to Spark through
the same socket, and prints the stack trace of the attempt into the terminal of the application,
several times a minute. No setting turns that off, so the modules of PySpark that these processes
run are patched, each at the one place that allows it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from shardline.planner_forks import PLANNER

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["silence_broken_pipes"]

_DAEMON: Final = "pyspark.daemon"
"""The module that each worker runs, forked; it calls its own `worker` again for each task."""


def silence_broken_pipes() -> None:
    """Patch this process so that it ends silently if its only error is that Spark is gone.

    Does nothing in a process that is neither a worker nor a planner. Safe to repeat.
    """
    main: Any = sys.modules.get("__main__")
    # A notebook's, or that of a program that embeds Python, may have none.
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", "")
    if name == _DAEMON and not isinstance(main.worker, _QuietWorker):
        main.worker = _QuietWorker(main.worker)
    elif name == PLANNER:
        sys.excepthook = _hook


class _QuietWorker:
    """PySpark's `worker`, which takes a closed socket for an end and not for a failure."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __call__(self, *given: Any) -> int:
        try:
            code: int = self._worker(*given)
        except BrokenPipeError:
            return 1  # The daemon ends a worker that gives anything but 0.
        return code


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)
