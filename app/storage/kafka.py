"""Kafka's topics are read from their start, and of their rows those that were committed.

    with_defaults({"subscribe": "t"})     … and startingOffsets earliest, isolation read_committed

Spark's stream of Kafka begins at the end of a topic: what is there already is left to a batch. A
source has no such batch. Its first micro-batch is the snapshot, all that is there when the source
is created: by Spark's default a topic with rows would be an empty snapshot, the source would be
hydrated, and the rows would never come. And Kafka hands out rows of transactions that are aborted
to everybody who does not ask for committed ones.

Invariants:
    What a source says itself stands.
    A source that exists keeps its place: where it began is in its checkpoint, and in its bindings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["is_kafka", "with_defaults"]

_STARTS: Final = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
"""Options of Spark that say where a stream begins; the first of them can name `earliest`."""

_ISOLATION: Final = "kafka.isolation.level"


def is_kafka(name: str) -> bool:
    """True if a format is Kafka's."""
    return name.lower() == "kafka"


def with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source of Kafka, with those that it leaves out and Spark has otherwise."""
    given = {name.lower() for name in options}
    chosen = dict(options)
    if given.isdisjoint(name.lower() for name in _STARTS):
        chosen[_STARTS[0]] = "earliest"
    if _ISOLATION not in given:
        chosen[_ISOLATION] = "read_committed"
    return chosen
