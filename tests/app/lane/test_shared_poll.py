"""Looks at the store that many ask for at once."""

from __future__ import annotations

import threading

import pytest

from shardline.app.lane.shared_poll import SharedPoll
from shardline.datasource.errors import Determinate


def test_many_who_ask_at_once_share_looks_that_are_no_older_than_they_ask() -> None:
    """A look that has begun before the question is no answer to it; the next one is, to all."""
    people = 40
    asked = threading.Semaphore(0)
    begun, done = [0], [0]
    answers: list[tuple[int, int]] = []

    def look() -> None:
        begun[0] += 1
        if begun[0] == 1:
            for _ in range(people):
                asked.acquire()
        done[0] += 1

    shared = SharedPoll(look)

    def ask() -> None:
        before = begun[0]
        asked.release()
        shared.fresh()
        answers.append((before, done[0]))

    first = threading.Thread(target=shared.fresh)
    first.start()
    while begun[0] == 0:
        first.join(0.001)
    threads = [threading.Thread(target=ask) for _ in range(people)]
    for thread in threads:
        thread.start()
    for thread in [first, *threads]:
        thread.join(60)
    assert len(answers) == people
    assert all(finished > before for before, finished in answers)
    assert begun[0] <= people // 2


def test_an_error_is_the_answer_of_that_look_alone() -> None:
    """The next one asks anew."""
    errors = [Determinate("no answer"), None]

    def look() -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    shared = SharedPoll(look)
    with pytest.raises(Determinate, match="no answer"):
        shared.fresh()
    shared.fresh()
    assert errors == []
