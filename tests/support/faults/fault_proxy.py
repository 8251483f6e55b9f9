"""An HTTP proxy on loopback that loses, repeats, refuses and cuts what passes through it.

    lost_response   the server did it; the connection breaks before the answer
    reset_before    the connection breaks before the server saw the request
    e500_before, e503, e409   an error instead of the request
    e500_after, e409_after, e412_after   the server did it; an error instead of its answer, the
                    last one about the very object that the request has made
    e301_after, e400_after, e401_after, e403_after, e404_after
                    the server did it; somebody on the way lost its answer, repeated the request
                    and was refused: a token that has expired, an ingress without a backend; only
                    of a conditional PUT
    damage_back     the server did it; the connection breaks before the answer, and the next GET of
                    the same object, whose ever, brings other bytes; only of a conditional PUT
    dup             the server got the request twice; the second answer is passed on
    storm           this and the next requests, whose ever, are answered 503 and 500 in turn
    late            the server did it; its answer comes `late_ms` later
    truncate_get    half of a GET's body, then the connection breaks
    dribble         a GET's body comes in pieces, `drip_ms` after each other

Faults are scripted (`fail_next`) or drawn of `kinds` with a seeded probability. `injected` counts
those that took place: a fault that cannot befall a request (half of no body) leaves it alone and
is not counted. `requests` counts all by their method, and those that copy an object once more as
`COPY`. It runs on its own thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardline.datasource.stores.faulty import with_damaged_byte

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["FAULTS", "FAULTS_OF_CREATE", "FAULTS_OF_GET", "FaultProxy", "fault_proxy"]

FAULTS = (
    "lost_response",
    "reset_before",
    "e500_before",
    "e500_after",
    "e503",
    "e409",
    "e409_after",
    "e412_after",
    "e301_after",
    "e400_after",
    "e401_after",
    "e403_after",
    "e404_after",
    "damage_back",
    "dup",
    "storm",
    "late",
    "truncate_get",
    "dribble",
)

FAULTS_OF_GET = ("truncate_get", "dribble")
"""Those that only an answer with a body can suffer."""

FAULTS_OF_CREATE = (
    "e412_after",
    "e301_after",
    "e400_after",
    "e401_after",
    "e403_after",
    "e404_after",
    "damage_back",
)
"""Those that only a conditional PUT can suffer. Of any other request a refusal would be an error
that only its user can cure, and damage is no fault of a wire with checksums."""

_ERRORS = {
    "e500_before": (500, "InternalError"),
    "e500_after": (500, "InternalError"),
    "e503": (503, "SlowDown"),
    "e409": (409, "ConditionalRequestConflict"),
    "e409_after": (409, "ConditionalRequestConflict"),
    "e412_after": (412, "PreconditionFailed"),
    "e301_after": (301, "PermanentRedirect"),
    "e400_after": (400, "ExpiredToken"),
    "e401_after": (401, "Unauthorized"),
    "e403_after": (403, "AccessDenied"),
    "e404_after": (404, "NoSuchBucket"),
    "storm": (503, "SlowDown"),
}
_BEFORE = {"reset_before", "e500_before", "e503", "e409", "storm"}
_STORM = ("e503", "e500_before")


@dataclass(frozen=True, slots=True)
class _Message:
    """One HTTP request or response."""

    head: bytes
    body: bytes

    @property
    def whole(self) -> bytes:
        return self.head + self.body


class FaultProxy:
    """A proxy in front of `(host, port)`; give clients `endpoint`."""

    def __init__(self, host: str, port: int, seed: int = 0) -> None:
        self.probability = 0.0
        self.kinds: Sequence[str] = FAULTS
        self.refuse_with: tuple[int, str] | None = None
        self.injected: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.late_ms = 100.0
        self.drip_ms = 5.0
        self.drip_bytes = 4096
        self.storm_requests = 4
        self.dripped_bytes = 0
        self.endpoint = ""
        self._stormy = 0
        self._unread: set[bytes] = set()
        self._upstream = (host, port)
        self._script: deque[tuple[str, str]] = deque()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def fail_next(self, method: str, *faults: str) -> None:
        """The next requests with `method` fail like this, in this order."""
        assert set(faults) <= set(FAULTS), faults
        with self._lock:
            self._script.extend((method, fault) for fault in faults)

    def calm(self) -> None:
        """No more faults."""
        with self._lock:
            self.probability = 0.0
            self._script.clear()
            self._stormy = 0

    def _draw(self, method: str, *, conditional: bool) -> str | None:
        with self._lock:
            self.requests[method] += 1
            if self._stormy:
                self._stormy -= 1
                return _STORM[self._stormy % 2]
            fault = None
            if self._script and self._script[0][0] == method:
                fault = self._script.popleft()[1]
            elif self._random.random() < self.probability:
                fault = self._random.choice(self.kinds)
            if (fault in FAULTS_OF_GET and method != "GET") or (
                fault in FAULTS_OF_CREATE and not conditional
            ):
                fault = None
            if fault is not None:
                self.injected[fault] += 1
            if fault == "storm":
                self._stormy = self.storm_requests
            return fault

    async def serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self._stop.wait()
        server.close()
        await asyncio.gather(
            *asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True
        )

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._stop is not None
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while True:
                request = asyncio.ensure_future(_read_request(reader, writer))
                await asyncio.wait({request, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not request.done():
                    request.cancel()
                    break
                message = request.result()
                lives = message is not None and await self._answer(message, writer)
                await writer.drain()
                if not lives:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            stopped.cancel()
            # Abort sends a reset: what a client sees when a load balancer dies.
            writer.transport.abort()

    async def _answer(self, request: _Message, writer: asyncio.StreamWriter) -> bool:
        """Answer, or not; whether the connection lives on."""
        method = request.head.split(b" ", 1)[0].decode()
        if self.refuse_with is not None:
            writer.write(_error(method, *self.refuse_with))
            return True
        head = request.head.lower()
        self.requests["COPY"] += b"\r\nx-amz-copy-source:" in head
        fault = self._draw(method, conditional=b"if-none-match" in head)
        response = None if fault in _BEFORE else await self._forward(request, method)
        if fault == "dup":
            response = await self._forward(request, method)
        if fault == "late":
            await self._linger(self.late_ms)
        if fault in _ERRORS:
            writer.write(_error(method, *_ERRORS[fault]))
            return True
        target = request.head.split(b" ", 2)[1].partition(b"?")[0]
        if fault == "damage_back":
            self._unread.add(target)
        if response is None or fault in {"lost_response", "damage_back"}:
            return False
        if method == "GET" and target in self._unread and response.body:
            self._unread.discard(target)
            response = _Message(response.head, with_damaged_byte(response.body))
        if fault == "truncate_get":
            writer.write(response.head + response.body[: len(response.body) // 2])
            return False
        if fault == "dribble":
            await self._dribble(response, writer)
            return True
        writer.write(response.whole)
        return True

    async def _dribble(self, response: _Message, writer: asyncio.StreamWriter) -> None:
        writer.write(response.head)
        for start in range(0, len(response.body), self.drip_bytes):
            await self._linger(self.drip_ms)
            drop = response.body[start : start + self.drip_bytes]
            writer.write(drop)
            await writer.drain()
            self.dripped_bytes += len(drop)

    async def _linger(self, ms: float) -> None:
        """Let time pass, unless the proxy is stopped meanwhile."""
        assert self._stop is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), ms / 1000)

    async def _forward(self, request: _Message, method: str) -> _Message:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request.whole)
            await writer.drain()
            head, headers = await _read_head(reader)
            status = head.split(b" ", 2)[1]
            bodyless = method == "HEAD" or status in {b"204", b"304"}
            return _Message(head, b"" if bodyless else await _read_body(reader, headers))
        finally:
            writer.transport.abort()


def _error(method: str, status: int, code: str) -> bytes:
    text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>"
    # What is no code is sent as it is: an ingress does not speak S3.
    body = (text if code.isalnum() else code).encode()
    head = f"HTTP/1.1 {status} Injected\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head if method == "HEAD" else head + body


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> _Message | None:
    try:
        head, headers = await _read_head(reader)
    except asyncio.IncompleteReadError:
        return None
    if "expect" in headers:
        # The client holds its body back until it hears this; the server is not asked again.
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = head.split(b"\r\n")
        head = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
    return _Message(head, await _read_body(reader, headers))


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    headers = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return head, headers


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body as it is on the wire."""
    if headers.get("transfer-encoding", "") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(size, 16) + 2)
        body += size + chunk
        if chunk == b"\r\n":
            return body


@contextmanager
def fault_proxy(host: str, port: int, seed: int = 0) -> Iterator[FaultProxy]:
    """Run a proxy for the length of the `with` block."""
    proxy = FaultProxy(host, port, seed)
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(ready)), daemon=True)
    thread.start()
    assert ready.wait(10), "the proxy did not start"
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join(10)
        assert not thread.is_alive(), "the proxy did not stop"
