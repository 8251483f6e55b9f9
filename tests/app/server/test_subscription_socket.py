"""The subscription socket reads no more from a client than the client reads from it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Generator
from typing import Any, cast

from starlette.websockets import WebSocket

from shardline.app.introspection.publisher import Publisher
from shardline.app.server.subscription_socket import _Connection
from support.fakes.clock import ManualClock, SeededIds
from support.fakes.introspection import World


@types.coroutine
def let_others_run() -> Generator[None, None, None]:
    """One round of the event loop."""
    yield


class Flood:
    """A client that asks without end and reads nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.sent = 0
        self.reads = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await let_others_run()
        self.asked += 1
        return {"type": "websocket.receive", "text": '{"unsubscribe": "a"}'}

    async def send_text(self, _text: str) -> None:
        self.sent += 1
        await self.reads.wait()


def test_requests_are_read_as_fast_as_answers_are() -> None:
    """Or what it is answered would fill the memory."""

    async def flood() -> tuple[int, int]:
        client = Flood()
        publisher = Publisher(World().relations, ManualClock(), SeededIds())
        connection = _Connection(cast("WebSocket", client), publisher)
        serving = asyncio.create_task(connection.serve())
        for _ in range(2_000):
            await let_others_run()
        blocked = client.asked
        client.reads.set()
        for _ in range(2_000):
            await let_others_run()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return blocked, client.sent

    blocked, answered = asyncio.run(flood())
    assert blocked <= 64 + 1
    assert answered > 200, "it goes on when it is read from"
