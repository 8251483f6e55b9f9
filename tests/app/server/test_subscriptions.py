"""Relations followed over a real socket: by many, with losses, slowly, and by those who may not."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from socket import SHUT_RDWR
from typing import Any
from unittest.mock import Mock

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

from shardline.app.introspection.events import Dropped, PeekEnded, PeekStarted, Polled
from shardline.app.introspection.publisher import Publisher, Selection
from shardline.app.server.access import Access
from shardline.app.server.api import Services, create_app
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.server.http_server import RunningServer, serve
from shardline.app.server.relation_client import follow_relation
from shardline.app.transport.session import Limits
from shardline.app.transport.websocket_server import server_options
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.jobs import ask
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World
from support.waiting import wait_until

pytestmark = pytest.mark.server

TOKEN = "s3cret/+ш"  # noqa: S105 - of the test
WAIT_S = 30.0


class Site:
    """A served world, whose moments follow one another quickly."""

    def __init__(self, access: Access) -> None:
        self.world = World()
        self.publisher = Publisher(
            self.world.relations, SystemClock(), SystemIds(), pace_ms=20, gap_ms=1
        )
        services = Services(
            self.world.relations, Mock(), publisher=self.publisher, observe=self.world.sink.put
        )
        self.served: RunningServer = serve(
            create_app(services, access), sockets=server_options(Limits())
        )

    def open(self, headers: Mapping[str, str] | None = None, **options: Any) -> ClientConnection:
        """A connection, as a browser or a program makes one."""
        opened: ClientConnection = open_socket(
            f"ws://127.0.0.1:{self.served.port}/api/v1/subscriptions",
            additional_headers=headers,
            proxy=None,
            max_size=None,
            compression=None,
            **options,
        )
        return opened


class Follower:
    """A client that keeps the rows of its subscriptions, by what is documented."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.rows: dict[str, Counter[str]] = {}
        self.columns: dict[str, list[str]] = {}
        self.mark = ""
        self.moments = 0
        self.snapshots: list[tuple[str, str]] = []

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a request; its answer, after what came before it."""
        self.socket.send(json.dumps(request))
        while True:
            message: dict[str, Any] = json.loads(self.socket.recv(WAIT_S))
            if "moment" not in message:
                found = message.get("subscribed")
                if found:
                    self.columns[found["id"]] = found["columns"]
                return message
            self.take(message["moment"])

    def subscribe(self, name: str, relation: str, **more: object) -> None:
        answer = self.ask(subscribe={"id": name, "relation": relation, **more})
        assert "subscribed" in answer, answer

    def take(self, moment: Mapping[str, Any]) -> None:
        self.moments += 1
        self.mark = moment["mark"]
        for change in moment["changes"]:
            assert change["id"] in self.columns, "its answer comes first"
            if "snapshot" in change:
                self.rows[change["id"]] = count(change["snapshot"])
                self.snapshots.append((change["id"], change["reason"]))
            held = self.rows[change["id"]]
            held.subtract(count(change.get("removed", [])))
            held.update(count(change.get("added", [])))
            self.rows[change["id"]] = +held

    def next(self) -> dict[str, Any]:
        """Take one more moment."""
        moment: dict[str, Any] = json.loads(self.socket.recv(WAIT_S))["moment"]
        self.take(moment)
        return moment

    def ids(self, name: str, column: str = "id") -> list[str]:
        """Values of a column of a subscription's rows, in order."""
        place = self.columns[name].index(column)
        rows = self.rows.get(name, Counter()).elements()
        return sorted(json.loads(row)[place] for row in rows)

    def until(self, happened: Callable[[], bool]) -> None:
        """Take moments until something has happened."""
        clock = SystemClock()
        deadline = clock.elapsed_ms() + WAIT_S * 1000
        while not happened():
            assert clock.elapsed_ms() < deadline, (self.rows, self.snapshots)
            self.next()


def count(rows: list[object]) -> Counter[str]:
    return Counter(json.dumps(row) for row in rows)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(Access(TOKEN))
    yield made
    made.served.close()


@pytest.fixture
def public() -> Iterator[Site]:
    made = Site(Access(TOKEN, "elsewhere"))
    yield made
    made.served.close()


def test_a_refusal_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """It has an answer, which says why; what is in the log at that level is looked into."""
    site = Site(Access(TOKEN, "elsewhere"))
    with pytest.raises(InvalidStatus) as refused:
        site.open()
    site.served.close()
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "TOKEN_NEEDED"
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_who_follows_is_a_connection_for_as_long(site: Site) -> None:
    """A browser's page by its origin, other programs without one; refused ones are none."""

    def connected() -> list[tuple[object, object]]:
        site.world.tell()
        return [(row["kind"], row["name"]) for row in site.world.rows("connections")]

    def addresses(*sockets: ClientConnection) -> list[str]:
        return ["{}:{}".format(*socket.socket.getsockname()) for socket in sockets]

    with pytest.raises(InvalidStatus):
        site.open({"Origin": "http://evil.example"})
    origin = {"Origin": f"http://127.0.0.1:{site.served.port}"}
    with site.open(origin) as page, site.open() as other:
        there = list(zip(("page", "subscriber"), addresses(page, other), strict=True))
        wait_until("both are there", lambda: connected() == there, WAIT_S)
        page.close()
        wait_until("one has gone", lambda: connected() == there[1:], WAIT_S)
    wait_until("nobody is left", lambda: connected() == [], WAIT_S)


