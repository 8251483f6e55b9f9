"""Tells from a query's checkpoint which range of its sources a micro-batch covers.

Spark gives a sink the number of a micro-batch and nothing of what is in it. Numbers are taken
again when a checkpoint is rolled back by hand, restored from a copy or made anew, and then stand
for other rows. What a micro-batch covers is in the checkpoint, written before it runs:

    metadata                the query's id
    offsets/7               v1, metadata, then a line for each source: where micro-batch 7 ends
    offsets/6               where it starts
    sources/0/12            of a file source, whose offsets only count: the files that are number 12

Of `offsets/7` only the lines of the sources count. The clock, the watermark and the settings in its
metadata are other ones when the same range is planned again; a crash alone leaves the file as it
was. A source's line counts as JSON, since not every source keeps the order of its keys. A shard's
counts without the name of its hold, which a query that begins again makes up anew.

What cannot be read is unknown, and never an error: of a range that is not known nobody can tell
that it is another one, and the number decides alone, as it does for writers that say nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.shard.covered_range import of_query
from shardline.datasource.shard_source.offsets import Start, parse_offset
from shardline.datasource.shard_source.options import ShardOptions
from shardline.datasource.stores.open import canonical_url, open_objects

__all__ = ["BATCH_PROPERTY", "QUERY_PROPERTY", "Files", "checkpoint_files", "micro_batch_covers"]

_log = logging.getLogger(__name__)

QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the query that a job is run for."""

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local property with the number of the micro-batch."""

Files: TypeAlias = Callable[[str], bytes | None]
"""Reads a file of a checkpoint, named from its folder; None if there is none that can be read."""

_FILES_MAX: Final = 64
"""A micro-batch of a file source has one file of its log, or a few after a crash."""


def micro_batch_covers(query: str, number: int, files: Files | None) -> str:
    """What micro-batch `number` covers, as `shardline.datasource.shard.covered_range` has it.

    Args:
        query: The query's id; empty outside of one, which says nothing.
        number: As Spark counts.
        files: Of its checkpoint; None if that is not known.
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


def checkpoint_files(folder: str, options: ShardOptions) -> Files | None:
    """Reads the checkpoint at `folder`: on a local disk, or in the kind of store the shard is in.

    Elsewhere nothing here knows how to: the credentials are Hadoop's.
    """
    try:
        url, location = canonical_url(folder), canonical_url(options.location)
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


def _local_files(folder: Path) -> Files:
    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except OSError:
            return None

    return read


def _range(number: int, files: Files) -> list[str] | None:
    """Texts that together tell the range from every other one; None if not all could be read."""
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
    """The lines of the sources in a file of the offset log; None if it is none."""
    if log is None:
        return None
    version, *rest = log.decode().split("\n")
    if not version.startswith("v") or len(rest) < 2:  # noqa: PLR2004 - metadata, then sources
        return None
    return [_canonical(line) for line in rest[1:]]


def _canonical(line: str) -> str:
    """An offset in the one spelling that it has here; `name:offset` of a source with a name."""
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


def _listed_files(index: int, start: str, end: str, files: Files) -> list[str] | None:
    """What the numbers in the offsets of a file source stand for; empty of other sources."""
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
