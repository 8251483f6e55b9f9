"""A link keeps a controller connected to the runtime: it connects again whenever that is lost.

A queue of unsent commands would have to be deduplicated against what the runtime did before the
connection broke. So there is none: each connection begins with the complete desired state.

    link = Link(connect, opening, on_response, clock, "compute")
    with link.lock:                  change the desired state …
        link.send(command)           … and send the change

A command that is sent while there is no connection is not kept: the next connection begins with
`opening()`, the complete desired state by then. Both happen under `lock`, so each change is in the
opening or sent after it.

Invariants:
    A connection begins with `Hello` (the client's own) and `opening()`, and nothing comes between.
    A controller that was replaced by a newer one stays away while that one is connected.
    One whose runtime has ended for good stays away, where that can be known: in its own process.
    Who waits for a response, or asks for one later, is told so in both cases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from shardline.app.transport.client import Client
from shardline.app.transport.session import CloseCode
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, ShardError

__all__ = ["Link"]

_log = logging.getLogger(__name__)

_RECEIVE_MS: Final = 200.0
_RECONNECT_MS: Final = 500.0
_CLOSE_MS: Final = 5000.0
_VACANT_LOOKS: Final = 20
"""Checks in a row, `_RECONNECT_MS` apart, that must find nobody connected before a replaced
controller comes back: the newer one has gone, and is not only connecting again."""

K = TypeVar("K")
S = TypeVar("S")


class Link(Generic[K, S]):
    """Keeps one connection; its thread receives.

    Attributes:
        lock: Held while the desired state changes, and while a connection is opened with it.
    """

    def __init__(
        self,
        connect: Callable[[], Client[K, S]],
        opening: Callable[[], Iterable[K]],
        on_response: Callable[[S], None],
        clock: Clock,
        name: str,
        *,
        vacant: Callable[[], bool] | None = None,
        ended: Callable[[], ShardError | None] = lambda: None,
        on_unanswered: Callable[[ShardError], None] = lambda _: None,
    ) -> None:
        """Make a link that `start` connects.

        Args:
            connect: Makes a connection; raises a `ShardError` or `OSError` if it cannot now.
            opening: Returns all commands that a connection begins with, up to and with
                `InitializationComplete` and, where it is allowed, `AllowWrites`.
            on_response: Called for each response, in the link's thread; must not block.
            clock: Of the process.
            name: For people.
            vacant: True if no controller is connected; None if that cannot be known: a controller
                that was replaced then stays away for ever.
            ended: Why the runtime has ended for good; None while it runs, or if that cannot be
                known: a runtime that is started again may be reached at the same address.
            on_unanswered: Called, in the link's thread, with the reason when no response will come:
                a newer controller has taken over, or the runtime has ended for good.
        """
        self.lock = threading.RLock()
        self._connect = connect
        self._opening = opening
        self._on_response = on_response
        self._clock = clock
        self._name = name
        self._vacant = vacant
        self._ended = ended
        self._on_unanswered = on_unanswered
        self._unanswered: ShardError | None = None
        self._open: Client[K, S] | None = None
        self._thread = PeriodicThread(f"{name}-link", self._run, clock, retry_ms=_RECONNECT_MS)
        self._stop = self._thread.stopping

    def check_in_charge(self) -> None:
        """Make sure that no newer controller has taken over, and the runtime has not ended.

        Raises:
            Determinate: `CONTROLLER_REPLACED`: one has.
            ShardError: It has, by this error.
        """
        if self._unanswered is not None:
            # Each raise adds to the traceback that it has, and that keeps what the frames have.
            raise self._unanswered.with_traceback(None)

    def start(self) -> None:
        """Connect, and connect again after each loss until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection; objects run on."""
        self._thread.cancel()
        with self.lock:
            if self._open is not None:
                self._open.close()
        self._thread.join(_CLOSE_MS)

    def send(self, command: K) -> None:
        """Send `command` if there is a connection; otherwise the next opening contains it."""
        with self.lock:
            if self._open is not None:
                # The result is ignored: if the connection has ended, the link's thread finds that
                # and opens the next one with the complete state.
                self._open.send(command)

    def _run(self) -> float | None:
        try:
            again = self._serve()
        except (ShardError, OSError):
            _log.info("no connection", exc_info=True, extra={"context": self._context()})
            again = True
        return _RECONNECT_MS if again else None

    def _serve(self) -> bool:
        """Keep one connection from beginning to end; True if another one is to be made."""
        connection = self._connect()
        try:
            # Under one lock: a command between the last of the opening and `_open` would be in
            # neither, and the runtime would lack that object until the next connection.
            with self.lock:
                # A runtime that has ended refuses at once, for as long as its process lives: an
                # opening takes holds for subscriptions, which would be new ones at each attempt.
                if connection.closed is None:
                    for command in self._opening():
                        connection.send(command)
                    self._open = connection
            while not self._stop.is_set() and connection.closed is None:
                response = connection.receive(_RECEIVE_MS)
                if response is not None:
                    self._take(response)
        finally:
            with self.lock:
                self._open = None
            connection.close()
        closed = connection.closed
        if closed is not None and closed.code is CloseCode.REPLACED:
            _log.error("a newer controller took over", extra={"context": self._context()})
            return self._wait_until_vacant()
        error = None if closed is None else self._ended()
        if error is not None:
            _log.error("the runtime has ended", extra={"context": self._context()})
            self._tell_unanswered(error)
        return error is None and not self._stop.is_set()

    def _tell_unanswered(self, error: ShardError) -> None:
        # In this order: who asks before the first line is told by the second.
        with self.lock:
            self._unanswered = error
        self._on_unanswered(error)

    def _wait_until_vacant(self) -> bool:
        """Wait until the newer controller has gone; False if the link was stopped first.

        Two controllers that both connected again at once would replace each other for ever.
        """
        self._tell_unanswered(_replaced_error(self._name))
        looks = 0
        while self._vacant is not None and not self._clock.wait(self._stop, _RECONNECT_MS):
            looks = looks + 1 if self._vacant() else 0
            if looks == _VACANT_LOOKS:
                with self.lock:
                    self._unanswered = None
                _log.info("the newer controller has gone", extra={"context": self._context()})
                return True
        return False

    def _take(self, response: S) -> None:
        try:
            self._on_response(response)
        except Exception:  # noqa: BLE001 - see below
            # One that cannot be understood must not end the connection that the others come by.
            _log.exception("response not taken", extra={"context": self._context()})

    def _context(self) -> dict[str, object]:
        return {"controller": self._name}


def _replaced_error(name: str) -> Determinate:
    """The error of a request to a controller that a newer one has replaced."""
    return Determinate(
        f"a newer {name} controller has taken over from this one",
        code="CONTROLLER_REPLACED",
        hint="ask that one; this one goes on when that one has been gone for ten seconds",
    )
