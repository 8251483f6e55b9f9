"""Reading ahead: the same items and errors, a bounded number early, and nothing after the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.parts.read_ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import Generator

MAIN = threading.main_thread()


class Source:
    """Numbers up to `count`, which remember how many were made and by whom."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.made = 0
        self.closed = False
        self.enough = threading.Event()
        self._count = count
        self._fails_at = fails_at

    def __call__(self, wanted: int = 0) -> Generator[int]:
        try:
            for number in range(self._count):
                assert threading.current_thread() is not MAIN
                if number == self._fails_at:
                    raise OSError(f"no {number}")
                self.made += 1
                if self.made == wanted:
                    self.enough.set()
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_items_come_in_order(count: int, depth: int) -> None:
    """All of them, whatever the depth, and the source is closed."""
    source = Source(count)
    assert list(read_ahead(source(), depth)) == list(range(count))
    assert source.closed


def test_items_are_made_before_they_are_asked_for_but_not_all() -> None:
    """Up to the depth beyond the one that is in use."""
    source = Source(100)
    items = read_ahead(source(wanted=4), 3)
    assert next(items) == 0
    assert source.enough.wait(60)
    assert source.made == 4


def test_an_error_comes_where_it_would_have_come() -> None:
    """After the items before it."""
    items = read_ahead(Source(9, fails_at=3)(), 4)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no 3"):
        next(items)


def test_stopping_early_ends_the_thread() -> None:
    """And closes what was read."""
    source = Source(1000)
    items = read_ahead(source(), 2)
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert source.closed
    assert not [one for one in threading.enumerate() if one.name.startswith("read-ahead")]
