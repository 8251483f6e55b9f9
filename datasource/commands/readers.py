"""Readers: who may still read what, and what that holds back.

A *leased* reader is there as long as it says so; it holds back the shard's since and, with its
seqno, garbage collection. A *critical* reader is a since hold that never expires by itself; its
epoch fences every owner but the last (persist: `SinceHandle`).

The shard's since is the meet over all holders and moves only at an explicit downgrade.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from datasource.commands.transition import Transition
from datasource.frontier import Frontier
from datasource.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    holders_since,
    is_tombstone,
)
from datasource.trace import downgrade

__all__ = [
    "Fencing",
    "HoldMissing",
    "ReaderMissing",
    "Registered",
    "SinceExceeded",
    "confirm_critical",
    "downgrade_critical",
    "downgrade_leased",
    "expire_critical",
    "expire_leased",
    "heartbeat",
    "register_critical",
    "register_leased",
]


@dataclass(frozen=True, slots=True)
class Registered:
    """The reader exists and protects every read at an `as_of` that `since` admits."""

    since: Frontier
    seqno: int
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class SinceExceeded:
    """The history asked for is gone: reads below `since` are no longer exact."""

    since: Frontier


@dataclass(frozen=True, slots=True)
class ReaderMissing:
    """The leased reader is not (or no longer) registered."""


@dataclass(frozen=True, slots=True)
class HoldMissing:
    """The critical reader is not registered: never was, or an admin expired it."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """Another owner holds the critical reader; `epoch` is theirs."""

    epoch: str


def register_leased(
    state: ShardState, now_ms: int, *, reader: str, since: int | None, lease_ms: int, purpose: str
) -> Transition[Registered | SinceExceeded]:
    """Register a leased reader; its seqno hold is the registering transition's own seqno.

    Args:
        reader: Its id. Registering it again is harmless and renews it.
        since: Least `as_of` it wants to read at; None takes the shard's since.
        lease_ms: It expires this long after its last heartbeat.
        purpose: Who it is, for people.
    """
    wanted = state.since if since is None else Frontier(since)
    if wanted < state.since or state.since.is_empty:
        return Transition(None, SinceExceeded(state.since))
    seqno = state.seqno + 1
    entry = LeasedReader(wanted.time, seqno, now_ms, lease_ms, purpose)
    leased = {**state.leased, reader: entry}
    return Transition(msgspec.structs.replace(state, leased=leased), Registered(wanted, seqno))


def heartbeat(
    state: ShardState, now_ms: int, *, reader: str
) -> Transition[Registered | ReaderMissing]:
    """Renew the lease of `reader`."""
    entry = state.leased.get(reader)
    if entry is None:
        return Transition(None, ReaderMissing())
    renewed = msgspec.structs.replace(entry, heartbeat_ms=max(now_ms, entry.heartbeat_ms))
    leased = {**state.leased, reader: renewed}
    answer = Registered(Frontier(entry.since), entry.seqno)
    return Transition(msgspec.structs.replace(state, leased=leased), answer)


def downgrade_leased(
    state: ShardState, now_ms: int, *, reader: str, since: Frontier, seqno: int
) -> Transition[Registered | ReaderMissing]:
    """Give up reading below `since` and blobs only needed before `seqno`; renews the lease too.

    Both move forward only: an older value changes nothing. The shard's since is recomputed.
    """
    entry = state.leased.get(reader)
    if entry is None:
        return Transition(None, ReaderMissing())
    moved = msgspec.structs.replace(
        entry,
        since=max(Frontier(entry.since), since).time,
        seqno=min(max(entry.seqno, seqno), state.seqno),
        heartbeat_ms=max(now_ms, entry.heartbeat_ms),
    )
    state = msgspec.structs.replace(state, leased={**state.leased, reader: moved})
    return Transition(_recompute_since(state), Registered(Frontier(moved.since), moved.seqno))


def expire_leased(state: ShardState, now_ms: int, *, reader: str) -> Transition[bool]:
    """Forget `reader`; True if it was there. Does not move the shard's since by itself."""
    del now_ms
    if reader not in state.leased:
        return Transition(None, result=False)
    leased = {name: entry for name, entry in state.leased.items() if name != reader}
    return Transition(msgspec.structs.replace(state, leased=leased), result=True)


