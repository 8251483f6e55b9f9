"""The history of the lane is its newest commands, which the lane itself stores.

    note_command(facts, event)         a record of the order
    holder_at(facts), project_at(facts)    whose the location was, by the commands of until then

Every other history is what this process has noted, is stored in a shard of its own, and begins anew
with a take-over. The order of commands is one for all processes that read it, and the lane's shard
has it: a start takes its records from there, so they are not stored a second time. They are kept by
number, as in the lane, and not by age: of a location at rest the last command may be a year old.

Invariants:
    As of a moment the commands are a beginning of those that are kept: the order has no holes. A
        clock may go back from one record to the next; a record then counts as of the time of the
        one before.
    From its `horizon_ms` on the history is complete: a record that this process has not heard of
        is behind it.
"""

from __future__ import annotations

import msgspec

from shardline.app.introspection.events import Recorded
from shardline.app.introspection.facts import Facts
from shardline.app.lane.commands import Holder, HolderLease, Opened, UseProject
from shardline.app.protocol.project_identity import ProjectIdentity

__all__ = ["holder_at", "note_command", "project_at"]


def note_command(facts: Facts, event: Recorded) -> None:
    """Add a record to the history of the lane, behind those that are there."""
    history = facts.commands
    at_ms = event.at_ms
    # A state of the lane takes a position, too, and is no command; never two of them in a row. So
    # one position that is left out is no loss. Nor is there a command before position 0.
    expected = 0
    if history.rows:
        last_ms, (last, *_) = history.rows[-1]
        assert isinstance(last, int), last
        at_ms, expected = max(at_ms, last_ms), last + 2
    if event.index > expected:
        history.horizon_ms = at_ms
    row = (
        event.index,
        event.producer,
        event.at_ms,
        event.kind,
        event.object_id or None,
        event.says or None,
        event.command or None,
    )
    history.add(at_ms, row)
    # At once, and not with the next tick: thousands may come in the meantime.
    if history.is_too_long:
        history.prune(at_ms, lambda _: ())


def holder_at(facts: Facts) -> Holder | None:
    """The process that had taken the location last; None if no command that is kept says so."""
    text = _newest(facts, Opened, HolderLease)
    return None if text is None else msgspec.json.decode(text, type=Opened | HolderLease).holder


def project_at(facts: Facts) -> ProjectIdentity | None:
    """The project whose objects were asked for last; None if no command that is kept says so."""
    text = _newest(facts, UseProject)
    return None if text is None else msgspec.json.decode(text, type=UseProject).project


def _newest(facts: Facts, *wanted: type[msgspec.Struct]) -> str | None:
    """The newest command of these types, as JSON."""
    kinds = [one.__struct_config__.tag for one in wanted]
    for _, (_, _, _, kind, _, _, command) in reversed(facts.commands.rows):
        if kind in kinds and isinstance(command, str):
            return command
    return None
