"""Damaged parts: an error that names them or the rows that were written, and no decoder crashes.

./spark-submit.sh test tests/datasource/parts/test_fuzz_parts.py --fuzz-rounds 100000
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.datasource.errors import Corrupt
from shardline.datasource.read import contents_of
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from support.models.shards import TINY, World, schema_of, table
from support.tree import TESTS

pytestmark = pytest.mark.process

ROUNDS = 1200


def work(folder: Path, seed: int, rounds: int) -> dict[str, Any]:
    """What a process says that damages parts and reads them; a crash names its round."""
    progress = folder / "progress"
    task = {"seed": seed, "rounds": rounds, "progress": str(progress)}
    done = subprocess.run(
        [sys.executable, "-m", "support.processes.fuzz_worker", json.dumps(task)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120 + rounds // 10,
    )
    assert done.returncode == 0, f"round {progress.read_text()}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_damaged_parts(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Files and parts in the state: checksums notice all damage; reading gives no wrong row."""
    rounds: int = request.config.getoption("--fuzz-rounds", default=None) or ROUNDS
    found = work(tmp_path, 0, rounds)
    outcomes = found["outcomes"]
    assert found["wrong"] == [], found
    assert outcomes["file: refused"] > rounds / 10, outcomes
    assert outcomes["file without a checksum: refused"] > rounds / 20, outcomes
    assert outcomes["message: refused"] > rounds / 10, outcomes
    assert found["peak_bytes"] < 1 << 30, found


@pytest.mark.parametrize("summed", [True, False])
def test_a_file_of_far_more_rows_than_its_part_is_not_decoded(summed: bool) -> None:
    """A small file that unpacks into very much is refused by its footer."""
    client = World().client(dataclasses.replace(TINY, inline_part_bytes=0))
    client.create("s", schema_of())
    client.writer("s").append_now(table(*((i, "x") for i in range(20))))
    state = client.state("s")
    part = next(state.trace.batches[0].parts)
    client.location.blob.set(part.key, bomb())
    forged = msgspec.structs.replace(
        part, size_bytes=len(bomb()), crc32=part.crc32 if summed else None
    )
    fetcher = contents_of(client.machine("s"), state).fetcher
    before = pa.total_allocated_bytes()
    planned = PlannedPart(forged, TimeFilter(None, None), ordered=True)
    with pytest.raises(Corrupt, match=part.key):
        next(fetcher.fetch(planned, with_ts=False, with_diff=True))
    assert pa.total_allocated_bytes() - before < 1 << 20


@functools.cache
def bomb() -> bytes:
    """Four million rows in less than a hundred kilobytes."""
    sink = pa.BufferOutputStream()
    ones = pa.repeat(pa.scalar(1, pa.int64()), 1_000_000)
    texts = pa.repeat("x", 1_000_000)
    batch = pa.table({"id": ones, "v": texts, "_diff": ones})
    with pq.ParquetWriter(sink, batch.schema, compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(batch)
    value: bytes = sink.getvalue().to_pybytes()
    assert len(value) < 100_000
    return value
