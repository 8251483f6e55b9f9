"""Option `retainHistory`: a write makes the shard's policy, once the frame is known to fit."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard_sink.frame_columns import assign_roles
from shardline.datasource.shard_sink.target import find_shard, resolve_target
from shardline.datasource.shard_source.options import parse_sink
from support.models.shards import World

SHARD = "orders"
FRAME = StructType().add("id", LongType()).add("v", StringType())
MORE = StructField("more", LongType())
WEEK_MS = 7 * 24 * 3_600_000


def write(world: World, frame: StructType = FRAME, **given: str) -> int | None:
    """The shard's policy after the beginning of a write."""
    client = world.client()
    options = parse_sink({"location": "memory://unused", "shard": SHARD, **given})
    resolve_target(client, options, assign_roles(options, frame), find_shard(client, SHARD))
    return world.client().state(SHARD).retain_ms


def test_a_write_makes_changes_and_leaves_the_policy(world: World) -> None:
    """Of a shard that it makes, and of one that is there; without the option nothing changes."""
    assert write(world, retainHistory="7 days") == WEEK_MS
    seqno = world.client().state(SHARD).seqno
    assert write(world) == write(world, retainHistory="1 week") == WEEK_MS
    assert world.client().state(SHARD).seqno == seqno == 1
    assert write(world, retainHistory="12h") == 12 * 3_600_000


def test_without_the_option_a_new_shard_has_none(world: World) -> None:
    """Its since moves with its readers."""
    assert write(world) is None


def test_a_write_that_is_refused_changes_no_policy(world: World) -> None:
    """It says why, and the shard is as it was."""
    write(world, retainHistory="7 days")
    with pytest.raises(InvalidUsage, match="EXTRA_COLUMN"):
        write(world, StructType([*FRAME, MORE]), retainHistory="0")
    assert world.client().state(SHARD).retain_ms == WEEK_MS
