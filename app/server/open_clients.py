"""The open clients are those that follow relations at the moment, for the relation `connections`.

    clients = OpenClients(feeds.put, clock)
    with clients.connected(socket): …

Invariants:
    Whenever somebody comes or goes, all that are there then are reported: a report that is lost is
        made up for by the next one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from starlette.websockets import WebSocket

from shardline.app.introspection.events import Client, ClientsSeen
from shardline.datasource.clock import Clock

__all__ = ["OpenClients"]


class OpenClients:
    """See the module. Safe to use from any thread."""

    def __init__(self, report: Callable[[ClientsSeen], None], clock: Clock) -> None:
        """Nobody is connected.

        Args:
            report: Takes all clients whenever they change; must return at once.
            clock: Says when they came.
        """
        self._report = report
        self._clock = clock
        self._numbers = itertools.count()
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()

    @contextmanager
    def connected(self, socket: WebSocket) -> Iterator[None]:
        """Count a client in for as long as the block lasts."""
        number = next(self._numbers)
        self._put(number, _describe(socket, self._clock.now_ms()))
        try:
            yield
        finally:
            self._put(number, None)

    def _put(self, number: int, client: Client | None) -> None:
        # Reported under the lock: of two reports the last one must be the newest.
        with self._lock:
            if client is None:
                del self._clients[number]
            else:
                self._clients[number] = client
            self._report(ClientsSeen(tuple(self._clients.values())))


def _describe(socket: WebSocket, now_ms: int) -> Client:
    # A browser sends the origin with every WebSocket, and nothing else needs to.
    kind: Literal["page", "subscriber"] = "page" if "origin" in socket.headers else "subscriber"
    place = socket.client
    return Client(kind, f"{place.host}:{place.port}" if place is not None else "", now_ms)
