"""The verb that gives up leases and holds, whoever owns them.

carry_out(ExpireReaders("orders", ("stale",)), client, commit=True)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from typing_extensions import override

from shardline.app.admin.plans import ExpiredReader, ExpirePlan
from shardline.app.admin.verb import ChangingVerb, reachable_since, read_state
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, nearest_name
from shardline.datasource.report import report_shard
from shardline.datasource.state import (
    Amount,
    CriticalReader,
    LeasedReader,
    ShardState,
    expire_readers,
    seqno_since,
)

__all__ = ["ExpireReaders", "check_readers"]


@dataclass(frozen=True, slots=True)
class ExpireReaders(ChangingVerb[ExpirePlan]):
    """Readers of a shard are expired: their leases and holds are given up."""

    name = "expire-reader"

    shard: str
    readers: tuple[str, ...]

    @override
    def plan(self, client: ShardClient) -> ExpirePlan:
        """See `ChangingVerb`; a reader that does not exist is refused."""
        state = read_state(client, self.shard)
        known = check_readers(state, self.readers)
        after = _without(state, self.readers)
        reports = {one.name: one for one in report_shard(state, client.clock.now_ms()).holders}
        return ExpirePlan(
            readers=tuple(
                ExpiredReader(
                    name=name,
                    kind=reports[name].kind,
                    owner=reports[name].owner,
                    since=reports[name].since,
                    seqno=reports[name].seqno,
                    silent_ms=reports[name].silent_ms,
                    overdue=reports[name].overdue,
                    breaks=_breaks(known[name]),
                )
                for name in dict.fromkeys(self.readers)
            ),
            since=state.since.time,
            since_after=reachable_since(after),
            freed=_freed(client, state, after),
        )

    @override
    def has_work(self, plan: ExpirePlan) -> bool:
        return True

    @override
    def do(self, client: ShardClient, plan: ExpirePlan) -> str:
        expire = partial(expire_readers, readers=frozenset(self.readers))
        gone = client.machine(self.shard).apply(expire)
        return f"expired {len(gone)}: {', '.join(gone)}" if gone else "they were gone already"


def check_readers(
    state: ShardState, readers: Sequence[str]
) -> dict[str, LeasedReader | CriticalReader]:
    """The leases and holds of a shard by name, `readers` among them.

    Raises:
        InvalidUsage: There is no such reader.
    """
    known: dict[str, LeasedReader | CriticalReader] = {**state.leased, **state.critical}
    for name in readers:
        if name not in known:
            near = nearest_name(name, known)
            listed = ", ".join(f"'{one}'" for one in sorted(known)) or "none"
            raise InvalidUsage(
                f"shard '{state.name}' has no reader '{name}'",
                code="READER_NOT_FOUND",
                hint=f"did you mean '{near}'?" if near else f"its readers: {listed}",
            )
    return known


def _without(state: ShardState, readers: Collection[str]) -> ShardState:
    return msgspec.structs.replace(
        state,
        leased={name: one for name, one in state.leased.items() if name not in readers},
        critical={name: one for name, one in state.critical.items() if name not in readers},
    )


def _breaks(reader: LeasedReader | CriticalReader) -> str:
    if isinstance(reader, LeasedReader):
        return (
            "a read under it fails with [LEASE_EXPIRED] at its next look at the shard; started "
            "again, a reader reads, and a query goes on from its checkpoint"
        )
    if not reader.confirmed:
        return (
            "nothing, if the query never wrote its first offset: started again, it takes another "
            "hold; otherwise as any hold"
        )
    pinned = ""
    if reader.seqno is not None:
        pinned = (
            "; its first snapshot is not finished, and once its blobs are collected the query "
            "fails with [SEQNO_GONE] and needs a new checkpoint"
        )
    return (
        f"its owner fails with [HOLD_EXPIRED] at its next commit; started again while history at "
        f"{reader.since} is there, it takes the hold again and misses nothing; after the since has "
        f"moved on it fails for good and needs a new checkpoint{pinned}"
    )


def _freed(client: ShardClient, state: ShardState, after: ShardState) -> Amount:
    """Blobs and records that only states need that nobody holds in `after`."""
    held = client.usage(state.name)
    first = seqno_since(after)
    rest = [one.kept for one in held.holders if one.seqno == first]
    kept = rest[0] if rest else Amount()
    return Amount(held.held.count - kept.count, held.held.size_bytes - kept.size_bytes)
