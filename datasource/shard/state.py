"""The state of a shard is one immutable value that holds everything about it but the rows.

Readers, writers and maintenance of a shard run in processes that share only storage. They agree
because all of them decide on this one value (persist's `State`, Delta's snapshot of the log). It
changes only through the pure functions in `commands`, applied by the one compare-and-set loop in
`machine`: every change of a shard has its place in one order, its seqno, and everything that is
true of a shard at a seqno can be read off one value.

Invariants (`check_invariants`), beyond those of the trace:
    The shard's since is at or before the since of every reader that was there when it moved.
    `version` is the newest code that ever wrote the shard, not the last code that did: a rollback
    by one step after an upgrade by one step must not hide what the newest code has written.
    A durable writer's entry stays as long as the shard lives: it is what makes a commit, repeated
    after any crash, succeed without effect.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardline.datasource.frontier import TIME_MIN, Frontier, meet
from shardline.datasource.shard.trace import Trace, check_trace

__all__ = [
    "STAGE_LIFE_MS",
    "Claim",
    "CriticalReader",
    "Leader",
    "LeasedReader",
    "Registration",
    "RollupRef",
    "ShardState",
    "Writer",
    "begun_too_early",
    "check_invariants",
    "expire_leases",
    "holders_since",
    "is_tombstone",
    "last_update",
    "retained_since",
    "seqno_since",
    "since_bound",
]

STAGE_LIFE_MS: Final = 24 * 3600 * 1000
"""How long staged parts may wait for their commit. An older commit is refused, so that an orphan
sweep of unreferenced blobs older than this can never race with one. All writers and sweepers of a
shard must agree on it, so it is no setting."""


class LeasedReader(msgspec.Struct, frozen=True):
    """A reader's lease: it keeps history and blobs until its reader stops renewing it.

    Losing it (expired, or removed by an admin) lets the since move on and blobs be deleted that the
    reader may still want to fetch: its reads then fail, they are never wrong. A lease that nobody
    gives up costs storage until it expires.

    Attributes:
        since: The least time the reader may read at; holds back the shard's since.
        seqno: Holds back garbage collection: every blob of this state and later ones stays.
        heartbeat_ms: When the lease was last renewed, by the clock of the process that committed
            the renewal.
        lease_ms: The lease expires this long after its last heartbeat.
        purpose: Who the reader is and what it reads for; shown to people, never parsed.
    """

    since: int | None
    seqno: int
    heartbeat_ms: int
    lease_ms: int
    purpose: str


class CriticalReader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A since hold: it keeps history until its owner gives it up, and never expires by itself.

    Named by its user (persist: critical reader, `SinceHandle`). A hold that its owner has forgotten
    keeps history, and so storage, for ever: an admin must expire it. A hold that was expired under
    its owner lets the since pass the times that the owner still needs: the owner must begin anew.

    Attributes:
        since: The least time it keeps readable; holds back the shard's since.
        epoch: Fencing token of the current owner; a downgrade that names another one is refused.
        registered_ms: When it was created.
        moved_ms: When it was last taken over, downgraded or pinned; an abandoned hold is one for
            which this is long ago.
        purpose: Who the owner is and what it holds for; shown to people, never parsed.
        seqno: Durable seqno hold, while a snapshot is read in pieces; None otherwise.
        confirmed: True once the owner has durably recorded that the hold exists. An unconfirmed
            hold whose owner died before that belongs to nobody.
    """

    since: int | None
    epoch: str
    registered_ms: int
    moved_ms: int
    purpose: str
    seqno: int | None = None
    confirmed: bool = True


