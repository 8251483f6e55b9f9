"""Garbage collection: deletes what no state needs that somebody may still look at.

    collect_garbage(machine)    everything that can go now; how many blobs went

A part is garbage once a transition has dropped it (a merge, a flush, an overwrite, a drop) and no
seqno hold is at a state before that transition. The collector reads the shard's log from where the
last one stopped, in this order:

    1. find what the next transitions dropped, up to the least seqno that is held;
    2. *give up* the states before that seqno, in the state: no hold can be taken there any more;
    3. delete the parts, oldest first;
    4. note in the state how far they are gone, and forget rollups that only older states need;
    5. delete those rollups;
    6. truncate the log before the oldest whole state that is still needed.

It may be killed after any of them, run twice or side by side, and skipped for a year: each step
begins from what the state says, and deleting what is gone already is no error. A long way is gone
in rounds, each of which is noted; a very long one is cut short: what was dropped before the newest
rollup that will do is left to the sweep, which finds it by listing
(`shardline.datasource.maintenance.orphan_sweep`).

Invariants:
    Only blobs that a transition dropped are deleted, and rollups that can never be recorded again:
    a part that was staged and not appended yet is not looked at.
    Every state that a hold may ask for can be rebuilt, and all of its blobs are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from shardline.datasource.errors import MissingBlob
from shardline.datasource.shard.commands.gc import give_up, note_cleaned
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import dropped, part_blobs, wholes
from shardline.datasource.shard.state import ShardState, expire, seqno_since
from shardline.datasource.shard.state_history import rebuild

__all__ = ["collect_garbage"]

_ROLLUP: Final = re.compile(r"[^/]+/rollup/([0-7][0-9a-f]{15})-[^/]+")
"""Key of a rollup: what else somebody has put there is not ours to delete."""

_ROUND_BLOBS: Final = 4096
"""About how many parts one round finds and deletes: bounds its memory, and what is repeated after a
crash."""

_ROUND_RECORDS: Final = 4096
"""How many records one round reads, at most: bounds what is read again after a crash."""

_BACKLOG_RECORDS: Final = 16_384
"""A collector that is further behind starts at the newest rollup that will do. Each record may cost
a request; the sweep lists a thousand blobs with one."""

_REQUEST_BLOBS: Final = 256
"""Blobs deleted side by side, before those that were dropped after them."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What transitions up to `seqno` dropped: seqno and blob key, oldest first.

    `state` is where the search stands: at `seqno`, or later where nothing earlier is known.
    """

    seqno: int
    state: ShardState
    parts: tuple[tuple[int, str], ...]


def collect_garbage(machine: Machine) -> int:
    """Delete what no state that is held, and not the newest, needs; how many blobs there were.

    A collection that finds nothing changes nothing: it costs reading the records since the last.

    Raises:
        InvalidUsage: There is no such shard.
        Determinate: The store did not answer; what was deleted is deleted.
        Indeterminate: The same. Run it again.
        MissingBlob: A record of the log is not there.
    """
    state = machine.state()
    # Fixed at the start: the collector's own records would give it work for ever.
    last = seqno_since(expire(state, machine.clock.now_ms()))
    deleted = _collect_parts(machine, state, last)
    oldest = oldest_whole(machine.state())
    deleted += _delete_rollups(machine, oldest)
    machine.location.consensus.truncate(machine.directory, oldest)
    return deleted


def _collect_parts(machine: Machine, state: ShardState, last: int) -> int:
    """Delete the parts that transitions up to `last` dropped, round by round."""
    deleted = 0
    before: ShardState | None = None
    while state.cleaned_seqno < last:
        if before is None or before.seqno < state.cleaned_seqno:
            before = _start(machine, state, last)
        found = _find(machine, state, before, last)
        if found is None:
            before = None
        elif found.parts or _outdated(state, found.seqno):
            given_up = machine.apply(partial(give_up, seqno=found.seqno))
            deleted += _delete_parts(machine, found, given_up)
            if not machine.apply(partial(note_cleaned, seqno=min(found.seqno, given_up))):
                break
            before = found.state if given_up >= found.seqno else None
        elif found.seqno == last:
            break
        else:
            before = found.state  # not worth a record: go on
        state = machine.state()
    return deleted


def _find(machine: Machine, state: ShardState, before: ShardState, last: int) -> _Found | None:
    """The garbage of transitions after `before`, up to `last` or as much as makes a round.

    Returns:
        None when another collector went past this one, and deleted what it was reading.
    """
    end = min(last, before.seqno + _ROUND_RECORDS)
    parts: list[tuple[int, str]] = []
    for after in machine.log.states_after(before, end):
        parts += [(after.seqno, key) for key in sorted(dropped(before, after))]
        before = after
        if len(parts) >= _ROUND_BLOBS:
            return _Found(before.seqno, before, tuple(parts))
    if before.seqno < end:
        if machine.state().cleaned_seqno > state.cleaned_seqno:
            return None
        raise MissingBlob(
            f"record {before.seqno + 1} of shard '{machine.name}' is not there",
            code="MISSING_STATE",
            hint="run inspect and restore it from a backup; nothing before it was deleted",
        )
    return _Found(min(before.seqno, last), before, tuple(parts))


def _start(machine: Machine, newest: ShardState, last: int) -> ShardState:
    """The state that the last collection reached, or else the next one that is known.

    The newest one at or before `last`, if that is very far away.
    """
    known = [at for at in wholes(newest) if at > newest.cleaned_seqno]
    starts = [max(newest.cleaned_seqno, 1), *known]
    if last - starts[0] > _BACKLOG_RECORDS:
        starts = [*(at for at in reversed(starts) if at <= last), *starts]
    for seqno in starts:
        state = rebuild(machine, newest, seqno)
        if state is not None:
            return state
    return newest


def _outdated(state: ShardState, seqno: int) -> bool:
    """Whether there are rollups or records that nobody needs once all before `seqno` is clean."""
    reached = max(state.cleaned_seqno, seqno)
    after = msgspec.structs.replace(
        state, cleaned_seqno=reached, gc_seqno=max(reached, state.gc_seqno)
    )
    return oldest_whole(after) > max(oldest_whole(state), 1)


def _delete_parts(machine: Machine, found: _Found, given_up: int) -> int:
    """Delete what was found, as far as it has been given up."""
    # A part that was appended twice, which only its writer can have done, is dropped twice.
    live = part_blobs(machine.state())
    keys = (key for seqno, key in found.parts if seqno <= given_up and key not in live)
    return _delete(machine, keys)


def _delete_rollups(machine: Machine, oldest: int) -> int:
    """Delete rollups of states before `oldest`, also those that were written and never recorded."""
    prefix = f"{machine.directory}/rollup/"
    names = (entry.key for entry in machine.location.blob.list(prefix))
    return _delete(machine, (key for key in names if _rollup_seqno(key, oldest) < oldest))


def _rollup_seqno(key: str, otherwise: int) -> int:
    """The seqno in a rollup's key; `otherwise` if somebody else put it there."""
    found = _ROLLUP.fullmatch(key)
    return otherwise if found is None else int(found[1], 16)


def _delete(machine: Machine, keys: Iterator[str]) -> int:
    deleted = 0
    while some := list(islice(keys, _REQUEST_BLOBS)):
        machine.location.blob.delete_many(some)
        deleted += len(some)
    return deleted
