"""A signal in the middle of a call to the JVM waits for its answer, which may be made to come."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shardline.datasource.spark_native.interrupts import call_interruptibly

LONG_S = 60


def inside_of_py4j(act: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `act` as py4j would: from a module of that name."""
    module: dict[str, Any] = {"__name__": "py4j.made_up", "act": act}
    exec("def call():\n    act()", module)  # noqa: S102 - only so is a frame of another module
    found: Callable[[], None] = module["call"]
    return found


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _raises() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_between_calls_is_raised_at_once() -> None:
    """Nothing is called for it."""
    reached: list[str] = []

    def work() -> None:
        press()
        reached.append("behind")

    with pytest.raises(KeyboardInterrupt):
        call_interruptibly(work, lambda: reached.append("kept"))
    assert not reached


def test_a_signal_in_a_call_lets_its_answer_come_and_is_raised_then() -> None:
    """Another thread asks for the answer; who waits for it would wait for ever."""
    asked = threading.Event()
    answers: list[bool] = []

    def wait_for_the_answer() -> None:
        press()
        answers.append(asked.wait(LONG_S))

    with pytest.raises(KeyboardInterrupt):
        call_interruptibly(inside_of_py4j(wait_for_the_answer), asked.set)
    assert answers == [True]


def test_without_a_signal_the_result_is_returned() -> None:
    """And the handler is the one of before."""
    before = signal.getsignal(signal.SIGINT)
    assert call_interruptibly(lambda: 7) == 7
    assert signal.getsignal(signal.SIGINT) is before