class Writer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A writer's entry: its last commit, remembered so that a repetition changes nothing.

    With (writer, number) it is the idempotency token of Delta's `txnAppId` and `txnVersion`. Losing
    it loses exactly-once: a commit that is repeated afterwards is appended again. So an entry of a
    durable writer is never removed while the shard lives.

    Attributes:
        last: Sequence number of its last commit; a commit with this or a lower one has happened.
            -1 if there was none, and the entry only remembers attempts that were given up.
        upper: The shard's upper right after that commit.
        heartbeat_ms: When it last committed or abandoned something.
        lease_ms: None for a durable writer (named by its user); an anonymous one is forgotten this
            long after its last heartbeat.
        attempt: The attempt that made that commit; the parts of any other one are not in use.
        covers: The range of its source that the last commit covers
            (`shardline.datasource.shard.covered_range`); empty if the writer did not name it, or
            was of older code. The same number for another range is refused.
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
    """A note that a process is merging the batches of `[lower, upper)`; others merge elsewhere.

    It saves work and proves nothing. Losing it costs at most a merge done twice: of two merges that
    overlap, one is not applied.

    Attributes:
        lower: The first time of the batches.
        upper: The upper of the last batch.
        heartbeat_ms: When the claim was last renewed, by the clock of the process that committed
            the renewal.
        lease_ms: The claim ends this long after its last heartbeat, and does not count while that
            is further in the future.
        purpose: Who is merging; shown to people, never parsed.
    """

    lower: int
    upper: int | None
    heartbeat_ms: int
    lease_ms: int
    purpose: str


class Registration(msgspec.Struct, frozen=True):
    """A mark that the shard is written only through a transactions shard of its location.

    Losing it would let direct appends move the upper past transactions that are committed and not
    applied yet, which would then be missing from the shard.

    Attributes:
        txns: Name of the transactions shard.
        shard: Id of the transactions shard, `s…`: one that was dropped and made again has another.
        time: When the shard was registered there; its upper was at or before that.
    """

    txns: str
    shard: str
    time: int


class Leader(msgspec.Struct, frozen=True):
    """The shard that another one follows: the same writer appends to both, to the follower first.

    Losing it shows readers the follower's own upper, which may be before one that they have seen.

    Attributes:
        name: Name of the leader.
        shard: Its id, `s…`: one that was dropped and made again leads nobody.
    """

    name: str
    shard: str


class ShardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is true of a shard at one seqno.

    Attributes:
        shard: Identity of the shard, `s…`; a shard dropped and made again has another one.
        name: The name its user gave it.
        seqno: Number of the log record that made this state.
        walltime_ms: When the record was made; strictly increasing from record to record.
        version: Newest code version that ever wrote the shard, `(major, minor)`.
        created_ms: When the shard was initialised.
        key: Columns that order parts, bound them, and identify rows for upserts; may be empty.
        comment: Free text of its creator.
        schemas: Every schema the shard ever had, by id; the greatest id is the current one.
        leased: Leased readers by id.
        critical: Critical readers by name.
        writers: Writers by id or name.
        rollups: Whole states in the blob store, by seqno.
        base: Seqno of the last record that carries a whole state: the first, or a tombstone's.
        gc_seqno: States before this one are given up: objects that only they need may be gone.
            Never beyond a seqno hold; raised before anything is deleted.
        cleaned_seqno: Parts that only states before this one need have been deleted.
        claims: Merges under way, by id.
        retain_ms: How far before its newest readable time the shard stays readable without any
            reader; None if only readers hold its since.
        swept_ms: When the last orphan sweep ended; 0 before the first.
        swept_before_ms: Blobs that were begun before this and that no state names may have been
            deleted, so nothing may bring them in any more (`begun_too_early`); 0 before the first
            sweep that found any. Losing it leaves that to the clock of whoever commits.
        registered: The transactions shard that its writes go through; None for a shard that is
            written directly.
        times_by: Who chooses the times of its rows: the writer that was the first to do so, or as
            the shard's creator has it; shown to people. Empty for a shard whose rows take effect
            when they are committed. Losing it lets a transaction register the shard at its first
            write, whose upper is then moved past what its own writer has to add.
        leader: The shard whose upper readers of this one go by, if it is beyond its own
            (`shardline.datasource.shard.commands.leader`); None for a shard that follows none.
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
    swept_before_ms: int = 0
    registered: Registration | None = None
    times_by: str = ""
    leader: Leader | None = None
    trace: Trace = Trace()

    @property
    def upper(self) -> Frontier:
        """The frontier before which no update can ever be added."""
        return self.trace.upper

    @property
    def since(self) -> Frontier:
        """The frontier from which the shard is readable: every `as_of` that it admits is exact."""
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


