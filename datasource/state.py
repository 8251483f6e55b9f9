"""The state of a shard, for callers that explain, follow or keep it.

The public face of the room `shard`. A state is a value: whoever has one asks pure questions about
it, and only the loop of `Machine` changes it. To read or append, there are `read` and `write`.

    ShardState, Description      all that is true of a shard at one `seqno`; the range of a batch
    Batch, Part, Volume, Trace   its rows: as batches of parts, as sizes, as levels to be merged
    LeasedReader, CriticalReader, Writer    who holds it back, and who writes
    Leader                       the shard that it follows
    plan_snapshot, plan_changes, SnapshotPlan    the parts that a read needs
    Appended, AlreadyCommitted, UpperMismatch    outcomes of an append
    expire_readers, expire_leased, expire_owned  commands that take holds away
    Machine                      the one loop that changes a shard of a location
"""

from shardline.datasource.shard.batch import Batch, Part, Volume, add_up_diffs
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.shard.commands.claims import live_claims
from shardline.datasource.shard.commands.readers import expire_leased, expire_owned, expire_readers
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.plan import SnapshotPlan, plan_changes, plan_snapshot, volume_of
from shardline.datasource.shard.references import Amount
from shardline.datasource.shard.state import (
    CriticalReader,
    Leader,
    LeasedReader,
    ShardState,
    Writer,
    is_tombstone,
    last_update,
    seqno_since,
    since_bound,
)
from shardline.datasource.shard.trace import Trace, cancelled_past, due_merges, level_of

__all__ = [
    "CODE_VERSION",
    "AlreadyCommitted",
    "Amount",
    "Appended",
    "Batch",
    "CriticalReader",
    "Description",
    "Leader",
    "LeasedReader",
    "Machine",
    "Part",
    "ShardState",
    "SnapshotPlan",
    "Trace",
    "UpperMismatch",
    "Volume",
    "Writer",
    "add_up_diffs",
    "cancelled_past",
    "due_merges",
    "expire_leased",
    "expire_owned",
    "expire_readers",
    "is_tombstone",
    "last_update",
    "level_of",
    "live_claims",
    "plan_changes",
    "plan_snapshot",
    "seqno_since",
    "since_bound",
    "volume_of",
]
