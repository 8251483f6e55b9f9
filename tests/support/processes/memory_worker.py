"""One job in a process of its own, which says how much memory it took at most.

    python memory_worker.py fetch <part.parquet>        all rows of a part, batch by batch
    python memory_worker.py make <rollup> <parts>       a rollup of a shard with that many parts
    python memory_worker.py plan <rollup>               a state from it, and plans of all its parts

The last line it prints is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.filters.parser import Condition
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.prune import Pruner
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.codec import decode_rollup, encode_rollup
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.plan import (
    PlannedPart,
    TimeFilter,
    pack_parts,
    plan_changes,
    plan_snapshot,
)
from shardline.datasource.shard.trace import Trace
from shardline.datasource.stores.location import Blob
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import ColumnStats, PartStats, encode_stats
from support.strategies.commands import first_state

if TYPE_CHECKING:
    from collections.abc import Callable

_COLUMNS = 12
_PARTS_OF_A_BATCH = 100


class _Folder:
    """Blobs of one folder."""

    def open(self, key: str, size_bytes: int | None = None) -> pa.NativeFile:
        del size_bytes
        return pa.OSFile(key, "r")


def fetch(path: str) -> dict[str, int]:
    """Rows and batches of a part."""
    file = pq.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if name != "_diff"]
    schema = ShardSchema.from_arrow(pa.schema([file.schema_arrow.field(name) for name in names]))
    part = Part(path, file.metadata.num_rows, Path(path).stat().st_size, 0, ts=1)
    planned = PlannedPart(part, TimeFilter(None, None), ordered=True)
    fetcher = Fetcher(cast("Blob", _Folder()), {0: schema}, schema)
    rows = [batch.num_rows for batch in fetcher.fetch(planned, with_ts=False, with_diff=False)]
    return {"rows": sum(rows), "batches": len(rows)}


def make(path: str, parts: str) -> dict[str, int]:
    """A rollup of a shard with `parts` parts, each with statistics of many columns."""
    batches = tuple(
        Batch(
            Description(lower, lower + _PARTS_OF_A_BATCH),
            tuple(Run((_part(lower + i),)) for i in range(_PARTS_OF_A_BATCH)),
        )
        for lower in range(0, int(parts), _PARTS_OF_A_BATCH)
    )
    state = msgspec.structs.replace(first_state(), trace=Trace(0, batches))
    data = encode_rollup(state)
    Path(path).write_bytes(data)
    return {"bytes": len(data)}


def _part(number: int) -> Part:
    columns = {
        f"column_{i}": ColumnStats(0, "int", number * 1000 + i, number * 1000 + 999)
        for i in range(_COLUMNS)
    }
    return Part(
        f"s0/part/p{number:032x}.parquet",
        100_000,
        10 << 20,
        0,
        ts=number,
        diff_sum=100_000,
        crc32=number,
        encoded_stats=encode_stats(PartStats(100_000, columns)),
    )


def plan(path: str) -> dict[str, int]:
    """A snapshot's plan, a plan of changes, and a filtered one, each spread over partitions."""
    state = decode_rollup(Path(path).read_bytes(), path)
    arrow = pa.schema([(f"column_{i}", pa.int64()) for i in range(_COLUMNS)])
    schema = ShardSchema.from_arrow(arrow)
    snapshot = plan_snapshot(state, 10**9, "column_0").plain
    lists = pack_parts(snapshot, 32 << 20)
    changes = pack_parts(plan_changes(state, 0, None), 32 << 20)
    where = Condition("column_1 between 5000 and 5999 or column_2 < 0").bind(schema)
    kept = [one for one in Pruner(where, {0: schema.json}).prune(snapshot) if not one.audit]
    return {
        "parts": len(snapshot),
        "lists": len(lists),
        "changes": len(changes),
        "filtered": len(kept),
    }


if __name__ == "__main__":
    jobs: dict[str, Callable[..., dict[str, int]]] = {"fetch": fetch, "make": make, "plan": plan}
    found = jobs[sys.argv[1]](*sys.argv[2:])
    # Not `ru_maxrss`, which starts with what the process had that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    peak = int(line.split()[1]) * 1024
    sys.stdout.write(json.dumps({**found, "peak_bytes": peak}) + "\n")
