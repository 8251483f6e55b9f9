"""A lease keeps the history and blobs that a reader needs, for as long as it is renewed.

Without it, compaction would merge the times that are being read, and garbage collection would
delete parts between planning and fetching. A lease is a leased reader of the shard (persist: reader
lease): it holds back the since and, by its seqno, garbage collection. It ends by itself when it is
not renewed, so that a reader that crashed holds nothing for long; `LeaseRenewer` renews it from a
timer thread, also while its owner is busy for an hour. Losing a lease fails the read that relied on
it, with an error that says so, and costs no data: started again, the read is planned anew.

Invariants:
    A lease exists before the plan that relies on it is made.
    The time of a heartbeat is read inside each attempt to commit it.
    No error but the loss of its lease ends a renewer.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import new_id
from shardline.datasource.shard.commands.readers import (
    Fencing,
    ReaderMissing,
    Registered,
    SinceExceeded,
    downgrade_leased,
    expire_leased,
    heartbeat,
    register_leased,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState
from shardline.datasource.since_hold import SinceHandle
from shardline.datasource.stores.location import LOG_REPLACED

__all__ = ["Lease", "LeaseRenewer", "take_lease"]

_log = logging.getLogger(__name__)


def take_lease(
    machine: Machine,
    *,
    since: int | None,
    lease_ms: int,
    purpose: str,
    owner: SinceHandle | None = None,
) -> Lease | SinceExceeded:
    """Register a leased reader that may read at every `as_of >= since`.

    Args:
        machine: The shard's machine.
        since: The least `as_of` to be read; None for the shard's since.
        lease_ms: How long the lease lasts without a heartbeat.
        purpose: Who reads and what for, for people.
        owner: The hold whose owner has one lease at a time: the leases of its earlier owners, which
            may have been killed, end in the same transition. None for a lease beside others.

    Returns:
        The lease, or `SinceExceeded` if history at `since` is gone.

    Raises:
        Fenced: Another owner has taken the hold over.
    """
    reader = new_id("r", machine.ids)
    if owner is not None:
        reader = f"{owner.name}@{reader}"
    outcome = machine.apply(
        partial(
            _register,
            owner=owner,
            reader=reader,
            since=since,
            lease_ms=lease_ms,
            purpose=purpose,
        )
    )
    if isinstance(outcome, SinceExceeded):
        return outcome
    registered = outcome if owner is None else owner.check_owned(outcome)
    assert isinstance(registered, Registered), registered
    return Lease(machine, reader, lease_ms, registered.since, registered.seqno)


def _register(
    state: ShardState,
    now_ms: int,
    *,
    owner: SinceHandle | None,
    reader: str,
    since: int | None,
    lease_ms: int,
    purpose: str,
) -> Transition[Registered | SinceExceeded | Fencing]:
    """Register `reader` in place of all earlier ones of the hold `owner`, if it is still owned."""
    if owner is not None:
        hold = state.critical.get(owner.name)
        # In this very transition: a run that was fenced and does not know it yet would end the
        # lease of the newer one, whose plan loses its files.
        if hold is not None and hold.epoch != owner.epoch:
            return Transition(None, Fencing(hold.epoch))
        others = {n: r for n, r in state.leased.items() if n.rpartition("@")[0] != owner.name}
        state = msgspec.structs.replace(state, leased=others)
    return register_leased(
        state, now_ms, reader=reader, since=since, lease_ms=lease_ms, purpose=purpose
    )


@dataclass(slots=True)
class Lease:
    """The capability to read a shard from `since` on, until it is not renewed any more.

    Losing it (expired, or removed by an admin) means that parts it protected may be deleted: reads
    that rely on it must fail with `LeaseExpired` and start again. A lease that is neither released
    nor renewed keeps history and blobs until it expires.

    Attributes:
        machine: The shard's machine.
        reader: Id of the leased reader.
        lease_ms: The lease expires this long after the last heartbeat.
        since: Reads at every `as_of` that this admits stay exact.
        seqno: Every blob of the shard's states from this one on is kept.
    """

    machine: Machine
    reader: str
    lease_ms: int
    since: Frontier
    seqno: int

    def renew(self) -> None:
        """Send a heartbeat.

        Raises:
            LeaseExpired: The lease is gone.
        """
        self._alive(self.machine.apply(partial(heartbeat, reader=self.reader)))

    def downgrade(self, since: Frontier, seqno: int) -> None:
        """Give up reads before `since` and blobs needed only before `seqno`; renew the lease, too.

        Raises:
            LeaseExpired: The lease is gone.
        """
        outcome = self._alive(
            self.machine.apply(
                partial(downgrade_leased, reader=self.reader, since=since, seqno=seqno)
            )
        )
        self.since, self.seqno = outcome.since, outcome.seqno

    def release(self) -> None:
        """Give up the lease; harmless if it is gone, as it is when its shard was deleted.

        If the store fails, the lease expires instead. Never raises an error of the store: this ends
        reads and writes that have succeeded, and an error here (such as an expired token: "nothing
        was done") would be taken for theirs.
        """
        try:
            with contextlib.suppress(Determinate, Indeterminate):
                self.machine.apply(partial(expire_leased, reader=self.reader))
        except Exception as error:  # noqa: BLE001 - of any kind
            context = {"shard": self.machine.name, "lease": self.reader}
            if isinstance(error, InvalidUsage) and error.code in (LOG_REPLACED, "SHARD_NOT_FOUND"):
                _log.info("the lease went with its shard", extra={"context": context})
            else:
                _log.warning("lease not given up", exc_info=True, extra={"context": context})

    def check(self, state: ShardState) -> None:
        """Raise unless `state` knows this lease, so that the blobs it refers to are kept.

        Raises:
            LeaseExpired: The lease is gone.
        """
        if self.reader not in state.leased:
            raise self._gone()

    @contextlib.contextmanager
    def renewing(self) -> Iterator[LeaseRenewer]:
        """Renew the lease from a timer thread for as long as the block runs, then release it."""
        renewer = LeaseRenewer(self, self.machine.clock)
        renewer.start()
        try:
            yield renewer
        finally:
            renewer.stop()
            self.release()

    def _alive(self, outcome: Registered | ReaderMissing) -> Registered:
        if isinstance(outcome, ReaderMissing):
            raise self._gone()
        return outcome

    def _gone(self) -> LeaseExpired:
        return LeaseExpired(
            f"lease {self.reader} on shard '{self.machine.name}' is gone: it was cut off, or "
            f"{self.lease_ms} ms went by without a heartbeat",
            hint="start the read again; a longer lease survives longer pauses",
        )


class LeaseRenewer:
    """A timer thread that renews a lease at half of its duration, and soon after a failure.

    Attributes:
        lost: The error of a renewal that found the lease gone; None while it is there. The thread
            cannot raise it in its owner, which must look.
    """

    def __init__(
        self,
        lease: Lease,
        clock: Clock,
        *,
        renew: Callable[[], None] | None = None,
        name: str = "",
        owner: object | None = None,
    ) -> None:
        """Prepare to renew `lease`; `start` starts the thread.

        Args:
            lease: The lease.
            clock: Waits.
            renew: Renews it, by a heartbeat that does more; None for `lease.renew`.
            name: Of the thread; empty for one with the lease's id.
            owner: Who reads under the lease, held weakly: once it was collected the lease is given
                up. None for one that is sure to call `stop`.
        """
        self._lease = lease
        self._renew = renew or lease.renew
        self._owner = None if owner is None else weakref.ref(owner)
        # After a failure the store may not have answered: after another half the lease is over.
        self._thread = PeriodicThread(
            name or f"heartbeat-{lease.reader[:9]}",
            self._beat,
            clock,
            first_ms=lease.lease_ms / 2,
            retry_ms=lease.lease_ms / 16,
        )
        self.lost: LeaseExpired | None = None
        """Set once the lease turned out to be gone."""

    def start(self) -> None:
        """Start the thread; if none can be started the lease is given up.

        Raises:
            RuntimeError: No thread can be started.
        """
        try:
            self._thread.start()
        except BaseException:
            # It would keep history until it is over, and whoever reads under it would rely on it.
            self._lease.release()
            raise

    def stop(self) -> None:
        """Stop the thread and wait for a renewal that is under way; harmless before `start`."""
        self._thread.stop()

    def _beat(self) -> float | None:
        # Looked at here, and not in a finalizer, which would run wherever an object is collected:
        # under any lock, also that of the signal that it would have to set.
        if self._owner is not None and self._owner() is None:
            context = {"shard": self._lease.machine.name, "lease": self._lease.reader}
            _log.info("a reader was not closed", extra={"context": context})
            self._lease.release()
            return None
        try:
            self._renew()
        except LeaseExpired as error:
            self.lost = error
            return None
        return self._lease.lease_ms / 2
