"""Reads from a query's checkpoint the range of its sources that a micro-batch covers.

Spark gives a sink the number of a micro-batch and nothing about its rows. Numbers are used again
when a checkpoint is rolled back by hand, restored from a copy or made anew, and then stand for
other rows: a sink that went by numbers alone would drop those rows as a replay. The range of a
micro-batch is in the checkpoint, written before it runs:

    metadata                the query's id
    offsets/7               v1, metadata, then a line for each source: where micro-batch 7 ends
    offsets/6               where it starts
    sources/0/12            of a file source, whose offsets only count: the files that are number 12

Of `offsets/7` only the lines of the sources are compared. The clock, the watermark and the settings
in its metadata differ when the same range is planned again; a crash alone leaves the file as it
was. A source's line is compared as JSON, since not every source keeps the order of its keys; a
shard's without the name of its hold, which a query that begins again makes up anew.

A checkpoint that cannot be read is no error: the range is then unknown, and the number decides
alone, as it does for writers that set no range.
"""

from __future__ import annotations

import json
import logging
import os.path
import posixpath
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.offsets import Start, parse_offset
from shardline.datasource.shard.covered_range import of_query
from shardline.datasource.shard_source.options import ShardOptions
from shardline.datasource.stores.open import canonical_url, open_objects

__all__ = [
    "BATCH_PROPERTY",
    "QUERY_PROPERTY",
    "CheckpointReader",
    "checkpoint_files",
    "covered_by_micro_batch",
    "covered_by_running_batch",
]

_log = logging.getLogger(__name__)

QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the query that a job is run for."""

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local property with the number of the micro-batch."""

CheckpointReader: TypeAlias = Callable[[str], bytes | None]
"""Reads a file of a checkpoint, named from its folder; None if there is none that can be read."""

_FILES_MAX: Final = 64
"""A micro-batch of a file source has one file of its log, or a few after a crash."""


def covered_by_micro_batch(query: str, number: int, files: CheckpointReader | None) -> str:
    """The range of micro-batch `number`, in the form of `shardline.datasource.shard.covered_range`.

    Args:
        query: The query's id; empty outside of one, for which the range is unknown.
        number: Spark's number of the micro-batch.
        files: Reader of the query's checkpoint; None if its folder is not known.
    """
    if not query or files is None:
        return of_query(query, None)
    try:
        # A folder that was named by hand may be another query's.
        if json.loads(files("metadata") or b"{}").get("id") != query:
            return of_query(query, None)
        return of_query(query, _range(number, files))
    except (ValueError, AttributeError, TypeError):  # an edited checkpoint may hold anything
        return of_query(query, None)


def covered_by_running_batch(number: int, files: CheckpointReader) -> str:
    """The same where only the checkpoint says which query runs; "" if it does not.

    Over Spark Connect a function of `foreachBatch` writes from a process of its own, whose jobs do
    not have the properties of the query's.

    Args:
        number: What the write says is the number of its micro-batch.
        files: Reader of the checkpoint that the write names.
    """
    # Whatever else a number may be, it is the running micro-batch's if its end is the last one that
    # was written: before it runs, and before any later one is planned.
    if files(f"offsets/{number}") is None or files(f"offsets/{number + 1}") is not None:
        return ""
    try:
        query = json.loads(files("metadata") or b"{}").get("id")
    except (ValueError, AttributeError):
        return ""
    return covered_by_micro_batch(query, number, files) if isinstance(query, str) else ""


def checkpoint_files(folder: str, options: ShardOptions) -> CheckpointReader | None:
    """A reader of the checkpoint at `folder`; None if it cannot be read from here.

    It can on a local disk, and in a store of the shard's kind. For others only Hadoop has the
    credentials.
    """
    try:
        url, location = canonical_url(_as_hadoop_reads(folder)), canonical_url(options.location)
        scheme, _, path = url.partition("://")
        if scheme == "file":
            return _local_files(Path(path))
        if scheme == "memory" or scheme != location.partition("://")[0]:
            return None
        objects = open_objects(url, options.storage, clock=SystemClock(), ids=SystemIds())
    except (InvalidUsage, ImportError):
        return None

    def read(name: str) -> bytes | None:
        try:
            return objects.get(name)
        except ShardError:
            _log.warning("a checkpoint cannot be read", exc_info=True)
            return None

    return read


def _as_hadoop_reads(folder: str) -> str:
    """A folder without `..`, `.` and empty segments, taken out as Hadoop's `Path` does it.

    A location with `..` in it is refused; but it is Spark that reads the checkpoint, and so the
    folder is where Hadoop finds it.
    """
    scheme, separator, rest = folder.partition("://")
    if not separator:
        head, colon, path = folder.partition(":")
        if colon and head.lower() == "file":
            return f"file:{posixpath.normpath(path)}"
        return folder and os.path.abspath(folder)  # noqa: PTH100 - `..` as Hadoop does it, by the text alone
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}" + (posixpath.normpath(slash + path) if slash else "")


def _local_files(folder: Path) -> CheckpointReader:
    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except OSError:
            return None

    return read


def _range(number: int, files: CheckpointReader) -> list[str] | None:
    """Texts that together identify the range; None if not all could be read."""
    ended = _offsets(files(f"offsets/{number}"))
    begun = [] if number == 0 else _offsets(files(f"offsets/{number - 1}"))
    if begun is None or ended is None:
        return None
    texts = [*begun, "to", *ended]
    for index, end in enumerate(ended):
        start = begun[index] if index < len(begun) else ""
        listed = _listed_files(index, start, end, files)
        if listed is None:
            return None
        texts += listed
    return texts


def _offsets(log: bytes | None) -> list[str] | None:
    """The lines of the sources in a file of the offset log; None if it is not such a file."""
    if log is None:
        return None
    version, *rest = log.decode().split("\n")
    if not version.startswith("v") or len(rest) < 2:  # noqa: PLR2004 - metadata, then sources
        return None
    return [_canonical(line) for line in rest[1:]]


def _canonical(line: str) -> str:
    """An offset in one canonical spelling; `name:offset` for a source with a name."""
    for text in (line, line.partition(":")[2]):
        try:
            offset = json.loads(text)
        except ValueError:
            continue
        with suppress(InvalidUsage):  # it is of another source
            ours = parse_offset(offset)
            offset = offset if isinstance(ours, Start) else replace(ours, hold="").json()
        return line.removesuffix(text) + json.dumps(offset, sort_keys=True)
    return line


def _listed_files(index: int, start: str, end: str, files: CheckpointReader) -> list[str] | None:
    """The files that the numbers in a file source's offsets stand for; empty for other sources."""
    first, last = _log_offset(start), _log_offset(end)
    if last is None:
        return []
    numbers = range(-1 if first is None else first, last + 1)[1:]
    if len(numbers) > _FILES_MAX:
        return None
    texts = []
    for number in numbers:
        log = files(f"sources/{index}/{number}") or files(f"sources/{index}/{number}.compact")
        if log is None:
            return None
        texts += sorted(_entries(log, number))
    return texts


def _log_offset(offset: str) -> int | None:
    found: dict[str, Any] = json.loads(offset) if offset.startswith("{") else {}
    value = found.get("logOffset")
    return value if type(value) is int and len(found) == 1 else None


def _entries(log: bytes, number: int) -> Iterator[str]:
    """Entries of one number in a file source's log; a compacted one has those of others, too."""
    for line in log.decode().split("\n")[1:]:
        entry: dict[str, Any] = json.loads(line)
        if entry.get("batchId") == number:
            yield json.dumps(entry, sort_keys=True)
