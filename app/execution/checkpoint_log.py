"""Reads the checkpoint log as Spark writes it on local disk, without asking the JVM.

    <checkpoint>/offsets/7      v1, metadata, then a line for each source: its end in micro-batch 7

Spark writes this file before the micro-batch runs. Its format is stable across versions of Spark,
since checkpoints outlive them.

A file is written beside its place, as `.7.<uuid>.tmp`, and renamed, so a process that is killed may
leave one. Of a later micro-batch it does no harm. Of the first one it stops the query for good:
Spark finds no micro-batch, begins with number 0, and refuses to (`offsets should be empty on batch
0`, `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`). So each start of a query removes it.

It is not synced, either: a power cut may leave a file that is empty or cut under its name. Spark
fails at such a file whenever the query is started, for ever. So names prove nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

__all__ = [
    "VERSION",
    "can_be_resumed",
    "logged_numbers",
    "read_planned_offset",
    "remove_unfinished_plan",
]

VERSION: Final = "v1"
"""First line of every log."""

_NO_OFFSET: Final = "-"
"""Spark's text in place of an offset that its source did not have yet."""


def read_planned_offset(folder: Path, number: int) -> str | None:
    """The end offset of micro-batch `number` of a query with one source, as the source wrote it.

    None if there is no such file, it is of another version, or it has several sources.
    """
    path = folder / "offsets" / str(number)
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    version, _, *offsets = [*lines, "", ""]
    found = [line for line in offsets if line]
    return found[0] if version == VERSION and len(found) == 1 else None


def logged_numbers(log: Path) -> list[int]:
    """Numbers of the micro-batches that a log of a checkpoint has (`offsets`, `commits`)."""
    if not log.is_dir():
        return []
    return [int(path.name) for path in log.iterdir() if path.name.isdigit()]


def can_be_resumed(folder: Path) -> bool:
    """True if all that Spark reads of a checkpoint, to resume a query with one source, is whole.

    That is the query's id, the newest commit, and the newest two offsets; what the source has
    written there itself is not looked at. A checkpoint that does not exist is whole.
    """
    offsets, commits = logged_numbers(folder / "offsets"), logged_numbers(folder / "commits")
    metadata = folder / "metadata"
    if not metadata.is_file():
        return not offsets and not commits
    query = _as_json(metadata.read_bytes())
    if not isinstance(query, dict) or not query.get("id"):
        return False
    if commits:
        version, _, commit = (folder / "commits" / str(max(commits))).read_bytes().partition(b"\n")
        if version != VERSION.encode() or not isinstance(_as_json(commit or b"{}"), dict):
            return False
    newest = max(offsets, default=-1)
    planned = [read_planned_offset(folder, n) for n in (newest, newest - 1) if n >= 0]
    return all(offset is not None and _is_whole(offset) for offset in planned)


def _is_whole(offset: str) -> bool:
    """True unless an offset was cut: each is a JSON value, or the mark of a source without one."""
    return offset == _NO_OFFSET or _as_json(offset.encode()) is not None


def _as_json(text: bytes) -> Any:
    """The value; None if the text is none, or null."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def remove_unfinished_plan(folder: Path) -> None:
    """Remove what is left of the first plan of a query that was killed while it was written.

    Args:
        folder: The checkpoint; need not be there. No query may run over it.
    """
    offsets = folder / "offsets"
    if offsets.is_dir() and not logged_numbers(offsets):
        shutil.rmtree(offsets)
