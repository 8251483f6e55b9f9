"""Merges and sweeps of shards, for callers that offer them as commands.

The public face of the room `maintenance`. `maintainer` does all of this in rounds, unasked; here is
what a person asks for by hand, and what tells them beforehand how much it would do.

    all_mergeable_batches, merge_weight, is_unclaimed_by    merges that could be made now
    observe_merges               calls back at each merge of this process
    sweep_orphans, SweepResult   deletes blobs that no state names and nobody may name any more
"""

from shardline.datasource.maintenance.compact import (
    all_mergeable_batches,
    is_unclaimed_by,
    merge_weight,
    observe_merges,
)
from shardline.datasource.maintenance.orphan_sweep import SweepResult, sweep_orphans

__all__ = [
    "SweepResult",
    "all_mergeable_batches",
    "is_unclaimed_by",
    "merge_weight",
    "observe_merges",
    "sweep_orphans",
]
