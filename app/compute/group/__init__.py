"""Dataflow groups: views of the same inputs step together, as one streaming query.

Owns which views are in a group, the query that tells them how far their inputs are, and the order
of their steps in each of its micro-batches.

May use: `execution`, `lane.effects`, `datasource`. Start at `group_registry`, then `view_group`.

Never: writes to a shard. What a view's step is, and that it happens once, is the view's.

    group_registry   which view is in which group; joining and leaving
    view_group       one group: its query, its members, their steps
    step_order       calls in the order of dependencies, some at a time
    trigger_query    a streaming query that tells how far some shards are
"""
