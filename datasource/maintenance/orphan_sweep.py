"""The orphan sweep deletes blobs that nothing refers to and that nobody can commit any more.

    sweep(machine)                  delete a shard's orphans; their number and bytes
    sweep(machine, dry_run=True)    the same without deleting anything
    is_sweep_due(state, now_ms, …)  True if it is time for a sweep
    sweep_orphans(location, clock)  delete directories that belong to no shard; for an admin only

Garbage collection deletes parts that a transition dropped. It cannot know of blobs that never came
into a state, and crashes leave such blobs: parts of a writer that died before its append,
outputs of a merge of unknown outcome, files and folders of a Spark job that was killed, parts of an
interval that others had appended already, rollups that were never recorded. No record has their
names, so they are found by listing (Iceberg: remove_orphan_files; persist has no such sweep).

    1. note the time and the parts of the state; list blobs that are too old to be committed;
    2. ask the transactions layer which parts its unapplied transactions need;
    3. record that nothing may come in any more that was begun when these were, and read all states
       that may still be read: blobs that they name are no orphans;
    4. delete the rest, then folders that are empty;
    5. note in the state when that was.

`shardline.datasource.shard.commands.orphan_sweep` proves that no commit can come after its part was
deleted; the proof rests on this order. Step 2 comes before 3 because parts move in that direction:
applying a transaction first puts its parts into the state, and then forgets the transaction.

It may be killed anywhere and run twice or side by side: deleting a missing blob is no error.

Invariants:
    No blob is deleted that a state from `gc_seqno` on names, that `needed` names, that is younger
    than `SWEEP_AGE_MS`, or whose age the store does not give.
    Only what is below the shard's own `part/` and its rollups are candidates. All below `part/` is
    ours, whatever its name, if a blob can have that at all: `fsck` reports the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, TypeAlias

import msgspec

from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, InvalidUsage, MissingBlob
from shardline.datasource.shard.commands.orphan_sweep import (
    SWEEP_AGE_MS,
    SWEEP_MARGIN_MS,
    is_sweep_due,
    note_swept,
    write_barrier,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import Amount, part_blobs
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.state_history import states_from
from shardline.datasource.stores.location import BlobEntry, Location
from shardline.datasource.stores.shard_names import is_shard_directory

__all__ = ["NeededKeys", "SweepResult", "is_sweep_due", "no_keys_needed", "sweep", "sweep_orphans"]

NeededKeys: TypeAlias = Callable[[int | None], Collection[str]]
"""Asks for the parts that transactions still need; see `sweep`."""

_REQUEST_BLOBS: Final = 256
"""Blobs deleted at a time."""

_SHOWN_MAX: Final = 1000
"""The most keys that a report names."""

_OVERTAKEN_MAX: Final = 8
"""How often garbage collection may delete the states that are being read, before an error."""

_ROLLUP: Final = re.compile(r"[0-9a-f]{16}-.+")


class SweepResult(msgspec.Struct, frozen=True):
    """The blobs that a sweep has deleted; of a dry run, those that it would have.

    Attributes:
        parts: Files below `part/`.
        rollups: Rollups that no state names.
        keys: Keys of the first thousand blobs, in the order of the listing.
    """

    parts: Amount = Amount()
    rollups: Amount = Amount()
    keys: tuple[str, ...] = ()

    @property
    def total(self) -> Amount:
        """Blobs of both kinds together."""
        return self.parts + self.rollups


def no_keys_needed(begun_before_ms: int | None) -> Collection[str]:
    """Return no keys: no transaction needs parts of a shard that is written directly."""
    del begun_before_ms
    return ()


def sweep(
    machine: Machine,
    *,
    needed: NeededKeys = no_keys_needed,
    dry_run: bool = False,
    takes_back: bool = False,
) -> SweepResult:
    """Delete the blobs of the shard that nothing refers to and that are older than 25 hours.

    Args:
        machine: The shard's machine; the shard may have been dropped.
        needed: Gives the keys of parts that a transaction which is not applied yet refers to.
            Called after the blobs have been listed, and again if the shard is registered meanwhile,
            with the time before which a part that may be deleted was begun. Its answer must stay
            true: a transaction with such a part that it does not name must not be committed after
            it. (So it writes a record into the transactions shard before it reads that.) Called
            with None by a dry run, whose answer is of this moment only.
        dry_run: True only lists, and writes nothing.
        takes_back: As of `write_barrier`; for a person, who knows which clock is right.

    Raises:
        InvalidUsage: There is no such shard; or it is registered with a transactions shard, and
            `needed` is not given.
        MissingBlob: A state that must be there cannot be rebuilt: nothing was deleted.
        Determinate: The store did not answer. Some blobs may be deleted; run it again.
        Indeterminate: The same.
    """
    # Read before the listing, and the listing before `needed` and the fence: see the head. A clock
    # read later would make blobs old enough that a commit under way may still bring in.
    before_ms = machine.clock.now_ms() - SWEEP_AGE_MS
    known = machine.state()
    candidates = _old_and_unknown(machine.location, machine.directory, known, before_ms)
    if candidates or takes_back:
        # By what is there, and not by `before_ms`: if the clock of this process is ahead by years,
        # nobody could write for years.
        newest_ms = max((entry.modified_ms for entry in candidates), default=None)
        begun_before_ms = 0 if newest_ms is None else newest_ms + SWEEP_MARGIN_MS + 1
        barrier = partial(write_barrier, begun_before_ms=begun_before_ms, takes_back=takes_back)
        asked = partial(needed, None if dry_run else begun_before_ms)
        upstream = asked() if dry_run else _record_barrier(machine, known, barrier, asked)
        live = _live(machine, needed)
        candidates = [e for e in candidates if e.key not in live and e.key not in upstream]
    swept = _report(candidates)
    if not dry_run:
        _delete(machine.location, [entry.key for entry in candidates])
        for kind in ("part", "rollup"):
            machine.location.blob.prune(f"{machine.directory}/{kind}", before_ms)
        machine.apply(note_swept)
    return swept


def _record_barrier(
    machine: Machine,
    known: ShardState,
    barrier: Callable[[ShardState, int], Transition[bool]],
    needed: Callable[[], Collection[str]],
) -> Collection[str]:
    """Record the barrier, and return the keys that are needed in spite of it."""
    for _ in range(_OVERTAKEN_MAX):
        upstream = needed()
        machine.apply(barrier)
        newest = machine.state()
        if newest.registered == known.registered:
            return upstream
        # Another transactions shard was not asked. One that registers the shard from now on takes
        # the barrier over from it.
        known = newest
    raise Determinate(
        f"shard '{machine.name}' was registered and forgotten {_OVERTAKEN_MAX} times during one "
        "sweep",
        code="CONTENTION",
        hint="run it again; nothing was deleted",
    )


def sweep_orphans(location: Location, clock: Clock, *, dry_run: bool = False) -> SweepResult:
    """Delete blobs older than 25 hours in directories that have a shard's name but no log.

    Such a directory is left of a shard whose log was lost, or deleted by hand. Its parts are the
    last copy of the shard's rows: so this is for an admin who knows that it is not coming back.

    Args:
        location: The location.
        clock: The clock that blobs' ages are measured by.
        dry_run: True only lists.

    Raises:
        Determinate: The store did not answer. Some blobs may be deleted; run it again.
        Indeterminate: The same.
    """
    before_ms = clock.now_ms() - SWEEP_AGE_MS
    by_directory: dict[str, list[BlobEntry]] = {}
    for entry in location.blob.list(""):
        directory = entry.key.partition("/")[0]
        if _is_ours(entry, directory) and _is_old(entry, before_ms):
            by_directory.setdefault(directory, []).append(entry)
    orphans: list[BlobEntry] = []
    # After the blobs: listed before them, the logs would lack a shard that was made in between, and
    # its parts would be deleted.
    shards = set(location.consensus.list_shards())
    for directory, entries in by_directory.items():
        if directory in shards or not is_shard_directory(directory):
            continue
        orphans += entries
        if not dry_run:
            _delete(location, [entry.key for entry in entries])
            for kind in ("part", "rollup"):
                location.blob.prune(f"{directory}/{kind}", before_ms)
    return _report(orphans)


def _old_and_unknown(
    location: Location, directory: str, known: ShardState, before_ms: int
) -> list[BlobEntry]:
    """Blobs that may be orphans: old, and not named by `known`.

    Filtered as they are listed, so that memory holds little more than the orphans. A part that
    `known` names and that was dropped since is left to garbage collection.
    """
    parts = part_blobs(known)
    rollups = {ref.key for ref in known.rollups.values()}
    return [
        entry
        for kind in ("part", "rollup")
        for entry in location.blob.list(f"{directory}/{kind}/")
        if entry.key not in parts and entry.key not in rollups
        if _is_ours(entry, directory) and _is_old(entry, before_ms)
    ]


def _is_old(entry: BlobEntry, before_ms: int) -> bool:
    """True if the blob was written before `before_ms`; False if the store does not give its age."""
    return 0 < entry.modified_ms < before_ms


def _is_ours(entry: BlobEntry, directory: str) -> bool:
    below = entry.key.removeprefix(f"{directory}/")
    if below.startswith("rollup/"):
        return _ROLLUP.fullmatch(below, len("rollup/")) is not None
    return below.startswith("part/")


def _live(machine: Machine, needed: NeededKeys) -> set[str]:
    """Keys of all blobs that some state names which can still be read.

    A state can be read if it is not given up (`gc_seqno`); garbage collection deletes blobs that
    only those states name.
    """
    for _ in range(_OVERTAKEN_MAX):
        newest = machine.state()
        if newest.registered is not None and needed is no_keys_needed:
            raise InvalidUsage(
                f"shard '{machine.name}' is written through '{newest.registered.txns}', and parts "
                f"of a transaction may wait there",
                code="SHARD_REGISTERED",
                hint="say what that needs: sweep(machine, needed=…)",
            )
        try:
            return _named(states_from(machine, newest, newest.gc_seqno))
        except MissingBlob:
            if machine.state().gc_seqno == newest.gc_seqno:
                raise
    raise MissingBlob(
        f"the states of shard '{machine.name}' were collected faster than they could be read, "
        f"{_OVERTAKEN_MAX} times",
        code="MISSING_STATE",
        hint="run it again; nothing was deleted",
    )


def _named(states: Iterator[ShardState]) -> set[str]:
    names: set[str] = set()
    batches: set[int] = set()
    for state in states:
        names.update(ref.key for ref in state.rollups.values())
        # States share the batches that a transition left alone. The identities are those of the
        # state before, which the loop keeps alive until this one is made: none can be used again.
        fresh = [batch for batch in state.trace.batches if id(batch) not in batches]
        names.update(part.key for batch in fresh for part in batch.parts if part.inline is None)
        batches = set(map(id, state.trace.batches))
    return names


def _delete(location: Location, keys: list[str]) -> None:
    for start in range(0, len(keys), _REQUEST_BLOBS):
        location.blob.delete_many(keys[start : start + _REQUEST_BLOBS])


def _report(entries: list[BlobEntry]) -> SweepResult:
    parts = rollups = Amount()
    for entry in entries:
        one = Amount(1, entry.size_bytes)
        if entry.key.partition("/")[2].startswith("rollup/"):
            rollups += one
        else:
            parts += one
    return SweepResult(parts, rollups, tuple(entry.key for entry in entries[:_SHOWN_MAX]))
