"""A client is the controller's side of one connection, in process or over a socket.

    client.send(command)                 hands it over; never waits for the runtime
    client.receive(timeout_ms)           the next response, or None
    client.closed                        the reason of the end; None while it is open

Commands are not acknowledged: one that was sent to a connection that ends may be lost, or may have
been done. A controller that loses its connection connects again, and sends its complete desired
state.

Invariants:
    Commands arrive in the order in which they were sent, responses in the order of the runtime.
    The client itself sends `Hello`, once.
    A client is one connection; nothing connects it again.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from shardline.app.transport.session import Closed

__all__ = ["Client"]

Command_contra = TypeVar("Command_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)


class Client(Protocol[Command_contra, Response_co]):
    """One connection to the runtime. `receive` belongs to one thread, all else to any."""

    @property
    def nonce(self) -> str:
        """The connection's name."""
        ...

    @property
    def closed(self) -> Closed | None:
        """The reason for which the connection has ended; None before that is known."""
        ...

    def send(self, command: Command_contra) -> bool:
        """Hand a command over; False if the connection has ended, or the command ends it."""
        ...

    def receive(self, timeout_ms: float = 0) -> Response_co | None:
        """Take the next response.

        Args:
            timeout_ms: How long to wait for one; the end of the connection ends the wait.

        Returns:
            None if none has come, or none will: see `closed`.
        """
        ...

    def close(self) -> None:
        """End the connection; harmless to repeat."""
        ...
