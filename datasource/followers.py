"""A shard becomes the follower of another one: readers go by the upper of its leader as well.

    follow(client, "totals_errors", "totals")

For a writer of both that keeps to the order of `shardline.datasource.shard.commands.leader`, and
saves the appends without rows by which the follower would be moved along.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardline.datasource.shard.commands import leader
from shardline.datasource.shard.state import Leader

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

__all__ = ["follow"]


def follow(client: ShardClient, follower: str, of: str) -> None:
    """Let readers of shard `follower` go by the upper of shard `of`, too; idempotent.

    From here on `follower` refuses all appends but those of handles that write its leader, too
    (`WriteHandle.writes_leader`).

    Raises:
        InvalidUsage: One of the shards is not there, or `follower` is registered for transactions.
    """
    wanted = Leader(of, client.state(of).shard)
    state = client.state(follower)
    if state.leader != wanted:
        client.machine(follower).apply(partial(leader.follow, shard=state.shard, leader=wanted))
