"""A session is one connection as its transport sees it: two bounded queues, a stage, an end.

It decouples the two sides: neither a slow controller nor a slow runtime may block the other, and
neither may fill the memory of the process.

A transport pushes commands and pulls responses; the `Endpoint` that made the session takes and
responds. None of the four ever waits. `wake` is called when there is something to take, `notify`
when there is something to pull or the session has ended; both by whichever thread did it, and not
under a lock.

Invariants:
    The stages follow one another: buffering (until `InitializationComplete`), complete, reconciled
    (the runtime has taken the desired state).
    Commands leave in the order in which they came; none leaves before the session is complete.
    Only a session that is reconciled and open gets responses; those that it has can be pulled after
    its end, too.
    The first reason to end stays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Literal, TypeVar

from shardline.app.protocol.compute import (
    Hello,
    InitializationComplete,
    PeekResponse,
    SubscribeResponse,
)
from shardline.datasource.clock import Clock

__all__ = ["CloseCode", "Closed", "Limits", "Received", "Reconcile", "Session"]

Command = TypeVar("Command")
Response = TypeVar("Response")


class CloseCode(IntEnum):
    """Reasons for the end of a connection: close codes of a WebSocket, used in process as well."""

    DONE = 1000
    """The controller has closed it."""
    LOST = 1006
    """The other side is gone: without closing, or silent for longer than the limit."""
    TOO_LARGE = 1009
    """A message is larger than the limit."""
    SHUTDOWN = 4000
    """The runtime ends."""
    REPLACED = 4001
    """A newer controller has connected."""
    SLOW_READER = 4002
    """Responses were not read."""
    OVERRUN = 4003
    """More commands than the limit wait to be taken."""
    PROTOCOL_ERROR = 4004
    """A message that cannot be decoded, or does not belong to this stage."""
    REFUSED = 4005
    """The runtime cannot do what the controller asks for."""
    PROTOCOL_VERSION = 4006
    """One side is newer than the other."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a connection.

    Attributes:
        code: The reason.
        detail: The same as a sentence, with the values.
    """

    code: CloseCode
    detail: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a connection.

    Attributes:
        commands: Most commands that wait to be taken, in either stage.
        responses: Most responses that wait to be read.
        response_bytes: Most bytes of rows in those responses; a single one may be larger.
        message_bytes: Largest message of a controller over a socket.
        opening_ms: How long a socket may take to send `Hello`.
        heartbeat_ms: How often each side of a socket pings the other one.
        silence_ms: How long the answer to a ping may take before the other side counts as gone.
    """

    commands: int = 65_536
    responses: int = 16_384
    response_bytes: int = 256 << 20
    message_bytes: int = 16 << 20
    opening_ms: int = 10_000
    heartbeat_ms: int = 5_000
    silence_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Reconcile(Generic[Command]):
    """A new controller's desired state: its commands up to `InitializationComplete`.

    Attributes:
        nonce: The connection's name.
        commands: In order, without `Hello` and `InitializationComplete`.
    """

    nonce: str
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Received(Generic[Command]):
    """One command of a controller whose `Reconcile` has been taken."""

    command: Command


_Stage = Literal["buffering", "complete", "reconciled"]


