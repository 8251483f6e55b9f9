"""Histories are those of the location: what a process notes while it follows the holder is its own.

A follower runs the same objects, but writes nothing: to it a sink is starting all night, and the
lag of a view is its own. If it takes the location over, none of that may stand beside the rows of
the process that did the work: of two rows at a time the newest is believed. So its histories begin
again when it takes over, with how everything is then, as those of a process that starts do; rows of
before come from the location.

    Following()                    the process starts as a follower: `histories_since_ms` is None
    TakenOver(objects, at_ms)      from here on what it notes is stored
    Remembered(relation, rows)     rows that are stored
"""

from __future__ import annotations

from msgspec.structs import replace

from shardline.app.introspection.definitions import is_repeatable, note_installed, note_wanted
from shardline.app.introspection.events import Following, Remembered, TakenOver
from shardline.app.introspection.facts import Facts, ObjectFacts
from shardline.app.introspection.shard_events import recall_rounds

__all__ = ["apply_to_histories", "status_row"]


def apply_to_histories(facts: Facts, event: Following | TakenOver | Remembered) -> None:
    """Apply an event about all histories, and not about what has happened to an object."""
    match event:
        case Following():
            facts.histories_since_ms = None
        case TakenOver():
            _begin(facts, event)
        case Remembered():
            _add_stored(facts, event)


def status_row(found: ObjectFacts) -> tuple[object, ...]:
    """An object's present status as a row of its history."""
    now = found.condition
    return (found.id, found.kind, now.status, now.error, now.hints, now.namespaced)


def _begin(facts: Facts, event: TakenOver) -> None:
    for history in facts.stored_histories():
        history.clear()
    facts.histories_since_ms = at_ms = event.at_ms
    facts.runs.add(at_ms, ("start", event.objects))
    # All of it is noted again, also what has not changed: the newest row of the location may be
    # that of a holder that was stalled, and was replaced for that reason.
    facts.defined.clear()
    for found in facts.objects.values():
        if found.is_subscription:
            continue
        note_installed(facts, replace(found.installed, at_ms=at_ms))
        found.condition_ms = at_ms
        facts.statuses.add(at_ms, status_row(found))
    note_wanted(facts, at_ms)
    facts.verdicts.clear()
    # A follower maintains nothing: those that it knows are the holder's of long ago.
    facts.rounds.clear()


def _add_stored(facts: Facts, event: Remembered) -> None:
    for history in facts.stored_histories():
        if history.name == event.relation:
            history.merge(event.rows)
    if event.relation == facts.definitions.name:
        # Noted again by this run before it had the rows of those before.
        facts.definitions.drop_repeated(is_repeatable)
    if event.relation == facts.maintenance.name:
        recall_rounds(facts)
