"""The relation client follows a relation of a running application, over a WebSocket.

    for batch in follow_relation(where, "verdicts"): …

Batches have the form of those of `follow_subscription`: a client of either needs no other code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect as open_socket
from websockets.typing import Subprotocol

from shardline.app.introspection.change_log import Difference, subtract_rows
from shardline.app.server.discovery import ApplicationAddress, request_headers
from shardline.app.server.subscription_messages import (
    PROTOCOL,
    Change,
    Request,
    ServerMessage,
    Subscribe,
    Subscribed,
)
from shardline.datasource.errors import InvalidUsage

__all__ = ["follow_relation"]

_OPEN_S: Final = 10.0


def follow_relation(
    where: ApplicationAddress, relation: str
) -> Generator[dict[str, Any], None, None]:
    """Yield the changes of a relation, from its present rows on, for as long as it is served.

    Args:
        where: The application.
        relation: Name of the relation, without `introspection.`.

    Returns:
        For each moment `lower` (the moment before; None at first), `upper`, and `updates`: rows
        with the moment (`_ts`) and +1 or -1 (`_diff`). If changes were lost, what is shown is what
        they add up to.

    Raises:
        InvalidUsage: There is no such relation, the application refuses, or it has ended.
    """
    url = f"ws{where.url.removeprefix('http')}/api/v1/subscriptions"
    try:
        with open_socket(
            url,
            additional_headers=request_headers(where),
            subprotocols=[Subprotocol(PROTOCOL)],
            compression=None,
            proxy=None,
            open_timeout=_OPEN_S,
            max_size=None,  # a snapshot is as large as the relation
        ) as socket:
            request = Request(subscribe=Subscribe(id=relation, relation=relation))
            socket.send(msgspec.json.encode(request).decode())
            rows = _Rows()
            while True:
                yield from rows.take(msgspec.json.decode(socket.recv(), type=ServerMessage))
    except InvalidStatus as error:
        raise _refusal(bytes(error.response.body or b""), error.response.status_code) from None
    except (OSError, ConnectionClosed, WebSocketException) as error:
        raise InvalidUsage(
            f"nothing answers at {where.url}: {error}",
            code="NOT_RUNNING",
            hint="the application has ended, or was killed: start it again",
        ) from None


class _Rows:
    """The rows that the client holds."""

    def __init__(self) -> None:
        self._columns: Sequence[str] = ()
        self._held: Counter[bytes] = Counter()
        self._at: int | None = None

    def take(self, message: ServerMessage) -> Iterator[dict[str, Any]]:
        """Apply a message, and yield the batch that it makes."""
        match message:
            case ServerMessage(error=problem) if problem is not None:
                raise InvalidUsage(problem.message, code=problem.code, hint=problem.hint)
            case ServerMessage(subscribed=Subscribed(columns=columns)):
                self._columns = columns
            case ServerMessage(moment=moment) if moment is not None:
                # Time goes back with the application's clock, intervals do not.
                at = moment.at if self._at is None else max(moment.at, self._at + 1)
                updates = [
                    {"_ts": at, "_diff": diff, **dict(zip(self._columns, row, strict=True))}
                    for change in moment.changes
                    for diff, row in self._apply(change)
                ]
                yield {"lower": self._at, "upper": at, "updates": updates}
                self._at = at

    def _apply(self, change: Change) -> Iterator[tuple[int, list[Any]]]:
        if change.snapshot is None:
            difference = Difference(_encode(change.added), _encode(change.removed))
        else:
            difference = subtract_rows(Counter(_encode(change.snapshot)), self._held)
        self._held.update(difference.added)
        self._held.subtract(difference.removed)
        self._held = +self._held
        for diff, rows in ((-1, difference.removed), (1, difference.added)):
            for row in rows:
                yield diff, msgspec.json.decode(row)


def _encode(rows: Sequence[object]) -> tuple[bytes, ...]:
    return tuple(msgspec.json.encode(row) for row in rows)


def _refusal(body: bytes, status: int) -> InvalidUsage:
    """The error in an answer that is no WebSocket."""
    try:
        problem = json.loads(body)["error"]
        return InvalidUsage(problem["message"], code=problem["code"], hint=problem["hint"])
    except (ValueError, KeyError, TypeError):
        return InvalidUsage(f"the application answered {status}", code="HTTP_ERROR")
