"""The runtime's side of a protocol: controllers come and go, the runtime takes what they say.

    endpoint = Endpoint(wake)                    made once; lives as long as the runtime
    session = endpoint.connect(nonce)            by a transport; ends the session before
    session.push(command)                        by the transport, as commands come in

    match endpoint.take():                       by the runtime's loop; never waits
        case Reconcile(commands=commands): ...   all that a new controller wants, once
        case Received(command=command): ...      what it says after that
        case None: ...                           nothing, for now
    endpoint.respond(response)                   by the runtime's loop; never waits

`take` and `respond` belong to one thread, the runtime's; all else may be called by any thread.
`wake` is called, by the thread of a transport, whenever there is something to take.

Invariants:
    At most one session is current. A session has queues of its own, and `connect` puts a new one in
    the place of the old in one step: nothing that the old one still holds is ever taken after that,
    and nothing that is answered after that goes to it.
    `Hello` is never taken; it is an argument of `connect`.
    Nothing of a session is taken before its `InitializationComplete`, which is never taken itself;
    what came before is then taken at once, what comes behind one by one, in order. If a session
    ends before, it is as if it had never been. If it ends later, what it has said is still taken.
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

logger = logging.getLogger(__name__)

Command = TypeVar("Command")
Response = TypeVar("Response")


class Endpoint(Generic[Command, Response]):
    """Where the controllers of one protocol connect.

    Attributes:
        limits: Bounds of each connection.
    """

    def __init__(self, wake: Callable[[], None], limits: Limits | None = None) -> None:
        """`wake` must return at once, and is called by any thread."""
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

        One that connects to a runtime that ends gets a session that has ended.

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
        logger.info(
            "A controller has connected",
            extra={"context": {"nonce": nonce, "before": before.nonce if before else None}},
        )
        return session

    @property
    def listening(self) -> bool:
        """Whether there is a controller to respond to: one that is open, and has been taken up."""
        session = self._current
        return session is not None and session.reconciled

    @property
    def vacant(self) -> bool:
        """Whether no controller is connected."""
        session = self._current
        return session is None or session.closed is not None

    def take(self) -> Reconcile[Command] | Received[Command] | None:
        """What is next to be done for a controller; None if there is nothing now."""
        with self._lock:
            step = self._current.take() if self._current else None
            if step is not None:
                self._taken = self._current
            return step

    def respond(self, response: Response) -> bool:
        """Answer the current controller; False if there is none to be answered.

        One that does not read what it is told is disconnected, and gets nothing of this.
        """
        session = self._current
        return session is not None and session.respond(response)

    def refuse(self, detail: str) -> None:
        """End the session that the last step was taken from: it cannot be done.

        What else the session has said is not taken any more.

        Args:
            detail: Why, as a sentence for the controller's log.
        """
        with self._lock:
            session, self._taken = self._taken, None
            if session is self._current:
                self._current = None
        if session:
            session.close(Closed(CloseCode.REFUSED, detail))

    def shut(self) -> None:
        """End the session, and every one to come: the runtime ends."""
        with self._lock:
            self._shut = True
            session, self._current = self._current, None
        if session:
            session.close(_SHUTDOWN)


_SHUTDOWN = Closed(CloseCode.SHUTDOWN, "the runtime is ending")
