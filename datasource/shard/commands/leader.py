"""A follower is a shard that readers know to be complete as far as another one, its leader, is.

Some shards have one writer, and mostly nothing to say: the errors of a view beside its contents.
Each would be moved by an append without rows whenever the other one is, for ever. So the follower
is left where it is, and its *logical* upper, which readers see, is the later one of its own and its
leader's (`shardline.datasource.transactions.shard_view`; txn-wal does the same for data shards).

That is true by the order of its writer's appends, which it promises:

    1  rows of the follower at times from t on are appended while the leader's upper is not past t
    2  only then the leader's upper passes t

A reader looks at the leader first, and at the follower second: so it has all rows before the
leader's upper, and none will come there any more.

Nothing compares the two uppers when the follower is appended to. So a writer that was replaced, and
does not know it, could add rows at times that the leader has passed. Its successor keeps it from
that: it appends to the follower once, before its first append to the leader. An append of the other
one is then refused by its upper; or that upper was read later than the successor had begun, and
then a look at the fence, between that read and the append, ends it.

    follow    say which shard is the leader

Invariants:
    Only who keeps to that order appends to a follower (`Append.writes_leader`): the writer of both,
    or who has agreed with it on a time that the leader does not pass before. All others are
    refused: they would have to know the leader's upper to choose a time, and it moves meanwhile.
    The leader's own upper counts, never one that it has of a leader, or of a transactions shard.
"""

from __future__ import annotations

import msgspec

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.state import Leader, ShardState, is_tombstone

__all__ = ["check_no_follower", "follow"]


def follow(state: ShardState, now_ms: int, *, shard: str, leader: Leader) -> Transition[bool]:
    """Let readers go by the upper of `leader`, too; False if they do not.

    They do not if the shard is not there any more, or is written through a transactions shard,
    whose upper it has.

    Args:
        shard: Id of the shard that is meant.
        leader: Its leader from here on.
    """
    del now_ms
    if state.shard != shard or is_tombstone(state) or state.registered is not None:
        return Transition(None, result=False)
    if state.leader == leader:
        return Transition(None, result=True)
    return Transition(msgspec.structs.replace(state, leader=leader), result=True)


def check_no_follower(state: ShardState) -> None:
    """Refuse a write of somebody who does not write the leader.

    Raises:
        InvalidUsage: The shard has a leader.
    """
    if state.leader is not None:
        raise InvalidUsage(
            f"shard '{state.name}' follows '{state.leader.name}': only the writer of that one, "
            "which appends to both in order, can write to it",
            code="SHARD_FOLLOWS",
            hint="write to another shard",
        )
