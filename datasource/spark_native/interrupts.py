"""Lets Ctrl-C end a call from the JVM between two calls to it, and not in the middle of one.

The rule of the optimizer calls Python, in the very thread that has asked for the query. If that is
the main thread, Ctrl-C raises KeyboardInterrupt in it at any place: also while it waits for the
JVM's answer to a call of its own. The connection would then have an answer too many, and the next
call would take it for its own.

So a signal that comes in the middle of a call is kept until the function is done, which is soon
after the call has its answer. Between calls (while the store is read, or a time is waited for) it
is passed on at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from shardline.datasource.background import BackgroundThread

__all__ = ["CANCELLED", "CANCELLED_WRITE", "call_interruptibly", "is_interrupt"]

CANCELLED: Final = "KeyboardInterrupt while a read of format('shard') was planned"
"""Message of the exception of the JVM that ends the query."""

CANCELLED_WRITE: Final = "KeyboardInterrupt while a frame was written to format('shard')"
"""The same of an append."""

_INTERRUPTED: Final = (
    "InterruptedException",
    "InterruptedIOException",
    "ClosedByInterruptException",
)
"""Names of the exceptions of a thread of the JVM that is interrupted: its query is stopped."""

T = TypeVar("T")


def is_interrupt(error: BaseException) -> bool:
    """True if a call to the JVM has failed since its thread was interrupted; nothing follows."""
    return any(name in str(error) for name in _INTERRUPTED)


def call_interruptibly(function: Callable[[], T], when_kept: Callable[[], None] | None = None) -> T:
    """Call `function`, and pass SIGINT on to its handler when no call to the JVM is under way.

    The handler is the process's own, PySpark's mostly: it cancels jobs and raises
    KeyboardInterrupt. In other threads than the main one nothing is changed, since none is raised
    there.

    Args:
        function: What is called.
        when_kept: Called in a thread of its own, which has its own connection to the JVM, when a
            signal has come in the middle of a call: it may let the answer come soon.

    Raises:
        KeyboardInterrupt: The handler has raised it, at the end of `function` at the latest.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return function()
    kept: list[int] = []

    def pass_or_keep(number: int, frame: FrameType | None) -> Any:
        if not _is_in_call(frame):
            return handler(number, frame)
        kept.append(number)
        if when_kept is not None:
            BackgroundThread("interrupt", when_kept).start()
        return None

    signal.signal(signal.SIGINT, pass_or_keep)
    try:
        return function()
    finally:
        signal.signal(signal.SIGINT, handler)
        if kept:
            handler(kept[0], None)


def _is_in_call(frame: FrameType | None) -> bool:
    """True if a call to the JVM was begun by the function, and is under way."""
    while frame is not None and frame.f_code is not call_interruptibly.__code__:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False
