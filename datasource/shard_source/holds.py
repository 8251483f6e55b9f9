"""What a streaming query holds back on the shard that it reads, and for how long.

Two holds with two purposes:

    The *since hold*, a critical reader named in the query's offsets. It is durable and has no
    lease: it makes a restart after any downtime possible. It stands at `frontier - 1` (at `as_of`
    before the first range is read), is written before the offset that needs it is published, and
    is moved by `commit` only; by `holdBehind` less than that, if the user asks for it.
    While a snapshot is read in pieces, the since hold also *pins* the seqno that the pieces are
    planned from: durably, so that any restart finds the same list of parts, and all of them.
    The *seqno hold*, a lease of this run. It keeps the blobs of the plan under way from garbage
    collection, and is renewed by a timer while a micro-batch takes an hour. Losing it fails the
    attempt, never the data.

Each run takes the since hold over under an epoch of its own. A zombie driver of the same query is
thereby fenced: its next commit raises `Fenced`.

Runs in the planner process of one query run, on one thread but for the timer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from shardline.datasource.errors import LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Heart, Lease, take_lease
from shardline.datasource.read import history_gone
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
from shardline.datasource.since_hold import SinceHandle, open_since

__all__ = ["StreamHolds"]


@dataclass(slots=True)
class StreamHolds:
    """The holds of one run of one query on one shard.

    Attributes:
        machine: The shard's.
        epoch: This run's fencing token.
        purpose: Who reads, for people.
        interval_ms: The holds are moved at most this often.
        behind_ms: How far the since hold stays behind what has been read.
    """

    machine: Machine
    epoch: str
    purpose: str
    interval_ms: int
    behind_ms: int = 0
    _since: SinceHandle | None = None
    _lease: Lease | None = None
    _heart: Heart | None = None
    _moved_ms: float = field(default=float("-inf"))

    @property
    def reader(self) -> str:
        """Id of this run's leased reader; a plan must have been protected before."""
        assert self._lease is not None
        return self._lease.reader

    def acquire(self, name: str, as_of: int) -> Frontier:
        """Hold history from `as_of` under `name`, before an offset that needs it is published.

        Raises:
            InvalidUsage: That history is gone.
        """
        return self._open(name, as_of, confirmed=False)

    def take_over(self, name: str, needed: int) -> None:
        """Make this run the owner of the hold that the checkpoint names; once per run.

        Args:
            name: The hold's name, from an offset in the checkpoint.
            needed: The `as_of` that must still be readable.

        Raises:
            LeaseExpired: The hold was expired by an admin, and what it protected is gone.
            InvalidUsage: The hold is there but no longer protects `needed`.
        """
        if self._since is not None:
            return
        state = self.machine.state()
        if name not in state.critical and Frontier(needed) < state.since:
            raise LeaseExpired(
                f"hold '{name}' on shard '{state.name}' was expired, and history at {needed} is "
                f"gone: what can be read now starts at {state.since}",
                code="HOLD_EXPIRED",
                hint="start the query with a new checkpoint; nothing was skipped",
            )
        # An expired hold whose history is still there is simply taken again.
        since = self._open(name, needed, confirmed=True)
        if since > Frontier(needed):
            raise history_gone(self.machine.state(), needed, since)

    def confirm(self) -> None:
        """Note that an offset in the checkpoint names the hold; once."""
        assert self._since is not None
        self._since.confirm()

    def pin(self, seqno: int) -> bool:
        """Pin the state at `seqno` and its blobs, durably, until `advance`. False if it is gone.

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
        self._since.owned(outcome)
        return True

    def describe(self, status: str) -> None:
        """Let whoever looks at the shard see what the stream does; errors as `pin`."""
        assert self._since is not None
        purpose = f"{self.purpose}; {status}" if status else self.purpose
        outcome = self.machine.apply(
            partial(describe_critical, reader=self._since.name, epoch=self.epoch, purpose=purpose)
        )
        self._since.owned(outcome)

    def protect(self, since: int) -> ShardState:
        """A state whose blobs stay until the next `advance`; the lease is there before it is read.

        It is the newest that this process has seen, so a micro-batch whose end was just chosen
        costs no look at the store.

        Raises:
            InvalidUsage: History at `since` is gone.
        """
        if self._lease is not None and self._heart is not None and self._heart.lost is None:
            state = self.machine.cached
            if state is not None and self._lease.reader in state.leased:
                return state
        self._drop_lease()
        lease = take_lease(
            self.machine,
            since=since,
            lease_ms=self.machine.settings.lease_ms,
            purpose=self.purpose,
            owner=self._since.name if self._since else "",
        )
        if isinstance(lease, SinceExceeded):
            raise history_gone(self.machine.state(), since, lease.since)
        self._lease = lease
        self._heart = Heart(lease, self.machine.clock)
        self._heart.start()
        return self.machine.cached or self.machine.state()

    def advance(self, time: int) -> None:
        """Everything before `time` has been read and committed: move both holds, drop the pin.

        Raises:
            Fenced: Another run of the query owns the hold now.
            LeaseExpired: An admin expired the hold.
        """
        assert self._since is not None
        cached = self.machine.cached
        entry = cached.critical.get(self._since.name) if cached else None
        unpin = entry is not None and entry.seqno is not None
        now = self.machine.clock.elapsed_ms()
        if not unpin and now - self._moved_ms < self.interval_ms:
            return
        self._moved_ms = now
        since = Frontier(max(time - 1 - self.behind_ms, 0))
        # What the finished plan needed, nobody needs now, and the next one plans from a state at
        # least this new: no part is in flight between two micro-batches.
        seqno = cached.seqno if cached else 0
        outcome = self.machine.apply(
            partial(
                _advance,
                since=since,
                handle=self._since,
                lease=self._lease,
                seqno=seqno,
                unpin=unpin,
            )
        )
        self._since.since = self._since.owned(outcome).since

    def give_up(self, name: str) -> None:
        """Everything was read, and nothing more will come: no hold is needed any more."""
        if self._since is not None:
            self._since.expire()
        else:
            self.machine.apply(partial(expire_critical, reader=name))
        self.release()

    def release(self) -> None:
        """Give the lease up; the since hold stays for the next run.

        Nothing depends on it: the next run's lease takes its place, and it ends by itself.
        """
        lease = self._lease
        self._drop_lease()
        if lease is not None:
            lease.release()

    def _open(self, name: str, as_of: int, *, confirmed: bool) -> Frontier:
        handle = open_since(
            self.machine,
            name,
            epoch=self.epoch,
            since=as_of,
            purpose=self.purpose,
            confirmed=confirmed,
        )
        if isinstance(handle, SinceExceeded):
            raise history_gone(self.machine.state(), as_of, handle.since)
        self._since = handle
        return handle.since

    def _drop_lease(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        self._heart = self._lease = None


def _advance(
    state: ShardState,
    now_ms: int,
    *,
    since: Frontier,
    handle: SinceHandle,
    lease: Lease | None,
    seqno: int,
    unpin: bool,
) -> Transition[Registered | HoldMissing | Fencing]:
    """Both downgrades in one transition: one record per micro-batch, not two."""
    name, epoch = handle.name, handle.epoch
    if lease is not None:
        moved = downgrade_leased(state, now_ms, reader=lease.reader, since=since, seqno=seqno)
        state = moved.state or state
    if unpin:
        let_go = pin_critical(state, now_ms, reader=name, epoch=epoch, seqno=None)
        state = let_go.state or state
    return downgrade_critical(
        state, now_ms, reader=name, expected_epoch=epoch, epoch=epoch, since=since
    )
