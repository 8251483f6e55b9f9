"""Keeps the history and files of a shard readable for as long as a streaming query needs them.

Spark's checkpoint stores only an offset. If compaction merged the times after it, or garbage
collection deleted the files of a plan, the query could not go on; so each run has two holds:

    The *since hold*, a critical reader named in the query's offsets (persist: `SinceHandle`). It is
    durable and has no lease: it makes a restart after any downtime possible. It stands at
    `frontier - 1` (at `as_of` before the first range is read), `holdBehind` earlier if the user
    asks for that. It is written before the offset that needs it is published, and moved by `commit`
    only.
    While a snapshot is read in pieces, the since hold also *pins* the seqno that the pieces are
    planned from: durably, so that any restart finds the same list of parts, and all of them.
    The *seqno hold*, a lease of this run. It keeps the blobs of the plan under way from garbage
    collection, and is renewed by a timer while a micro-batch takes an hour.

Each run takes the since hold over under an epoch of its own. A zombie driver of the same query is
thereby fenced: its next commit raises `Fenced`, and so does the next lease that it asks for.

Invariants:
    The since hold exists before an offset that needs it is returned to Spark.
    A lease is registered before the state that a plan is made from is read.
    Neither hold moves back, and neither moves past what Spark has committed.

Runs where the ends of one query run are chosen, on one thread at a time but for the timer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from shardline.datasource.errors import LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, LeaseRenewer, take_lease
from shardline.datasource.read import history_gone_error
from shardline.datasource.shard.commands.readers import (
    Fencing,
    HoldMissing,
    Registered,
    SeqnoGone,
    SinceExceeded,
    describe_critical,
    downgrade_critical,
    downgrade_leased,
    expire_critical,
    pin_critical,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState
from shardline.datasource.since_hold import SinceHandle, open_since_hold

__all__ = ["StreamHolds"]


@dataclass(slots=True)
class StreamHolds:
    """The capability of one query run to read one shard: its since hold and its lease.

    Losing the lease fails the micro-batch under way, and a restart plans it again: no data is lost.
    Losing the since hold (an admin expires it) costs the history after the checkpoint: the query
    can then be started only with a new checkpoint. A since hold whose query never comes back keeps
    history, and with a pin also files, until an admin expires it.

    Attributes:
        machine: Applies commands to the shard.
        epoch: This run's fencing token.
        purpose: Who reads, in words, for `inspect`.
        interval_ms: The holds are moved at most this often.
        behind_ms: How far the since hold stays behind what has been read.
    """

    machine: Machine
    epoch: str
    purpose: str
    interval_ms: int
    behind_ms: int = 0
    _acquired: str = ""
    _since: SinceHandle | None = None
    _lease: Lease | None = None
    _renewer: LeaseRenewer | None = None
    _moved_ms: float = field(default=float("-inf"))

    @property
    def reader(self) -> str:
        """Id of this run's leased reader; valid after `protect`."""
        assert self._lease is not None
        return self._lease.reader

    def acquire(self, name: str, as_of: int) -> Frontier:
        """Create the since hold `name` at `as_of`, before an offset that needs it is published.

        Returns:
            Where the hold is; not `as_of` if a hold of that name was there already.

        Raises:
            InvalidUsage: That history is gone.
        """
        self._acquired = name  # before the outcome, which may stay unknown
        # Not confirmed: the offset that names the hold is not in Spark's log yet. A crash before
        # it is leaves a hold that no checkpoint knows, and only the mark tells it from one in use.
        return self._open_since_hold(name, as_of, confirmed=False)

    def take_over(self, name: str, needed: int) -> None:
        """Make this run the owner of the hold that the checkpoint names; once per run.

        Args:
            name: The hold's name, from an offset in the checkpoint.
            needed: The `as_of` that must still be readable.

        Raises:
            LeaseExpired: The hold was expired by an admin, and what it protected is gone.
            InvalidUsage: The hold is there but no longer protects `needed`.
        """
        # Once, not once per call: a run that was fenced would otherwise take the hold back from
        # the newer run at its next micro-batch, and both would go on.
        if self._since is not None:
            return
        state = self.machine.state()
        # Checked before the hold is opened, which creates a missing one: that would fail, too, but
        # with an error that does not say that an admin expired the hold.
        if name not in state.critical and Frontier(needed) < state.since:
            raise LeaseExpired(
                f"hold '{name}' on shard '{state.name}' was expired, and history at {needed} is "
                f"gone: what can be read now starts at {state.since}",
                code="HOLD_EXPIRED",
                hint="start the query with a new checkpoint; nothing was skipped",
            )
        # An expired hold whose history is still there is simply taken again.
        since = self._open_since_hold(name, needed, confirmed=True)
        # The check above saw an older state. What the hold protects is known only from the
        # transition that took it over.
        if since > Frontier(needed):
            raise history_gone_error(self.machine.state(), needed, since)

    def confirm(self) -> None:
        """Record that an offset in Spark's checkpoint names the hold; errors as `pin`."""
        assert self._since is not None
        self._since.confirm()

    def pin(self, seqno: int) -> bool:
        """Pin the state at `seqno` and its blobs, durably, until `advance`; False if it is gone.

        The pin belongs to the since hold and not to the lease: a lease ends with this process, and
        the remaining pieces must be planned from the same state after any restart.

        Raises:
            Fenced: Another run of the query owns the hold now.
            LeaseExpired: An admin expired the hold.
        """
        assert self._since is not None
        outcome = self.machine.apply(
            partial(pin_critical, reader=self._since.name, epoch=self.epoch, seqno=seqno)
        )
        if isinstance(outcome, SeqnoGone):
            return False
        self._since.check_owned(outcome)
        return True

    def describe(self, status: str) -> None:
        """Show `status` beside the hold's purpose in `inspect`; errors as `pin`."""
        assert self._since is not None
        purpose = f"{self.purpose}; {status}" if status else self.purpose
        outcome = self.machine.apply(
            partial(describe_critical, reader=self._since.name, epoch=self.epoch, purpose=purpose)
        )
        self._since.check_owned(outcome)

    def protect(self, since: int) -> ShardState:
        """Return a state whose blobs stay until the next `advance`, taking a lease if needed.

        It is the newest state that this process has seen, so a micro-batch whose end was just
        chosen costs no request to the store.

        Args:
            since: The least `as_of` that the plan reads at.

        Raises:
            InvalidUsage: History at `since` is gone.
            Fenced: Another run of the query owns the hold now.
        """
        # A timer that has not failed is not enough: the state may show already that a newer run or
        # an admin has ended the lease. And a state that lists it is no older than it, so the blobs
        # of exactly that state are protected.
        if self._lease is not None and self._renewer is not None and self._renewer.lost is None:
            state = self.machine.cached
            if state is not None and self._lease.reader in state.leased:
                return state
        self._drop_lease()
        # Lease first, state afterwards. The other way round, a collection between the two could
        # delete blobs of the state that is planned from.
        lease = take_lease(
            self.machine,
            since=since,
            lease_ms=self.machine.settings.lease_ms,
            purpose=self.purpose,
            owner=self._since,
        )
        if isinstance(lease, SinceExceeded):
            raise history_gone_error(self.machine.state(), since, lease.since)
        renewer = LeaseRenewer(lease, self.machine.clock)
        renewer.start()
        # Not before: one that is not renewed is no protection for the next plan.
        self._lease, self._renewer = lease, renewer
        return self.machine.cached or self.machine.state()

    def advance(self, time: int) -> None:
        """Move both holds up to `time` and drop the pin: all before `time` is read and committed.

        Args:
            time: The frontier that Spark has committed, in ms.

        Raises:
            Fenced: Another run of the query owns the hold now.
            LeaseExpired: An admin expired the hold.
        """
        assert self._since is not None
        cached = self.machine.cached
        entry = cached.critical.get(self._since.name) if cached else None
        unpin = entry is not None and entry.seqno is not None
        now = self.machine.clock.elapsed_ms()
        # Moving late is harmless, so most calls do nothing. A pin is not left for later: it keeps
        # every blob since the snapshot began, and the next call may be hours away.
        if not unpin and now - self._moved_ms < self.interval_ms:
            return
        self._moved_ms = now
        # One less than the frontier: at since F an old update of F - 1 would be advanced to F, and
        # the next range, which starts at F, would deliver it again.
        since = Frontier(max(time - 1 - self.behind_ms, 0))
        # The blobs of the finished plan are free, and the next plan is made from a state at least
        # this new: Spark commits a micro-batch before it asks for partitions of the next one.
        seqno = cached.seqno if cached else 0
        outcome = self.machine.apply(
            partial(
                _advance_both,
                since=since,
                handle=self._since,
                lease=self._lease,
                seqno=seqno,
                unpin=unpin,
            )
        )
        self._since.since = self._since.check_owned(outcome).since

    def give_up(self, name: str) -> None:
        """Expire the since hold `name` and the lease: all was read, and nothing more will come."""
        if self._since is not None:
            self._since.expire()
        else:
            # A restart of a finished query never took the hold over. It is expired without an
            # epoch, since there is nothing left that another run of the query could read.
            self.machine.apply(partial(expire_critical, reader=name))
        self.release()

    def withdraw(self) -> None:
        """Expire the since hold that `acquire` made, or may have: no offset names it."""
        name, self._acquired, self._since = self._acquired, "", None
        if name:
            self.machine.apply(partial(expire_critical, reader=name))

    def release(self) -> None:
        """Give the lease up; the since hold stays for the next run.

        Correctness does not depend on this call: a lease that is not given up expires, or ends when
        the next run takes its own.
        """
        lease = self._lease
        # The timer stops first, or a beat under way could find the lease gone.
        self._drop_lease()
        if lease is not None:
            lease.release()

    def _open_since_hold(self, name: str, as_of: int, *, confirmed: bool) -> Frontier:
        handle = open_since_hold(
            self.machine,
            name,
            epoch=self.epoch,
            since=as_of,
            purpose=self.purpose,
            confirmed=confirmed,
        )
        if isinstance(handle, SinceExceeded):
            raise history_gone_error(self.machine.state(), as_of, handle.since)
        self._since = handle
        return handle.since

    def _drop_lease(self) -> None:
        if self._renewer is not None:
            self._renewer.stop()
        self._renewer = self._lease = None


def _advance_both(
    state: ShardState,
    now_ms: int,
    *,
    since: Frontier,
    handle: SinceHandle,
    lease: Lease | None,
    seqno: int,
    unpin: bool,
) -> Transition[Registered | HoldMissing | Fencing]:
    """Downgrade lease and since hold in one transition: one record per micro-batch, not two."""
    name, epoch = handle.name, handle.epoch
    # A lease that is gone is no error here: the plan that needed it is done, and `protect` takes a
    # new one. A hold that is gone or fenced is reported by the last command.
    if lease is not None:
        moved = downgrade_leased(state, now_ms, reader=lease.reader, since=since, seqno=seqno)
        state = moved.state or state
    if unpin:
        let_go = pin_critical(state, now_ms, reader=name, epoch=epoch, seqno=None)
        state = let_go.state or state
    # Last, because its result is the transition's: a fenced run gets no new state, and with it
    # neither of the two changes above is committed.
    return downgrade_critical(
        state, now_ms, reader=name, expected_epoch=epoch, epoch=epoch, since=since
    )
