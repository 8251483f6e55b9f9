"""The checkpoint log is read here as Spark writes it on local disk, without asking the JVM.

    <checkpoint>/offsets/7      v1, metadata, then a line for each source: its end in micro-batch 7

Spark writes this file before the micro-batch runs. Its format is stable across versions of Spark,
since checkpoints outlive them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["VERSION", "read_planned_offset"]

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
