"""Tells that a transactions shard, or a shard that is registered with one, was lost.

What was committed for a shard and not applied yet is named by the transactions shard only. Where
that is gone, or another one is in its place, readers of the shard would go on without those rows, a
sweep would delete their parts, and the next transaction would make a new one and forget them. So
whoever meets a mark that nothing explains stops. What explains it:

    the transactions shard is there, and it is the one that the mark names
    it was dropped: that leaves a tombstone, and is refused while anything is registered
    it was dropped and made again: the first record of the one that is there is not the log's first

In the last two the mark is of a registration that was interrupted, and nothing was committed for
the shard. Not told from them: one that was made again, where an older copy that was made again
before has taken its place.
"""

from __future__ import annotations

from shardline.datasource.errors import Corrupt, MissingBlob
from shardline.datasource.shard.state import Registration, ShardState, is_tombstone

__all__ = ["check_not_lost", "data_shard_lost", "is_lost"]


def is_lost(mark: Registration, txns: ShardState | None) -> bool:
    """True if something that was committed by the transactions shard of a mark may be lost.

    Args:
        mark: The mark of a data shard.
        txns: The state of the transactions shard of that name, read after the mark; None if there
            is no log.
    """
    if txns is None:
        return True
    return txns.shard != mark.shard and not is_tombstone(txns) and txns.base == 1


def check_not_lost(name: str, mark: Registration, txns: ShardState | None) -> None:
    """Refuse to go on without the transactions shard that shard `name` is registered with.

    Args:
        name: A data shard.
        mark: Its mark.
        txns: As of `is_lost`.

    Raises:
        MissingBlob: `TXNS_MISSING`: it is not there.
        Corrupt: `TXNS_OTHER`: it is another one, and was not dropped before that was made.
    """
    if not is_lost(mark, txns):
        return
    hint = (
        "restore it from a backup, together with the shards that are registered with it; or, "
        "without one, give up what it has not applied: "
        f"client.transactions('{mark.txns}').forget('{name}', despite_loss=True)"
    )
    registered = f"shard '{name}' is registered with transactions shard '{mark.txns}'"
    if txns is None:
        raise MissingBlob(
            f"{registered}, which is not there: what was committed for it may be missing",
            code="TXNS_MISSING",
            hint=hint,
        )
    raise Corrupt(
        f"{registered} {mark.shard}, and that is now {txns.shard}: the one before was lost, and "
        "what was committed for the shard may be missing",
        code="TXNS_OTHER",
        hint=hint,
    )


def data_shard_lost(name: str) -> MissingBlob:
    """The error for a data shard that is registered, or waits for rows, and is not there."""
    return MissingBlob(
        f"shard '{name}' is not there, and a transactions shard has it registered, or rows that "
        "are to be applied to it: it was lost",
        code="REGISTERED_SHARD_MISSING",
        hint="restore it from a backup, together with the transactions shard; or, without one, "
        f"give it up: client.transactions().forget('{name}', despite_loss=True)",
    )
