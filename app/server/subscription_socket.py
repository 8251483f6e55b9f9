"""The subscription socket lets anybody follow relations over one WebSocket.

    relation_subscriptions_route("/api/v1/subscriptions", publisher, access, clients)

A WebSocket and no stream of events: a client changes what it follows while it listens; a browser
opens six connections of HTTP/1.1 to a server and no more, which six open pages would use up for
good; and a client that does not read shows as one, since sending waits for it.

Who may connect is decided as for a GET. A browser can neither be kept from connecting to another
site's WebSocket, so its Origin must be our own, nor send a header with it, so it may offer the
token as a subprotocol (`access`).

Invariants:
    What waits for a client is bounded: requests are read only as fast as answers are sent, and a
        moment is taken only when it can be sent.
    When a connection has ended, it follows nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

import msgspec
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from shardline.app.introspection.publisher import Follower, Publisher, Selection
from shardline.app.introspection.relation import Scalar
from shardline.app.server.access import Access
from shardline.app.server.open_clients import OpenClients
from shardline.app.server.subscription_cursor import Cursor
from shardline.app.server.subscription_messages import (
    PROTOCOL,
    Problem,
    Request,
    ServerMessage,
    Subscribe,
    Subscribed,
)
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["relation_subscriptions_route", "selection_of"]

_REQUEST_BYTES_MAX: Final = 1 << 16
_ID_MAX: Final = 100
_ANSWERS_MAX: Final = 64
"""Answers that wait to be sent, before no more requests are read."""


def relation_subscriptions_route(
    path: str, publisher: Publisher, access: Access, clients: OpenClients
) -> WebSocketRoute:
    """Make the route by which relations are followed.

    Args:
        path: Of the route.
        publisher: Computes what is followed.
        access: Decides who may connect.
        clients: Counts those that are connected.
    """

    async def serve(socket: WebSocket) -> None:
        refused = access.refused_socket(path, socket.headers)
        if refused is not None:
            await socket.send_denial_response(refused)
            return
        # A browser gives the connection up unless one of the protocols that it offers is chosen.
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(PROTOCOL if PROTOCOL in offered else None)
        with clients.connected(socket):
            await _Connection(socket, publisher).serve()

    return WebSocketRoute(path, serve)


def selection_of(publisher: Publisher, wanted: Subscribe) -> Selection:
    """The selection that a request asks for.

    Raises:
        InvalidUsage: There is no such relation or column, or a value is not of its column's type.
    """
    declared = publisher.relations.declared
    if wanted.relation not in declared:
        raise unknown_name("relation", wanted.relation, declared)
    declared[wanted.relation].check_filter(wanted.where)
    where: list[tuple[str, Scalar]] = sorted(wanted.where.items())
    return Selection(wanted.relation, tuple(where))


class _Connection:
    """One connection, from its first message to its last."""

    def __init__(self, socket: WebSocket, publisher: Publisher) -> None:
        self._socket = socket
        self._publisher = publisher
        self._cursor = Cursor(publisher.run)
        self._answers: deque[ServerMessage] = deque()
        self._room = asyncio.Semaphore(_ANSWERS_MAX)
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._follower = Follower(self._notify)

    async def serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(self._read()), tasks.create_task(self._write())]
                await self._ended.wait()
                # Either may be waiting for a client that says nothing, or does not read.
                for task in both:
                    task.cancel()
        finally:
            self._publisher.remove_follower(self._follower)

    def _notify(self) -> None:
        """Signal a new moment; called by any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to signal
            self._loop.call_soon_threadsafe(self._news.set)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._ended.set()
                return
            text = message.get("text") or message.get("bytes") or ""
            # Each request has one answer. A client that does not read them is not read from.
            await self._room.acquire()
            self._handle(text.encode() if isinstance(text, str) else text)
            self._news.set()

    def _handle(self, text: bytes) -> None:
        """Do what a request says, and answer it."""
        # Nothing is awaited here: between the cursor and the answer no moment is sent, so that
        # the answer comes before the first moment that has the subscription.
        name = ""
        try:
            request = _decode(text)
            if request.subscribe is not None:
                name = request.subscribe.id[:_ID_MAX]
                self._answers.append(self._subscribe(request.subscribe))
            elif request.unsubscribe is not None:
                name = request.unsubscribe[:_ID_MAX]
                selection = self._cursor.remove(request.unsubscribe)
                self._publisher.unfollow(self._follower, selection)
                self._answers.append(ServerMessage(unsubscribed=request.unsubscribe))
        except InvalidUsage as error:
            problem = Problem(name, error.code, error.detail, error.hint)
            self._answers.append(ServerMessage(error=problem))

    def _subscribe(self, wanted: Subscribe) -> ServerMessage:
        selection = selection_of(self._publisher, wanted)
        if len(wanted.id) > _ID_MAX:
            raise InvalidUsage(f"an id may have {_ID_MAX} characters", code="TOO_LARGE")
        if not self._publisher.has_room(selection):
            raise InvalidUsage(
                "too many different subscriptions are followed",
                code="TOO_MANY_SUBSCRIPTIONS",
                hint="follow whole relations rather than many filtered ones",
            )
        self._cursor.add(wanted.id, selection, wanted.after)
        self._publisher.follow(self._follower, selection)
        columns = self._publisher.relations.declared[wanted.relation].schema.names
        return ServerMessage(subscribed=Subscribed(wanted.id, wanted.relation, columns))

    async def _write(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._answers:
                    await self._send(self._answers.popleft())
                    self._room.release()
                # Taken only now: while the last message went out, more than one moment may have
                # passed, and they come as one.
                moment = self._cursor.take(self._publisher.moment)
                if moment is not None:
                    await self._send(ServerMessage(moment=moment))
        except WebSocketDisconnect:
            self._ended.set()

    async def _send(self, message: ServerMessage) -> None:
        await self._socket.send_text(msgspec.json.encode(message).decode())


def _decode(text: bytes) -> Request:
    if len(text) > _REQUEST_BYTES_MAX:
        raise InvalidUsage(f"a request may have {_REQUEST_BYTES_MAX} bytes", code="TOO_LARGE")
    try:
        request = msgspec.json.decode(text, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidUsage(
            f"the request is not as described: {error}",
            code="REQUEST_UNREADABLE",
            hint="GET /api/v1/openapi.json describes it",
        ) from None
    if (request.subscribe is None) == (request.unsubscribe is None):
        raise InvalidUsage(
            "a request has one of 'subscribe' and 'unsubscribe'",
            code="REQUEST_UNREADABLE",
            hint="GET /api/v1/openapi.json describes it",
        )
    return request
