"""Notes definitions of objects in a history, so that the graph of an earlier time can be drawn.

    note_installed(facts, event)       a definition that was created
    note_dropped(facts, found, at_ms)  one that was dropped
    note_wanted(facts, at_ms)          objects that wait to be created, and those asked for no more

The lane's log has definitions, too, and is the authority for what shall run. It is not read for
this: it is cut when the lane has a new state of all, keeps its own schedule and no retention, and
does not have the objects that wait to be created. A history has one retention with the others, and
is read by the same code.

Invariants:
    A row is added when something in it has changed, and not at each start of an application.
    Nothing secret is in it: of options only the format is kept.
"""

from __future__ import annotations

from shardline.app.introspection.events import Installed, WantedObject
from shardline.app.introspection.facts import Facts, ObjectFacts, object_kind
from shardline.app.lane.commands import kind_of
from shardline.app.protocol.objects import (
    Description,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    inputs_of,
)

__all__ = [
    "created_at",
    "definition_of",
    "format_of",
    "is_repeatable",
    "note_dropped",
    "note_installed",
    "note_wanted",
]


def definition_of(description: Description) -> str:
    """A view's query, a source's format, else the object that it is on."""
    match description:
        case ViewDescription(query=query):
            return query
        case SourceDescription(format=name):
            return name
        case other:
            return other.on


def format_of(description: Description) -> str:
    """The format of a source or sink; of any other object its kind."""
    if isinstance(description, SourceDescription | SinkDescription):
        return description.format
    return object_kind(description)


def note_installed(facts: Facts, event: Installed) -> None:
    """Note the definition of an object that was created, unless it is a subscription."""
    if isinstance(event.description, SubscribeDescription):
        return
    rest = (event.global_id, event.as_of, *_described(event.description), None, None)
    kind = object_kind(event.description)
    _note(facts, (event.id, kind, "created", event.domain, *rest), event.at_ms)


def note_dropped(facts: Facts, found: ObjectFacts, at_ms: int) -> None:
    """Note that an object was dropped; one that the project asks for waits to be created anew."""
    if found.id in facts.desired:
        _note_uncreated(facts, facts.desired[found.id], at_ms)
    elif not found.is_subscription:
        _note_gone(facts, found.id, found.kind, at_ms)


def note_wanted(facts: Facts, at_ms: int) -> None:
    """Note objects that wait to be created, and those that the project asks for no more."""
    for name, one in facts.desired.items():
        if name not in facts.objects:
            _note_uncreated(facts, one, at_ms)
    for name, row in list(facts.defined.items()):
        if row[2] == "uncreated" and name not in facts.desired:
            _note_gone(facts, name, str(row[1]), at_ms)


def created_at(facts: Facts) -> dict[str, int | None]:
    """When each object was created, by the histories.

    Returns:
        The time; None of an object that is older than its first row: it was found by a start.
    """
    starts = {at_ms for at_ms, row in facts.runs.rows if row[0] == "start"}
    found: dict[str, int | None] = {}
    for at_ms, row in facts.definitions.rows:
        name = str(row[0])
        if row[2] != "created":
            found.pop(name, None)
        elif name not in found:
            found[name] = None if at_ms in starts else at_ms
    return found


def is_repeatable(row: tuple[object, ...]) -> bool:
    """True if a row that says the same again can be left out.

    An object that waits to be created is not in the lane, so that a start of the application does
    not tell that it is still there: its row does.
    """
    return row[2] == "created"


def _described(description: Description) -> tuple[object, ...]:
    return definition_of(description), format_of(description), inputs_of(description)


def _note_uncreated(facts: Facts, one: WantedObject, at_ms: int) -> None:
    kind, domain = object_kind(one.description), kind_of(one.description)
    described = _described(one.description)
    errors = (one.error or None, one.hint or None)
    row = (one.id, kind, "uncreated", domain, None, None, *described, *errors)
    _note(facts, row, at_ms)


def _note_gone(facts: Facts, name: str, kind: str, at_ms: int) -> None:
    _note(facts, (name, kind, "dropped", *(None,) * 8), at_ms)
    del facts.defined[name]


def _note(facts: Facts, row: tuple[object, ...], at_ms: int) -> None:
    name = str(row[0])
    if facts.defined.get(name) == row:
        return
    facts.defined[name] = row
    latest = next((one for one in reversed(facts.definitions.rows) if one[1][0] == name), None)
    if latest is not None and latest[1] == row and is_repeatable(row):
        return  # an earlier run has noted it
    # Never two rows of an object at one time: ordered by time they are in the order of events.
    facts.definitions.add(at_ms if latest is None else max(at_ms, latest[0] + 1), row)
