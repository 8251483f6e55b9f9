"""The state of a shard: one immutable value that says everything about it but the rows.

State changes only through the pure functions in `transitions`, applied by the one compare-and-set
loop in `machine`. So every state change of a shard is totally ordered by its seqno, and whatever
is true of a shard can be read off one value.

Invariants (`check`), beyond those of the trace:
    The shard's since is at or before the since of every reader that was there when it moved.
    `version` is the newest code that ever contributed, not the last: stepping versions up one by
    one cannot smuggle in a rollback that is too far.
    A durable writer's entry stays as long as the shard lives: it is what makes a commit, repeated
    after any crash, succeed without effect.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardline.datasource.frontier import TIME_MIN, Frontier, meet
from shardline.datasource.shard.trace import Trace
from shardline.datasource.shard.trace import check as check_trace

__all__ = [
    "STAGE_LIFE_MS",
    "Claim",
    "CriticalReader",
    "LeasedReader",
    "Registration",
    "RollupRef",
    "ShardState",
    "Writer",
    "check",
    "expire",
    "holders_since",
    "is_tombstone",
    "last_update",
    "retained_since",
    "seqno_since",
    "since_bound",
]

STAGE_LIFE_MS: Final = 24 * 3600 * 1000
"""How long staged parts may wait for their commit. An older commit is refused, so that a sweep of
unreferenced blobs older than this can never race with one. Part of the state's meaning: all
writers and sweepers of a shard must agree on it, hence no setting."""


class LeasedReader(msgspec.Struct, frozen=True):
    """A reader that is there as long as it says so.

    Attributes:
        since: What it may still read at; holds back the shard's since.
        seqno: Holds back garbage collection: every blob of this state and later ones stays.
        heartbeat_ms: When it was last heard of, by the clock of whoever committed that.
        lease_ms: It is forgotten this long after its last heartbeat.
        purpose: Who it is and what for, in words; shown to people, never parsed.
    """

    since: int | None
    seqno: int
    heartbeat_ms: int
    lease_ms: int
    purpose: str


class CriticalReader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A since hold that never expires by itself; named by its user.

    Attributes:
        since: Holds back the shard's since.
        epoch: Fencing token of the current owner; a downgrade that names another one is refused.
        registered_ms: When it was created.
        moved_ms: When it was last taken over or downgraded; its age is what makes an abandoned
            hold visible.
        purpose: Who it is and what for, in words.
        seqno: Durable seqno hold, while a snapshot is read in pieces; None otherwise.
        confirmed: Whether the owner has durably recorded that it exists. An unconfirmed hold whose
            owner died before that belongs to nobody.
    """

    since: int | None
    epoch: str
    registered_ms: int
    moved_ms: int
    purpose: str
    seqno: int | None = None
    confirmed: bool = True


class Writer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a writer has committed: the memory behind exactly-once.

    Attributes:
        last: Sequence number of its last commit; a commit with this or a lower one has happened.
        upper: The shard's upper right after that commit.
        heartbeat_ms: When it last committed or abandoned something.
        lease_ms: None for a durable writer (named by its user); an anonymous one is forgotten this
            long after its last heartbeat.
        attempt: Which attempt that was, so that another one knows that its parts are not in use.
        covers: What that commit covers (`shardline.datasource.shard.covered_range`); empty if its
        writer did
            not say, or was of older code. The same number for another range is refused.
        abandoned: Attempts that were given up, with the sequence number each was made for, greater
            than `last`; a late commit of one is refused, so its parts could be deleted.
    """

    last: int
    upper: int | None
    heartbeat_ms: int
    lease_ms: int | None = None
    attempt: str = ""
    abandoned: dict[str, int] = {}
    covers: str = ""


class RollupRef(msgspec.Struct, frozen=True):
    """Where a whole state is stored: its blob key and size."""

    key: str
    size_bytes: int


class Claim(msgspec.Struct, frozen=True):
    """Somebody is merging the batches of `[lower, upper)`: others look for work elsewhere.

    It saves work and proves nothing: merges that overlap are harmless, one of them is not applied.

    Attributes:
        lower: The first time of the batches.
        upper: Their upper.
        heartbeat_ms: When the merger was last heard of, by the clock of whoever committed that.
        lease_ms: The work is free again this long after.
        purpose: Who it is, in words; shown to people, never parsed.
    """

    lower: int
    upper: int | None
    heartbeat_ms: int
    lease_ms: int
    purpose: str


class Registration(msgspec.Struct, frozen=True):
    """The shard is written through a transactions shard of the same location, and only so.

    Attributes:
        txns: Name of the transactions shard.
        shard: Its id, `s…`: one that was dropped and made again is another one.
        time: When the shard was registered there; its upper was at or before that.
    """

    txns: str
    shard: str
    time: int


class ShardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is true of a shard at one seqno.

    Attributes:
        shard: Identity of the shard, `s…`; a shard dropped and made again has another one.
        name: The name its user gave it.
        seqno: Number of the log record that made this state.
        walltime_ms: When that was; strictly increasing from record to record.
        version: Newest code version that ever contributed, `(major, minor)`.
        created_ms: When the shard was initialised.
        key: Columns that order parts, bound them, and identify rows for upserts; may be empty.
        comment: Free text of its creator.
        schemas: Every schema the shard ever had, by id; the greatest id is the current one.
        leased: Leased readers by id.
        critical: Critical readers by name.
        writers: Writers by id or name.
        rollups: Whole states in the blob store, by seqno.
        base: Seqno of the last record that carries a whole state: the first, or a tombstone's.
        gc_seqno: States before this one are given up: what only they needed may be gone. Never
            beyond a seqno hold; raised before anything is deleted.
        cleaned_seqno: What only states before this one needed has been deleted.
        claims: Merges under way, by id.
        retain_ms: How far before its newest readable time the shard stays readable, whoever reads;
            None if only readers hold its since.
        swept_ms: When the last sweep for blobs that nothing refers to ended.
        registered: Where its writes go through; None for a shard that is written directly.
        trace: Since and batches.
    """

    shard: str
    name: str
    seqno: int
    walltime_ms: int
    version: tuple[int, int]
    created_ms: int
    key: tuple[str, ...] = ()
    comment: str = ""
    schemas: dict[int, str] = {}
    leased: dict[str, LeasedReader] = {}
    critical: dict[str, CriticalReader] = {}
    writers: dict[str, Writer] = {}
    rollups: dict[int, RollupRef] = {}
    base: int = 1
    gc_seqno: int = 0
    cleaned_seqno: int = 0
    claims: dict[str, Claim] = {}
    retain_ms: int | None = None
    swept_ms: int = 0
    registered: Registration | None = None
    trace: Trace = Trace()

    @property
    def upper(self) -> Frontier:
        """No update before this frontier can ever be added."""
        return self.trace.upper

    @property
    def since(self) -> Frontier:
        """Reads at an `as_of` that this frontier admits are exact."""
        return self.trace.since_frontier

    @property
    def schema_id(self) -> int:
        """Id of the current schema."""
        return max(self.schemas)

    @property
    def rollup(self) -> tuple[int, RollupRef] | None:
        """The newest rollup and its seqno; None while the record at `base` is newer."""
        seqno = max(self.rollups, default=0)
        return (seqno, self.rollups[seqno]) if seqno >= self.base else None