def test_relations_are_followed_together(site: Site) -> None:
    """A snapshot of each, then what comes and goes; filtered, and no more once it is ended."""
    site.world.run(FLIGHTS)
    with site.open() as socket:
        client = Follower(socket)
        client.subscribe("all", "objects")
        client.subscribe("views", "objects", where={"type": "view"})
        client.until(lambda: len(client.snapshots) == 2)
        assert (client.ids("all"), client.ids("views")) == (["flights"], [])
        site.world.run(DELAYS)
        client.until(lambda: client.ids("views") == ["delays"])
        assert client.ids("all") == ["delays", "flights"], "both are as of one moment"
        assert client.ask(unsubscribe="views") == {"unsubscribed": "views"}
        site.world.tell(Dropped(id="delays", at_ms=0))
        client.until(lambda: client.ids("all") == ["flights"])
        assert client.ids("views") == ["delays"], "nothing more was said of it"
        assert client.snapshots == [("all", "new"), ("views", "new")]
        views = Selection("objects", (("type", "view"),))
        wait_until("it is not computed", lambda: site.publisher.moment.log(views) is None, WAIT_S)
        assert site.publisher.moment.log(Selection("objects")) is not None


def test_a_lost_connection_is_resumed_and_nobody_is_served_meanwhile(site: Site) -> None:
    """What has changed while nothing was computed comes as a difference, from the last mark."""
    site.world.run(FLIGHTS)
    with site.open() as socket:
        client = Follower(socket)
        client.subscribe("all", "objects")
        client.until(lambda: client.ids("all") == ["flights"])
        assert site.publisher.is_running
        socket.socket.shutdown(SHUT_RDWR)  # without a word
    wait_until("nothing is computed", lambda: not site.publisher.is_running, WAIT_S)
    assert site.publisher._followers == set()
    idle = site.publisher.moment
    site.world.run(DELAYS)
    assert site.publisher.moment is idle
    with site.open() as again:
        client.socket = again
        client.subscribe("all", "objects", after=client.mark)
        client.until(lambda: client.ids("all") == ["delays", "flights"])
        client.subscribe("foreign", "objects", after="ffff.1")
        client.until(lambda: len(client.snapshots) == 2)
    assert client.snapshots == [("all", "new"), ("foreign", "restarted")]


def test_a_client_that_does_not_read_delays_nobody(site: Site) -> None:
    """Others go on, and it gets what it lacks once it reads, but not each change that there was."""
    site.world.run(DELAYS)
    large = "x" * 500_000
    with site.open(max_queue=1) as slow_socket, site.open() as socket:
        slow, quick = Follower(slow_socket), Follower(socket)
        slow.subscribe("peeks", "active_peeks")
        quick.subscribe("lag", "frontiers")
        for number in range(40):
            site.world.tell(
                PeekEnded(uuid=f"{number - 1}{large}", took_ms=1.0),
                PeekStarted(uuid=f"{number}{large}", inputs=("delays",), time=1, at_ms=0),
                Polled(id="delays", since=0, upper=number),
            )
            quick.until(lambda n=number: quick.ids("lag", "write_frontier") == [n])  # type: ignore[misc]
        slow.until(lambda: slow.ids("peeks") == [f"39{large}"])
        assert slow.moments < quick.moments / 2
        assert ("peeks", "expired") in slow.snapshots
        slow.ask(unsubscribe="peeks")  # or the closing handshake would wait behind what comes


