"""The client reports a request whose answer is lost as one that may have been done."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from shardline.app.server import client
from shardline.app.server.client import (
    answers,
    ask_errors,
    drop_objects,
    follow_subscription,
    get_json,
    run_action,
    run_query,
    send_project,
)
from shardline.app.server.discovery import ApplicationAddress, announce
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Fenced,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    ShardError,
)
from shardline.jobs import ask, operate

pytestmark = pytest.mark.server

CHANGES: dict[str, Callable[[ApplicationAddress], object]] = {
    "pause": lambda where: run_action(where, "pause", "delays"),
    "drop": lambda where: drop_objects(where, ["delays"], commit=True),
    "errors": lambda where: ask_errors(where, {"id": "flights", "act": "skip", "commit": True}),
    "run": lambda where: send_project(where, {}, dry_run=False, timeout_ms=60_000),
}
READS: dict[str, Callable[[ApplicationAddress], object]] = {
    "sql": lambda where: run_query(where, "SELECT 1", 60_000),
    "subscribe": lambda where: list(follow_subscription(where, "SUBSCRIBE delays")),
    "status": lambda where: get_json(where, "relations/verdicts"),
    "drop, shown": lambda where: drop_objects(where, ["delays"], commit=False),
    "errors, shown": lambda where: ask_errors(where, {"id": "flights"}),
    "plan": lambda where: send_project(where, {}, dry_run=True, timeout_ms=60_000),
}
LOST = {
    "without an answer": b"",
    "in the middle of an answer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
}
BROKEN = b"HTTP/1.1 500 Broken\r\nContent-Length: 4\r\n\r\noops"
CUT = b"HTTP/1.1 500 Broken\r\nContent-Length: 4\r\n\r\no"


@contextmanager
def answering(answer: bytes) -> Iterator[ApplicationAddress]:
    """An application that reads a request, sends these bytes and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as request:
                size = 0
                for line in iter(request.readline, b"\r\n"):
                    name, _, value = line.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                request.read(size)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ApplicationAddress(
            url=f"http://127.0.0.1:{listening.getsockname()[1]}", token="", pid=0
        )
        thread.join(30)


FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would get the token, and has another machine at this address, or none."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with answering(FINE) as where:
            assert get_json(where, "relations") == {}
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_a_redirection_is_not_followed() -> None:
    """The request would be made again elsewhere, with the token."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        moved = f"Location: http://127.0.0.1:{elsewhere.getsockname()[1]}/".encode()
        answer = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + moved + b"\r\n\r\n"
        with answering(answer) as where, pytest.raises(Determinate, match=r"HTTP_ERROR.* 302"):
            get_json(where, "relations")
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@pytest.mark.parametrize("request_of", CHANGES)
@pytest.mark.parametrize("how", LOST)
def test_a_change_whose_answer_is_lost_may_have_been_done(request_of: str, how: str) -> None:
    """To say that no application runs would be to say that it was not."""
    with answering(LOST[how]) as where, pytest.raises(Indeterminate, match="NO_ANSWER"):
        CHANGES[request_of](where)


@pytest.mark.parametrize("request_of", READS)
@pytest.mark.parametrize("how", LOST)
def test_a_read_whose_answer_is_lost_found_no_application(request_of: str, how: str) -> None:
    """There is nothing that could have been done."""
    with answering(LOST[how]) as where, pytest.raises(InvalidUsage, match="NOT_RUNNING"):
        READS[request_of](where)


@pytest.mark.parametrize("name", READS)
def test_only_what_has_an_option_to_wait_for_longer_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The others would be refused with it."""

    def late(*_: object, **__: object) -> NoReturn:
        raise TimeoutError

    monkeypatch.setattr(client, "_OPENER", SimpleNamespace(open=late))
    with pytest.raises(Determinate, match="TIMEOUT") as error:
        READS[name](ApplicationAddress(url="http://127.0.0.1:1", token="t", pid=1))  # noqa: S106
    assert ("--timeout" in error.value.hint) == (name == "sql")


@pytest.mark.parametrize("answer", [BROKEN, CUT])
def test_an_error_of_the_application_does_not_undo_a_change(answer: bytes) -> None:
    """It may have come after the change; of a read it is only an error."""
    with answering(answer) as where, pytest.raises(Indeterminate, match="HTTP_ERROR"):
        CHANGES["drop"](where)
    with answering(answer) as where, pytest.raises(Determinate, match="HTTP_ERROR"):
        READS["drop, shown"](where)


OF_ANOTHER = FINE.replace(b"OK", b"OK\r\nshardline-location: b")


