"""A real S3 server process on loopback: MiniStack, started and stopped by its test."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardline.datasource.clock import SystemClock, SystemIds

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["S3Server", "free_port", "s3_server"]

_READY_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server; `endpoint` goes into the option `s3.endpoint`."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options that reach it."""
        return options_for(self.endpoint)

    def new_bucket(self) -> str:
        """An empty bucket that nobody else uses."""
        name = f"b{SystemIds().token().hex()}"
        assert self.request("PUT", f"/{name}")[0] == 200, name
        return name

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        """One plain request past every client library: status and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def options_for(endpoint: str) -> dict[str, str]:
    """Storage options for a server at `endpoint` that takes any credentials."""
    return {
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "test",
        "s3.secret-access-key": "not-a-secret",
        "s3.path-style": "true",
    }


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server for the length of the `with` block; its contents die with it."""
    server = S3Server("127.0.0.1", free_port())
    environment = {
        **os.environ,
        "BIND_HOST": server.host,
        "GATEWAY_PORT": str(server.port),
        "SERVICES": "s3",
        "LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ministack"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_ready(server, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    clock = SystemClock()
    gives_up_at = clock.elapsed_ms() + _READY_MS
    while clock.elapsed_ms() < gives_up_at:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            server.request("GET", "/")
        except (ConnectionError, TimeoutError):
            clock.wait(threading.Event(), 50.0)
        else:
            return
    raise AssertionError(f"no answer from {server.endpoint} in {_READY_MS} ms")
