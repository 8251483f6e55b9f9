"""Replays the log of a shard: applies every record to the state before it, and compares rollups.

    replay_log(place, listing, found)    the states of the log, and the parts that they need

A reader starts from the newest rollup and never sees older records; a hold may need them all the
same. The walk begins at the oldest state that must still be there, and goes record by record to the
head. If a record is missing, damaged or does not fit, it goes on from the next whole state, so that
one damage does not hide another. Memory: one state, and the descriptions of the parts that some
state names.

Invariants:
    A state is trusted only if it was made, without a gap, from a whole state that was decoded.
    Reads only, and can run while the shard is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from shardline.datasource.errors import Corrupt, InvalidUsage, ShardError
from shardline.datasource.inspect.fsck.findings import Findings
from shardline.datasource.inspect.fsck.listing import Listing
from shardline.datasource.inspect.fsck.states import check_state, reason_not_successor
from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.codec import (
    CODE_VERSION,
    Record,
    apply_diff,
    decode_record,
    decode_rollup,
)
from shardline.datasource.shard.commands.rollups import oldest_whole
from shardline.datasource.shard.known import Known
from shardline.datasource.shard.state import CriticalReader, LeasedReader, ShardState, seqno_since
from shardline.datasource.stores.entry import decode_entry, entry_key
from shardline.datasource.stores.objects import Objects
from shardline.datasource.stores.shard_names import shard_directory

__all__ = ["ReplayedLog", "ShardObjects", "replay_log"]

_CHUNK: Final = 64
"""Records requested at once."""

_FLOOR: Final = struct.Struct(">Q")

_IS: Final = ("are", "is")

_GAPS_MAX: Final = 20
"""Most gaps that are reported one by one; a longer list would not help."""


@dataclass(frozen=True, slots=True)
class ShardObjects:
    """The objects of the shard to check, and a callback for progress.

    Attributes:
        objects: The store.
        directory: The shard's directory in it.
        advance: Called with the number of records or parts checked since the last call.
    """

    objects: Objects
    directory: str
    advance: Callable[[int], None] = lambda _: None


@dataclass(slots=True)
class ReplayedLog:
    """The result of replaying a log.

    Attributes:
        newest: The state at the head; None if it cannot be made.
        last: The newest state that can be made.
        needed: Parts of the newest state, and of every state that a reader holds, by key.
        named: Keys of the parts that any replayed state names.
        dropped: Keys of parts that were dropped before `cleaned_seqno`, so should be deleted.
        broken: Seqnos of states that cannot be made.
        records: Number of decoded records.
        rollups: Number of compared rollups.
    """

    newest: ShardState | None = None
    last: ShardState | None = None
    needed: dict[str, Part] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    broken: list[int] = field(default_factory=list)
    records: int = 0
    rollups: int = 0


def replay_log(place: ShardObjects, listing: Listing, found: Findings) -> ReplayedLog:
    """Replay the shard's log from the oldest state that is needed to its head.

    Raises:
        Determinate: The store did not answer.
    """
    walk = _Replay(place, listing, found)
    floor = _newest_floor(place, listing, found)
    try:
        walk.begin(floor)
        for seqno in range(walk.start, listing.head + 1, _CHUNK):
            for at, record in walk.records(seqno, min(seqno + _CHUNK, listing.head + 1)):
                walk.step(at, record)
    except _NotJudgedError:
        walk.walked.newest = walk.walked.last = None
        return walk.walked
    walk.end(floor)
    return walk.walked


class _NotJudgedError(Exception):
    """The states are those of newer code, or of a shard in another directory."""


@dataclass(slots=True)
class _Replay:
    place: ShardObjects
    listing: Listing
    found: Findings
    start: int = 1
    known: ShardState | None = None
    _state: ShardState | None = None
    _token: str = ""
    _rollups: dict[int, str] = field(default_factory=dict)
    _recorded: dict[int, int] = field(default_factory=dict)
    walked: ReplayedLog = field(default_factory=ReplayedLog)

    # --- where to begin -------------------------------------------------------------------------

    def begin(self, floor: int) -> None:
        """Determine where the walk starts, and which rollups there are from there on."""
        self.known = self._opened()
        first = self.listing.records[0] if self.listing.records else 1
        if self.known is not None:
            # Not known while the log still begins with the tombstone of an earlier shard.
            self.start = oldest_whole(self.known) or floor
            self._recorded = {at: ref.size_bytes for at, ref in self.known.rollups.items()}
            self._rollups = {at: ref.key for at, ref in self.known.rollups.items()}
        else:
            self.start = max(floor, first)
        # A rollup that was written and never recorded, because of a crash, is a true state, too.
        for at, key in self.listing.rollup_seqnos.items():
            self._rollups.setdefault(at, key)
        for at in sorted(self._recorded):
            if at < self.start:
                self._rollup(at)

    def _opened(self) -> ShardState | None:
        """The newest state, made as a client does: from the rollup or base that the head names."""
        at = self.listing.head
        (data,) = self.place.objects.get_many([self._key(at)])
        head = None if data is None else self._decoded(at, data)
        if head is None:
            return None
        self._refuse_newer(head.version)
        state = head.state
        if state is None and head.rollup is not None:
            # Before it is read: of a directory that was moved it is not there.
            self._refuse_directory(head.rollup[1].key.partition("/")[0])
            state = self._whole(head.rollup[0], head.rollup[1].key)
        elif state is None:
            (data,) = self.place.objects.get_many([self._key(head.base)])
            base = None if data is None else self._decoded(head.base, data)
            state = None if base is None else base.state
        if state is not None:
            with suppress(InvalidUsage):  # a name that no shard can have is found in the end
                self._refuse_directory(shard_directory(state.name))
        while state is not None and state.seqno < at:
            last = min(state.seqno + _CHUNK, at)
            for _, record in self.records(state.seqno + 1, last + 1):
                if record is None or state is None:
                    return None
                state = _applied(state, record)[0]
        return state

    def _refuse_newer(self, version: tuple[int, int]) -> None:
        if version <= CODE_VERSION:
            return
        written, ours = (f"{major}.{minor}" for major, minor in (version, CODE_VERSION))
        self.found.add(
            "NEWER_VERSION",
            self.place.directory,
            f"the shard was written by state version {written}, this code is {ours}",
        )
        raise _NotJudgedError

    def _refuse_directory(self, own: str) -> None:
        # The states name the blobs of the other directory: all would be missing in this one.
        if own == self.place.directory:
            return
        self.found.add(
            "NAME_MISMATCH",
            self.place.directory,
            f"the log in directory '{self.place.directory}' is that of the shard in '{own}'",
        )
        raise _NotJudgedError

    # --- one record after the other -------------------------------------------------------------

    def _key(self, seqno: int) -> str:
        return entry_key(f"{self.place.directory}/log/", seqno)

    def records(self, first: int, end: int) -> Iterator[tuple[int, Record | None]]:
        """Records `[first, end)`; None for one that is missing or damaged."""
        keys = [self._key(seqno) for seqno in range(first, end)]
        values = self.place.objects.get_many(keys)
        for seqno, value in enumerate(values, first):
            yield seqno, None if value is None else self._decoded(seqno, value)
        self.place.advance(len(keys))

    def _decoded(self, seqno: int, value: bytes) -> Record | None:
        key, subject = self._key(seqno), f"record {seqno}"
        try:
            data = decode_entry(self.place.objects.url, key, value)[1]
            record = decode_record(data, f"record {seqno}")
        except Corrupt as error:
            self.found.add("RECORD_DAMAGED", subject, f"'{key}': {error.detail}")
            return None
        except InvalidUsage as error:
            self.found.add("NEWER_VERSION", self.place.directory, error.detail)
            raise _NotJudgedError from error
        if record.seqno == seqno:
            return record
        self.found.add(
            "RECORD_MISPLACED",
            subject,
            f"'{key}' says that it is record {record.seqno}, not {seqno}",
        )
        return None

    def step(self, seqno: int, record: Record | None) -> None:
        """Make the state at `seqno`, or note that it cannot be made."""
        before = self._state
        after: ShardState | None = None
        added: Sequence[Batch] | None = None  # None: all of the state's
        if record is not None and (before is not None or record.state is not None):
            after, reason = _applied(before, record)
            if reason:
                detail = f"record {seqno} does not follow from those before it: {reason}"
                self.found.add("RECORD_UNFIT", f"record {seqno}", detail)
            elif record.diff is not None:
                added = record.diff.batches.added if record.diff.batches else ()
        self._check_history(seqno, record)
        self.walked.records += record is not None
        whole = self._rollup(seqno) if seqno in self._rollups else None
        if after is None:
            after, added = whole, None
        elif whole is not None and whole != after and self._counts(seqno):
            self._differs(seqno, whole, after)
        if after is None:
            self.walked.broken.append(seqno)
        else:
            self._note(before, after, added)
        self._state = after

    def _check_history(self, seqno: int, record: Record | None) -> None:
        """Find a record that was written after another one than is before it now.

        Where records of two histories are in one log it may well apply: it is read as it is, and
        what was committed in its history, in place of what is before it, is gone.
        """
        if record is not None and not Known(token=self._token).is_followed_by(record):
            detail = (
                f"record {seqno} was written after a record {seqno - 1} that is not the one that "
                "is there: the log has records of two histories"
            )
            self.found.add("RECORD_UNFIT", f"record {seqno}", detail)
        self._token = "" if record is None else record.token

    def _note(
        self, before: ShardState | None, after: ShardState, added: Sequence[Batch] | None
    ) -> None:
        """Note the parts that `after` names, those that are needed, and those it has dropped."""
        walked = self.walked
        walked.last = after
        every = after.trace.batches
        for part in _blobs(every if added is None else added):
            walked.named.add(part.key)
        if self.known is None:
            return
        held = max(seqno_since(self.known), self.start)
        if after.seqno >= held:
            # Of the first state that is held all parts are needed, of later ones those they add.
            for batch in every if added is None or after.seqno == held else added:
                for part in batch.parts:
                    walked.needed.setdefault(part.key, part)
        if before is not None and after.seqno <= self.known.cleaned_seqno:
            kept = set(map(id, every))
            gone = [batch for batch in before.trace.batches if id(batch) not in kept]
            walked.dropped |= {part.key for part in _blobs(gone)}

    # --- rollups --------------------------------------------------------------------------------

    def _rollup(self, seqno: int) -> ShardState | None:
        """The rollup at `seqno`; findings if a state names it and it is missing or damaged."""
        key, size = self._rollups[seqno], self._recorded.get(seqno)
        if size is None:
            return self._whole(seqno, key, quietly=True)
        self.walked.rollups += 1
        if key not in self.listing.rollups:
            self.found.add("ROLLUP_MISSING", key, f"the state at seqno {seqno} is not there")
            return None
        return self._whole(seqno, key)

    def _counts(self, seqno: int) -> bool:
        """True unless no state names the rollup at `seqno`, which nobody reads then.

        A backup that was made while the shard was written, log first, has rollups of states that it
        does not have; what is written to the restored shard has other states at their seqnos.
        """
        return self.known is None or seqno in self._recorded

    def _whole(self, seqno: int, key: str, *, quietly: bool = False) -> ShardState | None:
        found = Findings() if quietly else self.found
        data = self.place.objects.get(key)
        if data is None:
            found.add("ROLLUP_MISSING", key, f"the state at seqno {seqno} is not there")
            return None
        try:
            state = decode_rollup(data, f"rollup '{key}'")
        except Corrupt as error:
            found.add("ROLLUP_DAMAGED", key, error.detail)
            return None
        except InvalidUsage as error:
            self.found.add("NEWER_VERSION", self.place.directory, error.detail)
            raise _NotJudgedError from error
        if state.seqno == seqno:
            return state
        detail = f"rollup '{key}' holds the state at seqno {state.seqno}, not {seqno}"
        found.add("ROLLUP_MISPLACED", key, detail)
        return None

    def _differs(self, seqno: int, whole: ShardState, replayed: ShardState) -> None:
        fields = [
            name
            for name in whole.__struct_fields__
            if getattr(whole, name) != getattr(replayed, name)
        ]
        key = self._rollups[seqno]
        self.found.add(
            "ROLLUP_DIFFERS",
            key,
            f"rollup '{key}' and the log disagree about {', '.join(fields)} at seqno {seqno}",
        )

    # --- the end --------------------------------------------------------------------------------

    def end(self, floor: int) -> None:
        """Report missing records, and check the newest state."""
        self._find_gaps(floor)
        self._find_lost_head()
        newest = self.walked.newest = self._state
        if self.known is None and self.walked.last is not None:
            parts = (part for b in self.walked.last.trace.batches for part in b.parts)
            self.walked.needed = {part.key: part for part in parts}
        if newest is None:
            self.found.add(
                "STATE_UNREADABLE",
                self.place.directory,
                f"the state at seqno {self.listing.head} cannot be made of what is there",
            )
        else:
            check_state(newest, self.place.directory, self.found)
            self._find_unreadable_holds(newest)
        if newest is not None and floor > self.start:
            self.found.add(
                "FLOOR_PAST_NEEDED",
                f"floor {floor}",
                f"records before {floor} are given up, the oldest state needed is {self.start}",
            )

    def _find_lost_head(self) -> None:
        """Find rollups beyond the head: each is written after the record of its seqno."""
        head = self.listing.head
        for seqno, key in self.listing.rollup_seqnos.items():
            if seqno > head:
                detail = f"'{key}' is of seqno {seqno}, and the newest record is {head}"
                self.found.add("HEAD_MISSING", key, detail)

    def _find_gaps(self, floor: int) -> None:
        # If the walk starts at a rollup, the record of the same seqno may be truncated.
        first = min(floor, self.start + 1 if self.start in self._recorded else self.start)
        present = [at for at in self.listing.records if at >= first]
        gaps = [
            (before + 1, after - 1)
            for before, after in pairwise([first - 1, *present])
            if after > before + 1
        ]
        for low, high in gaps[:_GAPS_MAX]:
            which = f"record {low}" if low == high else f"records {low} to {high}"
            detail = f"{which} {_IS[low == high]} not there, of {first} to {self.listing.head}"
            self.found.add("RECORD_MISSING", which, detail)

    def _find_unreadable_holds(self, newest: ShardState) -> None:
        """Find readers that hold a state which cannot be made."""
        holders: dict[str, LeasedReader | CriticalReader] = {**newest.leased, **newest.critical}
        for name, reader in holders.items():
            seqno = reader.seqno
            if seqno is None or seqno > newest.seqno:
                continue
            broken = [at for at in self.walked.broken if at >= seqno]
            if seqno < self.start:
                broken = [seqno]
            if broken:
                self.found.add(
                    "HOLD_UNREADABLE",
                    name,
                    f"reader '{name}' holds seqno {seqno}, and the state at {broken[0]} cannot be "
                    f"made of what is there",
                )


def _blobs(batches: Iterable[Batch]) -> Iterator[Part]:
    return (part for batch in batches for part in batch.parts if part.inline is None)


def _applied(before: ShardState | None, record: Record) -> tuple[ShardState | None, str]:
    """The state after `record`, or the reason why it does not follow from `before`."""
    if before is None:
        return record.state, ""
    reason = _unfit(before, record)
    if reason is None:
        try:
            after = apply_diff(before, record)
        except (ShardError, TypeError, ValueError) as error:
            return None, str(error)
        reason = reason_not_successor(before, after)
        if reason is None and (after.rollup, after.base) != (record.rollup, record.base):
            reason = f"it names rollup {record.rollup}, the state {after.rollup}"
        if reason is None:
            return after, ""
    return None, reason


def _unfit(before: ShardState, record: Record) -> str | None:
    """The reason why `record` cannot change `before`; None if there is none."""
    if record.state is not None:
        return None
    change = record.diff
    if change is None:
        return "it changes nothing"
    count = len(before.trace.batches)
    splice = change.batches
    if splice is not None and not 0 <= splice.start <= splice.start + splice.removed <= count:
        return f"it replaces batches {splice.start} to {splice.start + splice.removed} of {count}"
    if known := sorted(change.schemas.keys() & before.schemas.keys()):
        return f"it adds the schemas {known} again"
    removed = [
        name
        for old, new in (
            (before.leased, change.leased),
            (before.critical, change.critical),
            (before.writers, change.writers),
        )
        for name, value in new.items()
        if value is None and name not in old
    ]
    removed += [
        str(at) for at, r in change.rollups.items() if r is None and at not in before.rollups
    ]
    return f"it removes {removed}, which are not there" if removed else None


def _newest_floor(place: ShardObjects, listing: Listing, found: Findings) -> int:
    """The newest valid floor, below which records may be deleted; 1 if there is none."""
    floor, before = 1, 0
    for key in listing.foreign_entries:
        found.add("FOREIGN_LOG_OBJECT", key, f"'{key}' is no entry of a log")
    for number in listing.floors:
        key = entry_key(f"{place.directory}/floor/", number)
        if number != before + 1:
            found.add("FLOOR_GAP", key, f"floor {number} follows floor {before}")
        before = number
        value = place.objects.get(key)
        try:
            data = decode_entry(place.objects.url, key, value or b"")[1]
            (said,) = _FLOOR.unpack(data)
        except (Corrupt, struct.error) as error:
            detail = error.detail if isinstance(error, Corrupt) else str(error)
            found.add("FLOOR_DAMAGED", key, f"'{key}': {detail}")
            continue
        if said < floor:
            found.add("FLOOR_BACKWARDS", key, f"floor {number} is {said}, after {floor}")
        if said > listing.head:
            detail = f"records before {said} are given up, the newest one is {listing.head}"
            found.add("FLOOR_BEYOND_HEAD", key, detail)
            continue
        floor = max(floor, said)
    return floor
