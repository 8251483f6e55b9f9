"""The in-process client connects a controller in the runtime's own process, without a codec.

    client = InProcessClient(endpoint, nonce, clock)

It has the same bounds as a socket: a controller that does not keep up is disconnected with a
reason. So what works in process works over a socket, too.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from typing_extensions import override

from shardline.app.transport.client import Client
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import CloseCode, Closed
from shardline.datasource.clock import Clock

__all__ = ["InProcessClient"]

Command = TypeVar("Command")
Response = TypeVar("Response")


class InProcessClient(Client[Command, Response], Generic[Command, Response]):
    """A connection to an endpoint of this process, open from its construction on."""

    def __init__(self, endpoint: Endpoint[Command, Response], nonce: str, clock: Clock) -> None:
        """Connect; a controller that is connected is replaced.

        Args:
            endpoint: The runtime's side.
            nonce: The connection's name: the hex digits of a fresh token.
            clock: For waits.
        """
        self._clock = clock
        self._session = endpoint.connect(nonce)

    @property
    @override
    def nonce(self) -> str:
        return self._session.nonce

    @property
    @override
    def closed(self) -> Closed | None:
        return self._session.closed

    @override
    def send(self, command: Command) -> bool:
        return self._session.push(command)

    @override
    def receive(self, timeout_ms: float = 0) -> Response | None:
        response = self._session.pull()
        if response is None and timeout_ms > 0:
            self._session.wait(self._clock, timeout_ms)
            response = self._session.pull()
        return response

    @override
    def close(self) -> None:
        self._session.close(Closed(CloseCode.DONE, "the controller has closed it"))
