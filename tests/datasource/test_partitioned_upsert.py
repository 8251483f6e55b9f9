"""An upsert from a source whose rows are ordered within its partitions only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Atomic
from shardline.datasource.upsert import (
    AT,
    CARRIER_ID,
    LIVE,
    ORDER,
    PARTITION,
    carrier_schema,
    upsert,
)
from support.fakes.clock import ManualClock, SeededIds
from support.profiles import examples

_numbers = count()

ROWS = ShardSchema.from_arrow(pa.schema([("id", pa.int64()), ("v", pa.int64())]))
CARRIERS = carrier_schema(ROWS, ("id",), Atomic("long"), partitioned=True)

MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("pqr"), st.integers(0, 5), st.booleans()),
    max_size=12,
)
"""Key, partition, time and whether it lives; the offset is the place in the list."""


@given(batches=st.lists(MESSAGES, max_size=3), parts=st.integers(1, 4))
@examples()
def test_the_newest_of_the_last_rows_of_all_partitions_wins(
    batches: list[list[tuple[int, str, int, bool]]], parts: int
) -> None:
    """As a model has it, which goes through the messages one by one; however they are staged."""
    place = f"memory://partitions-{next(_numbers)}"
    client = ShardClient.open(place, clock=ManualClock(), ids=SeededIds())
    client.create("in", ROWS, key=("id",))
    handle = client.writer("in", "source")
    stager = replace(handle.stager(), schema=CARRIERS, schema_id=CARRIER_ID)
    model: dict[int, int] = {}
    offset = 0
    for number, messages in enumerate(batches):
        last: dict[tuple[int, str], tuple[int, int, bool]] = {}
        rows = []
        for key, partition, at, lives in messages:
            offset += 1
            last[key, partition] = (at, offset, lives)
            row = {"id": key, "v": offset if lives else None, ORDER: offset, LIVE: lives}
            rows.append({**row, PARTITION: partition, AT: at})
        newest: dict[int, tuple[int, int, bool]] = {}
        for (key, _), message in last.items():
            newest[key] = max(newest.get(key, message), message)
        for key, (_, value, lives) in newest.items():
            model.pop(key, None)
            if lives:
                model[key] = value
        tables = [pa.Table.from_pylist(rows[n::parts], CARRIERS.arrow) for n in range(parts)]
        upsert(handle, stager.stage(tables), CARRIERS, sequence=number, attempt=f"t{number}")
        with client.reader("in") as reader:
            found = Counter(tuple(row.values()) for row in reader.snapshot().to_pylist())
        assert found == Counter(model.items())
