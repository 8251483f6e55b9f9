"""The sweep: deletes blobs that nothing refers to and that nobody can commit any more.

    sweep(machine)                  a shard's leavings: how many there were, and their bytes
    sweep(machine, dry_run=True)    the same without deleting anything
    sweep_due(state, now_ms, …)     whether it is time for one
    sweep_orphans(location, clock)  directories of no shard: for an admin only

Garbage collection deletes what a transition dropped. What never came into a state it does not look
at, and that is what crashes leave: parts of a writer that died before its append, outputs of a
merge of unknown outcome, files and folders of a Spark job that was killed, parts of an interval
that others had appended already, rollups that were never recorded. Nobody knows their names, so
they are found by listing.

    1. note the time and the parts of the state; list what is older than a commit may be;
    2. ask the transactions layer what its unapplied transactions need;
    3. write a record, which no commit under way survives, and read all states that anybody may ask
       for: what they name is not leaked;
    4. delete the rest, then folders that are empty;
    5. note in the state when that was.

Why no commit can come after its part was deleted is said in
`shardline.datasource.shard.commands.sweep`; the order above is what that rests on. Step 2 comes
before 3 because that is the way parts take: whoever
applies a transaction first puts its parts into the state, and then forgets it.

It may be killed anywhere and run twice or side by side: deleting what is gone is no error.

Invariants:
    Nothing is deleted that a state from `gc_seqno` on names, that `needed` names, that is younger
    than `SWEEP_AGE_MS`, or whose age the store does not tell.
    Only `<shard>/part/` and rollups are looked at. All below `part/` is ours, whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage, MissingBlob
from shardline.datasource.shard.commands.sweep import SWEEP_AGE_MS, fence, note_swept, sweep_due
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import Amount, part_blobs
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard.state_history import states_from
from shardline.datasource.stores.location import BlobEntry, Location
from shardline.datasource.stores.shard_names import shard_directory, shard_name

__all__ = ["Swept", "nothing", "sweep", "sweep_due", "sweep_orphans"]

_REQUEST_BLOBS: Final = 256
"""Blobs deleted side by side."""

_SHOWN_MAX: Final = 1000
"""Keys that a report names."""

_OVERTAKEN_MAX: Final = 8
"""How often a collector may take the states that are being read."""

_ROLLUP: Final = re.compile(r"[0-9a-f]{16}-.+")


class Swept(msgspec.Struct, frozen=True):
    """What a sweep has deleted; of a dry run, what it would have.

    Attributes:
        parts: Files below `part/`.
        rollups: Whole states.
        keys: Names of the first thousand, in order.
    """

    parts: Amount = Amount()
    rollups: Amount = Amount()
    keys: tuple[str, ...] = ()

    @property
    def total(self) -> Amount:
        """Of all kinds."""
        return self.parts + self.rollups


def nothing() -> Collection[str]:
    """No transaction needs anything: right for a shard that is written directly."""
    return ()


def sweep(
    machine: Machine, *, needed: Callable[[], Collection[str]] = nothing, dry_run: bool = False
) -> Swept:
    """Delete the blobs of the shard that nothing refers to and that are older than 25 hours.

    Args:
        machine: The shard's; it may have been dropped.
        needed: Keys of parts that a transaction which is not applied yet refers to. Called once,
            after the blobs have been listed. It must hold for good: a transaction that it does not
            name, with parts that were begun `STAGE_LIFE_MS` before the call, must not be committed
            after it. (So it writes a record into the transactions shard before it reads it.)
        dry_run: Only look, and write nothing.

    Raises:
        InvalidUsage: There is no such shard; or it is registered with a transactions shard, and
            nobody says what that needs.
        MissingBlob: A state that must be there cannot be rebuilt: nothing was deleted.
        Determinate: The store did not answer; what was deleted is deleted.
        Indeterminate: The same. Run it again.
    """
    before_ms = machine.clock.now_ms() - SWEEP_AGE_MS
    known = machine.state()
    candidates = _old_and_unknown(machine.location, machine.directory, known, before_ms)
    if candidates:
        upstream = frozenset(needed())
        if not dry_run:
            machine.apply(fence)
        live = _live(machine, needed)
        candidates = [e for e in candidates if e.key not in live and e.key not in upstream]
    swept = _report(candidates)
    if not dry_run:
        _delete(machine.location, [entry.key for entry in candidates])
        for kind in ("part", "rollup"):
            machine.location.blob.prune(f"{machine.directory}/{kind}", before_ms)
        machine.apply(note_swept)
    return swept


def sweep_orphans(location: Location, clock: Clock, *, dry_run: bool = False) -> Swept:
    """Delete what is older than 25 hours in directories that could be shards' and have no log.

    Such a directory is what is left of a shard whose log was lost, or deleted by hand. Its parts
    are all there is of it: so this is for an admin who knows that it is not coming back.

    Args:
        dry_run: Only look.

    Raises:
        Determinate: The store did not answer; what was deleted is deleted.
        Indeterminate: The same. Run it again.
    """
    before_ms = clock.now_ms() - SWEEP_AGE_MS
    by_directory: dict[str, list[BlobEntry]] = {}
    for entry in location.blob.list(""):
        directory = entry.key.partition("/")[0]
        if _is_ours(entry, directory) and _is_old(entry, before_ms):
            by_directory.setdefault(directory, []).append(entry)
    orphans: list[BlobEntry] = []
    # Read after listing: a shard that was made meanwhile is there.
    shards = set(location.consensus.list_shards())
    for directory, entries in by_directory.items():
        if directory in shards or not _is_shard(directory):
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
    """What may be leaked: bounds what has to be remembered of a listing to little more than that.

    A part that `known` names and that was dropped since is the collector's.
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
    """Whether the blob was written before `before_ms`; never where its store does not say."""
    return 0 < entry.modified_ms < before_ms


def _is_ours(entry: BlobEntry, directory: str) -> bool:
    below = entry.key.removeprefix(f"{directory}/")
    if below.startswith("rollup/"):
        return _ROLLUP.fullmatch(below, len("rollup/")) is not None
    return below.startswith("part/")


def _is_shard(directory: str) -> bool:
    try:
        return shard_directory(shard_name(directory)) == directory
    except InvalidUsage:
        return False


def _live(machine: Machine, needed: Callable[[], Collection[str]]) -> set[str]:
    """Keys of all blobs that a state which can still be asked for names.

    A state can be asked for if it is not given up (`gc_seqno`): whatever GC has not collected of
    the ones after that, it will.
    """
    for _ in range(_OVERTAKEN_MAX):
        newest = machine.state()
        if newest.registered is not None and needed is nothing:
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
        # States share the batches that a transition left alone.
        fresh = [batch for batch in state.trace.batches if id(batch) not in batches]
        names.update(part.key for batch in fresh for part in batch.parts if part.inline is None)
        batches = set(map(id, state.trace.batches))
    return names


def _delete(location: Location, keys: list[str]) -> None:
    for start in range(0, len(keys), _REQUEST_BLOBS):
        location.blob.delete_many(keys[start : start + _REQUEST_BLOBS])


def _report(entries: list[BlobEntry]) -> Swept:
    parts = rollups = Amount()
    for entry in entries:
        one = Amount(1, entry.size_bytes)
        if entry.key.partition("/")[2].startswith("rollup/"):
            rollups += one
        else:
            parts += one
    return Swept(parts, rollups, tuple(entry.key for entry in entries[:_SHOWN_MAX]))