def begun_too_early(state: ShardState, now_ms: int, begun_ms: int) -> bool:
    """True if a blob may not come into the state any more, as a sweep may have deleted it.

    Args:
        state: The state that the blob is to come into.
        now_ms: Now, by the clock of the committing process.
        begun_ms: When the blob, or the oldest of several, was begun.
    """
    # By what sweeps have recorded, too: the process may have been paused with all of its clocks.
    return now_ms - begun_ms > STAGE_LIFE_MS or begun_ms < state.swept_before_ms


def is_tombstone(state: ShardState) -> bool:
    """True if the shard is finalised: nothing can be written to it or read from it, ever."""
    return state.since.is_empty and state.upper.is_empty


def holders_since(state: ShardState) -> Frontier | None:
    """The meet of the sinces of all readers; None without readers, as nothing moves it then."""
    holders = [reader.since for reader in state.leased.values()]
    holders += [reader.since for reader in state.critical.values()]
    return meet(map(Frontier, holders)) if holders else None


def retained_since(state: ShardState) -> Frontier | None:
    """The least time that the shard's retention policy keeps readable; None without a policy.

    Counted back from the newest readable time: the one right before the upper. A finished shard is
    readable at every time, so there it is counted back from the last update.
    """
    if state.retain_ms is None:
        return None
    upper = state.upper.time
    newest = upper - 1 if upper is not None else last_update(state) or TIME_MIN
    return Frontier(max(newest - state.retain_ms, TIME_MIN))


def last_update(state: ShardState) -> int | None:
    """The greatest time of an update, from which on contents are the same; None without updates.

    Compaction may have moved the times of updates up to the since.
    """
    spans = (part.time_bounds for batch in state.trace.batches for part in batch.parts)
    return max((span[1] for span in spans if span), default=None)


def since_bound(state: ShardState) -> Frontier | None:
    """The frontier that the since may go to: the meet of all readers and the policy; or None."""
    bounds = [holders_since(state), retained_since(state)]
    given = [bound for bound in bounds if bound is not None]
    return meet(given) if given else None


def seqno_since(state: ShardState) -> int:
    """The least seqno that some reader holds; this state's own when there is none."""
    holds = [reader.seqno for reader in state.leased.values()]
    holds += [reader.seqno for reader in state.critical.values() if reader.seqno is not None]
    return min(holds, default=state.seqno)


def expire_leases(state: ShardState, now_ms: int) -> ShardState:
    """`state` without the readers, anonymous writers and claims whose lease is over.

    The shard's since is deliberately not recomputed here, only by the next explicit downgrade:
    recomputing on expiry made the since leap after a crash (materialize #6885, #15645).
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
    # One from the future, too: a clock that was ahead and was set right would keep its range from
    # being merged for as long. Of readers and writers that would let go what somebody relies on; a
    # claim proves nothing.
    claims = {
        name: claim
        for name, claim in state.claims.items()
        if abs(now_ms - claim.heartbeat_ms) <= claim.lease_ms
    }
    was = len(state.leased) + len(state.writers) + len(state.claims)
    if len(leased) + len(writers) + len(claims) == was:
        # The same maps, not equal ones: `codec.diff` sees by their identity that nothing changed.
        return state
    return msgspec.structs.replace(state, leased=leased, writers=writers, claims=claims)


def check_invariants(state: ShardState) -> None:
    """Assert every invariant of a shard that can be checked on one state."""
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
