"""What the checkpoint of a streaming query says, as Spark writes it on this machine's disk.

    <checkpoint>/offsets/7      v1, metadata, then a line for each source: where micro-batch 7 ends

Spark writes it before the micro-batch runs, and the text is an interface of its own: checkpoints
outlive versions. To read it costs nothing of the JVM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["VERSION", "planned_offset"]

VERSION: Final = "v1"
"""First line of every log."""


def planned_offset(folder: Path, number: int) -> str | None:
    """Where micro-batch `number` of a query with one source ends, as the source wrote it.

    None if the log has none that can be read, or several.
    """
    path = folder / "offsets" / str(number)
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").split("\n")
    version, _, *offsets = [*lines, "", ""]
    found = [line for line in offsets if line]
    return found[0] if version == VERSION and len(found) == 1 else None
