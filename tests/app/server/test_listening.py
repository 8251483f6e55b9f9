"""The address of an application is reserved before it takes its location from another one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from shardline.app.server.discovery import ApplicationAddress, announce
from shardline.app.server.listening import reserve_address, wait_for_address
from shardline.app.settings.config import Address, RuntimeSettings
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock

pytestmark = pytest.mark.server

HOST = "127.0.0.1"


@pytest.fixture
def other() -> Iterator[socket.socket]:
    """A process that listens at the address of the settings."""
    with socket.create_server((HOST, 0)) as listening:
        yield listening


def port_of(listening: socket.socket) -> int:
    port = listening.getsockname()[1]
    assert isinstance(port, int)
    return port


def announced_by(listening: socket.socket, location: str) -> ApplicationAddress:
    url = f"http://{HOST}:{port_of(listening)}"
    return ApplicationAddress(url=url, token="", pid=1, location=location)


def at(port: int) -> RuntimeSettings:
    return RuntimeSettings(listen=Address(f"{HOST}:{port}"))


def test_an_address_that_is_taken_is_refused(other: socket.socket, tmp_path: Path) -> None:
    """Also where a runtime is to be pushed aside, if it is not that one that has it."""
    settings = at(port_of(other))
    for takes_over in ("", "mine"):
        with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
            reserve_address(settings, tmp_path, takes_over=takes_over)
    announce(tmp_path, announced_by(other, "mine"))
    with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
        reserve_address(settings, tmp_path)
    assert reserve_address(settings, tmp_path, takes_over="mine") is None


@pytest.mark.parametrize(("location", "follows"), [("another", False), ("mine", True)])
def test_an_address_that_nobody_lets_go_is_refused(
    other: socket.socket, tmp_path: Path, location: str, follows: bool
) -> None:
    """Who has it stays: it holds another location of the folder, or follows the holder of this."""
    announce(tmp_path, announced_by(other, location), follows=follows)
    with pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
        reserve_address(at(port_of(other)), tmp_path, takes_over="mine")


def test_an_address_is_reserved(tmp_path: Path) -> None:
    """Nobody else gets it until it is served."""
    reserved = reserve_address(at(0), tmp_path)
    assert reserved is not None
    with reserved, pytest.raises(InvalidUsage, match="ADDRESS_TAKEN"):
        reserve_address(at(port_of(reserved)), tmp_path)


class Ending(ManualClock):
    """The other process lets its address go while this one waits, or does not."""

    def __init__(self, other: socket.socket | None) -> None:
        super().__init__()
        self._other = other

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.advance(timeout_ms)
        if self._other is not None:
            self._other.close()
        return False


def test_the_address_of_a_runtime_that_was_pushed_aside_is_waited_for(
    other: socket.socket,
) -> None:
    """It is free once that one has noticed."""
    port = port_of(other)
    with wait_for_address(at(port), Ending(other)) as listening:
        assert port_of(listening) == port


def test_a_start_that_has_taken_the_location_serves_anywhere(other: socket.socket) -> None:
    """Nothing would run otherwise: the other one has ended, and its address is not free."""
    with wait_for_address(at(port_of(other)), Ending(None)) as listening:
        assert port_of(listening) not in {0, port_of(other)}
