"""An endpoint is the runtime's side of a protocol: controllers come and go, the runtime runs on.

The runtime's loop must never wait for a controller, and must never mix two of them: a command of a
connection that has been replaced would undo what the new controller has just asked for.

    endpoint = Endpoint(wake)                    made once; lives as long as the runtime
    session = endpoint.connect(nonce)            by a transport; ends the session before
    session.push(command)                        by the transport, as commands come in

    match endpoint.take():                       by the runtime's loop; never waits
        case Reconcile(commands=commands): ...   a new controller's desired state, once
        case Received(command=command): ...      each command after that
        case None: ...                           nothing, for now
    endpoint.respond(response)                   by the runtime's loop; never waits

`take` and `respond` belong to one thread, the runtime's; all else may be called by any thread.
`wake` is called, by the thread of a transport, whenever there is something to take.

Invariants:
    At most one session is current. A session has queues of its own, and `connect` puts a new one in
    the place of the old in one step: no command that the old one still holds is taken after that,
    and no response goes to it.
    `Hello` is never taken; it is an argument of `connect`.
    Nothing of a session is taken before its `InitializationComplete`, which is never taken itself;
    the commands before it are then taken at once, those behind it one by one, in order. If a
    session ends before, it is as if it had never been. If it ends later, its commands are still
    taken.
    A response goes to the current session if its `Reconcile` has been taken, or nowhere.
    No queue grows without bound, and nothing waits: a session that would is ended with a reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from shardline.app.transport.session import CloseCode, Closed, Limits, Received, Reconcile, Session

__all__ = ["Endpoint"]

_log = logging.getLogger(__name__)

Command = TypeVar("Command")
Response = TypeVar("Response")


class Endpoint(Generic[Command, Response]):
    """The place where controllers of one protocol connect to the runtime.

    Attributes:
        limits: Bounds of each connection.
    """

    def __init__(self, wake: Callable[[], None], limits: Limits | None = None) -> None:
        """Make an endpoint; `wake` must return at once, and is called by any thread."""
        self.limits = limits or Limits()
        self._wake = wake
        self._lock = threading.Lock()
        self._current: Session[Command, Response] | None = None
        self._taken: Session[Command, Response] | None = None
        self._shut = False

    def connect(
        self, nonce: str, notify: Callable[[], None] = lambda: None
    ) -> Session[Command, Response]:
        """Begin a session in the place of the one before, which ends as REPLACED.

        A controller that connects while the runtime is ending gets a session that has ended.

        Args:
            nonce: Names the connection; from its `Hello`.
            notify: Called, by any thread, when a response can be pulled and when the session ends.
        """
        session: Session[Command, Response] = Session(nonce, self.limits, self._wake, notify)
        with self._lock:
            shut = self._shut
            before, self._current = self._current, None if shut else session
        if before:
            before.close(Closed(CloseCode.REPLACED, f"controller {nonce} has connected"))
        if shut:
            session.close(_SHUTDOWN)
        _log.info(
            "a controller has connected",
            extra={"context": {"nonce": nonce, "before": before.nonce if before else None}},
        )
        return session

    @property
    def session(self) -> Session[Command, Response] | None:
        """The session of the controller that is connected; None if there is none."""
        session = self._current
        return None if session is None or session.closed is not None else session

    @property
    def is_vacant(self) -> bool:
        """True if no controller is connected."""
        return self.session is None

    def take(self) -> Reconcile[Command] | Received[Command] | None:
        """Take the next step for the current controller; None if there is nothing now."""
        with self._lock:
            step = self._current.take() if self._current else None
            if step is not None:
                self._taken = self._current
            return step

    def respond(self, response: Response) -> bool:
        """Send a response to the current controller; False if there is none, or it was ended now.

        A controller that does not read its responses is disconnected, and does not get this one.
        """
        session = self._current
        return session is not None and session.respond(response)

    def refuse(self, detail: str) -> None:
        """End the session that the last step was taken from, because the step cannot be done.

        Nothing else of the session is taken.

        Args:
            detail: The reason, as a sentence for the controller's log.
        """
        with self._lock:
            # Not the current one: a newer controller may have connected since the step was taken.
            session, self._taken = self._taken, None
            if session is self._current:
                self._current = None
        if session:
            session.close(Closed(CloseCode.REFUSED, detail))

    def shut(self) -> None:
        """End the session, and every later one: the runtime ends."""
        with self._lock:
            self._shut = True
            session, self._current = self._current, None
        if session:
            session.close(_SHUTDOWN)


_SHUTDOWN = Closed(CloseCode.SHUTDOWN, "the runtime is ending")
