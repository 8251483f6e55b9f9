"""Usage: what every byte of a shard, and of a location, is there for.

    shard_usage(machine)             one shard
    location_usage(location, clock)  every shard, and what belongs to none

    bytes in the store = now + held + garbage + staged + leaked + unattributed

    now           the newest state needs it: parts, a whole state, the records after it, floors
    held          only older states need it, and a reader's seqno keeps one of those: `holders`
    garbage       nobody can ask for it any more: garbage collection takes it, now or when the
                  grace of the log is over
    staged        nothing refers to it, and something may yet: it is younger than a commit may be
    leaked        nothing refers to it, and nothing can: the sweep takes it
    unattributed  not ours: nobody takes it

Invariants:
    While nothing else runs, the sum is what the store holds, to the byte.
    Whatever runs meanwhile, nothing is counted twice or taken for a leak that is none: objects are
    listed before the state is read that says what they are for, and one that a collector deleted in
    between is not counted.
    Nothing is written, and no lease is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from shardline.datasource.clock import Clock, SystemIds
from shardline.datasource.errors import InvalidUsage, MissingBlob, ShardError
from shardline.datasource.inspect.report import ProblemReport
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.commands.sweep import SWEEP_AGE_MS
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.references import Amount, dropped, needed_until, part_blobs, wholes
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    expire,
    is_tombstone,
    seqno_since,
)
from shardline.datasource.shard.state_history import states_from
from shardline.datasource.stores.location import BlobEntry, Location
from shardline.datasource.stores.shard_names import shard_name

__all__ = [
    "HolderUsage",
    "LocationUsage",
    "OrphanUsage",
    "ShardUsage",
    "location_usage",
    "shard_usage",
]

_OVERTAKEN_MAX: Final = 8
"""How often a collector may take the states that are being read."""

_LOG_TOP: Final = 2**63 - 1
"""Keys of a log count down from here."""


class HolderUsage(msgspec.Struct, frozen=True):
    """What the seqno of one reader keeps.

    Attributes:
        name: Id of a lease, or the name of a hold.
        kind: "lease" expires by itself, "hold" never does.
        seqno: The oldest state that it may ask for.
        kept: All that it keeps, whoever else does.
        alone: What would be garbage without it.
    """

    name: str
    kind: Literal["lease", "hold"]
    seqno: int
    kept: Amount
    alone: Amount


class ShardUsage(msgspec.Struct, frozen=True):
    """What the objects of one shard are there for.

    Attributes:
        id: Identity of the shard.
        name: As its user wrote it.
        dropped: Whether only its tombstone is left.
        seqno: Of the state that this is about.
        parts: Of the newest state.
        rollups: The newest whole state; none while a record says it all.
        records: Of the log, from there on.
        floors: How far the log was truncated: a few bytes each, kept for ever.
        held: What only older states need and somebody holds.
        garbage: What GC may take.
        staged: Nothing refers to it, and it may still be committed. Of a shard that is written
            through a transactions shard also what is older: a transaction may wait to be applied.
        leaked: Nothing refers to it, and nothing can: a sweep takes it.
        unattributed: Objects that are not ours, or whose age the store does not tell.
        inline_bytes: Rows inside of the state: a share of rollups and records, not one more kind.
        holders: Who keeps what, the one that keeps most first.
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
        """What the newest state needs."""
        return self.parts + self.rollups + self.records + self.floors

    @property
    def total(self) -> Amount:
        """All of it: what the store holds for the shard."""
        rest = self.held + self.garbage + self.staged + self.leaked + self.unattributed
        return self.now + rest


class OrphanUsage(msgspec.Struct, frozen=True):
    """A directory of the location that is no shard's.

    Attributes:
        directory: Its name.
        total: All that is in it.
        sweepable: What an admin may sweep: it has the names and the age of a lost shard's blobs.
    """

    directory: str
    total: Amount
    sweepable: Amount


