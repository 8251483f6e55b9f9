"""The shards that planning is measured with."""

from __future__ import annotations

import pytest

from bench.planning import make_shard, sample_rows
from shardline.datasource.parts.part_file import part_schema
from shardline.datasource.types.schema import ShardSchema
from support.models.shards import World


@pytest.mark.parametrize("count", [1, 999, 2_001])
def test_a_made_up_shard_has_as_many_parts_as_it_says(count: int) -> None:
    """Each under a key of its own, with statistics, over several appends."""
    world = World()
    client = world.client()
    make_shard(client, "many", count)
    parts = [part for batch in client.state("many").trace.batches for part in batch.parts]
    assert len({part.key for part in parts}) == len(parts) == count
    assert all(part.stats and "l_shipdate" in part.stats.columns for part in parts)
    world.close()


def test_the_sample_is_lineitem() -> None:
    """Sixteen columns, as TPC-H has them."""
    schema = ShardSchema.from_arrow(sample_rows().schema)
    assert len(part_schema(schema, schema.names)) == 16
    assert schema.names[0] == "l_orderkey"
