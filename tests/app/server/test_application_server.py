"""Subscriptions over HTTP: those that wait take nothing from other requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from typing_extensions import override

from shardline.app.controller.subscription import SubscribeBatch, Subscription
from shardline.app.introspection.events import Acted
from shardline.app.project.dropping import DropPlan
from shardline.app.project.plan import Plan
from shardline.app.protocol.compute import SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.app.server import application_server
from shardline.app.server.access import Access
from shardline.app.server.api import Services, create_app
from shardline.app.server.application_server import application_routes
from shardline.app.server.http_server import RunningServer, serve
from shardline.datasource.errors import Indeterminate, InvalidUsage
from support.fakes.introspection import World
from support.waiting import wait_until

pytestmark = pytest.mark.server

TOKEN = "secret"  # noqa: S105 - of the test
WAIT_S = 30.0
MANY = 50
"""More than the threads that asyncio has for all requests, on any machine: 32 at most."""


class Resting(Subscription):
    """A subscription to something that does not change; it notes when it is closed.

    A wait for its next batch lasts as long as the test, and so may its end.
    """

    def __init__(self, number: int, test_ends: threading.Event) -> None:
        described = SubscribeDescription(name=f"t{number}", on="delays")
        self.closing, self.may_close, self.closed = (threading.Event() for _ in range(3))
        self.may_close.set()
        super().__init__(described, 7, lambda *_: None, lambda _: self._end())
        self._test_ends = test_ends

    @override
    def take(self, timeout_ms: float) -> SubscribeBatch | None:
        if timeout_ms:
            self._test_ends.wait(WAIT_S)
        return super().take(0)

    def _end(self) -> None:
        self.closing.set()
        self.may_close.wait(WAIT_S)
        self.closed.set()

    def change(self, lower: int, upper: int | None) -> None:
        """Let a batch come."""
        self.put(SubscribeResponse(id=self.name, lower=lower, upper=upper, shard="s0f"))


@pytest.fixture
def opened() -> list[Resting]:
    """The subscriptions that were opened; they end with the test."""
    return []


@pytest.fixture
def served(opened: list[Resting]) -> Iterator[RunningServer]:
    """An application of which only subscriptions can be asked for."""
    test_ends = threading.Event()

    def subscribe(_: str) -> Resting:
        opened.append(Resting(len(opened), test_ends))
        opened[-1].change(7, 8)
        return opened[-1]

    runtime = SimpleNamespace(compute=Mock(), storage=Mock())
    application: Any = SimpleNamespace(runtime=runtime, repairs=Mock(), subscribe=subscribe)
    routes = application_routes(application, TOKEN)
    services = Services(World().relations, Mock(), routes=routes)
    with serve(create_app(services, Access(TOKEN))) as running:
        yield running
        test_ends.set()
        for one in opened:
            one.change(8, None)


def connect(served: RunningServer) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", served.port, timeout=WAIT_S)


def follow(served: RunningServer) -> Any:
    """The lines of a new subscription."""
    connection = connect(served)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", "/api/v1/subscribe", json.dumps({"query": "SUBSCRIBE x"}), headers)
    return connection.getresponse()


def test_subscriptions_that_wait_keep_no_other_request_waiting(
    served: RunningServer, opened: list[Resting]
) -> None:
    """Metrics are read while more of them wait than there are threads; and what comes is sent."""
    streams = [follow(served) for _ in range(MANY)]
    for stream in streams:
        first = {"lower": 7, "upper": 8, "shard": "s0f", "updates": []}
        assert json.loads(stream.readline()) == first
    for path in ("/metrics", "/api/v1/relations/objects"):
        connection = connect(served)
        connection.request("GET", path)
        assert connection.getresponse().status == 200, path
        connection.close()
    for number in (MANY - 1, 0):
        opened[number].change(8, 9)
        assert json.loads(streams[number].readline())["upper"] == 9
        opened[number].change(9, None)
        assert json.loads(streams[number].readline())["upper"] is None
        assert streams[number].readline() == b""
        assert opened[number].closed.wait(WAIT_S)
    for stream in streams:
        stream.close()


def test_others_are_answered_while_a_subscription_is_closed(
    served: RunningServer, opened: list[Resting]
) -> None:
    """Clients have gone while the store is slow; all are closed to the end all the same."""
    streams = [follow(served) for _ in range(MANY)]
    for stream, one in zip(streams, opened, strict=True):
        assert json.loads(stream.readline())["upper"] == 8
        one.may_close.clear()
    for stream in streams:
        stream.close()
    wait_until("one is being closed", lambda: any(one.closing.is_set() for one in opened), WAIT_S)
    connection = connect(served)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    assert not any(one.closed.is_set() for one in opened)
    for one in opened:
        one.may_close.set()
    assert all(one.closed.wait(WAIT_S) for one in opened)


def test_others_are_answered_while_a_batch_is_encoded(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be as large as a snapshot."""
    began, asked = threading.Event(), threading.Event()
    encode = application_server.batch_line

    def slow(batch: SubscribeBatch) -> str:
        began.set()
        assert asked.wait(10), "nobody else was answered"
        return encode(batch)

    monkeypatch.setattr(application_server, "batch_line", slow)
    stream = follow(served)
    assert began.wait(WAIT_S)
    connection = connect(served)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    asked.set()
    assert json.loads(stream.readline())["upper"] == 8
    stream.close()


