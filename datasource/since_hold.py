"""A since hold keeps the history of a shard readable, however long its owner is down.

A query that restarts must find the history that it stopped at; a lease would have expired. A
`SinceHandle` owns a critical reader, named by its user and never expired by time (persist:
`SinceHandle`). While the hold is at `since`, the shard can be read at every `as_of >= since`.

IMPORTANT: there is one owner at a time. Opening takes the hold over and fences its owner, whose
next downgrade raises `Fenced`. A hold whose owner is lost for good holds back compaction until an
admin expires it; it can be seen, with its age, in `inspect`.

Invariants:
    The hold moves forward only.
    A downgrade by any owner but the last has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shardline.datasource.arguments import frontier_of, moment
from shardline.datasource.errors import Fenced, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import check_owner_name
from shardline.datasource.shard.commands.readers import (
    Fencing,
    HoldMissing,
    Registered,
    SinceExceeded,
    confirm_critical,
    downgrade_critical,
    expire_critical,
    register_critical,
)
from shardline.datasource.shard.machine import Machine

__all__ = ["SinceHandle", "open_since_hold"]


def open_since_hold(
    machine: Machine,
    name: str,
    *,
    epoch: str,
    since: int | None = None,
    purpose: str = "",
    confirmed: bool = True,
) -> SinceHandle | SinceExceeded:
    """Create the since hold `name` at `since`, or take it over where it is.

    Args:
        machine: The shard's machine.
        name: The hold's name, chosen and remembered by the user.
        epoch: Fencing token of this owner; unique for each owner (each run of a query).
        since: Where a new hold starts; None for the shard's since. An existing hold stays where it
            is, which can be earlier or later.
        purpose: Who holds it and what for, for people.
        confirmed: True if the owner has already recorded durably that the hold exists.

    Returns:
        The handle, or `SinceExceeded` if history at `since` is gone already.
    """
    check_owner_name("critical reader", name)
    outcome = machine.apply(
        partial(
            register_critical,
            reader=name,
            epoch=epoch,
            since=since,
            purpose=purpose,
            confirmed=confirmed,
        )
    )
    if isinstance(outcome, SinceExceeded):
        return outcome
    return SinceHandle(machine, name, epoch, outcome.since)


@dataclass(slots=True)
class SinceHandle:
    """The capability to keep history from `since` on, owned under one epoch.

    It never expires. Forgotten, it keeps history and so storage for ever, until an admin expires
    it. Taken over by another owner, it raises `Fenced` here; expired by an admin, `LeaseExpired`:
    the history may be gone then, and its user must begin again from a new snapshot.

    Attributes:
        machine: The shard's machine.
        name: The critical reader's name.
        epoch: This owner's fencing token.
        since: Where the hold is: reads at any `as_of` it admits stay exact.
    """

    machine: Machine
    name: str
    epoch: str
    since: Frontier

    def downgrade(self, since: Frontier) -> Frontier:
        """Give up reads before `since`; return the hold's since afterwards, which is never earlier.

        Raises:
            InvalidUsage: `since` is empty, or no time that a shard can reach.
            Fenced: Another owner has taken the hold over.
            LeaseExpired: An admin has expired the hold.
        """
        if frontier_of("since", since) <= self.since:
            return self.since
        since = Frontier(moment("since", since.time))
        outcome = self.machine.apply(
            partial(
                downgrade_critical,
                reader=self.name,
                expected_epoch=self.epoch,
                epoch=self.epoch,
                since=since,
            )
        )
        self.since = self.check_owned(outcome).since
        return self.since

    def confirm(self) -> None:
        """Note that the owner has durably recorded that the hold exists; errors as `downgrade`."""
        outcome = self.machine.apply(partial(confirm_critical, reader=self.name, epoch=self.epoch))
        self.check_owned(outcome)

    def expire(self) -> bool:
        """Give up the hold for good; True if it was there.

        Raises:
            Fenced: Another owner has taken the hold over.
        """
        outcome = self.machine.apply(partial(expire_critical, reader=self.name, epoch=self.epoch))
        if isinstance(outcome, Fencing):
            raise self._fenced(outcome.epoch)
        return outcome

    def check_owned(self, outcome: Registered | HoldMissing | Fencing) -> Registered:
        """Return `outcome`, of a command on the hold, if it was done; errors as `downgrade`."""
        match outcome:
            case Registered():
                return outcome
            case Fencing(epoch):
                raise self._fenced(epoch)
            case HoldMissing():
                raise LeaseExpired(
                    f"hold '{self.name}' on shard '{self.machine.name}' is gone: it was expired; "
                    f"the shard's since is {self.machine.state().since}",
                    code="HOLD_EXPIRED",
                    hint="start again from a new snapshot (for a query: with a new checkpoint)",
                )

    def _fenced(self, epoch: str) -> Fenced:
        return Fenced(
            f"hold '{self.name}' on shard '{self.machine.name}' belongs to another owner "
            f"(epoch {epoch}, this is {self.epoch})",
            hint="stop this one: the same query or job has been started elsewhere",
        )