@pytest.mark.parametrize("text", [b"<html>", b"{}", b"[]", b"\xff"])
def test_an_answer_of_another_program_is_an_error_with_a_sentence(text: bytes) -> None:
    """It has got the port of an application that was killed."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    with answering(answer) as where, pytest.raises(Indeterminate, match="HTTP_ERROR"):
        CHANGES["pause"](where)
    for read in ("sql", "plan", "drop, shown"):
        with answering(answer) as where, pytest.raises(Determinate, match="HTTP_ERROR"):
            READS[read](where)


@pytest.mark.parametrize(
    "answer",
    [FINE, BROKEN, b"", b"SSH-2.0-OpenSSH_9.2\r\n", OF_ANOTHER],
)
def test_another_program_at_the_address_is_not_the_application(answer: bytes) -> None:
    """Nor is an application of another location."""
    with answering(answer) as where:
        assert not answers(replace(where, location="a"))


def streamed(*lines: bytes) -> bytes:
    """The beginning of a stream whose process ends behind these lines: each was sent whole."""
    chunks = (b"%x\r\n%s\r\n" % (len(line), line) for line in lines)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


SNAPSHOT = b'{"lower": 1, "upper": 2, "updates": []}\n'
END = b'{"lower": 2, "upper": null, "updates": []}\n'
ERROR = b'{"lower": 2, "upper": null, "error": "[CORRUPT] damaged"}\n'
DROPPED = b'{"dropped_at": 7}\n'


@pytest.mark.parametrize("lines", [[SNAPSHOT], [], [SNAPSHOT, END[:20]]])
def test_a_subscription_that_breaks_off_has_not_ended(
    lines: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed between two lines: its kernel closes the connection as if all had been sent."""
    with answering(streamed(*lines)) as where:
        announce(tmp_path, where)
        assert ask.main(["subscribe", "delays", "--data", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "[NOT_RUNNING]" in printed.err
    assert printed.out.encode() == (SNAPSHOT if lines else b"")


@pytest.mark.parametrize(("last", "status"), [(END, 0), (ERROR, 1), (DROPPED, 1)])
def test_the_status_of_subscribe_tells_how_it_has_ended(
    last: bytes, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error and a drop are printed like all that came before, and are no success."""
    with answering(streamed(SNAPSHOT, last)) as where:
        announce(tmp_path, where)
        assert ask.main(["subscribe", "delays", "--data", str(tmp_path)]) == status
    assert capsys.readouterr().out.encode() == SNAPSHOT + last


def error_answer(status: int, kind: str) -> bytes:
    problem = {"kind": kind, "code": "SOMETHING", "message": "it failed", "hint": "see there"}
    body = json.dumps({"error": problem}).encode()
    return b"HTTP/1.1 %d Failed\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize(
    ("status", "kind", "of_read"),
    [
        (503, "corrupt", Corrupt),
        (503, "missing_blob", MissingBlob),
        (503, "fenced", Fenced),
        (503, "determinate", Determinate),
        (504, "indeterminate", Determinate),
        (503, "of a later version", Determinate),
        (400, "corrupt", InvalidUsage),
    ],
)
def test_an_error_of_a_read_is_what_it_was(
    status: int, kind: str, of_read: type[ShardError]
) -> None:
    """What is damaged is not asked for again; and a change may have begun before it failed."""
    answer = error_answer(status, kind)
    with answering(answer) as where, pytest.raises(ShardError) as raised:
        READS["sql"](where)
    assert type(raised.value) is of_read
    assert (raised.value.code, raised.value.detail) == ("SOMETHING", "it failed")
    with answering(answer) as where, pytest.raises(ShardError) as raised:
        CHANGES["drop"](where)
    assert type(raised.value) is (InvalidUsage if status == 400 else Indeterminate)


def test_a_change_that_nobody_has_heard_was_not_done() -> None:
    """The address is that of an application that was killed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ApplicationAddress(
            url=f"http://127.0.0.1:{taken.getsockname()[1]}", token="", pid=0
        )
    for request in CHANGES.values():
        with pytest.raises(InvalidUsage, match="NOT_RUNNING"):
            request(where)


def test_a_repair_whose_answer_is_lost_is_not_made_again_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application has it in its order, and its next run carries it out."""

    def repair_again(_: Any, __: Mapping[str, object]) -> NoReturn:
        raise AssertionError("asked the location itself")

    monkeypatch.setattr(operate, "_answer_offline", repair_again)
    with answering(b"") as where:
        announce(tmp_path, where)
        words = ["errors", "flights", "--skip", "--commit", "--data", str(tmp_path)]
        assert operate.main(words) == 1
    assert "[NO_ANSWER]" in capsys.readouterr().err
