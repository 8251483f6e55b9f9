"""Events about shards change the facts: what they hold, and what maintenance has done to them.

    apply_shard_event(facts, event)

A round that fails is told of until one does not, so the newest round of each shard is kept beside
the history. Not as a row of that: writers merge inline after their commits, often many times
between two rounds, and such a merge says nothing of the steps of a round. Those merges are counted
and are no rows, or those of one busy writer would push the rounds of all shards out in a day.

Invariants:
    Nothing is left of a shard that is gone but its rows in the history.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from shardline.app.introspection.events import Maintenance, ShardGone, ShardSeen, WriterMerged
from shardline.app.introspection.facts import Facts
from shardline.datasource.maintainer import WHOLE_LOCATION

__all__ = ["ShardEvent", "apply_shard_event", "known_shards", "recall_rounds"]

ShardEvent: TypeAlias = ShardSeen | ShardGone | Maintenance | WriterMerged


def apply_shard_event(facts: Facts, event: ShardEvent) -> None:
    """Apply one event to the facts."""
    match event:
        case ShardSeen():
            facts.shards[event.report.name] = event
        case ShardGone(name=name):
            for known in (facts.shards, facts.rounds, facts.writer_merges):
                known.pop(name, None)
        case WriterMerged():
            facts.writer_merges[event.shard] += event.merges
        case Maintenance():
            _note_round(facts, event)
        case _:
            assert_never(event)


def known_shards(facts: Facts) -> set[str]:
    """Names of the shards that anything is known of: those that may be gone."""
    return (facts.shards.keys() | facts.rounds.keys() | facts.writer_merges.keys()) - {
        WHOLE_LOCATION
    }


def recall_rounds(facts: Facts) -> None:
    """Take the newest round of each shard from the history, unless a newer one is known."""
    for at_ms, row in reversed(facts.maintenance.rows):
        shard, took_ms, merges, collected, swept, failed = row
        if shard not in facts.rounds:
            facts.rounds[str(shard)] = Maintenance(
                shard=str(shard),
                at_ms=at_ms,
                took_ms=took_ms,  # type: ignore[arg-type]  # as `_note_round` has made the row
                merges=merges,  # type: ignore[arg-type]
                collected=collected,  # type: ignore[arg-type]
                swept=swept,  # type: ignore[arg-type]
                failed=failed,  # type: ignore[arg-type]
            )


def _note_round(facts: Facts, event: Maintenance) -> None:
    before = facts.rounds.get(event.shard)
    facts.rounds[event.shard] = event
    has_worked = event.merges or event.collected or event.swept is not None
    if event.failed and not has_worked and before is not None and before.failed == event.failed:
        return  # it fails as it did a minute ago: no news
    done = (event.shard, event.took_ms, event.merges, event.collected, event.swept, event.failed)
    facts.maintenance.add(event.at_ms, done)
