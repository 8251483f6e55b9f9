"""Looks at parts on the local disk, of which Spark's reader compares the pages' checksums alone.

What follows the pages of a file says where they are and which of them a filter needs: damaged, it
can lose rows without a word. So its checksum is compared here before a plan names the file, once in
a process, and again if the file has changed. What is gone or damaged is left to a fetch by Arrow,
which says what has happened. Whenever Spark reads the file after that, the driver looks if it is
still the same one (`NativeRelations.java`).

On an object store, where a look is a request, nothing is compared: it keeps checksums of its own.
"""

from __future__ import annotations

import os
import zlib
from typing import BinaryIO, Final

from shardline.datasource.parts.part_file import crc32_of, footer_bytes
from shardline.datasource.shard.batch import Part

__all__ = ["is_intact", "is_local", "seen_file"]

_SCHEME: Final = "file:"

_SEEN_MAX: Final = 1 << 16

_seen: Final[dict[str, tuple[int, int]]] = {}
"""Files that were found intact: their number and time of change, by path."""


def is_local(root: str) -> bool:
    """True if a location, by its URL for Hadoop, is on the local disk."""
    return root.startswith(_SCHEME)


def is_intact(root: str, part: Part) -> bool:
    """True if the file of a part of a local location has its size, and the end that it should have.

    Args:
        root: The location's URL for Hadoop.
        part: A part that is not inline.
    """
    path = f"{root.removeprefix(_SCHEME)}/{part.key}"
    try:
        # Before the file is read: what changes meanwhile has another stamp, and is looked at again.
        found = os.stat(path)  # noqa: PTH116 - ten thousand parts
        stamp = (found.st_ino, found.st_mtime_ns)
        if found.st_size != part.size_bytes:
            return False
        if part.footer is None or _seen.get(path) == stamp:
            return True
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            intact = _has_its_end(file, part)
    except OSError:
        return False
    if intact:
        if len(_seen) >= _SEEN_MAX:
            _seen.clear()
        _seen[path] = stamp
    return intact


def seen_file(root: str, part: Part) -> str:
    """What tells the file of a part that was found intact from any other, as `File.seen` has it.

    Number and time of change when it was found intact; size and checksum of its end, by which a
    file of another number or time is known. Zeros stand for what nobody knows.
    """
    if part.footer is None:
        return "0 0 0 0"
    number, changed_ns = _seen.get(f"{root.removeprefix(_SCHEME)}/{part.key}", (0, 0))
    return f"{number} {changed_ns} {part.footer.size_bytes} {part.footer.crc32}"


def _has_its_end(file: BinaryIO, part: Part) -> bool:
    """Whether what follows the pages has the checksum that the part's description has."""
    assert part.footer is not None
    file.seek(-part.footer.size_bytes, os.SEEK_END)
    end = file.read()
    if zlib.crc32(end) != part.footer.crc32:
        return False
    if footer_bytes(end) < len(end) or part.crc32 is None:
        return True
    # Earlier versions took the checksum of the footer alone: their page index is in no other one
    # than that of the whole file.
    file.seek(0)
    return crc32_of(file) == part.crc32
