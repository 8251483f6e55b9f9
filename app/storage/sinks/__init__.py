"""Sinks, taken apart: `shardline.app.storage.sink_query` puts them together.

interval   which times a micro-batch is, out of the checkpoint; whether a checkpoint may go on
progress   how far a sink is, in a shard of its own
rows       updates as the rows of an envelope
target     what a target promises; formats, options and guarantees
files, shards, others   the targets
"""

from __future__ import annotations

__all__: list[str] = []
