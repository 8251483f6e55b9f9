"""Garbage collection deletes the blobs and records that only old states of a shard need.

    collect_garbage(machine)    deletes all that can be deleted now; returns the number of blobs

Merges replace parts all the time; without collection a shard would keep each row as often as it was
rewritten (persist: gc, Delta: VACUUM). A part is garbage once a transition has dropped it (a merge,
a flush, an overwrite, a drop) and no seqno hold is at a state before that transition. The collector
reads the shard's log from where the last one stopped, in this order:

    1. find the parts that the next transitions dropped, up to the least seqno that is held, in
       their records; where the process has seen them all and none dropped any, in none;
    2. *give up* the states before that seqno, in the state: no hold can be taken there any more;
    3. delete the parts, oldest first;
    4. note in the state how far they are deleted, and forget rollups that only older states need;
    5. delete those rollups;
    6. truncate the log before the oldest whole state that is still needed.

It may be killed after any step, run twice or side by side, and skipped for a year: each step begins
from what the state records, and deleting a missing blob is no error. A long backlog is worked off
in rounds, each of which is noted. A very long one is cut short: parts that were dropped before the
newest usable rollup are left to the orphan sweep, which finds them by listing
(`shardline.datasource.maintenance.orphan_sweep`).

Invariants:
    Only blobs that a transition dropped are deleted, and rollups that can never be recorded again:
    a part that was staged and not appended yet is never a candidate.
    Only blobs in the shard's own directory are deleted. A state that names others is damaged, and
    nothing is known here of the shard that they belong to.
    Every state that a hold may be at can be rebuilt, and all of its blobs are there.
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
from shardline.datasource.shard.commands.garbage_collection import give_up_states, note_cleaned
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import dropped, part_blobs, whole_state_seqnos
from shardline.datasource.shard.state import ShardState, expire_leases, seqno_since
from shardline.datasource.shard.state_history import rebuild

__all__ = ["collect_garbage"]

_ROLLUP: Final = re.compile(r"[^/]+/rollup/([0-7][0-9a-f]{15})-[^/]+")
"""Key of a rollup: other objects in that folder are not ours to delete."""

_ROUND_BLOBS: Final = 4096
"""About how many parts one round finds and deletes: bounds its memory, and the work that is
repeated after a crash."""

_ROUND_RECORDS: Final = 4096
"""The most records that one round reads: bounds how many are read again after a crash."""

_BACKLOG_RECORDS: Final = 16_384
"""A collector that is further behind starts at the newest usable rollup. Each record may cost a
request; the orphan sweep lists a thousand blobs with one."""

_REQUEST_BLOBS: Final = 256
"""Blobs deleted at a time, before those that were dropped after them."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The parts that transitions up to `seqno` dropped: seqno and blob key, oldest first.

    `state` is the last state that was searched: at `seqno`, or later where no earlier one is known.
    """

    seqno: int
    state: ShardState
    parts: tuple[tuple[int, str], ...]


def collect_garbage(machine: Machine) -> int:
    """Delete blobs that neither the newest state nor one that is held needs; return their number.

    A collection that finds nothing changes nothing, and costs reading those of the records since
    the last one that this process has not seen.

    Raises:
        InvalidUsage: There is no such shard.
        Determinate: The store did not answer. Some blobs may be deleted; run it again.
        Indeterminate: The same.
        MissingBlob: A record of the log is missing.
    """
    state = machine.state()
    # Fixed at the start: the collector's own records would give it work for ever.
    last = seqno_since(expire_leases(state, machine.clock.now_ms()))
    # Parts first, the log last: its records are the only list of the parts that are garbage.
    deleted = _collect_parts(machine, state, last)
    state = machine.state()
    oldest = oldest_whole(state)
    # A rollup that was recorded after the last note makes those before it needless. Forgotten
    # first: one that a state names and nobody finds is damage, to whoever checks the shard.
    if any(seqno < oldest for seqno in state.rollups):
        machine.apply(partial(note_cleaned, seqno=state.cleaned_seqno))
    deleted += _delete_rollups(machine, oldest)
    machine.location.consensus.truncate(machine.directory, oldest)
    return deleted


def _collect_parts(machine: Machine, state: ShardState, last: int) -> int:
    """Delete the parts that transitions up to `last` dropped, round by round."""
    deleted = 0
    before: ShardState | None = None
    while state.cleaned_seqno < last:
        found: _Found | None
        if machine.drops.none_between(state.cleaned_seqno, last):
            found = _Found(last, state, ())
        else:
            if before is None or before.seqno < state.cleaned_seqno:
                before = _start(machine, state, last)
            found = _find(machine, state, before, last)
            if found is not None and not found.parts:
                machine.drops.note_searched(before.seqno, found.seqno)
        if found is None:
            before = None
        elif found.parts or _has_outdated(state, found.seqno):
            # Recorded before anything is deleted: a reader may be about to take a hold. Either the
            # state has its hold and `given_up` stops before it, or the hold is refused.
            given_up = machine.apply(partial(give_up_states, seqno=found.seqno))
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
        None if another collector has overtaken this one and truncated the records it was reading.
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
    """The state to search from: where the last collection ended, or the next one that is known.

    If `last` is very far away from there, the newest known one at or before `last`.
    """
    known = [at for at in whole_state_seqnos(newest) if at > newest.cleaned_seqno]
    starts = [max(newest.cleaned_seqno, 1), *known]
    if last - starts[0] > _BACKLOG_RECORDS:
        starts = [*(at for at in reversed(starts) if at <= last), *starts]
    for seqno in starts:
        state = rebuild(machine, newest, seqno)
        if state is not None:
            return state
    return newest


def _has_outdated(state: ShardState, seqno: int) -> bool:
    """True if rollups or records become unneeded once states before `seqno` are cleaned."""
    reached = max(state.cleaned_seqno, seqno)
    after = msgspec.structs.replace(
        state, cleaned_seqno=reached, gc_seqno=max(reached, state.gc_seqno)
    )
    return oldest_whole(after) > max(oldest_whole(state), 1)


def _delete_parts(machine: Machine, found: _Found, given_up: int) -> int:
    """Delete the parts that were found, as far as their states have been given up."""
    # A part may be dropped and be in the newest state: a writer can have appended it twice.
    live = part_blobs(machine.state())
    # What is in another directory is another shard's, whatever our states say: see the head.
    own = f"{machine.directory}/part/"
    keys = (
        key
        for seqno, key in found.parts
        if seqno <= given_up and key not in live and key.startswith(own)
    )
    return _delete(machine, keys)


def _delete_rollups(machine: Machine, oldest: int) -> int:
    """Delete rollups of states before `oldest`, with those that were written and not recorded."""
    prefix = f"{machine.directory}/rollup/"
    names = (entry.key for entry in machine.location.blob.list(prefix))
    return _delete(machine, (key for key in names if _rollup_seqno(key, oldest) < oldest))


def _rollup_seqno(key: str, otherwise: int) -> int:
    """The seqno in a rollup's key; `otherwise` if it is not the key of a rollup."""
    found = _ROLLUP.fullmatch(key)
    return otherwise if found is None else int(found[1], 16)


def _delete(machine: Machine, keys: Iterator[str]) -> int:
    deleted = 0
    while some := list(islice(keys, _REQUEST_BLOBS)):
        machine.location.blob.delete_many(some)
        deleted += len(some)
    return deleted
