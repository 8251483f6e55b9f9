"""Measures a view of an engine that Python drives, as the crate `measured` does of those in Rust.

Runs in environments without this project, so it imports nothing of it. A job reads the customers,
the orders and their changes before the clock starts, hands over how its view gets its first
contents and how it takes each change, and leaves two things: the rows of the view in a file, and
one line of JSON on its output.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

__all__ = ["elapsed_ms", "measure", "read_changes", "read_rows", "report", "resident_mib"]


def read_rows(folder: Path, name: str) -> pa.Table:
    """The `customers` or the `orders`."""
    return csv.read_csv(folder / f"{name}.csv")


def read_changes(folder: Path) -> list[pa.Table]:
    """The changes of each round: rows of orders that go (`diff` -1) and come (1)."""
    changes = read_rows(folder, "changes")
    rounds = range(pc.max(changes["round"]).as_py() + 1)
    return [changes.filter(pc.equal(changes["round"], place)) for place in rounds]


def measure(
    first: Callable[[], object], rounds: Sequence[Callable[[], object]], warm: int
) -> dict[str, Any]:
    """Milliseconds of the first contents, and of each round but the first `warm`."""
    return {"first_ms": _taken(first), "rounds_ms": [_taken(each) for each in rounds][warm:]}


def report(measured: dict[str, Any], memory_mib: float, rows: Iterable[Any], place: Path) -> None:
    """Write the rows of the view to a file, and print what was measured.

    Args:
        measured: From `measure`, and what else is to be told.
        memory_mib: What was resident after the last round.
        rows: Region, name, number of orders and sum of prices of each group.
        place: The file.
    """
    place.write_text("".join(f"{','.join(map(str, row))}\n" for row in rows))
    print(json.dumps(measured | {"memory_mib": memory_mib}))


def resident_mib(process: int | str = "self") -> float:
    """Memory of a process that is resident, as Linux counts it; one that has ended has none."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    lines = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return sum(int(line.split()[1]) / 1024.0 for line in lines)


def elapsed_ms() -> float:
    """Milliseconds since some moment."""
    # There is no `Clock` in an engine's environment.
    return time.perf_counter() * 1000.0  # noqa: TID251


def _taken(step: Callable[[], object]) -> float:
    began = elapsed_ms()
    step()
    return elapsed_ms() - began
