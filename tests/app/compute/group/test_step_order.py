"""Calls in the order of dependencies, and those that never return."""

from __future__ import annotations

import threading
from itertools import permutations

import pytest

from shardline.app.compute.group.step_order import Left, call_in_order
from shardline.datasource.background import DaemonPool
from shardline.datasource.clock import SystemClock

NEVER_MS = 60_000.0
NOTHING = Left(frozenset(), frozenset())
DIAMOND = {"top": ("left", "right"), "left": ("root",), "right": ("root", "outside"), "root": ()}


@pytest.mark.parametrize("threads", [1, 3])
def test_nothing_begins_before_what_it_depends_on(threads: int) -> None:
    """Whatever order they are given in."""
    for order in permutations(DIAMOND):
        called: list[str] = []
        pool = DaemonPool("test", threads)
        depends = {name: DIAMOND[name] for name in order}
        left = call_in_order(depends, called.append, pool, SystemClock(), patience_ms=NEVER_MS)
        pool.close()
        assert left == NOTHING
        assert (called[0], called[-1]) == ("root", "top")
        assert sorted(called) == sorted(DIAMOND)


def test_those_without_dependencies_begin_in_the_order_given() -> None:
    """With one thread that is the order in which they are made."""
    called: list[str] = []
    pool = DaemonPool("test", 1)
    depends = dict.fromkeys("cab", ())
    call_in_order(depends, called.append, pool, SystemClock(), patience_ms=NEVER_MS)
    pool.close()
    assert called == ["c", "a", "b"]


def test_one_that_does_not_return_is_late_and_what_depends_on_it_waits() -> None:
    """All others are made; after the return nothing begins any more."""
    free, ended = threading.Event(), threading.Event()
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)
        if name == "blocked":
            free.wait()
            ended.set()

    pool = DaemonPool("test", 2)
    depends = {"above": ("blocked",), "blocked": (), "other": (), "next": ("other",)}
    left = call_in_order(depends, call, pool, SystemClock(), patience_ms=100)
    assert left == Left(frozenset({"blocked"}), frozenset({"above"}))
    assert sorted(called) == ["blocked", "next", "other"]
    free.set()
    assert ended.wait(60)
    pool.close()
    assert "above" not in called


def test_calls_that_found_no_thread_are_not_late() -> None:
    """They have not begun, and do not begin later."""
    free = threading.Event()
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)
        free.wait()

    pool = DaemonPool("test", 1)
    depends: dict[str, tuple[str, ...]] = {"first": (), "second": ()}
    left = call_in_order(depends, call, pool, SystemClock(), patience_ms=100)
    assert left == Left(frozenset({"first"}), frozenset({"second"}))
    free.set()
    done = threading.Event()
    pool.run(done.set)
    assert done.wait(60), "behind the second one, which has done nothing"
    pool.close()
    assert called == ["first"]


def test_one_that_raises_has_returned() -> None:
    """The pool says what it was; those that wait for it go on."""
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)
        if name == "bad":
            raise ValueError(name)

    pool = DaemonPool("test", 1)
    depends = {"after": ("bad",), "bad": ()}
    left = call_in_order(depends, call, pool, SystemClock(), patience_ms=NEVER_MS)
    pool.close()
    assert (left, called) == (NOTHING, ["bad", "after"])
