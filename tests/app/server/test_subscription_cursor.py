"""Cursors against a model: any clients, losses, restarts and slowness end in the right rows."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.introspection import change_log
from shardline.app.introspection.change_log import ChangeLog
from shardline.app.introspection.publisher import Moment, Selection
from shardline.app.server.subscription_cursor import SUBSCRIPTIONS_MAX, Cursor
from shardline.app.server.subscription_messages import MomentSent
from shardline.datasource.errors import InvalidUsage
from support.profiles import examples

A, B = Selection("a"), Selection("b")
NAMES = {"a": A, "b": B}


class Server:
    """Moments of two selections, and which rows each moment has: the truth."""

    def __init__(self) -> None:
        self.runs = 0
        self.rows: dict[Selection, list[bytes]] = {A: [], B: []}
        self.restart()

    def restart(self) -> None:
        self.runs += 1
        self.run = f"run{self.runs}"
        self.moment = Moment(1000)
        self.truth: dict[str, dict[Selection, Counter[str]]] = {}

    def tick(self, followed: set[Selection]) -> None:
        at, before = self.moment.at + 1, self.moment.logs
        logs = dict(before)
        for selection in followed:
            rows = self.rows[selection]
            known = before.get(selection)
            logs[selection] = (
                ChangeLog.begin(at, rows) if known is None else known.advance(at, rows)
            )
        # The clock goes back all the time, marks do not.
        self.moment = Moment(at, -at, logs)
        self.truth[f"{self.run}.{at}"] = {
            selection: Counter(row.decode() for row in self.rows[selection])
            for selection in followed
        }


class Client:
    """A client that knows what the documentation says, and nothing else."""

    def __init__(self) -> None:
        self.held: dict[str, Counter[str]] = {}
        self.marks: dict[str, str] = {}
        self.begun: set[str] = set()
        self.reasons: list[str] = []

    def connect(self, server: Server) -> None:
        self.begun = set()
        self.cursor = Cursor(server.run)
        for name, selection in NAMES.items():
            self.cursor.add(name, selection, self.marks.get(name, ""))

    def take(self, server: Server) -> None:
        sent = self.cursor.take(server.moment)
        if sent is not None:
            self.receive(msgspec.json.encode(sent), server)

    def receive(self, text: bytes, server: Server) -> None:
        message = msgspec.json.decode(text, type=MomentSent)
        for change in message.changes:
            if change.snapshot is not None:
                self.held[change.id] = count(change.snapshot)
                self.reasons.append(str(change.reason))
            self.held[change.id].subtract(count(change.removed))
            assert min(self.held[change.id].values(), default=0) >= 0, "what goes was there"
            self.held[change.id] = +(self.held[change.id] + count(change.added))
            self.begun.add(change.id)
        for name in self.begun:
            self.marks[name] = message.mark
            assert self.held[name] == server.truth[message.mark][NAMES[name]]


def count(rows: list[object]) -> Counter[str]:
    return Counter(msgspec.json.encode(row).decode() for row in rows)


ROWS = st.lists(st.sampled_from([b"[1]", b'["two"]', b"[null,3.5]"]), max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("rows"), st.sampled_from([A, B]), ROWS),
    st.tuples(st.just("tick"), st.sampled_from([{A, B}, {A, B}, {A}, {B}])),
    st.tuples(st.just("take"), st.integers(0, 1)),
    st.tuples(st.just("lost"), st.integers(0, 1)),
    st.tuples(st.just("connect"), st.integers(0, 1)),
    st.tuples(st.just("restart")),
)


@examples(2)
@given(st.lists(STEPS, max_size=30), st.sampled_from([0, 150, 1 << 16]))
def test_every_client_has_the_rows_of_its_mark(
    steps: list[tuple[object, ...]], spare_bytes: int
) -> None:
    """Whatever is lost: a connection, a message with it, the application, the changes."""
    server, clients = Server(), [Client(), Client()]
    for client in clients:
        client.connect(server)
    with patch.object(change_log, "_SPARE_BYTES", spare_bytes):
        for step in steps:
            match step:
                case ("rows", Selection() as selection, list() as rows):
                    server.rows[selection] = rows
                case ("tick", set() as followed):
                    server.tick(followed)
                case ("take", int() as number):
                    clients[number].take(server)
                case ("lost", int() as number):
                    clients[number].cursor.take(server.moment)
                    clients[number].connect(server)
                case ("connect", int() as number):
                    clients[number].connect(server)
                case _:
                    server.restart()
                    for client in clients:
                        client.connect(server)
        server.tick({A, B})
        for client in clients:
            client.take(server)
            assert client.held == {
                name: server.truth[f"{server.run}.{server.moment.at}"][selection]
                for name, selection in NAMES.items()
            }


def begun(rows: list[bytes]) -> tuple[Server, Client]:
    """A client that has the rows of A, and those of B, which has none."""
    server, client = Server(), Client()
    server.rows[A] = rows
    server.tick({A, B})
    client.connect(server)
    client.take(server)
    assert client.reasons == ["new", "new"]
    return server, client


def test_a_client_that_comes_back_is_not_sent_all_again() -> None:
    """It gets what has changed, and a word on each subscription, so that marks hold for it."""
    server, client = begun([b"[1]", b"[2]"])
    server.rows[A] = [b"[2]", b"[3]"]
    server.tick({A, B})
    client.connect(server)
    sent = client.cursor.take(server.moment)
    assert sent is not None
    found = {change.id: (change.snapshot, change.added, change.removed) for change in sent.changes}
    raw = msgspec.Raw
    assert found == {"a": (None, [raw(b"[3]")], [raw(b"[1]")]), "b": (None, [], [])}


def test_a_slow_client_gets_what_the_changes_add_up_to() -> None:
    """One message for a hundred moments; what came and went meanwhile is not in it."""
    server, client = begun([b"[1]"])
    for number in range(2, 100):
        server.rows[A] = [b"[%d]" % number]
        server.tick({A, B})
    sent = client.cursor.take(server.moment)
    assert sent is not None
    (change,) = sent.changes
    assert (change.added, change.removed) == ([msgspec.Raw(b"[99]")], [msgspec.Raw(b"[1]")])
    assert client.cursor.take(server.moment) is None


def test_a_client_that_is_too_slow_or_of_another_run_is_told_so() -> None:
    """The snapshot says why it is one."""
    server, client = begun([b"[1]"])
    for number in range(1500):
        server.rows[A] = [b"[%d]" % number]
        server.tick({A, B})
    client.take(server)
    assert client.reasons[2:] == ["expired"], "of the one that has changed"
    server.restart()
    server.tick({A, B})
    client.connect(server)
    client.take(server)
    assert client.reasons[3:] == ["restarted", "restarted"]


def test_a_moment_without_changes_says_that_there_were_none() -> None:
    """Progress: the client knows as of when its rows are right."""
    server, client = begun([b"[1]"])
    assert client.cursor.take(server.moment) is None, "it has this one"
    server.tick({A, B})
    sent = client.cursor.take(server.moment)
    assert sent is not None
    at = server.moment.at
    assert (sent.mark, sent.at, sent.changes) == (f"{server.run}.{at}", -at, [])
    server.tick(set())
    assert client.cursor.take(server.moment) is None, "nothing of its own was computed"
    server.rows[A] = [b"[2]"]
    server.tick({A})
    assert client.cursor.take(server.moment) is None, "its mark would not hold for B"


@pytest.mark.parametrize("mark", ["x", ".", "run1.", "run1.-5", "run1.1e3", ".5", "run1.٣"])
def test_nonsense_is_no_mark(mark: str) -> None:
    """It is refused, and nothing is followed."""
    cursor = Cursor("run1")
    with pytest.raises(InvalidUsage, match="INVALID_MARK"):
        cursor.add("a", A, mark)
    with pytest.raises(InvalidUsage, match="UNKNOWN_SUBSCRIPTION"):
        cursor.remove("a")


def test_names_are_unique_and_few() -> None:
    """A second subscription of a name would make its changes ambiguous."""
    cursor = Cursor("run1")
    cursor.add("a", A)
    with pytest.raises(InvalidUsage, match="SUBSCRIPTION_EXISTS"):
        cursor.add("a", B)
    for number in range(1, SUBSCRIPTIONS_MAX):
        cursor.add(str(number), B)
    with pytest.raises(InvalidUsage, match="TOO_MANY_SUBSCRIPTIONS"):
        cursor.add("more", B)
    assert cursor.remove("a") == A
    cursor.add("more", B)