class Session(Generic[Command, Response]):
    """One connection, as its transport sees it. Made by `Endpoint.connect`.

    Attributes:
        nonce: The connection's name.
    """

    def __init__(
        self,
        nonce: str,
        limits: Limits,
        wake: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        self.nonce = nonce
        self._limits = limits
        self._wake = wake
        self._notify = notify
        self._lock = threading.Lock()
        self._stage: _Stage = "buffering"
        self._initial: tuple[Command, ...] = ()
        self._commands: deque[Command] = deque()
        self._responses: deque[Response] = deque()
        self._response_bytes = 0
        self._readable = threading.Event()
        self._closed: Closed | None = None

    @property
    def closed(self) -> Closed | None:
        """The reason for which it has ended; None while it is open."""
        return self._closed

    def push(self, command: Command) -> bool:
        """Hand over a command; False if the session has ended, or this command ends it.

        A second `Hello`, a second `InitializationComplete` and one command too many end it.
        """
        with self._lock:
            if self._closed:
                return False
            fault = self._fault(command)
            if fault is None:
                self._accept(command)
            takeable = self._stage != "buffering"
        if fault is not None:
            self.close(fault)
        elif takeable:
            self._wake()
        return fault is None

    def pull(self) -> Response | None:
        """Take the next response, after the end, too; None if there is none now."""
        with self._lock:
            if not self._responses:
                # Stays set after the end, so that nobody waits for what cannot come.
                if not self._closed:
                    self._readable.clear()
                return None
            response = self._responses.popleft()
            self._response_bytes -= _bytes_in(response)
            return response

    def wait(self, clock: Clock, timeout_ms: float) -> None:
        """Wait until there may be something to pull, the session has ended, or the time is over."""
        clock.wait(self._readable, timeout_ms)

    def close(self, closed: Closed) -> None:
        """End it for this reason; a session that has ended keeps its first one."""
        with self._lock:
            if self._closed:
                return
            self._closed = closed
            # Half of a desired state would look like drops of the other half.
            if self._stage == "buffering":
                self._commands.clear()
            self._readable.set()
        self._notify()

    def take(self) -> Reconcile[Command] | Received[Command] | None:
        """Take the runtime's next step with this session; see `Endpoint.take`."""
        with self._lock:
            if self._stage == "complete":
                self._stage = "reconciled"
                commands, self._initial = self._initial, ()
                return Reconcile(self.nonce, commands)
            if self._stage == "reconciled" and self._commands:
                return Received(self._commands.popleft())
            return None

    def respond(self, response: Response) -> bool:
        """Queue a response; see `Endpoint.respond`."""
        size = _bytes_in(response)
        with self._lock:
            if self._closed or self._stage != "reconciled":
                return False
            fits = len(self._responses) < self._limits.responses and (
                not self._responses or self._response_bytes + size <= self._limits.response_bytes
            )
            if fits:
                self._responses.append(response)
                self._response_bytes += size
                self._readable.set()
        if fits:
            self._notify()
        else:
            self.close(self._too_slow())
        return fits

    @property
    def is_reconciled(self) -> bool:
        """True if it is open, and the runtime has taken its desired state."""
        return self._stage == "reconciled" and self._closed is None

    def _accept(self, command: Command) -> None:
        if isinstance(command, InitializationComplete):
            self._stage = "complete"
            self._initial = tuple(self._commands)
            self._commands.clear()
        else:
            self._commands.append(command)

    def _fault(self, command: Command) -> Closed | None:
        """The reason for which a command ends the session; None if it does not."""
        if isinstance(command, Hello):
            return Closed(CloseCode.PROTOCOL_ERROR, "Hello came a second time")
        if isinstance(command, InitializationComplete):
            if self._stage != "buffering":
                return Closed(CloseCode.PROTOCOL_ERROR, "InitializationComplete came a second time")
            return None
        if len(self._commands) < self._limits.commands:
            return None
        where = "for InitializationComplete" if self._stage == "buffering" else "to be taken"
        return Closed(
            CloseCode.OVERRUN,
            f"{len(self._commands)} commands are waiting {where}, which is the limit",
        )

    def _too_slow(self) -> Closed:
        with self._lock:
            return Closed(
                CloseCode.SLOW_READER,
                f"{len(self._responses)} responses with {self._response_bytes} bytes of rows "
                "are waiting to be read",
            )


def _bytes_in(response: object) -> int:
    match response:
        case PeekResponse(rows=bytes(data)) | SubscribeResponse(updates=bytes(data)):
            return len(data)
        case _:
            return 0
