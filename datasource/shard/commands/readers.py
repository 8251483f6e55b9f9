"""Reader commands register, renew and give up the capabilities that keep history readable.

Compaction merges history before the since, and garbage collection deletes blobs; a registered
reader holds both back. A *leased* reader stays until it stops renewing its lease; it holds back the
shard's since and, with its seqno, garbage collection. A *critical* reader is a since hold that
never expires by itself; its epoch fences every owner but the last (persist: `SinceHandle`).

Invariants:
    The shard's since is the meet over all holders and moves only at an explicit downgrade.
    A downgrade never moves a holder's since back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    is_tombstone,
    since_bound,
)
from shardline.datasource.shard.trace import downgrade

__all__ = [
    "Fencing",
    "HoldMissing",
    "ReaderMissing",
    "Registered",
    "SeqnoGone",
    "SinceExceeded",
    "confirm_critical",
    "describe_critical",
    "downgrade_critical",
    "downgrade_leased",
    "expire_critical",
    "expire_leased",
    "expire_owned",
    "expire_readers",
    "heartbeat",
    "pin_critical",
    "register_critical",
    "register_leased",
]


@dataclass(frozen=True, slots=True)
class Registered:
    """The reader exists and protects every read at an `as_of` that `since` admits.

    Attributes:
        since: The least time that it keeps readable.
        seqno: Blobs of the state at this seqno and of later ones are kept, if it holds a seqno.
        epoch: A since hold's current epoch; empty for a lease.
    """

    since: Frontier
    seqno: int
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class SinceExceeded:
    """The requested history is gone: reads below `since` are no longer exact."""

    since: Frontier


@dataclass(frozen=True, slots=True)
class ReaderMissing:
    """The leased reader is not (or no longer) registered."""


@dataclass(frozen=True, slots=True)
class HoldMissing:
    """The critical reader is not registered: never was, or an admin expired it."""


@dataclass(frozen=True, slots=True)
class SeqnoGone:
    """The state to be pinned has been given up: some of its blobs may be gone.

    Attributes:
        oldest: The least seqno that can still be pinned.
    """

    oldest: int


@dataclass(frozen=True, slots=True)
class Fencing:
    """Another owner has the since hold; `epoch` is that owner's."""

    epoch: str


def register_leased(
    state: ShardState, now_ms: int, *, reader: str, since: int | None, lease_ms: int, purpose: str
) -> Transition[Registered | SinceExceeded]:
    """Register a leased reader; its seqno hold is the registering transition's own seqno.

    Args:
        reader: The reader's id. Registering it again is harmless and renews it.
        since: Least `as_of` it wants to read at; None takes the shard's since.
        lease_ms: The lease expires this long after its last heartbeat.
        purpose: Who the reader is, for people.
    """
    wanted = state.since if since is None else Frontier(since)
    if wanted < state.since or state.since.is_empty:
        return Transition(None, SinceExceeded(state.since))
    # The record that is being made: the reader plans from that state or a later one, never from
    # `state`, whose blobs a collector may be deleting.
    seqno = state.seqno + 1
    entry = LeasedReader(wanted.time, seqno, now_ms, lease_ms, purpose)
    leased = {**state.leased, reader: entry}
    return Transition(msgspec.structs.replace(state, leased=leased), Registered(wanted, seqno))


def heartbeat(
    state: ShardState, now_ms: int, *, reader: str
) -> Transition[Registered | ReaderMissing]:
    """Renew the lease of `reader`; `ReaderMissing` if it has expired."""
    entry = state.leased.get(reader)
    if entry is None:
        # Not registered anew: the since may have moved past what the reader relies on.
        return Transition(None, ReaderMissing())
    renewed = msgspec.structs.replace(entry, heartbeat_ms=max(now_ms, entry.heartbeat_ms))
    leased = {**state.leased, reader: renewed}
    answer = Registered(Frontier(entry.since), entry.seqno)
    return Transition(msgspec.structs.replace(state, leased=leased), answer)


