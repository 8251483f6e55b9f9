"""Makes the changes of a step as frames, each when it is first asked for.

A step whose rows are few is taken by kept plans, which are given rows and need no frame.

Invariants:
    A frame of the same changes is made at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StepChanges"]


class StepChanges(Mapping[str, "DataFrame"]):
    """Frames by the names of inputs and states. Used by one thread at a time."""

    def __init__(self) -> None:
        """Of nothing yet."""
        self._make: dict[str, Callable[[], DataFrame]] = {}
        self._frames: dict[str, DataFrame] = {}

    def add(self, name: str, make: Callable[[], DataFrame]) -> None:
        """Add the changes of an input or a state; others of the same name are forgotten."""
        self._make[name] = make
        self._frames.pop(name, None)

    @override
    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            self._frames[name] = self._make[name]()
        return self._frames[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    @override
    def __len__(self) -> int:
        return len(self._make)
