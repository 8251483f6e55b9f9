"""Reads ahead: a thread makes the next items of a generator while the current one is used.

Worth its thread where making items waits for a network, or where a core would be idle meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")

_END: Final = object()


def read_ahead(items: Generator[T], depth: int) -> Iterator[T]:
    """The same items, in order, up to `depth` of them made before they are requested.

    An error is raised in place of the item that failed. A consumer that stops early waits for the
    item that is being made; nothing runs in the background after that.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        coming = deque(pool.submit(next, items, _END) for _ in range(depth))
        while (item := coming.popleft().result()) is not _END:
            coming.append(pool.submit(next, items, _END))
            yield item  # type: ignore[misc]  # all but the end are of the items' type
    finally:
        pool.shutdown(cancel_futures=True)
        items.close()
