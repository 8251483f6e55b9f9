"""The address of an application that was killed may lead to another one, which refuses."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from rich.console import Console

from shardline.app.server.access import Access
from shardline.app.server.api import Services, create_app
from shardline.app.server.client import answers
from shardline.app.server.discovery import ApplicationAddress, announce
from shardline.app.server.http_server import RunningServer, serve
from shardline.app.settings.config import load
from shardline.app.transport.session import Limits
from shardline.app.transport.websocket_server import server_options
from shardline.datasource.client import ShardClient
from shardline.jobs import ask, operate, run
from support.fakes.introspection import World

pytestmark = pytest.mark.server

TOKEN = "both have it"  # noqa: S105 - a fixed one, of settings that both applications share


@pytest.fixture
def pause() -> Mock:
    """Takes what is paused."""
    return Mock(return_value={"changed": True})


@pytest.fixture
def other(pause: Mock) -> Iterator[RunningServer]:
    """An application of the location `b`."""
    services = Services(World().relations, Mock(), actions={"pause": pause})
    app = create_app(services, Access(TOKEN, location="b"))
    with serve(app, sockets=server_options(Limits())) as served:
        yield served


def announced(folder: Path, url: str, location: str) -> None:
    """The file that an application of `location` has left in its folder."""
    announce(folder, ApplicationAddress(url=url, token=TOKEN, pid=1, location=location))


COMMANDS: tuple[tuple[Callable[[Sequence[str]], int], list[str]], ...] = (
    (ask.main, ["status"]),
    (ask.main, ["sql", "SELECT 1"]),
    (ask.main, ["subscribe", "introspection.nothing"]),
    (ask.main, ["subscribe", "delays"]),
    (ask.main, ["set", "index_limit=1g"]),
    (ask.main, ["drop", "delays", "--commit"]),
    (operate.main, ["pause", "delays"]),
)


@pytest.mark.parametrize(("command", "words"), COMMANDS)
def test_another_application_is_not_taken_for_the_one_that_is_meant(
    command: Callable[[Sequence[str]], int],
    words: list[str],
    other: RunningServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was killed, and its port is that of this one: nothing is shown, and nothing done."""
    announced(tmp_path, other.url, "a")
    assert command([*words, "--data", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert ("[NOT_RUNNING]" in printed.err, printed.out) == (True, "")


def test_what_is_paused_is_an_object_of_the_application_that_is_meant(
    other: RunningServer, pause: Mock, tmp_path: Path
) -> None:
    """The other one may have an object of that name."""
    words = ["pause", "delays", "--data", str(tmp_path)]
    announced(tmp_path, other.url, "a")
    assert operate.main(words) == 2
    pause.assert_not_called()
    announced(tmp_path, other.url, "b")
    assert operate.main(words) == 0
    pause.assert_called_once_with("delays")


@contextlib.contextmanager
def stranger() -> Iterator[tuple[str, list[bytes]]]:
    """Another program, which has got the port of an application; its address and what it hears."""
    heard = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        heard.append(connection.recv(1 << 16))
                        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)


@pytest.mark.parametrize("words", [[], ["--plan"]])
def test_a_project_is_not_sent_to_another_program(words: list[str], tmp_path: Path) -> None:
    """It has got the port of an application that was killed, and hears of no token."""
    (tmp_path / "c.sql").write_text("CREATE SOURCE c USING counter;")
    given = run._parser(plans=False).parse_args([str(tmp_path), *words])
    settings = load(None, {"demo": {"data": str(tmp_path / "data")}})
    location = ShardClient.open(settings.demo.url, settings.storage).location.id
    with stranger() as (url, heard):
        announced(settings.demo.data, url, location)
        assert run._ask(given, settings, Console()) is None
    assert len(heard) == 1
    assert TOKEN.encode() not in heard[0]


@pytest.mark.parametrize(("command", "words"), COMMANDS)
def test_another_program_hears_of_no_token(
    command: Callable[[Sequence[str]], int],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever is asked: it is asked first, and once, whether it is the application."""
    with stranger() as (url, heard):
        announced(tmp_path, url, "a")
        assert command([*words, "--data", str(tmp_path)]) == 2
    assert [request.split()[1] for request in heard] == [b"/healthz"]
    assert TOKEN.encode() not in heard[0]
    assert "[NOT_RUNNING]" in capsys.readouterr().err


def test_the_application_says_which_one_it_is(other: RunningServer) -> None:
    """To everybody, so that it can be asked without its token."""
    where = ApplicationAddress(url=other.url, token="", pid=1, location="b")
    assert answers(where)
    assert not answers(replace(where, location="a"))


@pytest.mark.parametrize("location", ["b", ""])
def test_the_application_that_is_meant_answers(
    location: str, other: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also to who does not say which: a file of an earlier version, curl, a page."""
    announced(tmp_path, other.url, location)
    assert ask.main(["status", "--data", str(tmp_path)]) == 0
    assert "[NOT_RUNNING]" not in capsys.readouterr().err
    with urlopen(f"{other.url}/api/v1/objects", timeout=30) as answer:  # noqa: S310 - our own
        assert json.load(answer) == {"objects": []}