def is_tombstone(state: ShardState) -> bool:
    """Whether the shard is finalised: nothing can be written to it or read from it, ever."""
    return state.since.is_empty and state.upper.is_empty


def holders_since(state: ShardState) -> Frontier | None:
    """The meet of what all readers hold; None without readers, when nothing moves the since."""
    holders = [reader.since for reader in state.leased.values()]
    holders += [reader.since for reader in state.critical.values()]
    return meet(map(Frontier, holders)) if holders else None


def retained_since(state: ShardState) -> Frontier | None:
    """The least time that the shard's policy keeps readable; None without a policy.

    Counted back from the newest readable time: right before the upper; of a finished shard, whose
    every time is readable, that of its last update.
    """
    if state.retain_ms is None:
        return None
    upper = state.upper.time
    newest = upper - 1 if upper is not None else last_update(state) or TIME_MIN
    return Frontier(max(newest - state.retain_ms, TIME_MIN))


def last_update(state: ShardState) -> int | None:
    """The greatest time of an update; None if there is none. From there on contents are the same.

    Compaction may have moved the times of updates up to the since.
    """
    spans = (part.time_bounds for batch in state.trace.batches for part in batch.parts)
    return max((span[1] for span in spans if span), default=None)


def since_bound(state: ShardState) -> Frontier | None:
    """How far the since may go: the meet of all readers and the policy; None without any."""
    bounds = [holders_since(state), retained_since(state)]
    given = [bound for bound in bounds if bound is not None]
    return meet(given) if given else None


def seqno_since(state: ShardState) -> int:
    """The least seqno that some reader still needs; this state's own when there is none."""
    holds = [reader.seqno for reader in state.leased.values()]
    holds += [reader.seqno for reader in state.critical.values() if reader.seqno is not None]
    return min(holds, default=state.seqno)


def expire(state: ShardState, now_ms: int) -> ShardState:
    """`state` without the readers, anonymous writers and claims whose lease is over.

    The shard's since is deliberately not recomputed here, only by the next explicit downgrade:
    recomputing on expiry made since leap after a crash (materialize #6885, #15645).
    """
    leased = {
        name: reader
        for name, reader in state.leased.items()
        if reader.heartbeat_ms + reader.lease_ms >= now_ms
    }
    writers = {
        name: writer
        for name, writer in state.writers.items()
        if writer.lease_ms is None or writer.heartbeat_ms + writer.lease_ms >= now_ms
    }
    claims = {
        name: claim
        for name, claim in state.claims.items()
        if claim.heartbeat_ms + claim.lease_ms >= now_ms
    }
    was = len(state.leased) + len(state.writers) + len(state.claims)
    if len(leased) + len(writers) + len(claims) == was:
        return state
    return msgspec.structs.replace(state, leased=leased, writers=writers, claims=claims)


def check(state: ShardState) -> None:
    """Assert every invariant of a state that can be seen in the state alone."""
    check_trace(state.trace)
    assert state.seqno >= 1, state.seqno
    assert state.schemas, "a shard has at least one schema"
    assert set(state.schemas) == set(range(len(state.schemas))), sorted(state.schemas)
    for seqno, rollup in state.rollups.items():
        assert seqno < state.seqno, (seqno, state.seqno, rollup.key)
    for name, reader in state.leased.items():
        assert reader.seqno <= state.seqno, (name, reader.seqno, state.seqno)
        assert reader.lease_ms > 0, (name, reader.lease_ms)
    assert state.cleaned_seqno <= state.gc_seqno <= seqno_since(state), (
        state.cleaned_seqno,
        state.gc_seqno,
        seqno_since(state),
    )
    for batch in state.trace.batches:
        for part in batch.parts:
            assert part.schema in state.schemas, (part.key, part.schema)
