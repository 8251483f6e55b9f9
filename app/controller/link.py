"""A controller's connection to the runtime, made again whenever it is lost.

    link = Link(connect, opening, on_response, clock, "compute")
    with link.lock:                  change what should be there …
        link.send(command)           … and say so

What is sent while there is no connection is not kept: the next one begins with `opening()`, all
that should be there by then. Both happen under `lock`, so no change is ever in neither.

Invariants:
    A connection begins with `Hello` (the client's own) and `opening()`, and nothing comes between.
    A controller that was replaced by a newer one stays away while that one is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from shardline.app.transport.client import Client
from shardline.app.transport.session import CloseCode
from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, ShardError

__all__ = ["Link", "replaced_error"]

_log = logging.getLogger(__name__)

_RECEIVE_MS: Final = 200.0
_AGAIN_MS: Final = 500.0
_CLOSE_MS: Final = 5000.0
_VACANT_LOOKS: Final = 20
"""So many looks in a row, a pause of `_AGAIN_MS` between, find nobody: the newer controller has
gone, and is not only connecting again."""

K = TypeVar("K")
S = TypeVar("S")


class Link(Generic[K, S]):
    """Keeps one connection; its thread receives.

    Attributes:
        lock: Held while what should be there changes, and while it is said anew.
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
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """A link that `start` brings up.

        Args:
            connect: Makes a connection; a `ShardError` or `OSError` says that it cannot now.
            opening: All commands that a connection begins with, up to and with
                `InitializationComplete` and, where it is allowed, `AllowWrites`.
            on_response: Called for each response, in the link's thread; must not block.
            clock: Of the process.
            name: For people.
            vacant: Whether nobody is connected; None if that cannot be known: one that was replaced
                then stays away for ever.
            on_replaced: Called, in the link's thread, when a newer controller has taken over.
        """
        self.lock = threading.RLock()
        self._connect = connect
        self._opening = opening
        self._on_response = on_response
        self._clock = clock
        self._name = name
        self._vacant = vacant
        self._on_replaced = on_replaced
        self._replaced = False
        self._open: Client[K, S] | None = None
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-link", daemon=True)

    @property
    def replaced(self) -> bool:
        """Whether a newer controller is connected in the place of this one."""
        return self._replaced

    def check_in_charge(self) -> None:
        """Make sure that no newer controller has taken over.

        Raises:
            Determinate: `CONTROLLER_REPLACED`: one has.
        """
        if self._replaced:
            raise replaced_error(self._name)

    def start(self) -> None:
        """Connect, and go on connecting until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection; what runs is left to run."""
        self._stop.set()
        with self.lock:
            if self._open is not None:
                self._open.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_MS / 1000)

    def send(self, command: K) -> None:
        """Pass `command` on if there is a connection."""
        with self.lock:
            if self._open is not None:
                # One that has ended is found by the thread, which begins the next one with all
                # there is.
                self._open.send(command)

    def wait_ready(self, timeout_ms: float) -> None:
        """Wait until a connection has been opened.

        Raises:
            Determinate: There was none in time.
        """
        if not self._clock.wait(self._ready, timeout_ms):
            raise Determinate(
                f"the runtime did not answer the {self._name} controller in {timeout_ms:.0f} ms",
                code="RUNTIME_NOT_REACHED",
                hint="is the application running? its log says what it does",
            )

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._serve():
                    return
            except (ShardError, OSError):
                _log.info("no connection", exc_info=True, extra={"context": self._context()})
            self._clock.wait(self._stop, _AGAIN_MS)

    def _serve(self) -> bool:
        """One connection from beginning to end; whether to make another."""
        connection = self._connect()
        try:
            with self.lock:
                for command in self._opening():
                    connection.send(command)
                self._open = connection
            self._ready.set()
            while not self._stop.is_set() and connection.closed is None:
                response = connection.receive(_RECEIVE_MS)
                if response is not None:
                    self._take(response)
        finally:
            with self.lock:
                self._open = None
            self._ready.clear()
            connection.close()
        closed = connection.closed
        if closed is not None and closed.code is CloseCode.REPLACED:
            _log.error("a newer controller took over", extra={"context": self._context()})
            return self._stay_away()
        return not self._stop.is_set()

    def _stay_away(self) -> bool:
        """Wait until the newer controller has gone; whether it has."""
        with self.lock:
            self._replaced = True
        self._on_replaced()
        looks = 0
        while self._vacant is not None and not self._clock.wait(self._stop, _AGAIN_MS):
            looks = looks + 1 if self._vacant() else 0
            if looks == _VACANT_LOOKS:
                with self.lock:
                    self._replaced = False
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


def replaced_error(name: str) -> Determinate:
    """What is said to who asks a controller that a newer one has replaced."""
    return Determinate(
        f"a newer {name} controller has taken over from this one",
        code="CONTROLLER_REPLACED",
        hint="ask that one; this one goes on when that one has been gone for ten seconds",
    )
