"""A shared answer is computed once for all who ask at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from shardline.app.server.shared_answer import SharedAnswer


class Slow:
    """A computation that goes on when it is told to."""

    def __init__(self) -> None:
        self.began = 0
        self.running = 0
        self.most = 0
        self.go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)

    def compute(self) -> int:
        self.began += 1
        self.begun.release()
        self.running += 1
        self.most = max(self.most, self.running)
        assert self.go.acquire(timeout=30)
        self.running -= 1
        return self.began


async def until_begun(slow: Slow) -> None:
    assert await asyncio.to_thread(slow.begun.acquire, timeout=30)


def test_those_who_come_meanwhile_share_the_next_answer() -> None:
    """Never one that was begun before they asked; and never two at a time."""

    async def scene() -> tuple[list[int], Slow]:
        slow = Slow()
        answer = SharedAnswer(slow.compute)
        first = asyncio.create_task(answer.get())
        await until_begun(slow)
        others = [asyncio.create_task(answer.get()) for _ in range(20)]
        await asyncio.wait(others, timeout=0)
        slow.go.release(3)
        found = [await first, *(await asyncio.gather(*others)), await answer.get()]
        return found, slow

    found, slow = asyncio.run(scene())
    assert found == [1, *[2] * 20, 3]
    assert slow.most == 1


def test_a_client_that_goes_takes_nothing_from_the_others() -> None:
    """Its request is cancelled; the computation is not."""

    async def scene() -> int:
        slow = Slow()
        answer = SharedAnswer(slow.compute)
        gone, stays = (asyncio.create_task(answer.get()) for _ in range(2))
        await until_begun(slow)
        gone.cancel()
        slow.go.release()
        return await stays

    assert asyncio.run(scene()) == 1


def test_a_failure_is_told_and_not_kept() -> None:
    """The next one who asks gets a new answer."""
    answers: Iterator[ValueError | int] = iter([ValueError("no"), 7])

    def compute() -> int:
        found = next(answers)
        if isinstance(found, ValueError):
            raise found
        return found

    async def scene() -> int:
        answer = SharedAnswer(compute)
        with pytest.raises(ValueError, match="no"):
            await answer.get()
        return await answer.get()

    assert asyncio.run(scene()) == 7
