"""The controller's side of a connection, whatever carries it.

    client.send(command)                 hands it over; never waits for the runtime
    client.receive(timeout_ms)           the next response, or None
    client.closed                        how it has ended; None while it is open

There is no acknowledgement of commands: what was sent to a connection that ends may be lost, or
may have been done. A controller that loses its connection connects again, and says anew what
should be there.

Invariants:
    Commands arrive in the order in which they were sent, responses in the order of the runtime.
    `Hello` is said by the client itself, once.
    A client is of one connection; nothing connects it again.
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
        """Names the connection."""
        ...

    @property
    def closed(self) -> Closed | None:
        """How the connection has ended, once that is known; None before."""
        ...

    def send(self, command: Command_contra) -> bool:
        """Hand a command over; False if the connection has ended, or ends by it."""
        ...

    def receive(self, timeout_ms: float = 0) -> Response_co | None:
        """The next response.

        Args:
            timeout_ms: How long to wait for one; not longer than until the connection ends.

        Returns:
            None if none has come, or none will: see `closed`.
        """
        ...

    def close(self) -> None:
        """End the connection; again does nothing."""
        ...
