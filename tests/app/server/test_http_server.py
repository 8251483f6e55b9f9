"""The HTTP server is found again where it was, and is somewhere else rather than nowhere."""

from __future__ import annotations

import socket

import pytest
from starlette.applications import Starlette

from shardline.app.server.http_server import RunningServer, listen, serve
from shardline.datasource.errors import InvalidUsage

pytestmark = pytest.mark.server

HOST = "127.0.0.1"


def test_any_port_is_the_preferred_one_if_that_is_free() -> None:
    """Connections of clients that the one before has ended do not keep it."""
    with serve(Starlette()) as before:
        port = before.port
        client = socket.create_connection(("127.0.0.1", port))
    with client, RunningServer(Starlette(), listen(HOST, preferred=port), {}) as after:
        assert after.port == port


def test_a_preferred_port_that_is_taken_is_no_error() -> None:
    """A port that was asked for is."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with RunningServer(Starlette(), listen(HOST, preferred=taken), {}) as served:
            assert served.port not in {0, taken}
        with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
            serve(Starlette(), port=taken)


def test_an_address_of_another_machine_is_told_apart() -> None:
    """No other port would help. 192.0.2.0/24 is of documents alone."""
    with pytest.raises(InvalidUsage, match=r"INVALID_ADDRESS.*address of this machine"):
        listen("192.0.2.1")


def test_a_port_that_is_asked_for_comes_before_the_preferred_one() -> None:
    """What was set is so."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        asked = probe.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        preferred = probe.getsockname()[1]
    with RunningServer(Starlette(), listen(HOST, asked, preferred=preferred), {}) as served:
        assert served.port == asked
