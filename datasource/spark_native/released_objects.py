"""Lets go of the JVM's objects many at a time, once Python has given them up.

    release_together(client, release)

Py4J keeps each object that it has handed out until it is told that Python needs it no more, and
tells it of each one by a call of its own: a third of all calls of an application were these. They
are made by a thread of Py4J's, from a queue. Here that queue gives it all that wait as one.

Invariants:
    An object is released only after Python has given it up, and each one is, unless the call fails:
    its objects stay until the JVM ends, as after one of Py4J's own.
    To put an object into the queue takes no lock: Python's garbage collector does it, in whatever
    thread it happens to run.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER, FinalizerWorker

__all__ = ["release_together"]

_log = logging.getLogger(__name__)

_TOGETHER_MAX: Final = 1000
"""Most objects of one call."""

_PREFIX: Final = "o"
"""The first letter of the names of all objects that are handed out: the gateway itself has others,
and is never released."""

_replacing: Final = threading.Lock()
"""Two threads may be the first to read a plan."""


def release_together(client: Any, release: Callable[[str], object]) -> None:
    """Let the objects of a client of Py4J be released by few calls; nothing where it has no queue.

    Args:
        client: Of the gateway; without threads of their own in the JVM PySpark has another one.
        release: Releases the objects with these names, which are joined by blanks.
    """
    with _replacing:
        before: Any = getattr(client, "finalizer_deque", None)
        workers = (one for one in threading.enumerate() if isinstance(one, FinalizerWorker))
        worker = next((one for one in workers if one.deque is before), None)
        if worker is None or isinstance(before, _Queue):
            return
        queue = _Queue(release)
        client.finalizer_deque = queue
        worker.deque = queue
    with suppress(IndexError):  # until it is empty: Py4J's thread may still take one, too
        while True:
            queue.appendleft(before.pop())


class _Queue:
    """Stands for Py4J's queue of what is given up, and for the client that releases it."""

    def __init__(self, release: Callable[[str], object]) -> None:
        self._release = release
        self._given_up: deque[Any] = deque()

    def appendleft(self, given_up: Any) -> None:
        """Take an object with its client, or Py4J's mark for the end."""
        self._given_up.appendleft(given_up)

    def pop(self) -> Any:
        """All that waits, as one object of this client; Py4J's mark for the end by itself."""
        names: list[str] = []
        found = self._given_up.pop()  # where there is nothing Py4J's thread waits for a second
        while found != SHUTDOWN_FINALIZER_WORKER:
            names.append(found[1])
            if not self._given_up or len(names) == _TOGETHER_MAX:
                return self, names
            found = self._given_up.pop()
        if names:
            self._given_up.append(found)
            return self, names
        return found

    def garbage_collect_object(self, names: list[str], *_enqueue: bool) -> None:
        """Release objects; Py4J's thread calls it."""
        try:
            self._release(" ".join(one for one in names if one.startswith(_PREFIX)))
        except Exception:  # noqa: BLE001 - as Py4J: that thread must live
            _log.debug("objects of the JVM are not released", exc_info=True)
