"""Keeps each shard's log as numbered objects that are created once: `Consensus` over any store.

Writers on many machines must agree on one order of changes, and an object store offers them neither
locks nor transactions. All that is used of it is to create an object only if its key is absent.

Record n of a shard is the object `<shard>/log/{2**63-1-n:016x}`: created once, never changed. The
process that creates n has appended it, so creating is the compare-and-set. Keys count down, so that
one LIST of one key finds the head (the newest record). An entry holds a magic number, a version, a
checksum, its writer's 16-byte token and the record.

*Resolving.* Any answer to a create but success, a refusal included, leaves the outcome unknown:
clients and proxies repeat requests. It is decided by reading n back and comparing its token: our
token means success, once the entry is durable; another one means that we lost; no entry means try
again. If n cannot be read or decoded, the outcome stays unknown (`Indeterminate`).

*Truncating* makes create-if-absent unsafe by itself: a writer that stalls between its last look
and its create could create a deleted seqno again and believe that it has committed. So a truncation
first publishes a floor ("records below f may be deleted") as the newest entry of a second log that
is never deleted, `<shard>/floor/…`; deletes only after a *grace period*; and never deletes the
head. With that, for a seqno s and the time t of an observation:

    if s was not below the floor at t, then until t + grace s has not been deleted,

so a create of s that succeeds, a record found at s, and the absence of s can all be trusted.
The deleter counts the grace by its own clock, from when it first knew of the floor. A process that
does not live that long uses the store's time stamp of the floor, and adds an hour
(`CLOCK_DIFFERENCE_MS`) for the difference of the clocks and the time between stamping and storing.
With the half of the grace that no observer uses, these may be off by one and a half hours together.
Where a store has no time stamps, such processes leave deleting to others. Observers rely on half of
the grace only, because clocks tick differently. When it is over they read the floor again, *after*
the request in question: if s is not below the floor then, nothing at s was ever deleted. A head
observed at t is such an observation for every s >= head, because no floor is above the head. That
is why an append after another append, or after a read, costs one create, and on a disk a look.

The age of an observation is that by the clock by which it is greatest (`instant`), that of the
store included: a machine that was paused by its hypervisor believes that no time has passed. The
answer to its next request tells it the store's time, and only then an age is asked.

Invariants:
    seqnos from the floor to the head are present without gaps, and no other seqno was ever head;
    what this object remembers of a shard was true at the time that is noted with it. Remembering
    less, after a race between threads or when shards are forgotten, costs a request and never
    gives a wrong answer.

Sources: SlateDB RFC 0026 (boundary files); persist's Consensus (error types, operations).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shardline.datasource.errors import (
    Corrupt,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.stores.entry import (
    decode_entry,
    encode_entry,
    entry_key,
    entry_seqno,
    is_entry,
    may_have_entries,
    newest_entry,
)
from shardline.datasource.stores.instant import NEVER, Instant, age_ms, now
from shardline.datasource.stores.location import (
    Committed,
    Consensus,
    ExpectationMismatch,
    VersionedData,
    log_replaced,
    truncated_too_fast,
)
from shardline.datasource.stores.log_observations import UNKNOWN, Observations
from shardline.datasource.stores.objects import CREATED, Unresolved
from shardline.datasource.stores.shard_names import is_shard_directory, shard_name
from shardline.datasource.waiting import RetryPolicy

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.objects import Objects

__all__ = [
    "CLOCK_DIFFERENCE_MS",
    "DEADLINE_MS",
    "GRACE_MS",
    "READERS_SEEN_MS",
    "RECORD_BYTES_MAX",
    "SEEN_MS",
    "NumberedLog",
]

GRACE_MS: Final = 60 * 60 * 1000
"""Time between publishing a floor and deleting below it. Longer outlasts longer stalls of a writer
in the middle of one request; shorter frees space sooner. All processes of a location must agree."""

DEADLINE_MS: Final = 30 * 1000
"""How long an append tries to learn its own outcome before it raises `Indeterminate`."""

RECORD_BYTES_MAX: Final = 64 << 20
"""A record is sent in one request, which no client may split: splitting loses the condition."""

CLOCK_DIFFERENCE_MS: Final = 60 * 60 * 1000
"""Allowance for the difference of the store's clock and ours, or a jump of one of them, where the
grace is counted from a time stamp of the store."""

_FLOOR: Final = struct.Struct(">Q")

_PROBES: Final = 4
"""Next records that a reader with a known head asks for one by one before it lists."""

_CHUNK_MIN: Final = 8
_CHUNK_MAX: Final = 64
"""Records that a scan requests at once; the first request is small as most scans find a few."""

_ROUNDS_MAX: Final = 16
"""Attempts at operations that only a concurrent truncation can make us repeat."""

SEEN_MS: Final = 1_000.0
"""So long a head that was seen counts as being there, where each look is a request."""

READERS_SEEN_MS: Final = 10_000.0
"""The same for those who only read: what they are told late is that there is nothing to read."""

_REFUSALS_MAX: Final = 3
"""Consecutive creates with a permanent refusal (no permission …) and nothing to read back before
the outcome is reported as unknown. One refusal is not enough: it may be about a repetition whose
original is still on its way. A process that has lost the right to write need not wait longer."""

_SHARDS_MAX: Final = 4096


class NumberedLog(Consensus):
    """The logs of all shards of one location. Safe to share between threads, usable after a fork.

    Args:
        objects: The store. Its reads may be retried inside; a create that was repeated inside
            must not report success or failure for certain unless it knows.
        clock: Measures the grace and the deadline with `elapsed_ms`; the age of observations with
            `now_ms` and the store's time as well.
        ids: Makes tokens.
        grace_ms: The location's grace; with 0 every answer costs a look at the floor.
        deadline_ms: Longest time in which one append tries to learn its outcome.
        seen_ms: So long after the head was seen an append goes by that; 0 looks at it each time.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        clock: Clock,
        ids: IdGenerator,
        grace_ms: float = GRACE_MS,
        deadline_ms: float = DEADLINE_MS,
        seen_ms: float = SEEN_MS,
    ) -> None:
        self._objects = objects
        self._seen_ms = seen_ms
        self._clock = clock
        self._ids = ids
        self._grace_ms = grace_ms
        self._retries = RetryPolicy(first_ms=20, longest_ms=2000, limit_ms=deadline_ms)
        # No lock: views are immutable, and an update that is lost in a race between threads is one
        # that was forgotten (see Invariants).
        self._views: dict[str, Observations] = {}

    # ------------------------------------------------------------------------------------- head

    @override
    def head(self, shard: str) -> VersionedData | None:
        view = self._observations(shard)
        if view.head_at == NEVER:
            return self._find_head_by_listing(shard)
        newest = view.head
        for _ in range(_PROBES):
            seqno = 1 if newest is None else newest.seqno + 1
            # Before the request, here and everywhere below: a stall in between must make the
            # observation look older than it is, never younger.
            asked_at = self._now()
            found = self._read(shard, seqno)
            # Also where nothing was found: a record that was truncated is as absent as one that was
            # never written, and only the floor tells them apart.
            if not self._is_above_floor(shard, seqno):
                break
            if found is None:
                # A head that is remembered was made durable when it was first seen.
                if newest is not view.head:
                    self._objects.settle(f"{shard}/log")
                self._note_head(shard, newest, asked_at, is_seen=newest is not view.head)
                return newest
            newest = found
        return self._find_head_by_listing(shard)

    def _find_head_by_listing(self, shard: str) -> VersionedData | None:
        for _ in range(_ROUNDS_MAX):
            asked_at = self._now()
            # The floor is not read: the head is never deleted, and what a stalled writer puts back
            # is below it. So the first key of a LIST is the head, however old our memory is.
            newest = newest_entry(self._objects, f"{shard}/log/")
            if newest is None:
                self._note_head(shard, None, asked_at)
                return None
            found = self._read(shard, entry_seqno(newest.key))
            if found is not None:
                self._objects.settle(f"{shard}/log")
                self._note_head(shard, found, asked_at)
                return found
        raise truncated_too_fast(shard, self._objects.url, _ROUNDS_MAX)

    # --------------------------------------------------------------------------- compare and set

    @override
    def compare_and_set(
        self, shard: str, expected: int | None, data: bytes
    ) -> Committed | ExpectationMismatch:
        if len(data) > RECORD_BYTES_MAX:
            raise InvalidUsage(
                f"a record of {len(data)} bytes for shard '{shard}', of {RECORD_BYTES_MAX} allowed",
                code="RECORD_TOO_LARGE",
                hint="write large values as blobs and refer to them",
            )
        before = expected or 0
        seqno = before + 1
        view = self._observations(shard)
        newest = view.head
        if view.head_at == NEVER or view.head_seqno < before:
            # Appending after a record that is not there would leave a gap for ever. Otherwise none
            # has to be found: had the head moved on, the create below would find its key taken.
            newest = self.head(shard)
            view = self._observations(shard)
        if (0 if newest is None else newest.seqno) != before:
            is_next = newest is not None and newest.seqno == seqno
            return ExpectationMismatch(newest if is_next else None)
        # This look only keeps us from putting back what was deleted; the process may stall after
        # it, so the look after the create is the one that decides. Where no head is, what was seen
        # of it says nothing: a log may be lost, and its floor be there.
        floor = self._look_at_floor(shard).floor if expected is None else 0
        if seqno < floor or not self._is_above_floor(shard, seqno):
            return ExpectationMismatch(None)  # our head is older than the grace, and deleted since
        if newest is not None and newest is view.head:
            self._check_still_there(shard, newest, view.seen_ms)
        began_at = self._now()
        winner = self._create_and_resolve(shard, "log", seqno, data)
        if winner is not None:
            return self._answer_lost_race(shard, winner, began_at)
        try:
            counts = self._is_above_floor(shard, seqno)
        except ShardError as error:
            raise self._outcome_unknown(shard, seqno, "the floor cannot be read") from error
        if not counts:
            # Below the floor ours is either a commit that others have built upon and truncated, or
            # what this slow request put back where a record had been deleted.
            raise self._outcome_unknown(shard, seqno, "the log was truncated beyond it meanwhile")
        # Not the time of now: since the create, others may have appended and published a floor
        # above our record. When it began, our seqno was free, so no floor was above it.
        self._note_head(shard, VersionedData(seqno, data), began_at)
        return Committed(seqno)

    def _check_still_there(self, shard: str, head: VersionedData, seen_ms: float) -> None:
        """Refuse to append after a record that was deleted, or that another one is in place of.

        People empty folders, or put older copies in their place, while a process remembers what was
        there. Its record would be behind a gap, or of another history, and lost.
        """
        if self._clock.elapsed_ms() - seen_ms < self._seen_ms:
            return
        found = self._read(shard, head.seqno)
        if found == head or not self._is_above_floor(shard, head.seqno):
            return
        self._views.pop(shard, None)
        raise log_replaced(f"record {head.seqno} of shard '{shard_name(shard)}'", found)

    def _answer_lost_race(
        self, shard: str, winner: VersionedData, began_at: Instant
    ) -> Committed | ExpectationMismatch:
        """Answer an append whose seqno was taken by another writer's record.

        Raises:
            Indeterminate: The record found may have been put back by a stalled writer, after ours
                was committed, built upon and truncated.
        """
        try:
            counts = self._is_above_floor(shard, winner.seqno)
        except ShardError as error:
            raise self._outcome_unknown(shard, winner.seqno, "the floor cannot be read") from error
        if not counts:
            # When the append began, the seqno was not below a floor as of half a grace before (see
            # `_is_above_floor`). Within another half nothing there was deleted, so the record found
            # is the first at this seqno, and ours certainly failed. After that nobody can tell.
            if self._age_ms(began_at) >= self._grace_ms / 2:
                reason = "the log was truncated beyond it meanwhile"
                raise self._outcome_unknown(shard, winner.seqno, reason)
            return ExpectationMismatch(None)
        # Before the answer, not after: the caller acts on a refusal outside of this store, and a
        # power cut must not take away the record that caused it.
        self._objects.settle(f"{shard}/log")
        # It is not known at which time the winner was the head: it may have been long ago.
        self._note_head(shard, winner, NEVER)
        return ExpectationMismatch(winner)

    def _create_and_resolve(
        self, shard: str, kind: str, seqno: int, data: bytes
    ) -> VersionedData | None:
        """Create entry `seqno` of a shard's log or floor log; the other's record if we lost.

        Returns:
            None if the entry at `seqno` is ours; else the one that was found there.

        Raises:
            Indeterminate: The deadline passed, or reading back failed.
            Determinate: The store refused before anything could have happened.
            InvalidUsage: The same, and it will refuse again.
        """
        key = entry_key(f"{shard}/{kind}/", seqno)
        # One token for all attempts: with a fresh one each, an attempt would take the record of an
        # earlier one, whose answer was lost, for another writer's, and report a commit as refused.
        token = self._ids.token()
        entry = encode_entry(key, token, data)
        outcome = self._objects.create(key, entry)
        if outcome is CREATED:
            return None
        # From here on only an entry that was read back decides. An error of any class, Determinate
        # included, is about this look or this repetition: the first attempt may have happened, or
        # may yet. So no error but Indeterminate leaves the loop.
        budget = self._retries.begin(self._clock, self._ids)
        refusals = 0
        while True:
            reason, refusal = "taken, and yet absent", None
            if isinstance(outcome, Unresolved):
                reason, refusal = outcome.reason, outcome.refusal
            refusals = refusals + 1 if refusal is not None else 0
            try:
                found = self._objects.get(key)
                if found is not None:
                    owner, record = decode_entry(self._objects.url, key, found)
                    if owner != token:
                        return VersionedData(seqno, record)
                    # A visible entry need not be durable: the create may have failed to sync it.
                    self._objects.settle(f"{shard}/{kind}")
                    return None
                # After the look, not before it: the last create must be read back as well.
                if refusals >= _REFUSALS_MAX or not budget.pause():
                    raise self._outcome_unknown(shard, seqno, reason, refusal)
                outcome = self._objects.create(key, entry)
            except Indeterminate:
                raise
            except ShardError as error:
                raise self._outcome_unknown(shard, seqno, reason, refusal) from error
            if outcome is CREATED:
                return None

    # ------------------------------------------------------------------------------------- scan

    @override
    def scan(self, shard: str, from_seqno: int, limit: int) -> list[VersionedData]:
        first = max(from_seqno, 1)
        for _ in range(_ROUNDS_MAX):
            records = self._scan_from(shard, first, limit)
            if records is not None:
                return records
            first = max(first, self._observations(shard).floor)
        raise truncated_too_fast(shard, self._objects.url, _ROUNDS_MAX)

    def _scan_from(self, shard: str, first: int, limit: int) -> list[VersionedData] | None:
        """Records as `scan` gives them; None if `first` turns out to be below the floor."""
        records: list[VersionedData] = []
        prefix = f"{shard}/log/"
        asked_at = self._now()
        # If there was nothing a moment ago, there is most likely still nothing: a reader that polls
        # pays for one request each time.
        width = 1 if self._observations(shard).missed == first else _CHUNK_MIN
        while len(records) < limit:
            start = first + len(records)
            keys = [
                entry_key(prefix, seqno)
                for seqno in range(start, start + min(width, limit - len(records)))
            ]
            values = self._objects.get_many(keys)
            # After the reads: a truncation between the look and the reads would make deleted
            # records look like the end of the log. The lowest seqno speaks for all above it.
            if not self._is_above_floor(shard, start):
                return None
            for seqno, (key, value) in enumerate(zip(keys, values, strict=True), start):
                if value is None:
                    if records:
                        self._objects.settle(f"{shard}/log")
                        self._note_head(shard, records[-1], asked_at)
                    else:
                        self._remember(shard, self._observations(shard)._replace(missed=first))
                        self._check_head_of_reader(shard, first - 1, asked_at)
                    return records
                data = self._decode(key, value)
                if data is None:
                    return None  # deleted since the floor was looked at, which has moved on
                records.append(VersionedData(seqno, data))
            width = min(max(2 * width, _CHUNK_MIN), _CHUNK_MAX)
        # No `_note_head`: `limit` was reached, and there may be more.
        if records:
            self._objects.settle(f"{shard}/log")
        return records

    def _check_head_of_reader(self, shard: str, seqno: int, asked_at: Instant) -> None:
        """Refuse to say that nothing follows record `seqno` if that is gone: so is all that did."""
        view = self._observations(shard)
        seen_ms = self._clock.elapsed_ms() - READERS_SEEN_MS
        if view.head is not None and view.head.seqno == seqno and view.seen_ms <= seen_ms:
            self._check_still_there(shard, view.head, view.seen_ms)
            self._note_head(shard, view.head, asked_at)

    # --------------------------------------------------------------------------------- truncate

    @override
    def truncate(self, shard: str, before: int) -> int:
        head = self.head(shard)
        if head is None:
            return 0
        # Read anew, whatever is remembered: another process may have published a floor, whose
        # records are to be deleted, and above which ours has to be.
        view = self._look_at_floor(shard)
        deleted = self._delete_below_floor(shard)
        if self._observations(shard).cleaned >= view.floor and before > view.floor:
            # One floor at a time: floors are kept for ever, so at most one per grace is published.
            # Not above the head, which every reader has to find.
            self._publish_floor(shard, min(before, head.seqno))
            deleted += self._delete_below_floor(shard)
        return deleted

    def _publish_floor(self, shard: str, floor: int) -> None:
        for _ in range(_ROUNDS_MAX):
            view = self._observations(shard)
            if view.floor >= floor:
                return
            value = _FLOOR.pack(floor)
            # A create that stalls does no harm here: nothing in the floor log is ever deleted.
            if self._create_and_resolve(shard, "floor", view.floor_index + 1, value) is None:
                self._note_floor(shard, view.floor_index + 1, floor, NEVER)
                return
            self._look_at_floor(shard)
        raise truncated_too_fast(shard, self._objects.url, _ROUNDS_MAX)

    def _delete_below_floor(self, shard: str) -> int:
        view = self._observations(shard)
        if view.floor <= view.cleaned or not self._is_grace_over(shard, view):
            return 0
        prefix = f"{shard}/log/"
        last_kept = entry_key(prefix, view.floor)
        entries = self._objects.entries(prefix, start_after=last_kept)
        keys = [entry.key for entry in entries if is_entry(entry.key)]
        self._objects.delete_many(keys)
        # Only now: after an error the next truncation has to delete the rest.
        self._remember(shard, self._observations(shard)._replace(cleaned=view.floor))
        return len(keys)

    def _is_grace_over(self, shard: str, view: Observations) -> bool:
        """True if the grace has passed since the newest floor was published."""
        if self._clock.elapsed_ms() - view.floor_since_ms >= self._grace_ms:
            return True
        newest = newest_entry(self._objects, f"{shard}/floor/")
        if newest is None or newest.modified_ms <= 0 or entry_seqno(newest.key) != view.floor_index:
            return False
        age_ms = self._clock.now_ms() - newest.modified_ms
        return age_ms >= self._grace_ms + CLOCK_DIFFERENCE_MS

    # ------------------------------------------------------------------------------------ floor

    def _is_above_floor(self, shard: str, seqno: int) -> bool:
        """True if nothing at `seqno` was deleted yet: what was found or missed there is true.

        Called after the request in question; reads the floor unless an observation is recent.
        """
        view = self._observations(shard)
        # Compared with `<`: with a grace of 0 not even an observation of this moment is used.
        if seqno >= view.head_seqno and self._age_ms(view.head_at) < self._grace_ms / 2:
            return True
        if seqno >= view.floor and self._age_ms(view.floor_at) < self._grace_ms / 2:
            return True
        return seqno >= self._look_at_floor(shard).floor

    def _look_at_floor(self, shard: str) -> Observations:
        """Read the newest floor and remember it."""
        prefix = f"{shard}/floor/"
        view = self._observations(shard)
        index, floor = view.floor_index, view.floor
        for _ in range(_PROBES if view.floor_at != NEVER else 0):
            asked_at = self._now()
            key = entry_key(prefix, index + 1)
            value = self._objects.get(key)
            if value is None:
                return self._note_floor(shard, index, floor, asked_at)
            index, floor = index + 1, self._decode_floor(key, value)
        asked_at = self._now()
        newest = newest_entry(self._objects, prefix)
        if newest is not None and entry_seqno(newest.key) != index:
            value = self._objects.get(newest.key) or b""
            index, floor = entry_seqno(newest.key), self._decode_floor(newest.key, value)
        return self._note_floor(shard, index, floor, asked_at)

    def _decode_floor(self, key: str, value: bytes) -> int:
        payload = self._decode(key, value) or b""
        if len(payload) != _FLOOR.size:
            raise Corrupt(
                f"'{key}' at '{self._objects.url}' is not a floor: it has {len(payload)} bytes",
                code="CORRUPT_LOG_ENTRY",
                hint="restore the object from a backup; do not delete it",
            )
        floor: int = _FLOOR.unpack(payload)[0]
        return floor

    # ---------------------------------------------------------------------------------- memory

    def _now(self) -> Instant:
        return now(self._clock, self._objects)

    def _age_ms(self, at: Instant) -> float:
        return age_ms(self._clock, self._objects, at)

    def _observations(self, shard: str) -> Observations:
        view = self._views.get(shard)
        if view is None:
            shard_name(shard)
            return UNKNOWN
        return view

    def _remember(self, shard: str, view: Observations) -> Observations:
        if len(self._views) >= _SHARDS_MAX and shard not in self._views:
            self._views.clear()
        self._views[shard] = view
        return view

    def _note_head(
        self, shard: str, head: VersionedData | None, at: Instant, *, is_seen: bool = True
    ) -> None:
        # Of two observations the later time holds for the greater head as well: no floor was above
        # the smaller head then. Threads may note their observations in any order.
        view = self._observations(shard)
        if head is None or head.seqno <= view.head_seqno:
            head = view.head
        seen_ms = self._clock.elapsed_ms() if is_seen else view.seen_ms
        newest = view._replace(head=head, head_at=max(at, view.head_at), seen_ms=seen_ms)
        self._remember(shard, newest)

    def _note_floor(self, shard: str, index: int, floor: int, at: Instant) -> Observations:
        view = self._observations(shard)
        if index < view.floor_index:
            return view  # another thread has read a newer floor meanwhile
        since_ms = view.floor_since_ms
        if index > view.floor_index:
            # The one time that is taken late: counted from here, the grace can only be too long.
            since_ms = self._clock.elapsed_ms()
        return self._remember(
            shard,
            view._replace(
                floor=floor,
                floor_index=index,
                floor_at=max(at, view.floor_at),
                floor_since_ms=since_ms,
            ),
        )

    # ----------------------------------------------------------------------------------- other

    @override
    def list_shards(self) -> list[str]:
        return [
            directory
            for directory in self._objects.directories()
            if is_shard_directory(directory)
            and may_have_entries(self._objects, f"{directory}/log/")
        ]

    def _read(self, shard: str, seqno: int) -> VersionedData | None:
        key = entry_key(f"{shard}/log/", seqno)
        value = self._objects.get(key)
        data = None if value is None else self._decode(key, value)
        return None if data is None else VersionedData(seqno, data)

    def _decode(self, key: str, value: bytes) -> bytes | None:
        """The payload of `value`, which was read at `key`; None if it was deleted meanwhile."""
        try:
            return decode_entry(self._objects.url, key, value)[1]
        except Corrupt:
            # Looked at once more: bytes are damaged on their way as well, where no backup helps.
            again = self._objects.get(key)
        return None if again is None else decode_entry(self._objects.url, key, again)[1]

    def _outcome_unknown(
        self, shard: str, seqno: int, reason: str, refusal: InvalidUsage | None = None
    ) -> Indeterminate:
        cure = f"{refusal.hint}; " if refusal is not None and refusal.hint else ""
        return Indeterminate(
            f"cannot tell whether record {seqno} of shard '{shard}' at '{self._objects.url}' "
            f"was committed: {reason}",
            hint=f"{cure}read the shard back before repeating the commit",
        )
