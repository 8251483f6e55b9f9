"""Merges that their inputs make impossible keep only those from being merged.

    impossible.note(inputs, error)       a merge has failed
    impossible.next_smaller()            what to try in its place
    impossible.found                     what is left alone from now on
    impossible.raise_first()             at the end

A batch whose part is lost stays as it is, and the most urgent merge of a trace is the same one each
time: if it ended the others, they would never be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardline.datasource.errors import Corrupt, MissingBlob, ShardError
from shardline.datasource.parts.merge_parts import covered_interval
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.description import Description

__all__ = ["ImpossibleMerges", "is_about_inputs"]

_CODES: Final = frozenset({"LOSSY_VALUE", "DIFF_OVERFLOW", "RECORD_TOO_LARGE"})
"""A value that the newest schema does not hold, a sum of diffs that is no int64, more parts than a
record can name. Other errors of their class are about the store: that it denies what is asked."""


def is_about_inputs(error: ShardError) -> bool:
    """True if a merge failed for what its inputs are, and another one may be possible."""
    return isinstance(error, MissingBlob | Corrupt) or error.code in _CODES


class ImpossibleMerges:
    """The merges that failed because of their inputs, and smaller ones to try in their place.

    An error does not say which batch it is about (a sum that overflows is about several). So of a
    merge of many batches each half is tried, down to the fewest that are worth a merge.
    """

    def __init__(self, factor: int) -> None:
        """Begin without any; fewer than `factor` batches are not worth a merge."""
        self.found: tuple[Description, ...] = ()
        self._factor = factor
        self._smaller: list[tuple[Batch, ...]] = []
        self._first: ShardError | None = None

    def note(self, inputs: tuple[Batch, ...], error: ShardError) -> None:
        """Take up the halves of a merge that failed, or leave its batches alone from now on."""
        self._first = self._first or error
        middle = len(inputs) // 2
        halves = (_trimmed(inputs[:middle]), _trimmed(inputs[middle:]))
        worth = [half for half in halves if _count_nonempty(half) >= self._factor]
        self._smaller += reversed(worth)
        if not worth:
            self.found += (covered_interval(inputs),)

    def next_smaller(self) -> tuple[Batch, ...]:
        """The next half to try, which may have been merged by others meanwhile; empty for none."""
        return self._smaller.pop() if self._smaller else ()

    def raise_first(self) -> None:
        """Raise the error of the first merge that failed, if any did."""
        if self._first is not None:
            raise self._first


def _trimmed(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The batches without empty ones at the ends, which a merge neither begins nor ends with."""
    filled = [index for index, batch in enumerate(batches) if not batch.is_empty]
    return batches[filled[0] : filled[-1] + 1] if filled else ()


def _count_nonempty(batches: Iterable[Batch]) -> int:
    return sum(not batch.is_empty for batch in batches)
