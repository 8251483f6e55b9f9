"""Accounts for every byte of a shard, and of a location, by the reason why it is still stored.

    shard_usage(machine)             one shard
    location_usage(location, clock)  every shard, and objects that belong to none

A location that grows has many possible causes: data, a forgotten hold, collection that does not
run, crashes. The sum tells which:

    bytes in the store = now + held + garbage + staged + leaked + unattributed

    now           needed by the newest state: parts, a whole state, the records after it, floors
    held          needed by older states only, one of which a reader's seqno keeps: `holders`
    garbage       needed by no state that can be read any more: garbage collection deletes it, now
                  or when the grace of the log is over
    staged        nothing refers to it, but a commit still may: it is young enough
    leaked        nothing refers to it, and no commit can any more: the orphan sweep deletes it
    unattributed  not written by Shardline: nothing deletes it

Invariants:
    While nothing else runs, the sum equals the size of all objects in the store, to the byte.
    With other processes running, no object is counted twice, and none is reported as leaked that is
    not: objects are listed before the state is read that explains them, and an object that was
    collected in between is not counted.
    Nothing is written, and no lease is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from shardline.datasource.clock import Clock, SystemIds
from shardline.datasource.errors import MissingBlob, ShardError
from shardline.datasource.inspect.report import ProblemReport
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import (
    Amount,
    dropped,
    needed_until,
    part_blobs,
    whole_state_seqnos,
)
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    expire_leases,
    is_tombstone,
    seqno_since,
)
from shardline.datasource.shard.state_history import states_from
from shardline.datasource.stores.location import BlobEntry, Location
from shardline.datasource.stores.shard_names import is_shard_directory, shard_name

__all__ = [
    "HolderUsage",
    "LocationUsage",
    "OrphanUsage",
    "ShardUsage",
    "location_usage",
    "shard_usage",
]

_OVERTAKEN_MAX: Final = 8
"""How often garbage collection may delete the states being read before the report gives up."""

_LOG_TOP: Final = 2**63 - 1
"""The number in a log entry's key is this minus its seqno."""


class HolderUsage(msgspec.Struct, frozen=True):
    """Objects that the seqno of one reader keeps from garbage collection.

    Attributes:
        name: Id of a lease, or the name of a hold.
        kind: "lease" expires by itself, "hold" never does.
        seqno: The oldest state that it may read.
        kept: All objects that it keeps, also those that others keep as well.
        alone: Objects that would be garbage without it.
    """

    name: str
    kind: Literal["lease", "hold"]
    seqno: int
    kept: Amount
    alone: Amount


class ShardUsage(msgspec.Struct, frozen=True):
    """The objects of one shard, by the reason why they are stored.

    Attributes:
        id: Identity of the shard.
        name: Name as the user wrote it.
        dropped: True if only its tombstone is left.
        seqno: Seqno of the state that this is about.
        parts: Parts of the newest state.
        rollups: The newest whole state; none while a record holds it.
        records: Records of the log from that state on.
        floors: Entries of the floor log: a few bytes each, kept for ever.
        held: Needed by older states only, which a reader holds.
        garbage: Garbage collection may delete it.
        staged: Nothing refers to it, and it may still be committed. For a registered shard also
            older objects: a transaction may wait to be applied.
        leaked: Nothing refers to it, and no commit can any more: an orphan sweep deletes it.
        unattributed: Objects that are not ours, or whose age the store does not report.
        inline_bytes: Rows inside of the state: a share of rollups and records, no separate kind.
        holders: The readers that keep older states, the one that keeps most first.
    """

    id: str
    name: str
    dropped: bool
    seqno: int
    parts: Amount = Amount()
    rollups: Amount = Amount()
    records: Amount = Amount()
    floors: Amount = Amount()
    held: Amount = Amount()
    garbage: Amount = Amount()
    staged: Amount = Amount()
    leaked: Amount = Amount()
    unattributed: Amount = Amount()
    inline_bytes: int = 0
    holders: tuple[HolderUsage, ...] = ()

    @property
    def now(self) -> Amount:
        """All objects that the newest state needs."""
        return self.parts + self.rollups + self.records + self.floors

    @property
    def total(self) -> Amount:
        """All objects of the shard in the store."""
        rest = self.held + self.garbage + self.staged + self.leaked + self.unattributed
        return self.now + rest


class OrphanUsage(msgspec.Struct, frozen=True):
    """A directory of the location that belongs to no shard.

    Attributes:
        directory: Its name.
        total: All objects in it.
        sweepable: Objects with the names and the age of a lost shard's blobs, which an admin may
            sweep.
    """

    directory: str
    total: Amount
    sweepable: Amount


