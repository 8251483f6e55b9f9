"""The relation of plain reads of `format("shard")` shows which were planned natively, and why not.

They are reads of this process, whoever makes them, and belong to no object: the counts are not
among the facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relation import (
    AT,
    NUMBER,
    TEXT,
    Column,
    Relation,
    Row,
    instant,
)
from shardline.datasource.report import ReadCounts

__all__ = ["native_reads_relation"]


def native_reads_relation(counts: ReadCounts) -> Relation:
    """The relation of what `counts` has counted."""

    def rows(_facts: Facts, _now_ms: int) -> Iterator[Row]:
        for one in counts.all():
            yield (one.path, one.reason or None, one.number, instant(one.last_ms))

    return Relation(
        "native_reads",
        'Plain reads of `format("shard")` in this process, by path and reason; none unless they '
        "are to be planned natively",
        (
            Column(
                "path",
                TEXT,
                "native: Spark's own Parquet reader; python workers; not installed: a session "
                "whose reads cannot be native",
            ),
            Column("reason", TEXT, "why it is not the native path; NULL of native reads"),
            Column(
                "reads", NUMBER, "how often: each `load()` counts once, and each range of a stream"
            ),
            Column("last_at", AT, "when the last one was planned"),
        ),
        rows,
    )
