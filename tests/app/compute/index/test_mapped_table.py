"""Tables that are mapped from files without a name."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardline.app.compute.index.mapped_table import mapped

ROWS = 200_000


def table() -> pa.Table:
    """Rows of each kind that a shard has, nulls among them."""
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "n": pa.array(numbers, mask=numbers % 7 == 0),
            "t": pa.array([None if n % 5 == 0 else f"row {n}" for n in range(ROWS)]),
            "l": pa.array([[n, None] for n in range(ROWS)], pa.list_(pa.int64())),
        }
    )


def test_a_mapped_table_is_the_same_and_not_in_arrows_memory(tmp_path: Path) -> None:
    """Its bytes are the file's."""
    given = table()
    before = pa.total_allocated_bytes()
    found = mapped(given, tmp_path)
    assert found.equals(given)
    assert pa.total_allocated_bytes() - before < given.nbytes // 10
    assert not list(tmp_path.iterdir())


def test_its_space_is_given_back_with_its_last_slice(tmp_path: Path) -> None:
    """A slice keeps all of it; without one, neither a file nor a mapping is left."""
    found = mapped(table(), tmp_path)
    part = found.slice(10, 5).column("n")
    del found
    gc.collect()
    assert part.to_pylist() == [10, 11, 12, 13, None]
    assert _mappings(tmp_path)
    del part
    gc.collect()
    assert not _mappings(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The caller knows what to do without the file."""
    with pytest.raises(OSError, match="gone"):
        mapped(table(), tmp_path / "gone")


def _mappings(folder: Path) -> list[str]:
    maps = Path(f"/proc/{os.getpid()}/maps").read_text(encoding="utf-8")
    return [line for line in maps.splitlines() if str(folder) in line]