def downgrade_leased(
    state: ShardState, now_ms: int, *, reader: str, since: Frontier, seqno: int
) -> Transition[Registered | ReaderMissing]:
    """Give up reads below `since` and blobs needed only before `seqno`; renews the lease, too.

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


def expire_readers(
    state: ShardState, now_ms: int, *, readers: Collection[str]
) -> Transition[tuple[str, ...]]:
    """Forget leases by id and holds by name, regardless of their owners; answers those it found.

    For an admin: the owners cannot go on afterwards. Does not move the shard's since by itself.
    """
    del now_ms
    found = tuple(sorted((state.leased.keys() | state.critical.keys()) & set(readers)))
    if not found:
        return Transition(None, ())
    leased = {name: reader for name, reader in state.leased.items() if name not in found}
    critical = {name: reader for name, reader in state.critical.items() if name not in found}
    return Transition(msgspec.structs.replace(state, leased=leased, critical=critical), found)


def expire_owned(
    state: ShardState, now_ms: int, *, owners: Mapping[str, str]
) -> Transition[tuple[str, ...]]:
    """Forget since holds that have these owners; answers those it found.

    Does not move the shard's since by itself.

    Args:
        owners: The epoch of each hold by its name. One that another owner has by now stays.
    """
    del now_ms
    found = tuple(
        sorted(
            name
            for name, epoch in owners.items()
            if name in state.critical and state.critical[name].epoch == epoch
        )
    )
    if not found:
        return Transition(None, ())
    critical = {name: reader for name, reader in state.critical.items() if name not in found}
    return Transition(msgspec.structs.replace(state, critical=critical), found)


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
        reader: The hold's name.
        epoch: The new owner's fencing token. A hold already owned under it is left alone.
        since: Least `as_of` a new hold protects; None takes the shard's since.
        purpose: Who the owner is, for people.
        confirmed: True if the owner has already recorded durably that this hold exists; a hold
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
        # A repetition after a lost answer: not a takeover.
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
    entry = _owned(state, reader, expected_epoch)
    if not isinstance(entry, CriticalReader):
        return Transition(None, entry)
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
    entry = _owned(state, reader, epoch)
    if not isinstance(entry, CriticalReader):
        return Transition(None, entry)
    answer = Registered(Frontier(entry.since), state.seqno, epoch)
    if entry.confirmed:
        return Transition(None, answer)
    critical = {**state.critical, reader: msgspec.structs.replace(entry, confirmed=True)}
    return Transition(msgspec.structs.replace(state, critical=critical), answer)


def pin_critical(
    state: ShardState, now_ms: int, *, reader: str, epoch: str, seqno: int | None
) -> Transition[Registered | HoldMissing | Fencing | SeqnoGone]:
    """Make the hold durably keep every blob of the state at `seqno` and of later ones.

    A pin stays through downgrades and changes of owner, until it is cleared or moved. Setting one
    races with garbage collection, and the state decides: either the collector finds the pin, or
    the pin finds that the seqno has been given up.

    Args:
        reader: The hold's name.
        epoch: The owner's fencing token.
        seqno: Seqno of a state that the owner has seen, later or earlier than one pinned before;
            None clears the pin. It becomes the answer's seqno.

    Raises:
        InvalidUsage: There is no such state yet.
    """
    entry = _owned(state, reader, epoch)
    if not isinstance(entry, CriticalReader):
        return Transition(None, entry)
    answer = Registered(Frontier(entry.since), state.seqno if seqno is None else seqno, epoch)
    if entry.seqno == seqno:
        return Transition(None, answer)
    if seqno is not None and seqno < state.gc_seqno:
        return Transition(None, SeqnoGone(state.gc_seqno))
    if seqno is not None and not 1 <= seqno <= state.seqno:
        raise InvalidUsage(
            f"hold '{reader}' cannot pin seqno {seqno} of shard '{state.name}', which is at "
            f"{state.seqno}",
            code="SEQNO_UNKNOWN",
            hint="pin the seqno of a state that was read",
        )
    pinned = msgspec.structs.replace(entry, seqno=seqno, moved_ms=now_ms)
    critical = {**state.critical, reader: pinned}
    return Transition(msgspec.structs.replace(state, critical=critical), answer)


def describe_critical(
    state: ShardState, now_ms: int, *, reader: str, epoch: str, purpose: str
) -> Transition[Registered | HoldMissing | Fencing]:
    """Replace the hold's purpose by `purpose`, such as that its owner is stalled."""
    del now_ms
    entry = _owned(state, reader, epoch)
    if not isinstance(entry, CriticalReader):
        return Transition(None, entry)
    answer = Registered(Frontier(entry.since), state.seqno, epoch)
    if entry.purpose == purpose:
        return Transition(None, answer)
    critical = {**state.critical, reader: msgspec.structs.replace(entry, purpose=purpose)}
    return Transition(msgspec.structs.replace(state, critical=critical), answer)


def expire_critical(
    state: ShardState, now_ms: int, *, reader: str, epoch: str | None = None
) -> Transition[bool | Fencing]:
    """Forget the since hold `reader`; True if it was there.

    Args:
        reader: The hold's name.
        epoch: Fencing token of the owner that gives it up, refused if another owner has the hold;
            None for an admin, after which the owner cannot go on.
    """
    del now_ms
    entry = state.critical.get(reader)
    if entry is None:
        return Transition(None, result=False)
    if epoch is not None and entry.epoch != epoch:
        return Transition(None, Fencing(entry.epoch))
    critical = {name: other for name, other in state.critical.items() if name != reader}
    return Transition(msgspec.structs.replace(state, critical=critical), result=True)


def _owned(state: ShardState, reader: str, epoch: str) -> CriticalReader | HoldMissing | Fencing:
    """The since hold `reader` if it is owned under `epoch`, else the refusal."""
    entry = state.critical.get(reader)
    if entry is None:
        return HoldMissing()
    return entry if entry.epoch == epoch else Fencing(entry.epoch)


def _recompute_since(state: ShardState) -> ShardState:
    """`state` with its since moved up as far as holders and policy allow; a tombstone as it is."""
    held = since_bound(state)
    if held is None or is_tombstone(state):
        return state
    return msgspec.structs.replace(state, trace=downgrade(state.trace, held))