def register_critical(
    state: ShardState,
    now_ms: int,
    *,
    reader: str,
    epoch: str,
    since: int | None,
    purpose: str,
    confirmed: bool,
) -> Transition[Registered | SinceExceeded]:
    """Create the since hold named `reader`, or take over the one that exists.

    Taking over sets `epoch`, which fences the previous owner, and leaves the since where it is.

    Args:
        epoch: The new owner's fencing token. A hold already owned under it is left alone.
        since: Least `as_of` a new hold protects; None takes the shard's since.
        purpose: Who it is, for people.
        confirmed: Whether the owner has already recorded durably that this hold exists; a hold
            that was confirmed once stays so.
    """
    entry = state.critical.get(reader)
    if entry is None:
        wanted = state.since if since is None else Frontier(since)
        if wanted < state.since or state.since.is_empty:
            return Transition(None, SinceExceeded(state.since))
        entry = CriticalReader(
            wanted.time, epoch, now_ms, now_ms, purpose, seqno=None, confirmed=confirmed
        )
    elif entry.epoch == epoch:
        return Transition(None, Registered(Frontier(entry.since), state.seqno, epoch))
    else:
        entry = msgspec.structs.replace(
            entry,
            epoch=epoch,
            moved_ms=now_ms,
            purpose=purpose,
            confirmed=entry.confirmed or confirmed,
        )
    critical = {**state.critical, reader: entry}
    answer = Registered(Frontier(entry.since), state.seqno + 1, epoch)
    return Transition(msgspec.structs.replace(state, critical=critical), answer)


def downgrade_critical(
    state: ShardState,
    now_ms: int,
    *,
    reader: str,
    expected_epoch: str,
    epoch: str,
    since: Frontier,
) -> Transition[Registered | HoldMissing | Fencing]:
    """Move the hold to `since` (forward only), and its epoch, if `expected_epoch` owns it.

    The shard's since is recomputed.
    """
    entry = state.critical.get(reader)
    if entry is None:
        return Transition(None, HoldMissing())
    if entry.epoch != expected_epoch:
        return Transition(None, Fencing(entry.epoch))
    moved = msgspec.structs.replace(
        entry, since=max(Frontier(entry.since), since).time, epoch=epoch, moved_ms=now_ms
    )
    state = msgspec.structs.replace(state, critical={**state.critical, reader: moved})
    answer = Registered(Frontier(moved.since), state.seqno + 1, epoch)
    return Transition(_recompute_since(state), answer)


def confirm_critical(
    state: ShardState, now_ms: int, *, reader: str, epoch: str
) -> Transition[Registered | HoldMissing | Fencing]:
    """Note that the owner of the hold has durably recorded that it exists."""
    del now_ms
    entry = state.critical.get(reader)
    if entry is None:
        return Transition(None, HoldMissing())
    if entry.epoch != epoch:
        return Transition(None, Fencing(entry.epoch))
    answer = Registered(Frontier(entry.since), state.seqno, epoch)
    if entry.confirmed:
        return Transition(None, answer)
    critical = {**state.critical, reader: msgspec.structs.replace(entry, confirmed=True)}
    return Transition(msgspec.structs.replace(state, critical=critical), answer)


def expire_critical(
    state: ShardState, now_ms: int, *, reader: str, epoch: str | None = None
) -> Transition[bool | Fencing]:
    """Forget the since hold `reader`; True if it was there.

    Args:
        epoch: The owner that gives it up, refused if it is owned by another; None for an admin,
            after whose act the owner cannot go on.
    """
    del now_ms
    entry = state.critical.get(reader)
    if entry is None:
        return Transition(None, result=False)
    if epoch is not None and entry.epoch != epoch:
        return Transition(None, Fencing(entry.epoch))
    critical = {name: other for name, other in state.critical.items() if name != reader}
    return Transition(msgspec.structs.replace(state, critical=critical), result=True)


def _recompute_since(state: ShardState) -> ShardState:
    """`state` with its since moved up to the meet of all holders; a tombstone stays one."""
    held = holders_since(state)
    if held is None or is_tombstone(state):
        return state
    return msgspec.structs.replace(state, trace=downgrade(state.trace, held))