def test_requests_that_cannot_be_met_are_answered_and_the_connection_goes_on(site: Site) -> None:
    """With the id that was meant, a code and a hint."""
    site.world.run(FLIGHTS)

    def problem(client: Follower, **request: object) -> tuple[str, str]:
        error = client.ask(**request)["error"]
        return error["id"], error["code"]

    with site.open() as socket:
        client = Follower(socket)
        refused: list[tuple[dict[str, object], str]] = [
            ({"relation": "object"}, "UNKNOWN_RELATION"),
            ({"relation": "objects", "where": {"name": "x"}}, "UNKNOWN_COLUMN"),
            ({"relation": "objects", "where": {"epoch": "1"}}, "INVALID_FILTER"),
            ({"relation": "objects", "where": {"epoch": True}}, "INVALID_FILTER"),
            ({"relation": "dataflow_addresses", "where": {"address": 1}}, "INVALID_FILTER"),
            ({"relation": "objects", "after": "yesterday"}, "INVALID_MARK"),
        ]
        for wanted, code in refused:
            assert problem(client, subscribe={"id": "a", **wanted}) == ("a", code)
        assert problem(client, unsubscribe="a") == ("a", "UNKNOWN_SUBSCRIPTION")
        nonsense: list[dict[str, Any]] = [
            {},
            {"subscribe": {"id": "a"}},
            {"subscribe": {"id": "a", "relation": "objects", "more": 1}},
            {"subscribe": None, "unsubscribe": None},
            {"unsubscribe": "x" * 70_000},
        ]
        codes = [problem(client, **request) for request in nonsense]
        assert codes == [("", "REQUEST_UNREADABLE")] * 4 + [("", "TOO_LARGE")]
        client.subscribe("a", "objects", where={"epoch": 1})
        client.until(lambda: client.ids("a") == ["flights"])
        again = {"id": "a", "relation": "objects"}
        assert problem(client, subscribe=again) == ("a", "SUBSCRIPTION_EXISTS")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "https://evil.example"}, "FOREIGN_ORIGIN"),
        ({"Origin": "null"}, "FOREIGN_ORIGIN"),
        ({"Host": "evil.example"}, "FOREIGN_HOST"),
    ],
)
def test_a_page_of_another_site_cannot_connect(
    site: Site, headers: dict[str, str], code: str
) -> None:
    """A browser lets any page open a socket to loopback: the server has to refuse it."""
    connection = HTTPConnection("127.0.0.1", site.served.port, timeout=WAIT_S)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    connection.request("GET", "/api/v1/subscriptions", headers=upgrade | headers)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (403, code)
    connection.close()
    own = f"http://127.0.0.1:{site.served.port}"
    with site.open({"Origin": own}) as socket:
        Follower(socket).subscribe("a", "objects")


def test_bound_elsewhere_following_needs_the_token(public: Site) -> None:
    """In a header, or as a subprotocol from a browser, which needs one that is chosen."""
    offered = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    wrong: list[dict[str, Any]] = [
        {},
        {"headers": {"Authorization": "Bearer other"}},
        {"subprotocols": ["shardline-relations-v1", "shardline-token-b3RoZXI"]},
        {"subprotocols": ["shardline-token-!", "shardline-relations-v1"]},
    ]
    for given in wrong:
        with pytest.raises(InvalidStatus) as refused:
            public.open(**given)
        assert refused.value.response.status_code == 401
    protocols = ["shardline-relations-v1", f"shardline-token-{offered}"]
    with public.open(subprotocols=protocols) as socket:
        assert socket.subprotocol == "shardline-relations-v1", "and never the token"
        Follower(socket).subscribe("a", "objects")


def test_the_end_of_the_server_ends_the_connection(site: Site) -> None:
    """A client must not take silence for health."""
    with site.open() as socket:
        client = Follower(socket)
        client.subscribe("a", "objects")
        closing = threading.Thread(target=site.served.close)
        closing.start()
        with pytest.raises(ConnectionClosed):
            client.until(lambda: False)
        closing.join(WAIT_S)
    wait_until("nothing is computed", lambda: not site.publisher.is_running, WAIT_S)


def test_a_program_follows_a_relation_as_it_follows_an_object(site: Site) -> None:
    """Batches of rows with their moment and diff; problems are errors with their code."""
    site.world.run(FLIGHTS)
    where = ApplicationAddress(url=site.served.url, token="", pid=0)
    batches = follow_relation(where, "object_dependencies")
    first = next(batches)
    assert (first["lower"], first["updates"]) == (None, [])
    site.world.run(DELAYS)
    site.world.run(OUT)
    updates: list[dict[str, Any]] = []
    lower = first["upper"]
    while len(updates) < 2:
        batch = next(batches)
        assert batch["lower"] == lower
        lower = batch["upper"]
        assert {update["_ts"] for update in batch["updates"]} <= {batch["upper"]}
        updates += batch["updates"]
    assert [(u["object_id"], u["referenced_object_id"], u["_diff"]) for u in updates] == [
        ("delays", "flights", 1),
        ("out", "delays", 1),
    ]
    batches.close()
    with pytest.raises(InvalidUsage, match="did you mean 'objects'"):
        next(follow_relation(where, "object"))


def test_the_command_follows_a_relation(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`subscribe introspection.NAME` prints its rows, until the application is gone."""
    site.world.run(FLIGHTS)
    closing = threading.Thread(target=site.served.close)

    def follow(*arguments: Any) -> Iterator[dict[str, Any]]:
        batches = follow_relation(*arguments)
        yield next(batches)
        closing.start()
        yield from batches

    monkeypatch.setattr(ask, "follow_relation", follow)
    assert ask.main(["subscribe", "introspection.Objects", "--url", site.served.url]) == 2
    closing.join(WAIT_S)
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[0])["updates"][0]["id"] == "flights"
    assert "[NOT_RUNNING]" in shown.err
