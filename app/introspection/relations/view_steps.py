"""Relations of views' steps show what each took beside its predictions, and failed self-checks.

view_steps            the newest steps of each view: which way, how many rows, how long
self_check_history    what views have found to be wrong with what they keep
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relation import (
    AT,
    FRONTIER,
    NUMBER,
    REAL,
    TEXT,
    Column,
    Past,
    Relation,
    Row,
    instant,
)

__all__ = ["VIEW_STEPS"]


def _steps(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for found in facts.objects.values():
        for one in found.view_steps:
            yield (
                found.id,
                instant(one.at_ms),
                one.lower,
                one.upper,
                one.way,
                one.reason or None,
                one.rows_changed,
                one.rows_looked_up,
                one.updates_out,
                one.took_ms,
                one.predicted_ms_incremental,
                one.predicted_ms_recompute,
            )


def _self_checks(facts: Facts, _now_ms: int) -> Iterator[Row]:
    for at_ms, (name, finding, shard, detail) in facts.self_checks.rows:
        yield (instant(at_ms), name, finding, shard, detail or None)


VIEW_STEPS: Final = (
    Relation(
        "view_steps",
        "A step of a view that Spark took: the newest ones of each view",
        (
            Column("object_id", TEXT, "the view"),
            Column("occurred_at", AT, "when it was done"),
            Column("lower", FRONTIER, "the upper of its output before the step"),
            Column("upper", FRONTIER, "the upper afterwards"),
            Column("way", TEXT, "linear, incremental or recompute"),
            Column("reason", TEXT, "why it was recomputed, of a view that can follow changes"),
            Column("rows_changed", NUMBER, "updates of its inputs; NULL if not counted"),
            Column("rows_looked_up", NUMBER, "rows that were found by key"),
            Column("updates_out", NUMBER, "updates of the view"),
            Column("took_ms", REAL, "how long it took"),
            Column("predicted_ms_incremental", REAL, "how long, predicted, from changes"),
            Column("predicted_ms_recompute", REAL, "how long, predicted, by its query run anew"),
        ),
        _steps,
        "object_id",
    ),
    Relation(
        "self_check_history",
        "A view has found that what it keeps is wrong: its states were dropped, it was recomputed",
        (
            Column("occurred_at", AT, "when"),
            Column("object_id", TEXT, "the view"),
            Column("finding", TEXT, "audit, negative count, foreign writer or lost part"),
            Column("shard", TEXT, "what is wrong: a state, or the view"),
            Column("detail", TEXT, "what was found"),
        ),
        _self_checks,
        "object_id",
        ("self_check_history",),
        separable=True,
        past=Past(_self_checks, ("self_check_history",)),
    ),
)
