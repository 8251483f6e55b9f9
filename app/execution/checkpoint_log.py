"""The checkpoint log is read here as Spark writes it on local disk, without asking the JVM.

    <checkpoint>/offsets/7      v1, metadata, then a line for each source: its end in micro-batch 7

Spark writes this file before the micro-batch runs. Its format is stable across versions of Spark,
since checkpoints outlive them.

A file is written beside its place, as `.7.<uuid>.tmp`, and renamed, so a process that is killed may
leave one. Of a later micro-batch it does no harm. Of the first one it stops the query for good:
Spark finds no micro-batch, begins with number 0, and refuses to (`offsets should be empty on batch
0`, `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`). So each start of a query removes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

__all__ = ["VERSION", "logged_numbers", "read_planned_offset", "remove_unfinished_plan"]

VERSION: Final = "v1"
"""First line of every log."""


def read_planned_offset(folder: Path, number: int) -> str | None:
    """The end offset of micro-batch `number` of a query with one source, as the source wrote it.

    None if there is no such file, it is of another version, or it has several sources.
    """
    path = folder / "offsets" / str(number)
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").split("\n")
    version, _, *offsets = [*lines, "", ""]
    found = [line for line in offsets if line]
    return found[0] if version == VERSION and len(found) == 1 else None


def logged_numbers(log: Path) -> list[int]:
    """Numbers of the micro-batches that a log of a checkpoint has (`offsets`, `commits`)."""
    if not log.is_dir():
        return []
    return [int(path.name) for path in log.iterdir() if path.name.isdigit()]


def remove_unfinished_plan(folder: Path) -> None:
    """Remove what is left of the first plan of a query that was killed while it was written.

    Args:
        folder: The checkpoint; need not be there. No query may run over it.
    """
    offsets = folder / "offsets"
    if offsets.is_dir() and not logged_numbers(offsets):
        shutil.rmtree(offsets)
