"""Estimates how many rows of a shard have one key, from statistics of its parts.

    fan_out = ShardFanOut(client, inputs)
    fan_out("lineitem", ["l_partkey"])      30.0

A step that needs rows of several inputs may look them up in any order, and the number of rows that
it comes to depends on the order: from a supplier to its nation is one row, and from there to all
customers of the nation a twentieth of them. Materialize leaves that order to who knows the sizes,
too. Here whole numbers and dates tell it: the keys of a column cannot be more than its range.

Invariants:
    An estimate decides what a step costs, and nothing about its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Final

from shardline.datasource.client import ShardClient
from shardline.datasource.schema import bounds
from shardline.datasource.state import Part, Volume

__all__ = ["ShardFanOut"]

_PARTS_MAX: Final = 1000
"""Parts whose statistics are looked at: those of the rest are not decoded."""


@dataclass(frozen=True, slots=True)
class ShardFanOut:
    """Estimates of the inputs of one view.

    Attributes:
        client: Of the location.
        inputs: Their names. Of other names, states of the view, each key has one row.
    """

    client: ShardClient
    inputs: Collection[str]
    _known: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """Values of columns, each as of a seqno of its shard: a plan asks for the same many times."""

    def __call__(self, name: str, columns: Sequence[str]) -> float:
        """The rows of one key, at least one."""
        if name not in self.inputs:
            return 1.0
        state = self.client.machine(name).state()
        parts = [part for batch in state.trace.batches for part in batch.parts]
        rows = Volume.of(parts).rows
        keys = 1.0
        for column in columns:
            seqno, values = self._known.get((name, column), (None, 0.0))
            if seqno != state.seqno:
                values = _values(parts[:_PARTS_MAX], column, rows)
                self._known[name, column] = state.seqno, values
            keys *= values
        return max(rows / max(keys, 1.0), 1.0)


def _values(parts: Iterable[Part], column: str, rows: int) -> float:
    """How many values a column may have; where nothing is known the root of the rows."""
    least: float = inf
    greatest: float = -inf
    for part in parts:
        stats = part.stats
        lo, hi = (None, None) if stats is None else bounds(stats, column)
        if not isinstance(lo, int) or not isinstance(hi, int):
            return sqrt(rows)
        least, greatest = min(least, lo), max(greatest, hi)
    return float(max(greatest - least + 1, 1))