class LocationUsage(msgspec.Struct, frozen=True):
    """What the objects of a location are there for.

    Attributes:
        location: Canonical URL.
        at_ms: When it was looked at, by the looker's clock.
        shards: In order of their names.
        orphans: Directories without a shard.
        own: The location's own objects. (A file that somebody put beside them is not counted.)
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
        """All of it."""
        amounts = [one.total for one in self.shards] + [one.total for one in self.orphans]
        return sum(amounts, self.own)


def shard_usage(machine: Machine) -> ShardUsage:
    """What the objects of the shard are there for.

    Costs a listing of them, and the records since the last collection.

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
    """What the objects of a location are there for.

    Raises:
        Determinate: The store did not answer.
    """
    at_ms = clock.now_ms()
    directories = location.directories()
    shards: list[ShardUsage] = []
    problems: list[ProblemReport] = []
    # Read after the directories: what is a shard by then is none of the orphans.
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
    """The parts that a stretch of states names, and the last state that names each."""

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
    entries = list(machine.location.entries(f"{machine.directory}/"))
    after = machine.state()
    parts.follow(machine.log.states_after(before, after.seqno))
    # The log may have gone on since; what is reported is the last state that was followed.
    state = parts.newest or before
    if state.seqno < after.seqno:
        raise MissingBlob(f"record {state.seqno + 1} of shard '{machine.name}' is not there")
    now_ms = machine.clock.now_ms()
    return _Books(expire(state, now_ms), parts.dropped, now_ms).report(machine.directory, entries)


Kind = Literal[
    "parts", "rollups", "records", "floors", "staged", "leaked", "unattributed", "collected"
]


class _Books:
    """Puts every object of a shard where it belongs."""

    def __init__(self, state: ShardState, dropped: Mapping[str, int], now_ms: int) -> None:
        self._state = state
        self._dropped = dropped
        self._now_ms = now_ms
        self._live = part_blobs(state)
        self._rollups = {ref.key: seqno for seqno, ref in state.rollups.items()}
        self._wholes = wholes(state)
        self._oldest = oldest_whole(state)

    def report(self, directory: str, entries: Iterable[BlobEntry]) -> ShardUsage:
        """The usage of `entries`, all of the shard's."""
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
        """What `entry` is there for; of what only older states need, the last of those."""
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
        # One that was forgotten, or comes too late to be recorded, is deleted by its seqno alone.
        return 0 if seqno < self._oldest else self._unknown(entry)

    def _record(self, seqno: int) -> Kind | int:
        last = needed_until(self._wholes, seqno)
        return "records" if last is None else last

    def _unknown(self, entry: BlobEntry) -> Kind:
        """What nothing refers to: waiting for its commit, or too old for one."""
        if entry.modified_ms <= 0:
            return "unattributed"
        is_old = entry.modified_ms < self._now_ms - SWEEP_AGE_MS
        return "leaked" if is_old and self._state.registered is None else "staged"


def _holders(state: ShardState, needs: Mapping[int, Amount]) -> tuple[HolderUsage, ...]:
    """What each reader keeps of what only older states need."""
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
    """The number that 16 hexadecimal digits spell; None for any other name."""
    digits = "0123456789abcdef"
    return int(name, 16) if len(name) == 16 and not set(name) - set(digits) else None  # noqa: PLR2004


# --- what is no shard's --------------------------------------------------------------------------


def _orphan(location: Location, directory: str, now_ms: int) -> OrphanUsage:
    total = sweepable = Amount()
    ours = _names_a_shard(directory)
    for entry in location.entries(f"{directory}/"):
        one = Amount(1, entry.size_bytes)
        total += one
        below = entry.key.removeprefix(f"{directory}/")
        is_old = 0 < entry.modified_ms < now_ms - SWEEP_AGE_MS
        if ours and is_old and below.startswith(("part/", "rollup/")):
            sweepable += one
    return OrphanUsage(directory, total, sweepable)


def _names_a_shard(directory: str) -> bool:
    try:
        shard_name(directory)
    except InvalidUsage:
        return False
    return True


def _sum(entries: Iterator[BlobEntry]) -> Amount:
    return _add(Amount(1, entry.size_bytes) for entry in entries)


def _add(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())
