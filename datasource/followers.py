"""A shard becomes the follower of another one: readers go by the upper of its leader as well.

    follow(client, "totals_errors", "totals")
    may_lag(client, "totals_errors", "totals")      whether its own upper need not be moved along

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

__all__ = ["follow", "may_lag"]


def follow(client: ShardClient, follower: str, of: str) -> None:
    """Let readers of shard `follower` go by the upper of shard `of`, too; idempotent.

    From here on `follower` refuses all appends but those of handles that write its leader, too
    (`WriteHandle.writes_leader`). A shard that is registered for transactions stays as it is.

    Raises:
        InvalidUsage: One of the shards is not there.
    """
    wanted = Leader(of, client.state(of).shard)
    state = client.state(follower)
    if state.leader != wanted:
        client.machine(follower).apply(partial(leader.follow, shard=state.shard, leader=wanted))


def may_lag(client: ShardClient, follower: str, of: str) -> bool:
    """True if the own upper of `follower` may stay where it is while that of `of` goes on; no I/O.

    As this process has last seen both. Of a leader that is registered for transactions the upper
    that readers see is not its own.
    """
    state, leads = client.machine(follower).cached, client.machine(of).cached
    if state is None or leads is None or leads.registered is not None:
        return False
    return state.leader == Leader(of, leads.shard)
