"""Row files carry rows between this process and the JVM, as streams of Arrow, and are used again.

    with row_files() as files:     of nobody else in the block
        files.put(tables)
        size = …                   the JVM reads `prefix` + "0", "1", … and writes to "result"
        files.take(size)

To make, name and remove three files costs a millisecond on a disk, and each of these calls waits
for the interpreter where other threads compute; what is written over costs a few microseconds. The
socket of py4j would stall for 40 ms where it sends much.

Invariants:
    Files that somebody else has removed, as cleaners of temporary folders do, are made anew.
    No more than `_KEPT_BYTES` of a file are kept beyond its use.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa

from shardline.datasource.scratch_folder import ScratchFolder

__all__ = ["RowFiles", "batches_with_rows", "row_files"]

_KEPT_BYTES: Final = 1 << 20

_RESULT: Final = "result"

_free: Final[deque[RowFiles]] = deque()
_numbers: Final = count()
_folders: Final[list[ScratchFolder]] = []
_folder_lock: Final = threading.Lock()


class RowFiles:
    """Files for some tables, and for one that comes back. Used by one thread at a time."""

    def __init__(self, prefix: str) -> None:
        """Make the file of the result.

        Args:
            prefix: Of the files' paths, in a folder that is there.
        """
        self.prefix = prefix
        self._inputs: list[int] = []
        self._result = _open(prefix + _RESULT)

    def put(self, tables: Sequence[pa.Table]) -> None:
        """Write tables to the first files, one stream each."""
        for place, table in enumerate(tables):
            if place == len(self._inputs):
                self._inputs.append(_open(f"{self.prefix}{place}"))
            # In memory first: a stream is written in many small pieces.
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                for batch in batches_with_rows(table.to_batches()):
                    stream.write_batch(batch)
            _write(self._inputs[place], memoryview(sink.getvalue()))

    def take(self, size: int) -> pa.Table:
        """The table that has come back, in so many bytes: one stream after the other."""
        source = pa.BufferReader(os.pread(self._result, size, 0))
        found: list[pa.Table] = []
        while source.tell() < size:
            with pa.ipc.open_stream(source) as stream:
                found.append(stream.read_all())
        return pa.concat_tables(found)

    def are_there(self) -> bool:
        """False if one of them was removed: nobody else would find it."""
        return all(os.fstat(file).st_nlink for file in self._files())

    def shrink(self) -> None:
        """Give back the room of what was large."""
        for file in self._files():
            if os.fstat(file).st_size > _KEPT_BYTES:
                os.ftruncate(file, 0)

    def close(self) -> None:
        """Close them, and remove those that are there."""
        for file in self._files():
            os.close(file)
        for name in (_RESULT, *map(str, range(len(self._inputs)))):
            with suppress(OSError):
                Path(self.prefix + name).unlink()

    def _files(self) -> Sequence[int]:
        return (self._result, *self._inputs)


def batches_with_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Those that have rows: Spark takes one without, behind another one, for the end of all.

    There is such a batch in what was put together of several tables. (Spark's iterator over rows
    of Arrow batches looks into the next one where one has ended, and into none after it.)
    """
    return (batch for batch in batches if batch.num_rows)


@contextmanager
def row_files() -> Iterator[RowFiles]:
    """Files of nobody else in the block."""
    files = _take_free() or RowFiles(f"{_folder()}/{next(_numbers)}-")
    try:
        yield files
        files.shrink()
    except BaseException:
        # Whatever it was: the next ones are new.
        files.close()
        raise
    _free.append(files)


def _take_free() -> RowFiles | None:
    while True:
        try:
            files = _free.pop()
        except IndexError:
            return None
        if files.are_there():
            return files
        files.close()


def _folder() -> str:
    with _folder_lock:
        # A cleaner may have removed it; under its old name somebody else could make one.
        if not _folders or not _folders[-1].is_there():
            _folders.append(ScratchFolder("shardline-rows-"))
            atexit.register(_folders[-1].remove)
        return str(_folders[-1].path)


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _write(file: int, rows: memoryview) -> None:
    at = 0
    while at < len(rows):
        at += os.pwrite(file, rows[at:], at)
