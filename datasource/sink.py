"""Frames as rows of shards, for callers that write by tasks of Spark.

The public face of the room `shard_sink` and of the options that writes have. The options are those
of `format("shard")`, and so are their meanings and errors: a sink that an application runs is not
another one than a sink that a user starts.

    SinkOptions, parse_sink      the options of a write, from text
    check_place                  the location's URL and options, as far as is known without a look
    resolve_target, find_shard, open_client    the shard that they name; its client
    assign_roles, FrameRoles     what each column of a frame is, by the envelope
    BEFORE, AFTER, OP, NEED_AFTER    of change events: their columns; operations that need `after`
    EnvelopeConverter            rows of a frame to updates, by the envelope
"""

from shardline.datasource.shard_sink.envelope import EnvelopeConverter
from shardline.datasource.shard_sink.frame_columns import (
    AFTER,
    BEFORE,
    NEED_AFTER,
    OP,
    FrameRoles,
    assign_roles,
)
from shardline.datasource.shard_sink.target import find_shard, resolve_target
from shardline.datasource.shard_source.options import SinkOptions, parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.stores.open import check_place

__all__ = [
    "AFTER",
    "BEFORE",
    "NEED_AFTER",
    "OP",
    "EnvelopeConverter",
    "FrameRoles",
    "SinkOptions",
    "assign_roles",
    "check_place",
    "find_shard",
    "open_client",
    "parse_sink",
    "resolve_target",
]
