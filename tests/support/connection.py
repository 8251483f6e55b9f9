"""A controller's connection whose other end is the test."""

from __future__ import annotations

import queue
from typing import Any

from datasource.errors import Determinate

__all__ = ["FakeConnection"]


class FakeConnection:
    """Keeps what is sent; gives what the test puts in."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Any] = queue.Queue()
        self.responses: queue.Queue[Any] = queue.Queue()
        self.closed: str | None = None
        self.replaced = False

    def send(self, command: Any) -> None:
        if self.closed is not None:
            raise Determinate("closed", code="CLOSED", hint="")
        self.sent.put(command)

    def receive(self, timeout_ms: float) -> Any:
        try:
            return self.responses.get(timeout=min(timeout_ms, 20) / 1000)
        except queue.Empty:
            return None

    def close(self) -> None:
        self.closed = self.closed or "by the controller"

    def break_off(self, *, replaced: bool = False) -> None:
        """The runtime closes it."""
        self.replaced = replaced
        self.closed = "replaced" if replaced else "lost"

    def next(self) -> Any:
        """The next command that was sent."""
        return self.sent.get(timeout=10)

    def many(self, count: int) -> list[Any]:
        """The next commands."""
        return [self.next() for _ in range(count)]
