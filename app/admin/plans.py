"""Plans are the effects of the verbs that change a shard, as values, for people and programs.

A person who is about to delete something must be able to see the effect first. A plan holds for the
state that it was made from; the shard goes on meanwhile. So no plan is ever applied: the verb reads
the shard again. Field names are stable: scripts read them as JSON.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shardline.datasource.state import Amount

__all__ = [
    "CompactPlan",
    "ExpirePlan",
    "ExpiredReader",
    "FinalisePlan",
    "GcPlan",
    "MergeStep",
    "Outcome",
    "Plan",
    "RetentionPlan",
    "SweepPlan",
]


class ExpiredReader(msgspec.Struct, frozen=True):
    """A reader to be expired.

    Attributes:
        name: Id of a lease, or name of a hold.
        kind: "lease" or "hold".
        owner: Process and purpose of the reader.
        since: Frontier from which it may still read.
        seqno: The oldest state that it keeps; null if it keeps none.
        silent_ms: Time since its last heartbeat.
        overdue: True for a lease that expires at the next record anyway.
        breaks: The error that its owner gets, and what then helps, in words.
    """

    name: str
    kind: Literal["lease", "hold"]
    owner: str
    since: int | None
    seqno: int | None
    silent_ms: int
    overdue: bool
    breaks: str


class ExpirePlan(msgspec.Struct, frozen=True, tag="expire-reader"):
    """Readers to be expired, and what that frees.

    Attributes:
        readers: In the order of the request.
        since: Of the shard, now.
        since_after: Frontier that the since can then move to; null if nobody is left to move it.
        freed: Blobs and records that become garbage.
    """

    readers: tuple[ExpiredReader, ...]
    since: int | None
    since_after: int | None
    freed: Amount


class MergeStep(msgspec.Struct, frozen=True):
    """Neighbouring batches that become one.

    Attributes:
        lower: The first time of the first batch.
        upper: The upper of the last batch; None if no time comes after it.
        batches: Number of batches, empty ones included.
        parts: Number of their parts.
        rows: Updates before the merge.
        size_bytes: Encoded size of the parts.
        work_bytes: What limits are compared with: the same, but each row counts 16 bytes at least
            and each part 4 KiB more (`merge_parts.merge_work_bytes`).
    """

    lower: int
    upper: int | None
    batches: int
    parts: int
    rows: int
    size_bytes: int
    work_bytes: int


class CompactPlan(msgspec.Struct, frozen=True, tag="compact"):
    """Merges that are due.

    Attributes:
        merges: In the order in which they are made; sizes of later ones are estimates.
        claimed: Number of ranges that others are merging; those are left alone.
        batches: Number of batches of the shard, now.
    """

    merges: tuple[MergeStep, ...]
    claimed: int
    batches: int


class GcPlan(msgspec.Struct, frozen=True, tag="gc"):
    """The garbage of a shard.

    Attributes:
        garbage: Blobs and records that no state needs that somebody may still read. Records are
            deleted only after the grace period of the log.
        held: Blobs and records that only older states need, which readers hold.
        seqno: States before this one can be given up.
        gc_seqno: States before this one are given up already.
    """

    garbage: Amount
    held: Amount
    seqno: int
    gc_seqno: int


class SweepPlan(msgspec.Struct, frozen=True, tag="sweep"):
    """Blobs that nothing refers to and nobody can commit any more.

    Attributes:
        parts: Files of rows.
        rollups: Rollups.
        keys: The first thousand keys.
        reopens: True if a clock that was ahead keeps everybody from writing, which ends with this.
    """

    parts: Amount
    rollups: Amount
    keys: tuple[str, ...]
    reopens: bool = False


class FinalisePlan(msgspec.Struct, frozen=True, tag="finalise"):
    """A shard to be dropped.

    Attributes:
        id: The shard's; another one that has its name by then is left alone.
        dropped: True if it is dropped already.
        in_the_way: Readers that prevent it, unless they are expired or named.
        cut_off: Readers that were named, and lose the shard.
        rows: Number of rows that are deleted.
        total: All of its objects in the store.
        registered: Transactions shard that it is registered with, and must be removed from first;
            null if there is none.
    """

    id: str
    dropped: bool
    in_the_way: tuple[str, ...]
    cut_off: tuple[str, ...]
    rows: int
    total: Amount
    registered: str | None


class RetentionPlan(msgspec.Struct, frozen=True, tag="set-retention"):
    """A change of a shard's retention.

    Attributes:
        before_ms, after_ms: The retention now and then; null leaves the since to readers.
        since: Of the shard, now.
        since_after: Frontier that maintenance can then move it to; null if nobody moves it.
    """

    before_ms: int | None
    after_ms: int | None
    since: int | None
    since_after: int | None


Plan = ExpirePlan | CompactPlan | GcPlan | SweepPlan | FinalisePlan | RetentionPlan


class Outcome(msgspec.Struct, frozen=True):
    """The plan of a verb, and its result if it was carried out.

    Attributes:
        verb: Its name on the command line.
        location: Canonical URL.
        shard: Name of the shard; null for directories that are no shard's.
        todo: True if the plan changes anything.
        committed: True if it was carried out.
        result: The result in words; empty for a dry run.
        plan: As it was made right before.
    """

    verb: str
    location: str
    shard: str | None
    todo: bool
    committed: bool
    result: str
    plan: Plan