class Changed:
    """An application whose objects can be dropped, and to which projects can be applied."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.runtime = SimpleNamespace(compute=Mock(), storage=Mock())
        self.repairs = self.comparison = Mock()

    def plan_drop(self, names: list[str]) -> DropPlan:
        del names
        return DropPlan(())

    def drop(self, names: list[str]) -> list[str]:
        if self.error is not None:
            raise self.error
        return names

    def change(self, files: object, *, dry_run: bool, **_: object) -> Plan:
        del files, dry_run
        if self.error is not None:
            raise self.error
        return Plan((), (), {}, {})


NOTHING = {"all.sql": "-- no objects"}


def test_a_project_without_text_is_refused() -> None:
    """Who failed to read its files must not stop everything; nothing is even tried."""
    application: Any = Changed()
    seen: list[Acted] = []
    routes = application_routes(application, TOKEN, seen.append)
    services = Services(World().relations, Mock(), routes=routes)
    with serve(create_app(services, Access(TOKEN))) as running:
        for files in ({}, {"a.sql": " \n"}):
            connection = connect(running)
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request("POST", "/api/v1/project", json.dumps({"files": files}), headers)
            answer = connection.getresponse()
            assert (answer.status, json.load(answer)["error"]["code"]) == (400, "EMPTY_PROJECT")
            connection.close()
    assert seen == []


def test_what_drops_objects_and_changes_a_project_is_recorded() -> None:
    """Each object that was to be dropped, and whose project it was; not what only says so."""
    application: Any = Changed()
    seen: list[Acted] = []
    routes = application_routes(application, TOKEN, seen.append)
    services = Services(World().relations, Mock(), routes=routes)

    def ask(path: str, **body: object) -> list[tuple[str, str, str]]:
        seen.clear()
        connection = connect(running)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        connection.getresponse().read()
        connection.close()
        return [(one.action, one.target, one.outcome) for one in seen]

    named = {"name": "flights", "folder": "/flights"}
    with serve(create_app(services, Access(TOKEN))) as running:
        assert ask("/api/v1/drop", names=["a", "b"]) == []
        assert ask("/api/v1/project", files={}, dry_run=True, project=named) == []
        assert sorted(ask("/api/v1/drop", names=["a", "b"], commit=True)) == [
            ("drop", "a", "done"),
            ("drop", "b", "done"),
        ]
        assert ask("/api/v1/project", files=NOTHING, project=named) == [
            ("apply_project", "flights", "done")
        ]
        assert ask("/api/v1/project", files=NOTHING) == [("apply_project", "", "done")]
        application.error = InvalidUsage("no", code="NO", hint="no")
        assert ask("/api/v1/drop", names=["a"], commit=True) == [("drop", "a", "refused")]
        assert ask("/api/v1/project", files=NOTHING) == [("apply_project", "", "refused")]
        application.error = Indeterminate("who knows", code="TIMEOUT", hint="look")
        assert ask("/api/v1/drop", names=["a"], commit=True) == [("drop", "a", "unknown")]


def test_a_subscription_whose_client_is_gone_is_closed(
    served: RunningServer, opened: list[Resting]
) -> None:
    """Also while nothing changes: it keeps history from being compacted."""
    stream = follow(served)
    assert stream.readline()
    stream.close()
    assert opened[0].closed.wait(WAIT_S)
