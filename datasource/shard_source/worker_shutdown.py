"""What Python processes of Spark's do when Spark hangs up: they end, and print nothing.

Spark closes the socket of a worker that has been idle for a minute, and that of a stream's planner
when its query is stopped. PySpark 4.3 takes both for an error, wants to tell Spark of it through
the same socket, and prints the stack trace of the attempt into the terminal of whoever runs an
application, several times a minute. No setting turns that off, so the modules of PySpark that these
processes run are told, each at the one place where it can be.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["end_quietly"]

_DAEMON: Final = "pyspark.daemon"
"""Runs, forked, as each worker; calls its own `worker` again for each task."""

_PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""Runs as the planner of one streaming query."""


def end_quietly() -> None:
    """Let this process end without a word if all that is wrong is that Spark is gone.

    In a process that is neither a worker nor a planner it does nothing, nor if done before.
    """
    main: Any = sys.modules.get("__main__")
    # A notebook's, or that of a program that embeds Python, may have none.
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", "")
    if name == _DAEMON and not isinstance(main.worker, _QuietWorker):
        main.worker = _QuietWorker(main.worker)
    elif name == _PLANNER:
        sys.excepthook = _hook


class _QuietWorker:
    """PySpark's `worker`, for which it is no failure that nobody listens."""

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
