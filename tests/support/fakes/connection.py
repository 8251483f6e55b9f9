"""A controller's connections whose other end is the test, and holds that tell when they end."""

from __future__ import annotations

import queue
import threading
from typing import Any

from shardline.app.transport.session import CloseCode, Closed

__all__ = ["Connections", "FakeConnection", "FakeHold"]


class FakeConnection:
    """Keeps what is sent; gives what the test puts in."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Any] = queue.Queue()
        self.responses: queue.Queue[Any] = queue.Queue()
        self.nonce = "test"
        self.closed: Closed | None = None

    def send(self, command: Any) -> bool:
        if self.closed is None:
            self.sent.put(command)
        return self.closed is None

    def receive(self, timeout_ms: float = 0) -> Any:
        try:
            return self.responses.get(timeout=min(timeout_ms, 20) / 1000)
        except queue.Empty:
            return None

    def close(self) -> None:
        self.closed = self.closed or Closed(CloseCode.DONE, "the controller has closed it")

    def break_off(self, *, replaced: bool = False) -> None:
        """The runtime closes it."""
        code = CloseCode.REPLACED if replaced else CloseCode.SHUTDOWN
        self.closed = Closed(code, "told by the test")

    def next(self) -> Any:
        """The next command that was sent."""
        return self.sent.get(timeout=10)

    def many(self, count: int) -> list[Any]:
        """The next commands."""
        return [self.next() for _ in range(count)]


class Connections:
    """Makes a new connection each time; the test gets them one after the other."""

    def __init__(self) -> None:
        self.made: queue.Queue[FakeConnection] = queue.Queue()
        self.refused = False

    def __call__(self) -> FakeConnection:
        connection = FakeConnection()
        if self.refused:
            connection.closed = Closed(CloseCode.SHUTDOWN, "the runtime is ending")
        self.made.put(connection)
        return connection

    def next(self) -> FakeConnection:
        return self.made.get(timeout=10)


class FakeHold:
    """A hold that knows whether it was given up."""

    def __init__(self) -> None:
        self.expired = threading.Event()

    def expire(self) -> bool:
        self.expired.set()
        return True
