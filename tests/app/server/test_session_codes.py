"""One-time codes: once, for ten minutes, and nothing that another site could ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from shardline.app.server.access import Access
from shardline.app.server.api import Services, create_app
from shardline.app.server.discovery import ApplicationAddress, announce
from shardline.app.server.http_server import RunningServer, serve
from shardline.app.server.session_codes import SessionCodes, session_route
from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock
from support.fakes.introspection import World

TOKEN = "s3cret/+ш"  # noqa: S105 - of the test
MINUTE_MS = 60_000


@pytest.fixture
def codes() -> SessionCodes:
    return SessionCodes(TOKEN, ManualClock(), SystemIds())


def refusal(codes: SessionCodes, code: str) -> str:
    with pytest.raises(InvalidUsage) as refused:
        codes.redeem(code)
    return refused.value.code


def test_a_code_gives_the_token_once(codes: SessionCodes) -> None:
    """Whoever finds the link later gets nothing; other codes count on."""
    first, second = codes.issue(), codes.issue()
    assert first != second
    assert codes.redeem(first) == TOKEN
    assert refusal(codes, first) == "CODE_USED"
    assert codes.redeem(second) == TOKEN


def test_a_refusal_names_every_file_that_may_have_the_token(
    codes: SessionCodes, tmp_path: Path
) -> None:
    """That of one that follows another runtime has another name."""
    where = ApplicationAddress(url="http://127.0.0.1:1", token=TOKEN, pid=1)
    for follows in (False, True):
        announce(tmp_path, where, follows=follows)
    files = [file.name for file in tmp_path.iterdir() if TOKEN in file.read_text("utf-8")]
    assert len(files) == 2
    with pytest.raises(InvalidUsage) as refused:
        codes.redeem("guess")
    assert [name for name in files if name not in refused.value.hint] == []


def test_a_code_is_worth_nothing_after_ten_minutes() -> None:
    """Also if it was never used."""
    clock = ManualClock()
    codes = SessionCodes(TOKEN, clock, SystemIds())
    in_time, late = codes.issue(), codes.issue()
    clock.advance(10 * MINUTE_MS)
    assert codes.redeem(in_time) == TOKEN
    clock.advance(1)
    assert refusal(codes, late) == "CODE_EXPIRED"


def test_a_wrong_code_is_refused_and_old_ones_are_forgotten(codes: SessionCodes) -> None:
    """The codes that are remembered are bounded, the newest count."""
    first = codes.issue()
    newest = [codes.issue() for _ in range(64)]
    assert [refusal(codes, code) for code in ("", "guess", first)] == ["CODE_UNKNOWN"] * 3
    assert [codes.redeem(code) for code in newest] == [TOKEN] * 64


@pytest.fixture
def served(codes: SessionCodes) -> Iterator[RunningServer]:
    services = Services(World().relations, Mock(), routes=[session_route(codes)])
    with serve(create_app(services, Access(TOKEN))) as running:
        yield running


def post(served: RunningServer, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
    given = {"Content-Type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request("POST", "/api/v1/session", json.dumps(body), given)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


@pytest.mark.server
def test_a_session_is_asked_for_without_the_token(
    served: RunningServer, codes: SessionCodes
) -> None:
    """By the code, in the body; a token that was typed is only checked."""
    code = codes.issue()
    assert post(served, {"code": code}) == (200, {"token": TOKEN})
    for body, wrong in (
        ({"code": code}, (403, "CODE_USED")),
        ({"code": "x"}, (403, "CODE_UNKNOWN")),
        ({"token": "x"}, (403, "TOKEN_WRONG")),
        ({}, (400, "BODY_UNREADABLE")),
        ({"code": "x", "token": "y"}, (400, "BODY_UNREADABLE")),
    ):
        status, answer = post(served, body)
        assert (status, answer["error"]["code"]) == wrong
        assert TOKEN not in json.dumps(answer)
    assert post(served, {"token": TOKEN}) == (200, {"token": TOKEN})


@pytest.mark.server
def test_another_site_cannot_use_a_code_that_it_has_seen(
    served: RunningServer, codes: SessionCodes
) -> None:
    """And a refusal does not use the code up."""
    code = codes.issue()
    for headers, refused in (
        ({"Origin": "https://evil.example"}, (403, "FOREIGN_ORIGIN")),
        ({"Host": "evil.example"}, (403, "FOREIGN_HOST")),
        ({"Content_Type": "text/plain"}, (415, "JSON_NEEDED")),
    ):
        status, answer = post(served, {"code": code}, **headers)
        assert (status, answer["error"]["code"]) == refused
    assert codes.redeem(code) == TOKEN