class LocationUsage(msgspec.Struct, frozen=True):
    """The objects of a location, by the reason why they are stored.

    Attributes:
        location: Canonical URL.
        at_ms: Time of the report, by the clock of the process that made it.
        shards: In order of their names.
        orphans: Directories without a shard.
        own: The location's own objects. (A foreign file beside them is not counted.)
        problems: Shards that could not be read, and are missing in `shards`.
    """

    location: str
    at_ms: int
    shards: tuple[ShardUsage, ...]
    orphans: tuple[OrphanUsage, ...] = ()
    own: Amount = Amount()
    problems: tuple[ProblemReport, ...] = ()

    @property
    def total(self) -> Amount:
        """All objects of the location."""
        amounts = [one.total for one in self.shards] + [one.total for one in self.orphans]
        return sum(amounts, self.own)


def shard_usage(machine: Machine) -> ShardUsage:
    """The objects of a shard, by the reason why they are stored.

    Costs a listing of them, and reading the records since the last garbage collection.

    Raises:
        InvalidUsage: There is no such shard.
        MissingBlob: A state that must be there cannot be rebuilt.
        Determinate: The store did not answer.
    """
    for _ in range(_OVERTAKEN_MAX):
        before = machine.state()
        try:
            return _shard_usage(machine, before)
        except MissingBlob:
            if machine.state().cleaned_seqno == before.cleaned_seqno:
                raise
    raise MissingBlob(
        f"the states of shard '{machine.name}' were collected faster than they could be read, "
        f"{_OVERTAKEN_MAX} times",
        code="MISSING_STATE",
        hint="try again",
    )


def location_usage(location: Location, clock: Clock) -> LocationUsage:
    """The objects of a location, by the reason why they are stored.

    Raises:
        Determinate: The store did not answer.
    """
    at_ms = clock.now_ms()
    directories = location.directories()
    shards: list[ShardUsage] = []
    problems: list[ProblemReport] = []
    # Read after the directories: a shard that is created in between is not taken for an orphan.
    known = location.consensus.list_shards()
    for directory in known:
        name = directory
        try:
            name = shard_name(directory)
            machine = Machine(name, location, clock, SystemIds(), ShardSettings())
            shards.append(shard_usage(machine))
        except ShardError as error:
            problems.append(ProblemReport(name, error.code, str(error)))
    orphans = [
        _orphan(location, directory, at_ms)
        for directory in directories
        if directory not in set(known) and not directory.startswith("_")
    ]
    return LocationUsage(
        location=location.url,
        at_ms=at_ms,
        shards=tuple(sorted(shards, key=lambda one: one.name)),
        orphans=tuple(orphans),
        own=_sum(location.entries("_")),
        problems=tuple(problems),
    )


# --- one shard -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Parts:
    """The parts that consecutive states drop, each with the last state that names it."""

    newest: ShardState | None = None
    dropped: dict[str, int] = field(default_factory=dict)

    def follow(self, states: Iterable[ShardState]) -> None:
        for state in states:
            if self.newest is not None:
                for key in dropped(self.newest, state):
                    self.dropped[key] = self.newest.seqno
            self.newest = state


def _shard_usage(machine: Machine, before: ShardState) -> ShardUsage:
    parts = _Parts()
    parts.follow(states_from(machine, before, before.cleaned_seqno))
    # Between two reads of the state: a part that was committed before the listing is in the second,
    # one that is committed after it is not in the listing.
    entries = list(machine.location.entries(f"{machine.directory}/"))
    after = machine.state()
    parts.follow(machine.log.states_after(before, after.seqno))
    # The report is about the last state that was followed; the log may have moved on.
    state = parts.newest or before
    if state.seqno < after.seqno:
        raise MissingBlob(f"record {state.seqno + 1} of shard '{machine.name}' is not there")
    now_ms = machine.clock.now_ms()
    return _Classifier(expire_leases(state, now_ms), parts.dropped, now_ms).report(
        machine.directory, entries
    )


Kind = Literal[
    "parts", "rollups", "records", "floors", "staged", "leaked", "unattributed", "collected"
]


