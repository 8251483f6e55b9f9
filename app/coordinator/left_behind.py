"""Ends what objects have left that are gone, read something else, or are of another kind now.

    end_left_behind(client, known, check_fence, ending)     once, after a project was applied

The drop of an object removes what it has left. It does not where a process died at the wrong
moment, or where an earlier version gave the name to an object of another kind. Nobody would look
for it later, and it harms: a hold keeps history for ever, and by the accounts of a sink another
sink of its name, perhaps years later, goes on where that one was, and leaves rows out.

    view:<name>:…     ends where no view or index of that name reads the shard
    sink:<name>       ends where there is no sink of that name
    <name>_progress   a sink's accounts; they are dropped where there is no sink of that name

The holds of subscriptions end otherwise (`shardline.app.coordinator.start_holds`). What a source
has bound stays, as its rows do: put back into the project, it goes on by them. So does its hold on
a shard that it reads (`source:<name>:…`), which another location's source may have as well.

Invariants:
    Nothing ends that was taken or changed after the look at what there is: whoever has a name by
    then may need it.
    What waits to be created, is being replaced or dropped counts as there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from shardline.app.execution.ending_holds import end_found_holds
from shardline.app.execution.hold_owners import find_hold_owner
from shardline.app.protocol.objects import Description, SinkDescription, inputs_of, progress_shard
from shardline.app.storage.sinks.progress import is_accounts
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.state import ShardState, is_tombstone

__all__ = ["KnownObjects", "end_left_behind"]

_log = logging.getLogger(__name__)

_SUBSCRIPTION: Final = re.compile(r"t[0-9a-f]{32}")
"""The name of a subscription is a token of its controller, which may not have recorded it yet."""

_ACCOUNTS: Final = progress_shard("")


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """The objects of a location, by each of their definitions.

    Attributes:
        read: By name of an object that is no sink, all shards that it reads, or may still read.
        sinks: The names of all sinks.
    """

    read: Mapping[str, Collection[str]]
    sinks: Collection[str]

    @classmethod
    def of(cls, definitions: Iterable[Mapping[str, Description]]) -> KnownObjects:
        """Gather them from where they run, are wanted or wait; of one name there may be several."""
        read: dict[str, set[str]] = {}
        sinks: set[str] = set()
        for known in definitions:
            for name, description in known.items():
                if isinstance(description, SinkDescription):
                    sinks.add(name)
                else:
                    read.setdefault(name, set()).update(inputs_of(description))
        return cls(read, sinks)


def end_left_behind(
    client: ShardClient,
    known: Callable[[], KnownObjects],
    check_fence: Callable[[], None],
    ending: Callable[[], bool],
) -> None:
    """End what nobody needs any more; may be repeated. Shards that do not answer are left out.

    Args:
        client: Of the location.
        known: Returns all objects there are at its call.
        check_fence: Raises if another runtime has taken over.
        ending: True if the application ends: the rest is left to the next start.
    """

    def until_the_end(shards: Iterable[str]) -> Iterator[str]:
        return takewhile(lambda _: not ending(), shards)

    found: dict[str, ShardState] = {}
    for shard in until_the_end(client.shards()):
        with _left_to_the_next_start(shard):
            state = client.machine(shard).refresh()
            if state is not None and not is_tombstone(state):
                found[shard] = state
    # Once for all shards, and after they were read: an object that is changed later takes holds
    # that were not found, and those stay.
    there = known()
    for shard in until_the_end(found):
        with _left_to_the_next_start(shard):
            _end_holds(client, found[shard], there, check_fence)
    # Behind them: the accounts say which input a sink had, should a person want to know.
    for shard in until_the_end(found):
        with _left_to_the_next_start(shard):
            _drop_accounts(client, found[shard], there, check_fence)


def _end_holds(
    client: ShardClient, seen: ShardState, there: KnownObjects, check_fence: Callable[[], None]
) -> None:
    left = {
        hold: held.epoch for hold, held in seen.critical.items() if _is_left(hold, seen.name, there)
    }
    if left:
        check_fence()
        end_found_holds(client, seen.name, left)
        context = {"shard": seen.name, "holds": sorted(left)}
        _log.info("holds have ended that nobody needs any more", extra={"context": context})


def _is_left(hold: str, shard: str, there: KnownObjects) -> bool:
    owner = find_hold_owner(hold)
    if owner is None or owner.location or _SUBSCRIPTION.fullmatch(owner.id):
        return False
    if owner.dataflow is None:
        return owner.id not in there.sinks
    return shard not in there.read.get(owner.id, ())


def _drop_accounts(
    client: ShardClient, seen: ShardState, there: KnownObjects, check_fence: Callable[[], None]
) -> None:
    name = seen.name
    # A view may be called so, and have these very columns: its shard has another comment.
    if not name.endswith(_ACCOUNTS) or name in there.read or not is_accounts(seen):
        return
    if name.removesuffix(_ACCOUNTS) not in there.sinks:
        check_fence()
        client.drop(name, seen=seen)
        context = {"shard": name}
        _log.info("accounts of a sink that is gone are dropped", extra={"context": context})


@contextmanager
def _left_to_the_next_start(shard: str) -> Iterator[None]:
    """Leave out a shard whose store does not answer, or that has changed meanwhile."""
    try:
        yield
    except ShardError:
        context = {"shard": shard}
        _log.info("not swept; the next start does", exc_info=True, extra={"context": context})
