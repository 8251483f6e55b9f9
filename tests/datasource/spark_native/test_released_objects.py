"""Objects that Python has given up wait in a queue, from which Py4J's thread takes all at once."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER, FinalizerWorker
from typing_extensions import override

from shardline.datasource.spark_native.released_objects import release_together


@dataclass
class Client:
    """A client of Py4J, as far as its queue goes, with Py4J's own thread at it."""

    finalizer_deque: Any = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.worker = FinalizerWorker(self.finalizer_deque)
        self.worker.daemon = True
        self.worker.start()

    def give_up(self, *names: str) -> None:
        """As Python's garbage collector does."""
        for name in names:
            self.finalizer_deque.appendleft((self, name))

    def garbage_collect_object(self, name: str, _enqueue: bool) -> None:
        """One alone, as without the queue."""
        raise AssertionError(name)

    def end(self) -> None:
        """Let the thread end, as Py4J does; what was given up before is released first."""
        self.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
        self.worker.join(60)
        assert not self.worker.is_alive()


@pytest.fixture
def client() -> Client:
    return Client()


def test_what_waits_is_released_by_few_calls_each_object_once(client: Client) -> None:
    """In their order; not the gateway itself, whose name begins with another letter."""
    calls: list[list[str]] = []
    release_together(client, lambda names: calls.append(names.split()))
    given_up = [f"o{number}" for number in range(2500)]
    client.give_up("t", *given_up)
    client.end()
    assert [name for names in calls for name in names] == given_up
    assert max(map(len, calls)) <= 1000


class Held(deque[Any]):
    """A queue at which Py4J's thread waits until it is let go, as where it was slow."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.let_go = threading.Event(), threading.Event()

    @override
    def pop(self) -> Any:  # type: ignore[override]
        if isinstance(threading.current_thread(), FinalizerWorker):
            self.waits.set()
            assert self.let_go.wait(60)
            raise IndexError
        return super().pop()


def test_what_was_given_up_before_is_released_too() -> None:
    """By Py4J's thread as all else: it looks into the new queue only."""
    held = Held()
    client = Client(held)
    assert held.waits.wait(60)
    client.give_up("o1", "o2")
    calls: list[str] = []
    release_together(client, calls.append)
    held.let_go.set()
    client.end()
    assert calls == ["o1 o2"]


def test_objects_are_released_together_once_it_is_asked_for_twice(client: Client) -> None:
    """Two threads may be the first to read a plan; the first of them stays."""
    first: list[str] = []
    release_together(client, first.append)
    release_together(client, lambda _: pytest.fail("replaced"))
    client.give_up("o1")
    client.end()
    assert first == ["o1"]


def test_a_call_that_fails_ends_nothing(client: Client) -> None:
    """Py4J's thread is the only one: without it nothing would be released any more."""
    attempts: list[str] = []
    failing = threading.Event()

    def release(names: str) -> None:
        attempts.append(names)
        if not failing.is_set():
            failing.set()
            raise ConnectionError(names)

    release_together(client, release)
    client.give_up("o1")
    assert failing.wait(60)
    client.give_up("o2")
    client.end()
    assert attempts == ["o1", "o2"]


def test_a_client_without_such_a_queue_is_left_alone() -> None:
    """Without threads of their own in the JVM, PySpark has another kind of client."""
    without = object()
    release_together(without, lambda _: None)
    assert not hasattr(without, "finalizer_deque")
