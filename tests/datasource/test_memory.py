"""Memory does not grow with what is read: large parts and large plans in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.tree import TESTS

WORKER = TESTS / "support" / "processes" / "memory_worker.py"
MIB = 1 << 20

ROWS = 1 << 17
GROUPS = 136


def measured(*arguments: object) -> dict[str, int]:
    """What the job says."""
    done = subprocess.run(
        [sys.executable, str(WORKER), *map(str, arguments)],
        env={"PYTHONPATH": f"{WORKER.parents[2]}:{WORKER.parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return said


def large_part(path: Path) -> None:
    """A part of a gigabyte, row group by row group."""
    chance = np.random.default_rng(1)
    columns = {
        "id": pa.array(np.arange(ROWS)),
        "text": pa.array(chance.integers(0, 1 << 40, ROWS)).cast(pa.string()),
        "x": pa.array(chance.random(ROWS)),
        "payload": pa.array([bytes(row) for row in chance.integers(0, 256, (ROWS, 32), np.uint8)]),
        "kind": pa.array(chance.integers(0, 9, ROWS)),
        "_diff": pa.array(np.ones(ROWS, np.int64)),
    }
    table = pa.table(columns)
    plain = ["id", "text", "x", "payload"]
    with pq.ParquetWriter(
        path,
        table.schema,
        compression="lz4",
        use_dictionary=["kind", "_diff"],
        column_encoding=dict.fromkeys(plain, "PLAIN"),
        write_page_checksum=True,
    ) as writer:
        for _ in range(GROUPS):
            writer.write_table(table, row_group_size=ROWS)


@pytest.mark.slow
def test_a_gigabyte_is_read_in_less_than_300_mb(tmp_path: Path) -> None:
    """One task streams one large part; Python, Arrow and its libraries included."""
    path = tmp_path / "part.parquet"
    large_part(path)
    assert path.stat().st_size > 1024 * MIB
    said = measured("fetch", path)
    assert said["rows"] == ROWS * GROUPS
    assert said["peak_bytes"] < 300 * MIB


@pytest.mark.slow
def test_a_hundred_thousand_parts_are_planned_in_less_than_500_mb(tmp_path: Path) -> None:
    """From a rollup's bytes to partitions, with statistics of twelve columns per part."""
    path = tmp_path / "rollup"
    measured("make", path, 100_000)
    said = measured("plan", path)
    assert said["parts"] == 100_000
    assert said["lists"] == said["changes"] == 10_000
    assert said["filtered"] == 1
    assert said["peak_bytes"] < 500 * MIB
