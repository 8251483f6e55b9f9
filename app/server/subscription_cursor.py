"""The cursor of a connection knows what its client follows, and as of which moment it has that.

    cursor = Cursor(publisher.run)
    cursor.add("a", Selection("verdicts"), after="3f2a.1700000000000")
    cursor.take(publisher.moment)        what to send; None if there is nothing new

Nothing is queued for a client. A connection takes when it can send; what has happened meanwhile
comes added up, or as a new snapshot, and either is bounded by the size of the relation.

Invariants:
    Each message brings all subscriptions to the same moment.
    A mark is given out for a subscription only once the client has its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from shardline.app.introspection.change_log import ChangeLog
from shardline.app.introspection.publisher import Moment, Selection
from shardline.app.server.subscription_messages import Change, MomentSent, Reason
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["SUBSCRIPTIONS_MAX", "Cursor"]

SUBSCRIPTIONS_MAX: Final = 64
"""Subscriptions of one connection."""


@dataclass(slots=True)
class _Subscription:
    """One subscription.

    Attributes:
        selection: What is followed.
        held: Moment of the rows that the client holds; None if it holds none that are known.
        reason: Why it will be sent a snapshot, if `held` is None.
        has_begun: True once a change was sent on this connection.
    """

    selection: Selection
    held: int | None
    reason: Reason
    has_begun: bool = False


class Cursor:
    """Makes the messages of one connection."""

    def __init__(self, run: str) -> None:
        """Follow nothing yet.

        Args:
            run: The publisher's; marks of others cannot be resumed from.
        """
        self._run = run
        self._subscriptions: dict[str, _Subscription] = {}
        self._sent_at = 0

    def add(self, name: str, selection: Selection, after: str = "") -> None:
        """Follow a selection under a name.

        Args:
            name: The client's.
            selection: What to follow.
            after: Mark of the rows that the client holds; "" for none.

        Raises:
            InvalidUsage: The name is taken, the mark is none, or there are too many.
        """
        if name in self._subscriptions:
            raise InvalidUsage(
                f"there is a subscription '{name}' already",
                code="SUBSCRIPTION_EXISTS",
                hint="unsubscribe it first, or choose another id",
            )
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise InvalidUsage(
                f"a connection may have {SUBSCRIPTIONS_MAX} subscriptions",
                code="TOO_MANY_SUBSCRIPTIONS",
                hint="end some, or open another connection",
            )
        if not after:
            made = _Subscription(selection, None, "new")
        else:
            run, at = _parse_mark(after)
            made = _Subscription(selection, at if run == self._run else None, "restarted")
        self._subscriptions[name] = made

    def remove(self, name: str) -> Selection:
        """Follow a selection no more, and return it.

        Raises:
            InvalidUsage: There is no subscription of this name.
        """
        if name not in self._subscriptions:
            raise unknown_name("subscription", name, self._subscriptions)
        return self._subscriptions.pop(name).selection

    def take(self, moment: Moment) -> MomentSent | None:
        """Bring the client to a moment: the message to send, or None if it lacks nothing."""
        logs = {
            name: moment.log(subscription.selection)
            for name, subscription in self._subscriptions.items()
        }
        if any(logs[name] is None and one.has_begun for name, one in self._subscriptions.items()):
            return None  # its mark would not hold for all that the client has
        changes: list[Change] = []
        for name, log in logs.items():
            if log is not None:
                subscription = self._subscriptions[name]
                changes += _changes(name, subscription, log)
                subscription.held, subscription.has_begun = moment.at, True
        is_any_served = any(log is not None for log in logs.values())
        # Without a change it is sent too: the client learns that nothing has happened till then.
        if not changes and (not is_any_served or moment.at <= self._sent_at):
            return None
        self._sent_at = moment.at
        return MomentSent(f"{self._run}.{moment.at}", moment.read_ms, changes)


def _changes(name: str, subscription: _Subscription, log: ChangeLog) -> list[Change]:
    """What the client lacks, if it lacks anything."""
    if subscription.held is not None:
        found = log.changes_after(subscription.held)
        if found is None:
            subscription.reason = "expired"
        elif not found and subscription.has_begun:
            return []
        else:
            return [Change(name, added=_raw(found.added), removed=_raw(found.removed))]
    return [Change(name, snapshot=_raw(log.snapshot()), reason=subscription.reason)]


def _raw(rows: Iterable[bytes]) -> list[msgspec.Raw]:
    return [msgspec.Raw(row) for row in rows]


def _parse_mark(text: str) -> tuple[str, int]:
    run, _, at = text.rpartition(".")
    if not run or not at.isascii() or not at.isdigit():
        raise InvalidUsage(
            f"'{text[:80]}' is no mark",
            code="INVALID_MARK",
            hint="give back the mark of a moment as it was sent, or none",
        )
    return run, int(at)
