"""The client of relations shows what changes, also where it is sent all rows anew."""

from __future__ import annotations

from typing import Any

from shardline.app.server.relation_client import _Rows
from shardline.app.server.subscription_messages import (
    Change,
    MomentSent,
    Reason,
    ServerMessage,
    Subscribed,
)


def moment(at: int, *changes: Change) -> ServerMessage:
    return ServerMessage(moment=MomentSent(f"r.{at}", at, list(changes)))


def snapshot(rows: list[Any], reason: Reason) -> Change:
    return Change("a", snapshot=rows, reason=reason)


def test_a_snapshot_in_the_middle_is_shown_as_what_has_changed() -> None:
    """A person sees no row twice, and none that stays."""
    rows = _Rows()
    messages = [
        ServerMessage(subscribed=Subscribed("a", "objects", ["id"])),
        moment(1, snapshot([["x"], ["y"], ["y"]], "new")),
        moment(2, Change("a", added=[["z"]], removed=[["y"]])),
        moment(3, snapshot([["y"], ["w"]], "expired")),
        moment(4),
    ]
    batches = [batch for message in messages for batch in rows.take(message)]
    assert [(batch["lower"], batch["upper"]) for batch in batches] == [
        (None, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    shown = [sorted((u["_diff"], u["id"]) for u in batch["updates"]) for batch in batches]
    assert shown == [
        [(1, "x"), (1, "y"), (1, "y")],
        [(-1, "y"), (1, "z")],
        [(-1, "x"), (-1, "z"), (1, "w")],
        [],
    ]


def test_intervals_go_on_though_the_clock_of_the_application_is_set_back() -> None:
    """Each begins where the one before has ended."""
    rows = _Rows()
    messages = [
        ServerMessage(subscribed=Subscribed("a", "objects", ["id"])),
        moment(5_000, snapshot([], "new")),
        moment(3_000, Change("a", added=[["x"]])),
        moment(6_000),
    ]
    batches = [batch for message in messages for batch in rows.take(message)]
    shown = [(batch["lower"], batch["upper"]) for batch in batches]
    assert shown == [(None, 5_000), (5_000, 5_001), (5_001, 6_000)]
    assert [update["_ts"] for batch in batches for update in batch["updates"]] == [5_001]
