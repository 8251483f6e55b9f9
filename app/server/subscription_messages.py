"""Subscription messages are what a client and the server say to each other on one connection.

    → {"subscribe": {"id": "a", "relation": "verdicts", "where": {"type": "view"}, "after": "…"}}
    ← {"subscribed": {"id": "a", "relation": "verdicts", "columns": ["object_id", …]}}
    ← {"moment": {"mark": "3f2a.1700000000000", "at": 1700000000000, "changes": [
          {"id": "a", "snapshot": [["delays", …], …], "reason": "new"}]}}
    ← {"moment": {"mark": "3f2a.1700000001000", "at": 1700000001000, "changes": [
          {"id": "a", "added": [["delays", …]], "removed": [["delays", …]]}]}}
    → {"unsubscribe": "a"}
    ← {"unsubscribed": "a"}
    ← {"error": {"id": "b", "code": "UNKNOWN_RELATION", "message": "…", "hint": "…"}}

Each message is an object with one field. The OpenAPI document is made of the classes here.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from shardline.app.introspection.relation import Scalar

__all__ = [
    "PROTOCOL",
    "Change",
    "MomentSent",
    "Problem",
    "Reason",
    "Request",
    "ServerMessage",
    "Subscribe",
    "Subscribed",
]

PROTOCOL: Final = "shardline-relations-v1"
"""Name of the WebSocket subprotocol; a client may leave it out."""

Reason: TypeAlias = Literal["new", "restarted", "expired"]


class Subscribe(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Follow a relation.

    Attributes:
        id: Chosen by the client; names the subscription on this connection.
        relation: Name of the relation, without `introspection.`.
        where: Columns with the values that rows must have; all rows if it is empty.
        after: Mark of the moment whose rows the client holds; "" if it holds none.
    """

    id: str
    relation: str
    where: dict[str, Scalar] = {}
    after: str = ""


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message of a client: one of these fields.

    Attributes:
        subscribe: Follow a relation.
        unsubscribe: Id of the subscription to end.
    """

    subscribe: Subscribe | None = None
    unsubscribe: str | None = None


class Subscribed(msgspec.Struct):
    """A subscription has begun.

    Attributes:
        id: Of the subscription.
        relation: Name of the relation.
        columns: Names of the values of its rows, in their order.
    """

    id: str
    relation: str
    columns: list[str]


class Change(msgspec.Struct, omit_defaults=True):
    """The change of one subscription from the moment before: a snapshot, or rows come and gone.

    Attributes:
        id: Of the subscription.
        snapshot: All rows, in place of those that the client holds.
        reason: Of a snapshot. `new`: no mark was given; `restarted`: the mark is of another run of
            the application; `expired`: it is too old, or the client has read too slowly.
        added: Rows that have come; equal rows are repeated.
        removed: Rows that have gone.
    """

    id: str
    snapshot: list[Any] | None = None
    reason: Reason | None = None
    added: list[Any] = []
    removed: list[Any] = []


class MomentSent(msgspec.Struct):
    """All subscriptions of the connection as of one moment.

    Attributes:
        mark: Of the moment, for `after`. It holds for each subscription that has had a change,
            even an empty one, on this connection.
        at: Time of the moment, in ms since the epoch. It goes back with the application's clock.
        changes: Of subscriptions that have changed, and of each that has not had one yet.
    """

    mark: str
    at: int
    changes: list[Change]


class Problem(msgspec.Struct):
    """A request that was refused; the connection goes on.

    Attributes:
        id: Of the subscription that was meant; "" if that is not known.
        code: Stable name of the problem.
        message: What is wrong.
        hint: What to do about it.
    """

    id: str
    code: str
    message: str
    hint: str


class ServerMessage(msgspec.Struct, omit_defaults=True):
    """A message of the server: one of these fields.

    Attributes:
        subscribed: A subscription has begun.
        unsubscribed: Id of a subscription that has ended.
        moment: What has changed.
        error: A request was refused.
    """

    subscribed: Subscribed | None = None
    unsubscribed: str | None = None
    moment: MomentSent | None = None
    error: Problem | None = None