class _Classifier:
    """Classifies every object of a shard."""

    def __init__(self, state: ShardState, dropped: Mapping[str, int], now_ms: int) -> None:
        self._state = state
        self._dropped = dropped
        self._now_ms = now_ms
        self._live = part_blobs(state)
        self._rollups = {ref.key: seqno for seqno, ref in state.rollups.items()}
        self._wholes = whole_state_seqnos(state)
        self._oldest = oldest_whole(state)

    def report(self, directory: str, entries: Iterable[BlobEntry]) -> ShardUsage:
        """The usage of the shard whose objects are `entries`."""
        state = self._state
        amounts: dict[str, Amount] = {}
        needs: dict[int, Amount] = {}
        for entry in entries:
            kind = self._kind(entry, entry.key.removeprefix(f"{directory}/"))
            one = Amount(1, entry.size_bytes)
            if isinstance(kind, int):
                needs[kind] = needs.get(kind, Amount()) + one
            elif kind != "collected":
                amounts[kind] = amounts.get(kind, Amount()) + one
        least = seqno_since(state)
        return ShardUsage(
            id=state.shard,
            name=state.name,
            dropped=is_tombstone(state),
            seqno=state.seqno,
            held=_add(amount for until, amount in needs.items() if until >= least),
            garbage=_add(amount for until, amount in needs.items() if until < least),
            inline_bytes=state.trace.inline_bytes,
            holders=_holders(state, needs),
            **amounts,
        )

    def _kind(self, entry: BlobEntry, below: str) -> Kind | int:
        """The kind of `entry`; for one that only older states need, the seqno of the last."""
        kind, _, name = below.partition("/")
        match kind:
            case "part":
                return self._part(entry)
            case "rollup":
                return self._rollup(entry, name)
            case "log" | "floor":
                seqno = _hexadecimal(name)
                if seqno is None:
                    return "unattributed"
                return "floors" if kind == "floor" else self._record(_LOG_TOP - seqno)
        return "unattributed"

    def _part(self, entry: BlobEntry) -> Kind | int:
        if entry.key in self._live:
            return "parts"
        last = self._dropped.get(entry.key)
        if last is None:
            return self._unknown(entry)
        return "collected" if last < self._state.cleaned_seqno else last

    def _rollup(self, entry: BlobEntry, name: str) -> Kind | int:
        known = self._rollups.get(entry.key)
        if known is not None:
            last = needed_until(self._wholes, known)
            return "rollups" if last is None else last
        seqno = _hexadecimal(name.partition("-")[0])
        if seqno is None or "-" not in name:
            return "unattributed"
        # A rollup that was forgotten, or written too late to be recorded, is deleted by its seqno
        # alone.
        return 0 if seqno < self._oldest else self._unknown(entry)

    def _record(self, seqno: int) -> Kind | int:
        last = needed_until(self._wholes, seqno)
        return "records" if last is None else last

    def _unknown(self, entry: BlobEntry) -> Kind:
        """The kind of an object that nothing refers to: staged, or too old to be committed."""
        if entry.modified_ms <= 0:
            return "unattributed"
        is_old = entry.modified_ms < self._now_ms - SWEEP_AGE_MS
        return "leaked" if is_old and self._state.registered is None else "staged"


def _holders(state: ShardState, needs: Mapping[int, Amount]) -> tuple[HolderUsage, ...]:
    """The objects that each reader keeps, of those that only older states need."""
    readers: dict[str, LeasedReader | CriticalReader] = {**state.leased, **state.critical}
    seqnos = {name: r.seqno for name, r in readers.items() if r.seqno is not None}
    found = []
    for name, seqno in seqnos.items():
        others = min((s for other, s in seqnos.items() if other != name), default=None)
        kept = {until: amount for until, amount in needs.items() if until >= seqno}
        found.append(
            HolderUsage(
                name=name,
                kind="lease" if isinstance(readers[name], LeasedReader) else "hold",
                seqno=seqno,
                kept=_add(kept.values()),
                alone=_add(a for until, a in kept.items() if others is None or until < others),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.kept.size_bytes, one.name)))


def _hexadecimal(name: str) -> int | None:
    """The number with these 16 hexadecimal digits; None for any other name."""
    digits = "0123456789abcdef"
    return int(name, 16) if len(name) == 16 and not set(name) - set(digits) else None  # noqa: PLR2004


# --- what is no shard's --------------------------------------------------------------------------


def _orphan(location: Location, directory: str, now_ms: int) -> OrphanUsage:
    total = sweepable = Amount()
    ours = is_shard_directory(directory)
    for entry in location.entries(f"{directory}/"):
        one = Amount(1, entry.size_bytes)
        total += one
        below = entry.key.removeprefix(f"{directory}/")
        is_old = 0 < entry.modified_ms < now_ms - SWEEP_AGE_MS
        if ours and is_old and below.startswith(("part/", "rollup/")):
            sweepable += one
    return OrphanUsage(directory, total, sweepable)


def _sum(entries: Iterator[BlobEntry]) -> Amount:
    return _add(Amount(1, entry.size_bytes) for entry in entries)


def _add(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())
